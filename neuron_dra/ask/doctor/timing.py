"""The limits of `neuron-dra doctor`. No flag changes them; docs/settings.md lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from neuron_dra.ask.read import timing as inspect_timing
from neuron_dra.core.timing import seconds
from neuron_dra.node import timing as node_timing


@dataclass(frozen=True, slots=True)
class DoctorTiming:
    """Of `neuron-dra doctor`."""

    kind_s: float = seconds(30.0, "limit of reading all objects of one kind")
    pod_s: float = seconds(120.0, "limit of the checks in the driver's pod of a node")

    # What hangs is a line, and not the end.
    check_s: float = seconds(30.0, "limit of each check of a node")
    hardware_s: float = seconds(10.0, "limit of a reading of the hardware")

    # A claim that is prepared meanwhile makes the files differ; a second look tells.
    again_s: float = seconds(2.0, "before files that differ are compared again")
    plugin_s: float = seconds(inspect_timing.DEFAULT_TIMING.call_s, "limit of each call for the plugin's state")
    socket_s: float = seconds(
        node_timing.DEFAULT_TIMING.liveness.call_s, "limit of each call that shows whether a socket answers"
    )


DEFAULT_TIMING: Final = DoctorTiming()
