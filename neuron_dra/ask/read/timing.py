"""The waits of the commands that read plugins or watch a cluster. No flag changes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class InspectTiming:
    """Of `neuron-dra inspect` and `neuron-dra top`."""

    call_s: float = 15.0  # limit of each call to the plugin's socket
    counters_s: float = 15.0  # limit of reading the counters of a node
    fleet_s: float = 60.0  # limit of reading the counters of all nodes once


DEFAULT_TIMING: Final = InspectTiming()


@dataclass(frozen=True, slots=True)
class WatchedTiming:
    """Of a cluster that is watched."""

    look_s: float = 5.0  # interval at which the API server is asked whether it answers
    again_s: float = 30.0  # after this long, a kind that may not be read is tried again
    gather_s: float = 0.1  # changes in quick succession arrive together, up to this much later


DEFAULT_WATCHED_TIMING: Final = WatchedTiming()
