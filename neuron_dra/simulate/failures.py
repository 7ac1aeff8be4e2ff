"""How an allocation can fail, kept apart: each has another cure."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FailureKind(enum.Enum):
    """What the failure means for the pod."""

    NO_SOLUTION = "no solution"  # this node has not what the claims ask for, now; another may have it
    NODE_ERROR = "node error"  # this node's slices are in no fit state; other nodes are still tried
    POD_ERROR = "pod error"  # the scheduler fails the pod on every node: the claims or classes must change
    GAVE_UP = "gave up"  # the search is too long; the real scheduler stops after 10 s
    UNSUPPORTED = "unsupported"  # Kubernetes can decide this, the simulator cannot


@dataclass(frozen=True, slots=True)
class Failure:
    """Why nothing was allocated; `reasons` are sentences for people, at least one."""

    kind: FailureKind
    reasons: tuple[str, ...]


class AllocationError(Exception):
    """Stops the search of one node."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
