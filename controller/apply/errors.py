"""Errors in decisions about single objects, logged once."""

from __future__ import annotations

import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)


class Errors:
    """What was logged of the last decision. `text` is the message of each line."""

    def __init__(self, text: str = "an object could not be decided about") -> None:
        self._text = text
        self._reported: dict[str, str] = {}  # by object

    def report(self, errors: Mapping[str, Exception]) -> None:
        """Log the errors that are new, by object."""
        for name, err in errors.items():
            if self._reported.get(name) != repr(err):
                log.error(self._text, extra={"object": name}, exc_info=err)
        self._reported = {name: repr(err) for name, err in errors.items()}
