"""`neuron-dra fake-node`: loads and unloads of the kernel driver, and what was wrong with a device (4.03)."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dra.cli import main
from neuron_dra.core.facts import DeviceFacts, NodeFacts
from neuron_dra.core.kernel_driver import DriverState
from neuron_dra.emulation import simulated_node
from neuron_dra.emulation.simulated_driver import LoadTiming, SimulatedDriver, plan
from neuron_dra.errors import NeuronDraError
from neuron_dra.node.hardware import sysfs

QUICK = ("--probe-seconds", "0.001")


def fake_node(root: Path, *arguments: str) -> NodeFacts:
    """Run the command on a node, and return what the plugin reads of it."""
    assert main(["fake-node", "--root", str(root), *arguments]) == 0
    return sysfs.read_node(root)


def ids(facts: NodeFacts) -> list[int]:
    return [device.device_id for device in facts.devices]


def device(root: Path, device_id: int) -> DeviceFacts:
    return next(each for each in sysfs.read_node(root).devices if each.device_id == device_id)


def test_unload_and_load_end_with_the_same_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = fake_node(tmp_path, "--instance-type", "inf2.24xlarge")
    assert fake_node(tmp_path, "--unload").driver_state is DriverState.NOT_LOADED
    assert list((tmp_path / "dev").iterdir()) == []
    assert not (tmp_path / "sys/class/neuron_device").exists()
    assert not (tmp_path / "sys/module/neuron").exists()
    assert fake_node(tmp_path, "--loading", *QUICK) == before
    assert fake_node(tmp_path, "--loading", *QUICK, "--silent", "3:0.01") == before
    steps = [line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [step for step in steps if step.startswith("device")] == [f"device {n}" for n in range(6)] * 2


def test_folders_that_a_node_mounts_stay(tmp_path: Path) -> None:
    fake_node(tmp_path, "--instance-type", "inf2.24xlarge")
    folders = [tmp_path / path for path in (simulated_node.CLASS, simulated_node.DEVICES, simulated_node.MODULE)]
    before = [folder.stat().st_ino for folder in folders]
    assert fake_node(tmp_path, "--unload", "--keep-folders").driver_state is DriverState.NOT_LOADED
    assert [list(folder.iterdir()) for folder in folders] == [[], [], []]
    assert len(fake_node(tmp_path, "--loading", "--keep-folders", *QUICK).devices) == 6
    assert [folder.stat().st_ino for folder in folders] == before


@pytest.mark.parametrize(
    "how", [("--missing", "2"), ("--loading", *QUICK, "--missing", "2")], ids=["written", "loaded"]
)
def test_device_that_is_missing_at_load_empties_all_tables(tmp_path: Path, how: tuple[str, ...]) -> None:
    facts = fake_node(tmp_path, "--instance-type", "inf2.24xlarge", *how)
    assert ids(facts) == [0, 1, 3, 4, 5]
    assert {each.connected for each in facts.devices} == {()}
    assert len(fake_node(tmp_path, "--instance-type", "inf2.24xlarge").devices) == 6


def test_load_that_was_broken_off_can_be_repeated(tmp_path: Path) -> None:
    before = fake_node(tmp_path, "--instance-type", "trn1.32xlarge")
    driver = SimulatedDriver(simulated_node.SimulatedNode(tmp_path))
    driver.unload()
    loading = driver.loading()
    for _ in range(12):
        next(loading)
    assert sysfs.read_node(tmp_path).driver_state is DriverState.LOADING
    assert fake_node(tmp_path, "--loading", *QUICK) == before


@pytest.mark.parametrize(
    ("what", "serial", "counters"), [("firmware:1", "", (0, 0)), ("ones:1", "f" * 16, (65535, 30))]
)
def test_dead_firmware_is_broken_and_repaired(
    tmp_path: Path, what: str, serial: str, counters: tuple[int, int]
) -> None:
    fake_node(tmp_path, "--instance-type", "inf2.24xlarge", "--break", "ecc:1")
    before = device(tmp_path, 1)
    fake_node(tmp_path, "--break", what)
    dead = device(tmp_path, 1)
    assert (dead.serial, dead.reset_state) == (serial, before.reset_state)
    assert (dead.sram_ecc_uncorrected, dead.mem_ecc_uncorrected) == counters
    fake_node(tmp_path, "--repair", what)
    assert device(tmp_path, 1).serial == before.serial
    assert device(tmp_path, 1).mem_ecc_uncorrected == 0


def test_failed_reset_is_counted_by_each_core(tmp_path: Path) -> None:
    fake_node(tmp_path, "--instance-type", "trn1.2xlarge", "--statistics", "--break", "reset:0")
    counts = sorted(
        (tmp_path / simulated_node.DEVICES).glob("neuron0/neuron_core*/stats/other_info/reset_fail_count/*")
    )
    assert [path.read_text() for path in counts] == ["1\n"] * 4  # of two cores, present and total


def test_pair_has_modes_and_numbers_of_two_nodes(tmp_path: Path) -> None:
    pair = ("--node-id", "1", "--nodes", "2", "--server-id", "5a7b1c2d3e4f6070")
    read = fake_node(tmp_path, "--instance-type", "trn2u.48xlarge", *pair).ultraserver
    assert (read.modes, read.node_id_2, read.server_id_2) == ((3, 4), 1, "5a7b1c2d3e4f6070")
    with pytest.raises(NeuronDraError, match="--node-id 2: write 0 or 1"):
        simulated_node.write(tmp_path, "trn2u.48xlarge", node_id=2, nodes=2)


def test_missing_device_must_be_one_of_the_type(tmp_path: Path) -> None:
    with pytest.raises(NeuronDraError, match=r"--missing 7: inf2\.24xlarge has 6 devices"):
        simulated_node.write(tmp_path, "inf2.24xlarge", missing=[7])


def test_silent_device_holds_up_the_later_ones() -> None:
    steps = plan([0, 1, 2], LoadTiming(0.1, 2.0, 0.5), {1: 120.0}, elects=False, is_stored=False)
    shown = {step.device_id: step.at_s for step in steps if step.what == "device"}
    assert {device_id: round(at_s) for device_id, at_s in shown.items()} == {0: 2, 1: 124, 2: 126}
    assert [step.what for step in steps][-2:] == ["live", "reset"]
