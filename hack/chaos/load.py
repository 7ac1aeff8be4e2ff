"""Simulated load for the chaos run, and the check that `top` attributes each counter to the pod that has the device.

Device d has 2^d times as much of everything as device 0. So a sum names the devices that were added.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hack.chaos.checks import DEVICES, PLAIN, Run, note_holders
from neuron_dra.emulation import simulated_load
from neuron_dra.emulation.simulated_files import change
from neuron_dra.emulation.simulated_node import SimulatedNode

UNIT = 4096  # bytes of memory of device 0
TICK_S = 0.25
INTERVAL_S = 3  # between the two readings of top
TICKS_NEEDED = 6  # between the readings, or their rates are too coarse to compare
SKEW = 1.6  # of rates, because a busy node is not read in one moment; another device's rate differs by 2 or more
MORE = {  # by counter: its increase on device 0 in a tick
    "status/success": 1,
    "status/timeout": 2,
    "other_info/flop_count": 1000,
}
RATES = {"executionsPerSecond": 1, "errorsPerSecond": 2, "flopsPerSecond": 1000}


def core_of(device_id: int) -> int:
    """Return the physical core of a device that has the load."""
    return device_id % 8


def hardware(run: Run) -> list[SimulatedNode]:
    """Return the hardware of the nodes that have the load."""
    return [SimulatedNode(run.bed.parts.node(name).hardware_dir) for name in sorted(PLAIN)]


def set_load(run: Run) -> None:
    """Set what does not change: memory, power and corrected errors of each device."""
    for node in hardware(run):
        for device_id in range(DEVICES):
            size = UNIT << device_id
            simulated_load.set_core(
                node, device_id, core_of(device_id), memory={"tensors": size, "constants": 2 * size}
            )
            power = float(device_id + 1)
            simulated_load.set_device(node, device_id, power=(0, 100, power), host_memory={"dma_buffers": size})
            change(node.device_path(device_id, "stats/hardware/mem_ecc_corrected"), f"{1 << device_id}\n")


def raise_load(run: Run) -> None:
    """Raise the counters until the run stops; the files are rewritten in place, in one write, as readers need."""
    nodes, ticks = hardware(run), 0
    while not run.stop.wait(TICK_S):
        ticks += 1
        for node in nodes:
            for device_id in range(DEVICES):
                stats = node.folder(device_id) / f"neuron_core{core_of(device_id)}/stats"
                for name, step in MORE.items():
                    with contextlib.suppress(FileNotFoundError), (stats / name / "total").open("r+b") as file:
                        file.write(b"%020d\n" % ((ticks * step) << device_id))


def look_at_top(run: Run, node: str) -> None:
    """Check that `top` gives each pod the counters of the devices that it has. Each pod has one claim in its life."""
    note_holders(run, node)
    done = run.bed.neuron_dra("top", node, "--interval", str(INTERVAL_S), "-o", "json")
    rows = json.loads(done.stdout)["usage"] if done.returncode == 0 else []
    note_holders(run, node)
    if not rows:
        run.note(f"top {node}, exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    run.counts["readings of top" if rows else "readings of top that failed"] += 1
    for row in rows:
        had = run.held.get((node, row["pod"]), set())
        run.counts["devices attributed by top"] += len(row["devices"]) if row["pod"] else 0
        if row["pod"] and not {*row["devices"]} <= had:
            run.violated(
                f"top attributes devices {row['devices']} of {node} to pod {row['pod']}, which had {sorted(had)}"
            )
    rates = compared(rows)
    run.counts["rates compared by top"] += len(rates)
    for text in (*wrong_counters(rows), *wrong_rates(rates)):
        run.violated(f"top {node}: {text}")


def wrong_counters(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how the counters of the rows of a node differ from those of the rows' devices."""
    wrong = []
    for row in rows:
        whole = units(row)
        power = sum(device_id + 1 for device_id in row["devices"]) / len(row["devices"]) / 100
        want = {
            "memory": {"constants": 2 * UNIT * whole, "tensors": UNIT * whole},
            "hostMemoryBytes": {"dma_buffers": UNIT * whole},
            "eccErrors": whole,
            "power": round(power, 4),
        }
        seen = {
            "memory": {name: size for name, size in row["memoryBytes"].items() if size},
            **{name: row[name] for name in ("hostMemoryBytes", "eccErrors", "power")},
        }
        if seen != want:
            wrong.append(f"pod {row['pod'] or 'none'}, devices {row['devices']}: {seen}, not {want}")
    all_devices = sorted(device_id for row in rows for device_id in row["devices"])
    if rows and all_devices != list(range(DEVICES)):
        wrong.append(f"the rows have the devices {all_devices}")
    return wrong


def wrong_rates(rates: Sequence[tuple[str, float]]) -> list[str]:
    """Return which rates differ from the first by more than the moment of reading explains."""
    first = rates[0][1] if rates else 0.0
    return [
        f"{what} is {rate:.2f} ticks/s, of others {first:.2f}"
        for what, rate in rates
        if not first / SKEW < rate < first * SKEW
    ]


def units(row: Mapping[str, Any]) -> int:
    """Return the load of all devices of a row, in those of device 0."""
    return sum(1 << device_id for device_id in row["devices"])


def compared(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return the rates of the rows in ticks per second, which are equal but for the moment in which each is read."""
    found: list[tuple[str, float]] = []
    for row in rows:
        whole = units(row)
        found.extend(
            (f"{name} of {row['pod'] or 'no pod'} with {row['devices']}", row[name] / whole / unit)
            for name, unit in RATES.items()
            if row[name] is not None
        )
    return found if found and max(rate for _, rate in found) * INTERVAL_S >= TICKS_NEEDED else []
