"""Conditions of a Node with which agents report faults of its hardware: which of them count, and what they say. Pure.

Agents are programs such as the EKS node monitoring agent and the node problem detector. What they write is only shown,
and compared with what an administrator has named; their times are not used, because they may be anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

READY: Final = "Ready"
STATUSES: Final = ("True", "False", "Unknown")
CONDITIONS_AT_MOST: Final = 8
REASON_CHARACTERS: Final = 64
MESSAGE_CHARACTERS: Final = 160
DEFAULT_TEXT: Final = "AcceleratedHardwareReady=False,NeuronHealth=True:NeuronHasError"
"""Those of the EKS node monitoring agent, and of the node problem detector in AWS's Neuron chart."""

_TYPE = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class FaultCondition:
    """A condition of a Node that means a fault: while it has `status`, and a reason that begins with `reason`."""

    kind: str
    status: str
    reason: str = ""

    def holds(self, condition: Mapping[str, Any]) -> bool:
        """Return True if this condition of a Node, of the same type, means a fault."""
        has_status = condition.get("status") == self.status
        return has_status and str(condition.get("reason") or "").startswith(self.reason)


def parse(text: str) -> tuple[FaultCondition, ...]:
    """Return the conditions of a text as `Type=Status[:ReasonPrefix],…`; none of an empty one. Raises ValueError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) > CONDITIONS_AT_MOST:
        raise ValueError(f"write at most {CONDITIONS_AT_MOST} conditions")
    conditions = [_condition(word) for word in words]
    kinds = [condition.kind for condition in conditions]
    if len({*kinds}) < len(kinds):
        raise ValueError("write each type of condition once")
    return tuple(conditions)


def _condition(word: str) -> FaultCondition:
    kind, _, status_and_reason = word.partition("=")
    status, colon, reason = status_and_reason.partition(":")
    if kind == READY:
        raise ValueError("leave out Ready, for which there is --node-failure-grace")
    if not _TYPE.fullmatch(kind) or status not in STATUSES or (colon and not _PREFIX.fullmatch(reason)):
        raise ValueError(f"write Type=Status or Type=Status:ReasonPrefix, with a status of {', '.join(STATUSES)}")
    return FaultCondition(kind, status, reason)


DEFAULT: Final = parse(DEFAULT_TEXT)


def faults(
    conditions: Iterable[Mapping[str, Any]], fault_conditions: Iterable[FaultCondition]
) -> Iterator[tuple[str, str]]:
    """Yield type and text of each of a Node's conditions that means a fault, in the order of `fault_conditions`."""
    by_kind = {str(condition.get("type")): condition for condition in conditions}
    for fault_condition in fault_conditions:
        condition = by_kind.get(fault_condition.kind)
        if condition is not None and fault_condition.holds(condition):
            yield fault_condition.kind, _text(fault_condition, condition)


def _text(fault_condition: FaultCondition, condition: Mapping[str, Any]) -> str:
    """Return what an agent says, for a message: one line of printable characters, and not a long one."""
    reason = _plain(condition.get("reason"), REASON_CHARACTERS)
    message = _plain(condition.get("message"), MESSAGE_CHARACTERS)
    details = ": ".join(part for part in (reason, message) if part)
    return f"{fault_condition.kind} is {fault_condition.status}" + (f", {details}" if details else "")


def _plain(text: object, most: int) -> str:
    """Return the beginning of a text that others wrote, without characters that change what surrounds it."""
    if not isinstance(text, str):
        return ""
    start = text[: 4 * most]  # the rest is not looked at
    texts = []
    for character in start:
        texts.append(character if character.isprintable() else " ")
    printable = "".join(texts)
    words = " ".join(printable.split())
    if len(words) <= most:
        return words
    return f"{words[: most - 1]}…"
