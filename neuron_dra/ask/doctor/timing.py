"""The limits of `neuron-dra doctor`. No flag changes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from neuron_dra.ask.read import timing as inspect_timing
from neuron_dra.node import timing as node_timing


@dataclass(frozen=True, slots=True)
class DoctorTiming:
    """Of `neuron-dra doctor`."""

    kind_s: float = 30.0  # limit of reading all objects of one kind
    pod_s: float = 120.0  # limit of the checks in the driver's pod of a node

    # What hangs is a line, and not the end.
    check_s: float = 30.0  # limit of each check of a node
    hardware_s: float = 10.0  # limit of a reading of the hardware

    # A claim that is prepared meanwhile makes the files differ; a second look tells.
    again_s: float = 2.0  # before files that differ are compared again
    plugin_s: float = inspect_timing.DEFAULT_TIMING.call_s  # limit of each call for the plugin's state

    # Limit of each call that shows whether a socket answers.
    socket_s: float = node_timing.DEFAULT_TIMING.liveness.call_s


DEFAULT_TIMING: Final = DoctorTiming()
