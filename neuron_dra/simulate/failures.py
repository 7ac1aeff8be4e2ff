"""The ways in which an allocation fails, or a selector. Each needs a different remedy."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FailureKind(enum.Enum):
    """What the failure means for the pod."""

    NO_SOLUTION = "no solution"  # this node lacks free devices for the claims; another node may have them
    NODE_ERROR = "node error"  # this node's slices are incomplete or invalid; the scheduler tries the other nodes
    POD_ERROR = "pod error"  # fails the pod on every node: its claims or classes must change
    GAVE_UP = "gave up"  # the simulator gave up on this node, or the scheduler of 1.34 and 1.35 does, after 10 s
    TIMED_OUT = "timed out"  # the scheduler of 1.36 and later stops after 10 s, whatever other nodes have
    UNSUPPORTED = "unsupported"  # Kubernetes can decide this, the simulator cannot


@dataclass(frozen=True, slots=True)
class Failure:
    """Why nothing was allocated. `reasons` has at least one sentence; `steps` are as in Allocated."""

    kind: FailureKind
    reasons: tuple[str, ...]
    steps: int = 0


class AllocationError(Exception):
    """Stops the search of one node."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class SelectorError(Exception):
    """A selector without a result. The scheduler fails the pod, whatever other nodes offer."""


class CompileError(SelectorError):
    """The API server rejects the expression."""


class EvaluationError(SelectorError):
    """The expression failed on a device, for example because an attribute is absent."""


class UnsupportedError(SelectorError):
    """Kubernetes supports this, the simulator does not: the result is unknown, which is not "no match"."""
