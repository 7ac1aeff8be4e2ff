"""Emulation mode: the plugin simulates the hardware that it reads."""

from pathlib import Path

import pytest

from neuron_dra import cli, settings
from neuron_dra.core.facts import Unread
from neuron_dra.emulation import mode
from neuron_dra.emulation.simulated_node import SimulatedNode
from neuron_dra.errors import SettingsError
from neuron_dra.node.boot import boot_id
from neuron_dra.node.hardware import sysfs
from neuron_dra.settings import PluginSettings


@pytest.fixture
def loaded(tmp_path: Path) -> settings.PluginSettings:
    (tmp_path / "boot_id").write_text("first-boot\n")
    return settings.load(
        {"node_name": "a", "kubelet_plugins_directory_path": str(tmp_path), "boot_id_file": str(tmp_path / "boot_id")},
        {"NEURON_DRA_DRIVER_EMULATION_MODE": "trn2u"},
    )


def stamps(root: str) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in sorted(Path(root).rglob("*"))}


def emulated_by(loaded: PluginSettings) -> PluginSettings:
    """Return the settings of a plugin that ended without an error."""
    with cli._emulated(loaded) as emulated:
        return emulated


def test_trn2u_emulates_an_ultraserver_node(loaded: PluginSettings) -> None:
    emulated = emulated_by(loaded)
    read = sysfs.read_node(Path(emulated.host_root))
    assert read.product_name == "trn2u.48xlarge"
    assert len(read.devices) == 16
    assert all(device.device_file for device in read.devices)


def test_restart_writes_no_hardware(loaded: PluginSettings) -> None:
    first = emulated_by(loaded)
    before = stamps(first.host_root)
    again = emulated_by(loaded)
    assert again == first
    assert stamps(first.host_root) == before
    assert boot_id(first) == boot_id(again) == "first-boot"


def test_boot_id_is_the_machines(loaded: PluginSettings, tmp_path: Path) -> None:
    (tmp_path / "boot_id").unlink()
    emulated = emulated_by(loaded)
    assert boot_id(emulated) == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_machine_reboot_keeps_the_hardware(loaded: PluginSettings, tmp_path: Path) -> None:
    emulated = emulated_by(loaded)
    SimulatedNode(emulated.host_root).remove_device(4)
    (tmp_path / "boot_id").write_text("second-boot\n")
    emulated = emulated_by(loaded)
    assert boot_id(emulated) == "second-boot"
    (tmp_path / "boot_id").unlink()
    assert boot_id(emulated) == "second-boot"
    assert 4 not in SimulatedNode(emulated.host_root).device_ids()


def test_a_restart_repairs_nothing(loaded: PluginSettings) -> None:
    emulated = emulated_by(loaded)
    SimulatedNode(emulated.host_root).break_link(0, 1)
    emulated_by(loaded)
    connected = sysfs.read_node(Path(emulated.host_root)).devices[0].connected
    assert not isinstance(connected, Unread)
    assert 1 not in connected


def test_changed_type_is_rewritten(tmp_path: Path) -> None:
    mode.prepare(tmp_path, "trn2u", "b")
    mode.prepare(tmp_path, "trn1.2xlarge", "b")
    node = SimulatedNode.found(tmp_path)
    assert (node.instance_type, node.device_ids(), node.boot_id) == ("trn1.2xlarge", [0], "b")


def test_incomplete_hardware_is_rewritten(tmp_path: Path) -> None:
    mode.prepare(tmp_path, "trn2.48xlarge", "b")
    (tmp_path / ".fake-node").unlink()
    SimulatedNode(tmp_path).remove_device(3)
    mode.prepare(tmp_path, "trn2.48xlarge", "b")
    assert SimulatedNode.found(tmp_path).device_ids() == list(range(16))


@pytest.mark.parametrize(
    ("wanted", "name"), [("trn2u", "trn2u.48xlarge"), ("trn1", "trn1.32xlarge"), ("inf2.24xlarge",) * 2]
)
def test_a_family_stands_for_its_largest_type(wanted: str, name: str) -> None:
    assert mode.instance_type(wanted).name == name


@pytest.mark.parametrize(
    ("wanted", "hint"), [("trn2.84xlarge", "did you mean trn2.48xlarge"), ("gpu", "write one such as trn2.48xlarge")]
)
def test_unknown_type_is_rejected_with_a_hint(tmp_path: Path, wanted: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=hint):
        mode.prepare(tmp_path, wanted, "b")


def test_unwritable_folder_is_a_settings_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"--emulation-mode trn2u: .*file"):
        mode.prepare(tmp_path / "file", "trn2u", "b")
