"""The plugin's reading along loads and unloads of the real kernel driver (4.03).

At each moment of a timeline the plugin reads, in one piece or while the driver changes. It never reports a fault that
no device has, and never knows a part of the devices.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from neuron_dra.core import catalogue
from neuron_dra.core.health import Health
from neuron_dra.emulation.simulated_driver import SimulatedDriver
from neuron_dra.node.hardware import helper
from neuron_dra.node.hardware.hardware import Hardware
from tests.support import captures
from tests.support.captures import Entry, Moment
from tests.support.fleet import clock
from tests.unit.test_captured_trees import simulated

HOLD_S: Final = 60.0
CUTS: Final = 6  # readings during each change, each cut at another place
OF_THE_DRIVER: Final = {"no-class-folder", "driver-loading"}
ECC_AT_S: Final = 47.0
REMOVED_AT_S: Final = 113.0
"""When device 0 of the Inferentia2 had ECC errors, and when device 1 was removed."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the plugin says after a reading: the devices, those that it calls unhealthy, and its findings.

    The reading began at `at_s` and ended at `until_s`.
    """

    at_s: float
    until_s: float
    is_loaded: bool
    devices: tuple[int, ...]
    unhealthy: tuple[str, ...]
    healthy: int
    findings: frozenset[str]


def expected(name: str) -> range:
    spec = catalogue.lookup((captures.tree(name)[captures.PRODUCT_NAME].text or "").strip())
    assert spec is not None
    return range(spec.device_count)


def seen(hardware: Hardware, moment: Moment, later: Moment, ids: range) -> Seen:
    states = [hardware.health_of(f"neuron-device-{i}") for i in ids] if hardware.known.is_set() else []
    return Seen(
        moment.at_s,
        later.at_s,
        moment.is_loaded,
        tuple(device.device_id for device in hardware.node.devices),
        tuple(state.name for state in states if state.status is Health.UNHEALTHY),
        sum(state.status is Health.HEALTHY for state in states),
        frozenset(finding.kind for finding in hardware.node.findings),
    )


def along(name: str, folder: Path, *, whole: bool) -> list[Seen]:
    """Return what the plugin says after each reading. Readings that are not `whole` are cut by the next change."""
    moments = list(captures.moments(name))
    dice = random.Random(name)
    (folder / "dev").mkdir()

    async def main() -> list[Seen]:
        hardware = Hardware(str(folder), HOLD_S)
        found = []
        for moment, after in itertools.pairwise([*moments, moments[-1]]):
            for switch_at in [0] if whole else dice.sample(range(1, 120), CUTS):
                later = moment if whole else after
                hardware.take(captures.read(moment.entries, later.entries, switch_at))
                found.append(seen(hardware, moment, later, expected(name)))
            await asyncio.sleep(max(0.0, after.at_s - moment.at_s))
        return found

    return clock.run(clock.VirtualLoop(), main())


def absent(name: str, at_s: float) -> set[int]:
    """Return the devices that were really absent: at load, or removed later."""
    if name == captures.LIFE:
        return {1} if at_s >= REMOVED_AT_S else set()
    return set(expected(name)) - set(captures.device_ids(captures.tree(name)))


def faulty(name: str, at_s: float) -> set[int]:
    """Return the devices that really had a fault; it lasts for the hold time."""
    has_ecc_errors = name == captures.LIFE and at_s >= ECC_AT_S
    return absent(name, at_s) | ({0} if has_ecc_errors else set())


@pytest.mark.parametrize("whole", [True, False], ids=["between changes", "during changes"])
@pytest.mark.parametrize("name", captures.timelines())
def test_load_and_unload_are_no_faults(name: str, whole: bool, tmp_path: Path) -> None:
    answers = along(name, tmp_path, whole=whole)
    every = set(captures.device_ids(captures.tree(name)))
    for answer in answers:
        missing = absent(name, answer.until_s)
        assert set(answer.unhealthy) <= {f"neuron-device-{i}" for i in faulty(name, answer.until_s)}, answer
        assert set(answer.devices) in (set(), every, every - missing), answer
        if not missing:
            assert not answer.findings - OF_THE_DRIVER - {"ultraserver-busy", "ultraserver-mode-empty"}, answer
    assert answers[-1].devices == tuple(sorted(every - absent(name, answers[-1].at_s)))


def test_driver_that_loads_again_has_healthy_devices_at_once(tmp_path: Path) -> None:
    """Device 0 had ECC errors before, and has to be well for the hold time."""
    answers = along("life-inf2", tmp_path, whole=True)
    loaded_at = [
        after.at_s for before, after in itertools.pairwise(answers) if after.is_loaded and not before.is_loaded
    ]
    by_time: Mapping[float, Seen] = {answer.at_s: answer for answer in answers}
    assert [by_time[at_s].healthy for at_s in loaded_at] == [6, 5]


def test_removed_device_is_missing(tmp_path: Path) -> None:
    last = along("life-inf2", tmp_path, whole=True)[-1]
    assert (last.unhealthy, last.findings) == (
        ("neuron-device-0", "neuron-device-1"),
        frozenset({"missing-device"}),
    )


PROBED_AS_REAL: Final = [
    name for name in captures.timelines() if not name.startswith(("trn3.48", "trn3e", captures.LIFE))
]
"""Without types that driver 2.26.5 does not know: the addresses of their PCI functions are those of the emulation."""


def changes(texts: Iterable[str | None]) -> list[str | None]:
    """Return the texts without repetitions, and without the moment in which the file is empty."""
    return [text for text, _ in itertools.groupby(text for text in texts if text not in (None, ""))]


def captured_load(name: str) -> tuple[list[int], list[str | None], list[str | None]]:
    """Return the devices in the order of their appearance, and the changes of two files, in a captured load."""
    found: list[int] = []
    modes: list[str | None] = []
    states: list[str | None] = []
    for moment in captures.moments(name):
        found += [device_id for device_id in captures.device_ids(moment.entries) if device_id not in found]
        for path, texts in ((f"{helper.CLASS}/ultraserver_mode", modes), (helper.INITSTATE, states)):
            entry = moment.entries.get(path)
            texts.append(entry.text if entry is not None else None)
    return found, changes(modes), changes(states)


def simulated_load(name: str, root: Path) -> tuple[list[int], list[str | None], list[str | None]]:
    node = simulated(name, root)
    driver = SimulatedDriver(node)
    driver.unload()
    found: list[int] = []
    modes: list[str | None] = []
    states: list[str | None] = []
    for step in driver.loading():
        found += [step.device_id] if step.what == "device" and step.device_id is not None else []
        modes.append((root / helper.CLASS / "ultraserver_mode").read_text())
        states.append((root / helper.INITSTATE).read_text())
    return found, changes(modes), changes(states)


@pytest.mark.parametrize("name", PROBED_AS_REAL)
def test_simulated_load_has_the_order_of_the_captured_one(name: str, tmp_path: Path) -> None:
    assert simulated_load(name, tmp_path) == captured_load(name)


def test_timeline_has_all_steps_of_a_load() -> None:
    """Control: the trees of the timeline are those of a load, in its order."""
    moments = list(captures.moments("trn2.48xlarge-2.26.5.0"))
    counts = [len(captures.device_ids(moment.entries)) for moment in moments]
    links = [_links(moment.entries) for moment in moments]
    assert sorted(set(counts)) == list(range(17))
    assert counts == sorted(counts)
    assert [moment.is_loaded for moment in moments] == sorted(moment.is_loaded for moment in moments)
    assert (links[-3:], any(links[:-3])) == ([set(), {"12, 1, 3, 4\n"}, {"12, 1, 3, 4\n"}], False)


def _links(entries: Mapping[str, Entry]) -> set[str]:
    entry = entries.get("sys/devices/virtual/neuron_device/neuron0/connected_devices")
    return {entry.text} - {"\n"} if entry is not None and entry.text else set()
