"""What the plugin makes of a kernel driver that loads, leaves or is not loaded, over time (4.03)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Final

import pytest

from neuron_dra.core import kernel_driver, topology
from neuron_dra.core.facts import NodeLabels
from neuron_dra.core.kernel_driver import DriverState
from neuron_dra.emulation import simulated_node
from neuron_dra.emulation.simulated_driver import LoadStep, SimulatedDriver
from neuron_dra.emulation.simulated_files import change
from neuron_dra.emulation.simulated_node import INITSTATE
from neuron_dra.node.hardware import helper, sysfs
from neuron_dra.node.hardware.hardware import Hardware
from neuron_dra.node.hardware.reader import Overdue, Reader
from neuron_dra.node.hardware.sysfs import FileReading
from tests.support.fleet import clock

TYPE: Final = "trn1.32xlarge"
NAME: Final = "neuron-device-3"


@pytest.mark.parametrize(
    ("before", "after", "has_class", "state"),
    [
        ("live", "live", True, DriverState.LOADED),
        ("live", "live", False, DriverState.LOADED),
        ("", "", True, DriverState.LOADED),
        ("", "", False, DriverState.NOT_LOADED),
        ("coming", "coming", True, DriverState.LOADING),
        ("coming", "coming", False, DriverState.LOADING),
        ("going", "going", True, DriverState.CHANGING),
        ("coming", "live", True, DriverState.CHANGING),
        ("live", "going", True, DriverState.CHANGING),
        ("going", "", False, DriverState.CHANGING),
        ("", "coming", True, DriverState.CHANGING),
    ],
)
def test_state_of_the_driver(before: str, after: str, has_class: bool, state: DriverState) -> None:
    assert kernel_driver.state(before, after, has_class=has_class) is state


class CountingReader(Reader):
    """Reads in this process, and counts."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.readings = 0

    async def search(self, deadline_s: float, leave_out: Collection[str] = ()) -> FileReading:
        self.readings += 1
        return sysfs.read(helper.Source(), str(self._root), f"{self._root}/dev")


@pytest.fixture
def driver(tmp_path: Path) -> SimulatedDriver:
    return SimulatedDriver(simulated_node.write(tmp_path, TYPE))


def loading(driver: SimulatedDriver, devices: int) -> None:
    """Unload the driver, and load it until it has this number of devices; the load does not end."""
    driver.unload()
    shown = 0
    for step in driver.loading():
        shown += step.what == "device"
        if shown == devices:
            return


def told(root: Path, seconds: int, *, loads: bool = False) -> tuple[list[tuple[float, str, list[str]]], int]:
    """Return what the plugin says of a device and of the node, when that changes, and how often it read."""

    async def main() -> tuple[list[tuple[float, str, list[str]]], int]:
        reader = CountingReader(root)
        hardware = Hardware(str(root), 60.0, reader=reader)
        hardware.take(await reader.search(0.0))  # loaded
        if loads:
            loading(SimulatedDriver(simulated_node.SimulatedNode(root)), 5)
        reader.readings = 0
        polling = asyncio.create_task(hardware.poll())
        answers: list[tuple[float, str, list[str]]] = []
        for second in range(seconds):
            await asyncio.sleep(1)
            kinds = [finding.kind for finding in hardware.node.findings]
            answer = hardware.health_of(NAME).message, kinds
            if not answers or answers[-1][1:] != answer:
                answers.append((second, *answer))
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        return answers, reader.readings

    return clock.run(clock.VirtualLoop(), main())


def test_long_load_is_a_finding(driver: SimulatedDriver, tmp_path: Path) -> None:
    answers, readings = told(tmp_path, 400, loads=True)
    text = "the kernel driver is loading, 5 devices so far, for "
    durations = ["less than 10 s", "10 s", "20 s", "30 s", "1 min", "2 min", "3 min", "5 min"]
    assert [message for _, message, _ in answers] == [text + duration for duration in durations]
    assert [kinds for _, _, kinds in answers] == [[]] * 6 + [["driver-loading"]] * 2
    assert answers[6][0] in range(178, 183)
    assert readings in range(395, 405)  # each second


def test_loaded_driver_is_read_less_often(driver: SimulatedDriver, tmp_path: Path) -> None:
    """Control: only a driver that loads is read each second."""
    answers, readings = told(tmp_path, 400)
    assert answers == [(0, "", [])]
    assert readings in range(38, 43)


def test_unload_that_does_not_end_is_a_finding(driver: SimulatedDriver, tmp_path: Path) -> None:
    async def main() -> list[list[str]]:
        reader = CountingReader(tmp_path)
        hardware = Hardware(str(tmp_path), 60.0, reader=reader)
        hardware.take(await reader.search(0.0))
        change(tmp_path / INITSTATE, "going\n")
        kinds = []
        for _ in range(12):
            hardware.take(await reader.search(0.0))
            kinds.append([finding.kind for finding in hardware.node.findings])
            await asyncio.sleep(1)
        change(tmp_path / INITSTATE, "live\n")
        hardware.take(await reader.search(0.0))
        return [*kinds, [finding.kind for finding in hardware.node.findings]]

    assert clock.run(clock.VirtualLoop(), main()) == [[]] * 10 + [["driver-leaving"]] * 2 + [[]]


def test_election_that_does_not_end_is_a_finding(tmp_path: Path) -> None:
    node = simulated_node.write(tmp_path, "trn2u.48xlarge")
    node.busy()

    async def main() -> list[list[str]]:
        reader = CountingReader(tmp_path)
        hardware = Hardware(str(tmp_path), 60.0, reader=reader)
        kinds = []
        for begun_s in (0, 830, 20):
            await asyncio.sleep(begun_s)
            hardware.take(await reader.search(0.0))
            kinds.append([finding.kind for finding in hardware.node.findings])
        driver = SimulatedDriver(node)
        driver.unload()
        hardware.take(await reader.search(0.0))
        driver.load()
        node.busy()
        hardware.take(await reader.search(0.0))  # another election has begun
        kinds.append([finding.kind for finding in hardware.node.findings])
        return kinds

    assert clock.run(clock.VirtualLoop(), main()) == [[], [], ["ultraserver-busy"], []]


def test_labels_that_change_during_a_load_are_no_reading(driver: SimulatedDriver, tmp_path: Path) -> None:
    async def main() -> tuple[str, str | None]:
        reader = CountingReader(tmp_path)
        hardware = Hardware(str(tmp_path), 60.0, reader=reader)
        hardware.take(await reader.search(0.0))
        loading(driver, 5)
        hardware.take(await reader.search(0.0))
        hardware.label({"topology.k8s.aws/network-node-layer-1": "nn-1"})
        return hardware.health_of(NAME).status.value, hardware.node.labels.network_layers[0]

    assert clock.run(clock.VirtualLoop(), main()) == ("UNKNOWN", "nn-1")


def test_commands_say_that_the_driver_loads(driver: SimulatedDriver, tmp_path: Path) -> None:
    loading(driver, 5)
    node = topology.build(sysfs.read_node(tmp_path), NodeLabels())
    assert node.devices == ()
    assert [(finding.kind, finding.message.partition(".")[0]) for finding in node.findings] == [
        ("driver-loading", "the kernel driver is loading, 5 devices so far")
    ]


def test_loads_of_all_types_end_as_they_began(tmp_path: Path) -> None:
    """A load shows again what the node had before the unload."""
    for instance_type in ("inf1.24xlarge", "trn1.32xlarge", "trn2u.48xlarge", "trn3e.24xlarge", "trn2.3xlarge"):
        node = simulated_node.write(tmp_path, instance_type)
        before = sysfs.read_node(tmp_path)
        driver = SimulatedDriver(node)
        driver.unload()
        assert sysfs.read_node(tmp_path).driver_state is DriverState.NOT_LOADED
        steps: list[LoadStep] = list(driver.loading())
        assert sysfs.read_node(tmp_path) == before
        assert [step.what for step in steps].count("device") == len(before.devices)


@pytest.mark.parametrize("others", [("coming", "going"), ("coming", "coming", "going"), ("going", "coming")])
def test_loads_that_end_each_second_are_a_finding(
    driver: SimulatedDriver, tmp_path: Path, others: tuple[str, ...]
) -> None:
    """The driver fails to load, and something loads it again and again."""

    async def main() -> tuple[list[str], list[str]]:
        reader = CountingReader(tmp_path)
        hardware = Hardware(str(tmp_path), 60.0, reader=reader)
        hardware.take(await reader.search(0.0))
        kinds, texts = [], []
        for second in range(400):
            change(tmp_path / INITSTATE, f"{others[second % len(others)]}\n")
            hardware.take(await reader.search(0.0))
            kinds.append(",".join(finding.kind for finding in hardware.node.findings))
            texts.append(hardware.why_unknown)
            await asyncio.sleep(1)
        return kinds, texts

    kinds, texts = clock.run(clock.VirtualLoop(), main())
    assert set(kinds[:180]) == {""}
    assert set(kinds[182:]) == {"driver-loading"}
    assert all(texts)


class HangingReader(CountingReader):
    """From `hangs` on, no reading ends."""

    hangs = False

    async def search(self, deadline_s: float, leave_out: Collection[str] = ()) -> FileReading:
        if self.hangs:
            await asyncio.sleep(deadline_s)
            raise Overdue(helper.CLASS)
        return await super().search(deadline_s, leave_out)


@pytest.mark.parametrize("is_noticed", [True, False])
def test_reading_that_hangs_is_told_also_while_the_driver_leaves(
    driver: SimulatedDriver, tmp_path: Path, is_noticed: bool
) -> None:
    async def main() -> list[str]:
        reader = HangingReader(tmp_path)
        hardware = Hardware(str(tmp_path), 60.0, reader=reader)
        hardware.take(await reader.search(0.0))
        reader.hangs = True
        if is_noticed:
            change(tmp_path / INITSTATE, "going\n")
            await hardware.wait()  # as a claim does
        polling = asyncio.create_task(hardware.poll())
        await asyncio.sleep(60)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        return [finding.kind for finding in hardware.node.findings]

    assert clock.run(clock.VirtualLoop(), main()) == ["reading-hangs"]


def test_driver_that_loads_again_and_again_loses_no_device_and_no_fault(
    driver: SimulatedDriver, tmp_path: Path
) -> None:
    """Also with a part of the devices in every second reading: that part is never the node."""
    simulated_node.SimulatedNode(tmp_path).add_ecc(7)

    async def main() -> set[tuple[int, str, tuple[str, ...]]]:
        reader = CountingReader(tmp_path)
        hardware = Hardware(str(tmp_path), 60.0, reader=reader)
        hardware.take(await reader.search(0.0))
        answers = set()
        for _ in range(3):
            loading(driver, 5)
            hardware.take(await reader.search(0.0))
            answers.add((len(hardware.node.devices), *_states(hardware)))
            await asyncio.sleep(1)
            driver.unload()
            driver.load()
            hardware.take(await reader.search(0.0))
            answers.add((len(hardware.node.devices), *_states(hardware)))
            await asyncio.sleep(1)
        return answers

    faulty = "UNHEALTHY"
    assert clock.run(clock.VirtualLoop(), main()) == {(16, "UNKNOWN", (faulty,)), (16, "HEALTHY", (faulty,))}


def _states(hardware: Hardware) -> tuple[str, tuple[str, ...]]:
    return hardware.health_of(NAME).status.value, (hardware.health_of("neuron-device-7").status.value,)
