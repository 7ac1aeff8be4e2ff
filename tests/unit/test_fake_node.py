"""The simulated node: the kernel driver's files, including quirks, and faults and repairs."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuron_dra.core import catalogue
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.emulation import simulated_files, simulated_node
from neuron_dra.emulation.simulated_node import SimulatedNode, write
from neuron_dra.errors import NeuronDraError

ZEROS = "0" * 16
SERVER = "5a7b1c2d3e4f6070"
TRN2_FILES = {"node_id_2", "node_id_4", "server_id_2", "server_id_4", "ultraserver_mode"}
TRN3_FILES = {"node_id", "node_cnt", "reservation_id", "ultraserver_mode"}
NEW_FILES = {"hbm_7200_capable", "current_perf_profile"}


def tree(root: Path) -> dict[str, tuple[int, int, str | bytes]]:
    """Return every path with its mode, device number and content or target."""
    result: dict[str, tuple[int, int, str | bytes]] = {}
    for path in sorted(root.rglob("*")):
        about = path.lstat()
        if path.is_symlink():
            content: str | bytes = os.readlink(path)
        else:
            content = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
        result[str(path.relative_to(root))] = (about.st_mode, about.st_rdev, content)
    return result


def class_files(root: Path) -> dict[str, str]:
    folder = root / simulated_node.CLASS
    return {path.name: path.read_text() for path in folder.iterdir() if not path.is_symlink()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("known", catalogue.all_types(), ids=lambda known: known.name)
def test_every_type_shows_its_devices(tmp_path: Path, known: InstanceType) -> None:
    node = write(tmp_path, known.name)
    assert node.instance_type == known.name
    assert node.device_ids() == list(range(known.device_count))
    for device_id in node.device_ids():
        folder = tmp_path / simulated_node.CLASS / f"neuron{device_id}"
        assert (folder / "core_count").read_text() == str(known.cores_per_device), "and no newline"
        expected = ", ".join(map(str, known.links[device_id])) if known.links else ""
        assert (folder / "connected_devices").read_text() == expected + "\n"
        assert (folder / "dev").read_text() == f"{simulated_node.DEFAULT_MAJOR}:{device_id}\n"
        assert (folder / "info/architecture/arch_type").read_text() == known.arch[0] + "\n"
        assert len(list(folder.glob("neuron_core*"))) == known.cores_per_device
        assert not (folder / "device").exists(), "the driver's devices have no parent"
        assert (tmp_path / "dev" / f"neuron{device_id}").exists()


@pytest.mark.parametrize(("version", "expected"), [("2.27.4.0", 0o400), ("2.28.0.0", 0o444), ("2.30.2.0", 0o444)])
def test_older_drivers_hide_two_files(tmp_path: Path, version: str, expected: int) -> None:
    folder = write(tmp_path, "trn2.48xlarge", driver_version=version).folder(0)
    assert mode(folder / "core_count") == mode(folder / "connected_devices") == expected
    assert mode(folder / "reset") == 0o600
    assert mode(folder / "dev") == 0o444


@pytest.mark.parametrize(
    ("version", "health", "components", "firmware"),
    [
        ("2.27.4.0", False, False, False),
        ("2.28.0.0", True, False, False),
        ("2.29.0.0", True, False, True),
        ("2.30.2.0", True, True, True),
    ],
)
def test_files_depend_on_the_driver_version(
    tmp_path: Path, version: str, health: bool, components: bool, firmware: bool
) -> None:
    folder = write(tmp_path, "trn2.48xlarge", driver_version=version).folder(0)
    status = folder / "stats/hardware/health_status"
    assert (status / "hw_error_event").exists() is health
    assert (status / "unhealthy_components").exists() is components
    assert (folder / "fw_build").exists() is firmware


def test_inf1_has_no_serial_number_or_counters(tmp_path: Path) -> None:
    folder = write(tmp_path, "inf1.6xlarge", driver_version="2.24.7.0").folder(0)
    assert not (folder / "info/serial_number").exists()
    assert not (folder / "stats/hardware").exists()


@pytest.mark.parametrize(
    ("instance_type", "version", "expected"),
    [
        ("trn2.48xlarge", "2.24.7.0", TRN2_FILES),
        ("trn1.32xlarge", "2.25.4.0", TRN2_FILES),
        ("trn2u.48xlarge", "2.24.7.0", TRN2_FILES),
        ("trn2.48xlarge", "2.30.2.0", NEW_FILES),
        ("trn2u.48xlarge", "2.30.2.0", TRN2_FILES | NEW_FILES),
        ("trn2es.48xlarge", "2.30.2.0", TRN3_FILES | NEW_FILES),
        ("trn3.48xlarge", "2.30.2.0", TRN3_FILES | NEW_FILES),
        ("trn3e.24xlarge", "2.30.2.0", TRN3_FILES | NEW_FILES),
        ("trn3pd98.3xlarge", "2.30.2.0", NEW_FILES),
    ],
)
def test_class_files_depend_on_driver_and_platform(
    tmp_path: Path, instance_type: str, version: str, expected: set[str]
) -> None:
    write(tmp_path, instance_type, driver_version=version)
    assert set(class_files(tmp_path)) == expected


def test_old_driver_on_plain_machine_denies_ultraserver(tmp_path: Path) -> None:
    write(tmp_path, "trn2.48xlarge", driver_version="2.24.7.0")
    assert class_files(tmp_path) == {
        "node_id_2": "-1\n",
        "node_id_4": "-1\n",
        "server_id_2": ZEROS + "\n",
        "server_id_4": ZEROS + "\n",
        "ultraserver_mode": "\n",
    }


@pytest.mark.parametrize(
    ("node_id", "node_id_2", "server_id_2"),
    [(0, "0", SERVER), (1, "1", SERVER), (2, "0", "5a7b1c2d3e4f606f"), (3, "1", "5a7b1c2d3e4f606f")],
)
def test_trn2_nodes_have_numbers_in_four_and_pair(
    tmp_path: Path, node_id: int, node_id_2: str, server_id_2: str
) -> None:
    write(tmp_path, "trn2u.48xlarge", node_id=node_id, server_id=SERVER)
    said = class_files(tmp_path)
    assert said["node_id_4"] == f"{node_id}\n"
    assert said["node_id_2"] == f"{node_id_2}\n"
    assert said["server_id_4"] == f"{SERVER}\n"
    assert said["server_id_2"] == f"{server_id_2}\n"
    assert said["ultraserver_mode"] == "1,3,4\n", "a complete server offers no horizontal pair"


def test_server_id_is_first_nodes_first_serial(tmp_path: Path) -> None:
    node = write(tmp_path, "trn2u.48xlarge", node_id=0, server_id=SERVER)
    assert (node.folder(0) / "info/serial_number").read_text() == SERVER + "\n"


def test_trn3_nodes_share_a_reservation(tmp_path: Path) -> None:
    write(tmp_path, "trn3.48xlarge", node_id=3, server_id="ab")
    said = class_files(tmp_path)
    assert (said["node_id"], said["node_cnt"]) == ("3\n", "4\n")
    assert said["reservation_id"] == "00000000000000ab\n"


@pytest.mark.parametrize(
    ("instance_type", "names"),
    [("trn2u.48xlarge", ("node_id_4", "server_id_4")), ("trn3.48xlarge", ("node_id", "reservation_id"))],
)
def test_single_node_offers_only_mode_4(tmp_path: Path, instance_type: str, names: tuple[str, ...]) -> None:
    write(tmp_path, instance_type)
    said = class_files(tmp_path)
    assert [said[name] for name in names] == ["-1\n", ZEROS + "\n"]
    assert said["ultraserver_mode"] == "4\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes character devices")
def test_root_gets_character_devices(tmp_path: Path) -> None:
    write(tmp_path, "trn1.2xlarge", major=120)
    about = (tmp_path / "dev/neuron0").stat()
    if stat.S_ISREG(about.st_mode):
        pytest.skip("root may not create device nodes here")
    assert stat.S_ISCHR(about.st_mode)
    assert (os.major(about.st_rdev), os.minor(about.st_rdev)) == (120, 0)
    assert stat.S_IMODE(about.st_mode) == 0o666


def test_write_removes_the_former_node(tmp_path: Path) -> None:
    write(tmp_path / "fresh", "trn3e.24xlarge", boot_id="b")
    write(tmp_path / "used", "trn2u.48xlarge", node_id=1, driver_version="2.24.7.0").remove_device(3)
    write(tmp_path / "used", "trn3e.24xlarge", boot_id="b")

    def but_serials(root: Path) -> dict[str, Any]:
        return {name: about for name, about in tree(root).items() if not name.endswith("serial_number")}

    assert but_serials(tmp_path / "used") == but_serials(tmp_path / "fresh")


def test_two_nodes_have_different_devices(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a", "trn1.2xlarge"), write(tmp_path / "b", "trn1.2xlarge")
    serial = "info/serial_number"
    assert (one.folder(0) / serial).read_text() != (other.folder(0) / serial).read_text()
    assert one.boot_id != other.boot_id


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"instance_type": "trn2.84xlarge"}, "did you mean trn2.48xlarge"),
        ({"instance_type": "m5"}, "it has inf1.xlarge"),
        ({"instance_type": "trn2.48xlarge", "node_id": 0}, "is not an UltraServer type"),
        ({"instance_type": "trn2u.48xlarge", "node_id": 4}, "write 0, 1, 2 or 3"),
        ({"instance_type": "trn2u.48xlarge", "node_id": 0, "server_id": "xyz"}, "hex digits"),
        ({"instance_type": "trn2u.48xlarge", "node_id": 0, "server_id": ""}, "hex digits"),
        ({"instance_type": "trn2u.48xlarge", "node_id": 0, "server_id": ZEROS}, "means no server"),
        ({"instance_type": "trn2u.48xlarge", "server_id": "ab"}, "add --node-id"),
        ({"instance_type": "trn2.48xlarge", "driver_version": "new one"}, "such as 2.30.2.0"),
    ],
)
def test_invalid_arguments_are_rejected_with_reason(tmp_path: Path, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(NeuronDraError, match=why):
        write(tmp_path, **arguments)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("root", ["/", "/usr/.."])
def test_real_machine_is_not_overwritten(root: str) -> None:
    with pytest.raises(NeuronDraError, match="real machine"):
        write(root, "trn2.48xlarge")
    assert Path("/dev/null").exists()


def test_other_root_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/null").touch()
    with pytest.raises(NeuronDraError, match="real machine"):
        write(tmp_path, "trn2.48xlarge")
    assert (tmp_path / "dev/null").exists()


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NeuronDraError, match=r"file.*choose a writable"):
        write(tmp_path / "file", "trn2.48xlarge")


def test_missing_node_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NeuronDraError, match="has no simulated node"):
        SimulatedNode.found(tmp_path)
    write(tmp_path, "trn1.2xlarge")
    assert SimulatedNode.found(tmp_path).instance_type == "trn1.2xlarge"


Act = Callable[[SimulatedNode], object]
BREAKS: dict[str, tuple[Act, Act]] = {
    "link": (lambda node: node.break_link(4, 5), lambda node: node.repair_link(4, 5)),
    "device": (lambda node: node.remove_device(5), lambda node: node.restore_device(5)),
    "busy": (lambda node: node.busy(), lambda node: node.busy(False)),
    "ecc": (lambda node: node.add_ecc(2, count=3), lambda node: node.add_ecc(2, count=-3)),
    "reset": (lambda node: node.set_reset_state(1, 2), lambda node: node.set_reset_state(1, 1)),
    "components": (
        lambda node: node.set_unhealthy_components(0, "hbm,link_host"),
        lambda node: node.set_unhealthy_components(0, ""),
    ),
    "modes": (lambda node: node.set_modes("4"), lambda node: node.set_modes("1,3,4")),
}


@pytest.mark.parametrize("what", BREAKS)
@pytest.mark.parametrize("version", ["2.24.7.0", "2.30.2.0"])
def test_repair_restores_the_original_files(tmp_path: Path, what: str, version: str) -> None:
    if what == "components" and version == "2.24.7.0":
        what = "reset"  # the driver does not have this file
    node = write(tmp_path, "trn2u.48xlarge", node_id=1, driver_version=version)
    before = tree(tmp_path)
    break_it, repair_it = BREAKS[what]
    break_it(node)
    broken = tree(tmp_path)
    assert broken != before
    if what != "device":
        assert {name: about[:2] for name, about in broken.items() if name in before} == {
            name: about[:2] for name, about in before.items()
        }, "only contents change"
    repair_it(node)
    assert tree(tmp_path) == before


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(sorted(BREAKS)), st.permutations(sorted(BREAKS)))
def test_any_order_of_repairs_restores_the_node(tmp_path: Path, breaking: list[str], repairing: list[str]) -> None:
    node = write(tmp_path, "trn2u.48xlarge", node_id=1)
    before = tree(tmp_path)
    # A link to a removed device cannot change, so the device is removed last and restored first.
    for what in sorted(breaking, key=lambda what: what == "device"):
        BREAKS[what][0](node)
    for what in sorted(repairing, key=lambda what: what != "device"):
        BREAKS[what][1](node)
    assert tree(tmp_path) == before


def test_broken_link_is_gone_on_both_ends(tmp_path: Path) -> None:
    node = write(tmp_path, "trn2.48xlarge")
    node.break_link(0, 12)
    assert (node.folder(0) / "connected_devices").read_text() == "1, 3, 4\n"
    assert (node.folder(12) / "connected_devices").read_text() == "13, 15, 8\n"


def test_one_end_of_a_link_can_be_set(tmp_path: Path) -> None:
    node = write(tmp_path, "trn2.48xlarge")
    node.set_link(0, 12, up=False)
    assert (node.folder(0) / "connected_devices").read_text() == "1, 3, 4\n"
    assert (node.folder(12) / "connected_devices").read_text() == "0, 13, 15, 8\n"


def test_faults_change_files_in_place(tmp_path: Path) -> None:
    node = write(tmp_path, "trn2.48xlarge")
    path = node.folder(0) / "connected_devices"
    before = path.stat().st_ino
    node.break_link(0, 12)
    assert path.stat().st_ino == before, "bind mounts must show the change"


def test_busy_hides_ids_and_defers_changes(tmp_path: Path) -> None:
    node = write(tmp_path, "trn2u.48xlarge", node_id=2, server_id=SERVER)
    node.busy()
    node.busy()
    said = {name: text for name, text in class_files(tmp_path).items() if not name.startswith(".")}
    assert said["ultraserver_mode"] == said["node_id_2"] == said["node_id_4"] == "busy\n"
    assert said["server_id_2"] == said["server_id_4"] == ZEROS + "\n"
    node.set_modes("3,4")
    node.busy(False)
    assert class_files(tmp_path)["ultraserver_mode"] == "3,4\n"


def test_a_new_election_ends_the_busy_state(tmp_path: Path) -> None:
    node = write(tmp_path, "trn2u.48xlarge")
    node.busy()
    known = catalogue.lookup("trn2u.48xlarge")
    assert known is not None
    node.write_class_files(known, simulated_files.SimulatedPlace(1, SERVER), node.driver_version)
    before = class_files(tmp_path)
    node.busy(False)
    assert class_files(tmp_path) == before
    assert before["node_id_4"] == "1\n"


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (lambda node: node.break_link(0, 5), "have no link; neuron0 has links to 12, 1, 3, 4"),
        (lambda node: node.repair_link(0, 99), "have no link"),
        (lambda node: node.break_link(-1, 3), "have no link"),
        (lambda node: node.remove_device(16), "it has neuron0 to neuron15"),
        (lambda node: node.restore_device(16), "it has neuron0 to neuron15"),
        (lambda node: node.add_ecc(0, "bit_rot"), "is not a counter; write sram"),
        (lambda node: node.set_unhealthy_components(0, "soul"), "is not a component; write hbm"),
        (lambda node: node.set_modes("5"), "from 1 to 4"),
        (lambda node: node.set_reset_state(77, 2), "no reset of neuron77"),
    ],
)
def test_missing_parts_cannot_break(tmp_path: Path, break_it: Act, why: str) -> None:
    node = write(tmp_path, "trn2u.48xlarge")
    before = tree(tmp_path)
    with pytest.raises(NeuronDraError, match=why):
        break_it(node)
    assert tree(tmp_path) == before


def test_plain_node_has_no_busy_or_modes(tmp_path: Path) -> None:
    node = write(tmp_path, "trn2.48xlarge")
    with pytest.raises(NeuronDraError, match="no UltraServer files"):
        node.busy()
    with pytest.raises(NeuronDraError, match="no UltraServer modes"):
        node.set_modes("4")


def test_a_reboot_is_a_new_boot_id(tmp_path: Path) -> None:
    node = write(tmp_path, "trn1.2xlarge", boot_id="one")
    assert node.boot_id == "one"
    fresh = node.set_boot_id()
    assert node.boot_id == fresh != "one"


def test_simulated_node_needs_the_stdlib_only() -> None:
    without_packages = "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]"
    program = f"{without_packages}; import neuron_dra.emulation.fake_node_command"
    subprocess.run([sys.executable, "-S", "-c", program], check=True, cwd=Path(__file__).parents[2], timeout=60)
