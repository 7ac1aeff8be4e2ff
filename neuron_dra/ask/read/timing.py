"""The limits of the commands that read plugins. No flag changes them; docs/settings.md lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from neuron_dra.core.timing import seconds


@dataclass(frozen=True, slots=True)
class InspectTiming:
    """Of `neuron-dra inspect` and `neuron-dra top`."""

    call_s: float = seconds(15.0, "limit of each call to the plugin's socket")
    counters_s: float = seconds(15.0, "limit of reading the counters of a node")
    fleet_s: float = seconds(60.0, "limit of reading the counters of all nodes once")


DEFAULT_TIMING: Final = InspectTiming()
