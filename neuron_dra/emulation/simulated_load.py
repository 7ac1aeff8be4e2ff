"""Counters of a simulated node's devices and cores, as the kernel driver writes them for running processes."""

from __future__ import annotations

from collections.abc import Mapping

from neuron_dra.core import telemetry
from neuron_dra.emulation.simulated_files import change, put
from neuron_dra.emulation.simulated_node import SimulatedNode


def set_core(
    node: SimulatedNode,
    device_id: int,
    core: int,
    *,
    busy_us: int = 0,
    flops: int = 0,
    results: Mapping[str, int] | None = None,
    memory: Mapping[str, int] | None = None,
) -> None:
    """Set the totals of a physical core; results and categories of memory that are not given become 0."""
    folder = f"neuron_core{core}/stats"
    values = {
        f"{folder}/other_info/nc_time_in_use/total": busy_us,
        f"{folder}/other_info/flop_count/total": flops,
        **{f"{folder}/status/{name}/total": (results or {}).get(name, 0) for name in telemetry.RESULTS},
        **{f"{folder}/memory_usage/device_mem/{name}/total": (memory or {}).get(name, 0) for name in telemetry.MEMORY},
    }
    for path, value in values.items():
        _set(node, device_id, path, f"{value}\n")


def set_device(
    node: SimulatedNode,
    device_id: int,
    *,
    power: tuple[float, float, float] | None = None,
    host_memory: Mapping[str, int] | None = None,
) -> None:
    """Set a device's power (percent: minimum, maximum, average of the last minute) and host memory (bytes)."""
    sample = "POWER_STATUS_NO_DATA,0,0.00,0.00,0.00"
    if power is not None:
        sample = "POWER_STATUS_VALID,1789180860," + ",".join(f"{percent:.2f}" for percent in power)
    _set(node, device_id, "stats/power/utilization", f"{sample}\n")
    for name in telemetry.HOST_MEMORY:
        size = (host_memory or {}).get(name, 0)
        _set(node, device_id, f"stats/memory_usage/host_mem/{name}/total", f"{size}\n")


def _set(node: SimulatedNode, device_id: int, path: str, text: str) -> None:
    file = node.folder(device_id) / path
    if file.exists():
        change(file, text)
    else:
        put(file, text, 0o644)
