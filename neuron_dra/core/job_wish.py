"""What the annotation of a job says that reserves its own UltraServers. Pure."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final

from neuron_dra.core import names, user_text

ANNOTATION: Final = f"{names.DRIVER}/ultraservers"
"""On a job: which UltraServers its pods need."""
QUEUE_ANNOTATION: Final = f"{names.DRIVER}/queue"
"""On a job: the LocalQueue from which its reservation gets quota."""
SIZES: Final = (1, 2, 4)
STRATEGIES: Final = ("NoOp", "RestartAll", "MigrateAffected", "ReplaceAffected")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Wish:
    """The content of the annotation; empty or 0 is what it does not say."""

    size: int
    instance_type: str = ""
    strategy: str = ""
    logical_neuron_core: int = 0
    template: str = ""
    priority_class: str = ""


class InvalidWish(ValueError):
    """The annotation cannot be read; the text says what to write."""


def wish(text: str) -> Wish:
    """Return the content of an annotation, such as "topologySize=4, failureStrategy=MigrateAffected".

    Raises InvalidWish.
    """
    text_by_name: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise InvalidWish(f"{user_text.shown(part.strip())}: write name=value, separated by commas")
        if name not in _READERS:
            near = difflib.get_close_matches(name, _READERS, n=1)
            if near:
                hint = f"did you mean {near[0]}?"
            else:
                hint = f"there are {', '.join(_READERS)}"
            raise InvalidWish(f"{user_text.shown(name)} is no part of it: {hint}")
        if name in text_by_name:
            raise InvalidWish(f"{name} is there twice")
        text_by_name[name] = value
    if "topologySize" not in text_by_name:
        raise InvalidWish("topologySize is missing: write topologySize=4, 2 or 1, the nodes of a group")
    return Wish(
        size=_number("topologySize", text_by_name["topologySize"], SIZES),
        instance_type=text_by_name.get("instanceType", ""),
        strategy=_strategy(text_by_name.get("failureStrategy", "")),
        logical_neuron_core=_number("logicalNeuronCore", text_by_name.get("logicalNeuronCore", "0"), (0, 1, 2)),
        template=_name("template", text_by_name.get("template", ""), "a ResourceClaimTemplate"),
        priority_class=_name("priorityClassName", text_by_name.get("priorityClassName", ""), "a PriorityClass"),
    )


_READERS: Final = (
    "topologySize",
    "instanceType",
    "failureStrategy",
    "logicalNeuronCore",
    "template",
    "priorityClassName",
)


def _number(name: str, text: str, allowed: tuple[int, ...]) -> int:
    if text not in map(str, allowed):
        shown = ", ".join(str(number) for number in allowed if number)
        raise InvalidWish(f"{name}={text[:20]}: write one of {shown}")
    return int(text)


def _strategy(text: str) -> str:
    if text and text not in STRATEGIES:
        raise InvalidWish(f"failureStrategy={text[:40]}: write one of {', '.join(STRATEGIES)}")
    return text


def _name(name: str, text: str, of: str) -> str:
    if text and not _NAME.fullmatch(text):
        raise InvalidWish(f"{name}={text[:60]}: write the name of {of}")
    return text
