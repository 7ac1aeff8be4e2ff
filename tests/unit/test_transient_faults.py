"""A fault that is over leaves nothing behind; a word that we do not know is never good."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuron_dra.core import health
from neuron_dra.core.facts import DeviceFacts
from neuron_dra.core.health import Health
from neuron_dra.emulation import simulated_node
from neuron_dra.emulation.simulated_node import CLASS, DEVICES, SimulatedNode
from neuron_dra.node.hardware import helper, sysfs
from neuron_dra.node.hardware.hardware import Hardware
from tests.support.fleet import clock

HOLD_S: Final = 60.0
PERIOD_S: Final = 10.0
TYPE: Final = "trn2.3xlarge"
NAME: Final = "neuron-device-0"
Change = Callable[[SimulatedNode], Any]


def _renamed(path: str, new: str) -> Change:
    return lambda node: (node.root / path).rename(node.root / new)


FAULTS: Final[dict[str, tuple[Change, Change]]] = {
    "device": (lambda node: node.remove_device(0), lambda node: node.restore_device(0)),
    "file": (lambda node: node.remove_device_file(0), lambda node: node.restore_device(0)),
    "ecc": (lambda node: node.add_ecc(0), lambda node: node.add_ecc(0, count=-1)),
    "invalid": (lambda node: node.set_reset_state(0, 2), lambda node: node.set_reset_state(0, 1)),
    "resetting": (lambda node: node.set_reset_state(0, 0), lambda node: node.set_reset_state(0, 1)),
    "component": (
        lambda node: node.write_unhealthy_components(0, "a-new Word\n"),
        lambda node: node.write_unhealthy_components(0, "\n"),
    ),
    "busy": (
        lambda node: node.write_unhealthy_components(0, "busy\n"),
        lambda node: node.write_unhealthy_components(0, "\n"),
    ),
    "class": (_renamed(CLASS, f"{CLASS}_gone"), _renamed(f"{CLASS}_gone", CLASS)),
    "all": (_renamed("sys", "gone"), _renamed("gone", "sys")),
    "moved": (
        _renamed(f"{DEVICES}/neuron0/stats", f"{DEVICES}/neuron0/elsewhere"),
        _renamed(f"{DEVICES}/neuron0/elsewhere", f"{DEVICES}/neuron0/stats"),
    ),
    "pci": (_renamed("sys/bus", "sys/bus_gone"), _renamed("sys/bus_gone", "sys/bus")),
}
"""How each fault begins and ends."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


def state(hardware: Hardware) -> tuple[Any, ...]:
    """Return all that later readings and the slices depend on."""
    return hardware.facts, hardware.node, dict(hardware._watch), hardware.health_of(NAME), hardware.device_files


def run(root: Path, faults: list[tuple[str, int]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the state before the faults, each of which lasts for a number of readings, and after the hold time."""

    def look(hardware: Hardware) -> None:
        hardware.take(sysfs.read(helper.Source(), str(root), f"{root}/dev"))

    async def main() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        hardware = Hardware(str(root), HOLD_S)
        look(hardware)
        before = state(hardware)
        for fault, readings in faults:
            begin, end = FAULTS[fault]
            begin(SimulatedNode(root))
            for _ in range(readings):
                await asyncio.sleep(PERIOD_S)
                look(hardware)
            end(SimulatedNode(root))
        for _ in range(int(HOLD_S / PERIOD_S) + 1):
            await asyncio.sleep(PERIOD_S)
            look(hardware)
        return before, state(hardware)

    return clock.run(clock.VirtualLoop(), main())


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(FAULTS)), st.integers(1, 9)), min_size=1, max_size=3))
def test_transient_faults_leave_no_state(root: Path, faults: list[tuple[str, int]]) -> None:
    shutil.rmtree(root)
    simulated_node.write(root, TYPE)
    before, after = run(root, faults)
    assert before[3].status is Health.HEALTHY
    assert after == before


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(min_size=1, max_size=80).filter(lambda text: text.strip(" \t\r\n\x0b\x0c\x1c\x1d\x1e\x1f\x85,;") != ""))
def test_word_that_nobody_knows_is_never_healthy(text: str) -> None:
    """The list of components may have any words, in any form, on several lines."""
    told = sysfs._components(text.encode().decode("ascii", errors="replace"))
    device = DeviceFacts(0, reset_state=1, unhealthy_components=told)
    judged = health.judged(NAME, [0], health.observe({}, [device], [0], 0.0, HOLD_S))
    assert judged.status is (Health.HEALTHY if text.strip() == "busy" else Health.UNHEALTHY), (text, told)
