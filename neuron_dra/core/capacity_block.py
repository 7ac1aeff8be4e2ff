"""The end of a node's EC2 capacity block, as an annotation of the Node says. Pure."""

from __future__ import annotations

import datetime
import re
from typing import Final

ANNOTATION: Final = "neuron.aws.com/capacity-block-end"
"""The default name of the annotation. An admission policy restricts who may write it."""

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_TIME: Final = re.compile(r"(20\d\d)-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


def name(text: str) -> str:
    """Return the name of an annotation, empty for none. Raises ValueError, which says what to write."""
    if text and not _NAME.fullmatch(text):
        raise ValueError("write the name of an annotation such as example.com/capacity-block-end, or nothing")
    return text


def end(text: str) -> datetime.datetime:
    """Return when a block ends. Raises ValueError, which says what to write."""
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    except ValueError:
        raise ValueError("write a time of this century such as 2026-12-01T11:30:00Z") from None
