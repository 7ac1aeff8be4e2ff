"""A kernel driver whose files are in unknown places: what is read by name is right, or it is not read."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from neuron_dra import cli
from neuron_dra.core import health, topology
from neuron_dra.core.facts import DeviceFacts, NodeFacts, NodeLabels, UltraServerFacts, Unread
from neuron_dra.core.health import Health
from neuron_dra.emulation import moved_layout, simulated_node
from neuron_dra.emulation.simulated_node import CLASS, DEVICES
from neuron_dra.node.hardware import helper, sysfs

SEEDS = range(40)
VALUES = [name for name in sysfs.DEVICE_FILES if name not in ("dev", "reset_state")]
FILES = {value: paths[0].rpartition("/")[2] for value, paths in sysfs.DEVICE_FILES.items()}
LABELS = NodeLabels.from_labels({})


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An UltraServer node with its files where they are known."""
    root = tmp_path_factory.mktemp("known")
    simulated_node.write(root, "trn2u.48xlarge", node_id=2)
    return root


@pytest.fixture
def root(known: Path, tmp_path: Path) -> Path:
    """A copy of it that has only device 3."""
    copied = tmp_path / "host"
    for name in (CLASS, f"{DEVICES}/neuron3", simulated_node.DMI, "sys/module/neuron"):
        shutil.copytree(known / name, copied / name, symlinks=True)
    for link in (copied / CLASS).glob("neuron*"):
        if link.name != "neuron3":
            link.unlink()
    return copied


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """Such a node of its own."""
    simulated_node.write(tmp_path, "trn2u.48xlarge", node_id=2)
    return tmp_path


def only(root: Path) -> DeviceFacts:
    """Return what is read of device 3."""
    [read] = sysfs.read_node(root).devices
    return read


def findings(read: NodeFacts) -> set[str]:
    return {finding.kind for finding in topology.build(read, LABELS).findings}


def device(root: Path) -> Path:
    return root / DEVICES / "neuron3"


def judged(facts: DeviceFacts) -> Health:
    return health.judged("neuron-device-3", [3], health.observe({}, [facts], [3], 0.0, 60.0)).status


@pytest.mark.parametrize("seed", SEEDS)
def test_moved_value_is_right_or_unknown(known: Path, root: Path, seed: int) -> None:
    before = sysfs.read_node(known).devices[3]
    copied = moved_layout.move(device(root), seed)
    after = only(root)
    for value in VALUES:
        expected = Unread.UNKNOWN if FILES[value] in copied else getattr(before, value)
        assert getattr(after, value) == expected, value
    assert set(after.found) == {FILES[value] for value in VALUES} - copied


@pytest.mark.parametrize("seed", SEEDS)
def test_moved_class_files_are_found(known: Path, root: Path, seed: int) -> None:
    moved_layout.move_class(root / CLASS, seed)
    read = sysfs.read_node(root)
    assert read.ultraserver == sysfs.read_node(known).ultraserver != UltraServerFacts()
    assert len(read.found) == 5


@pytest.mark.parametrize("seed", SEEDS)
def test_moved_files_make_no_device_healthier(root: Path, seed: int) -> None:
    (device(root) / "reset").unlink()  # the one witness that has its place
    copied = moved_layout.move(device(root), seed)
    node = simulated_node.SimulatedNode(root)
    assert judged(only(root)) is Health.UNKNOWN
    node.write_unhealthy_components(3, "hbm\n")
    expected = Health.UNKNOWN if "unhealthy_components" in copied else Health.UNHEALTHY
    assert judged(only(root)) is expected


def test_fault_that_was_found_by_name_ends_by_name(root: Path) -> None:
    well = DeviceFacts(3, reset_state=1, unhealthy_components=(), found=("unhealthy_components",))
    sick = dataclasses.replace(well, unhealthy_components=("hbm",))
    watch = health.observe({}, [sick], [3], 0.0, 60.0)
    for now, status in ((10.0, Health.UNHEALTHY), (69.0, Health.UNHEALTHY), (70.0, Health.HEALTHY)):
        watch = health.observe(watch, [well], [3], now, 60.0)
        assert health.judged("neuron-device-3", [3], watch).status is status


def test_found_facts_are_marked(whole: Path) -> None:
    moved_layout.apply(whole, 1)
    [finding] = [each for each in topology.build(sysfs.read_node(whole), LABELS).findings if each.kind == "moved-facts"]
    assert "core_count, " in finding.message
    assert "They show no device as healthy. Update this driver" in finding.message


def test_fake_node_writes_it_and_slices_mark_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = ["fake-node", "--root", str(tmp_path), "--instance-type", "trn2.48xlarge"]
    assert cli.main([*written, "--layout", "moved", "--seed", "7"]) == 0
    assert cli.main([*written[:3], "--break", "components:3,hbm"]) == 0
    assert cli.main(["slices", "--node-name", "a", "--host-root", str(tmp_path), "-o", "table"]) == 0
    shown = capsys.readouterr()
    assert "in other places than this driver knows; they were found by name" in shown.err
    assert sum(line.startswith("neuron-device-") for line in shown.out.splitlines()) == 16


def test_facts_that_no_device_shows_are_a_finding(whole: Path) -> None:
    root = whole
    for path in (root / DEVICES).glob("neuron*/connected_devices"):
        path.unlink()
    (root / CLASS / "ultraserver_mode").unlink()
    found = [each for each in topology.build(sysfs.read_node(root), LABELS).findings if each.kind == "unread-facts"]
    assert [each.message for each in found] == [
        "kernel driver 2.30.2.0 does not show connected_devices, ultraserver_mode, which every trn2u.48xlarge has: "
        "links, health or UltraServers are unknown. Update this driver"
    ]


@pytest.mark.parametrize("version", ["2.24.7.0", "2.28.4.0", "2.29.0.0", "2.30.2.0"])
@pytest.mark.parametrize(
    "instance_type", ["inf1.6xlarge", "inf2.xlarge", "trn1.32xlarge", "trn2.3xlarge", "trn3.48xlarge"]
)
def test_known_drivers_show_all_that_is_expected(tmp_path: Path, instance_type: str, version: str) -> None:
    simulated_node.write(tmp_path, instance_type, driver_version=version)
    # Kernel drivers before 2.25 do not know that a Trn3 is a type of UltraServers.
    is_unknown_type = (instance_type, version) == ("trn3.48xlarge", "2.24.7.0")
    assert findings(sysfs.read_node(tmp_path)) == ({"ultraserver-mode-empty"} if is_unknown_type else set())


@pytest.mark.parametrize("text", ["4", "0", "many", "8 8"])
def test_core_count_by_name_must_be_that_of_the_type(root: Path, text: str) -> None:
    for folder in (root / DEVICES).glob("neuron*"):
        (folder / "core_count").unlink()
        (folder / "info/units").mkdir(parents=True)
        (folder / "info/units/core_count").write_text(text)
    node = topology.build(sysfs.read_node(root), LABELS)
    assert {each.core_count for each in node.devices} == {8}
    assert "unread-facts" in {each.kind for each in node.findings}


def test_text_of_another_form_is_not_found(root: Path) -> None:
    moved = device(root) / "info/serial_number"
    moved.rename(device(root) / "serial_number")
    (device(root) / "serial_number").chmod(0o644)
    (device(root) / "serial_number").write_text("Trainium2\n")
    read = only(root)
    assert (read.serial, read.found) == (Unread.UNKNOWN, ())


def test_walk_is_bounded(root: Path) -> None:
    (device(root) / "core_count").rename(device(root) / "stats/core_count")
    deep = device(root) / "a/b/c/d/e"
    deep.mkdir(parents=True)
    (device(root) / "connected_devices").rename(deep / "connected_devices")
    read = only(root)
    assert (read.core_count, read.connected) == (8, Unread.UNKNOWN)
    for number in range(helper.ENTRIES_AT_MOST):
        (device(root) / "stats" / f"more_{number}").touch()
    assert only(root).core_count is Unread.UNKNOWN


def test_links_are_not_followed(root: Path) -> None:
    (device(root) / "core_count").rename(root / "core_count")
    (device(root) / "loop").symlink_to(".")
    (device(root) / "out").symlink_to(root)
    assert only(root).core_count is Unread.UNKNOWN


# The class folder.


def raw(root: Path) -> sysfs.FileReading:
    return sysfs.read(helper.Source(), str(root), f"{root}/dev")


def test_devices_without_a_class_folder_are_read_where_they_are(whole: Path) -> None:
    before = sysfs.read_node(whole).devices
    shutil.rmtree(whole / CLASS)
    assert sysfs.read_node(whole).devices == before


def test_vanished_class_folder_is_unknown_and_never_zero_devices(whole: Path) -> None:
    root = whole
    before = raw(root)
    shutil.rmtree(root / CLASS)
    shutil.rmtree(root / DEVICES)
    (root / "dev/neuron5").unlink()
    read = sysfs.facts(raw(root), before=before)
    watch = health.observe(health.observe({}, sysfs.facts(before).devices, (), 0.0, 60.0), read.devices, (), 10.0, 60.0)
    states = {i: health.judged(f"neuron-device-{i}", [i], watch) for i in range(16)}
    assert {i: state.status for i, state in states.items()} == {
        i: Health.UNHEALTHY if i == 5 else Health.UNKNOWN for i in range(16)
    }
    assert states[5].reasons == ("DeviceFileMissing",)
    assert findings(read) == {"no-class-folder", "missing-device-file"}


@pytest.mark.parametrize(("is_live", "says"), [(True, "keeps its files elsewhere"), (False, "driver is not loaded")])
def test_class_folder_that_was_never_there(whole: Path, is_live: bool, says: str) -> None:
    shutil.rmtree(whole / CLASS)
    shutil.rmtree(whole / DEVICES)
    if not is_live:
        shutil.rmtree(whole / "sys/module/neuron")
    read = sysfs.read_node(whole)
    [finding] = topology.build(read, LABELS).findings
    assert (read.devices, read.vanished, finding.kind) == ((), True, "no-class-folder")
    assert says in finding.message
