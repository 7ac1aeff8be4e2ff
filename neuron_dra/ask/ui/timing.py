"""The waits of `neuron-dra ui`. No flag changes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class UiTiming:
    """Of the page's server."""

    between_s: float = 0.5  # the least time between two updates of the page
    alive_s: float = 5.0  # a page that nothing changes for is told this often that the server is there
    head_s: float = 10.0  # limit for the head of a request, and for a connection without one
    stop_s: float = 1.0  # limit for the end of open connections at the end of the command


DEFAULT_TIMING: Final = UiTiming()
