"""From sysfs to a node: garbage is unknown, links are true, and what cannot be read is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_dra.core import devices, limits, topology
from neuron_dra.core.facts import DeviceFacts, NodeFacts, NodeLabels, Unread
from neuron_dra.node import sysfs
from neuron_dra.testing import fake_node

READ = sysfs.DEVICE_FILES
BUSY = b"busy\n"
TEXTS = st.one_of(
    st.binary(max_size=80),
    st.text(max_size=40).map(str.encode),
    st.lists(st.integers(-1, 20).map(str), max_size=6).map(lambda ids: ", ".join(ids).encode() + b"\n"),
    st.sampled_from([b"", b"\n", BUSY, b"-1\n", b"0" * 16, b"9" * 30, "²".encode(), b"8", b"0x8\n", b"1,\n"]),
)


@pytest.fixture(scope="module")
def ultraserver_node(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A node, and the files of it that are read: of two neighbours, the class, DMI and the module."""
    root = tmp_path_factory.mktemp("node")
    node = fake_node.write(root, "trn2u.48xlarge", node_id=1)
    files = [folder / path for folder in map(node.folder, (0, 1)) for paths in READ.values() for path in paths]
    files += [path for path in (root / sysfs.CLASS).iterdir() if not path.is_symlink()]
    files += [root / path for path in (*sysfs.PRODUCT_NAME, *sysfs.DRIVER_VERSION)]
    return root, [path for path in files if path.exists()]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_content_of_any_file_raises_or_breaks_a_rule_of_the_api(
    ultraserver_node: tuple[Path, list[Path]], data: st.DataObject
) -> None:
    root, files = ultraserver_node
    for path in files:
        path.chmod(0o600)
        path.write_bytes(data.draw(TEXTS, path.name))
    node = topology.build(sysfs.read_node(root), NodeLabels("trn2.48xlarge", ("nn-" * 40, None, "nn-3"), "cb-1"))
    connected = {device.device_id: device.connected for device in node.devices}
    assert [*connected] == list(range(16))
    for one, others in connected.items():
        assert one not in others
        assert all(one in connected[other] for other in others)
    for shape in ("node", "devices"):
        kept, _ = limits.check_devices(devices.published(node, driver_version="1.2.3", ultraserver_devices=shape))
        for device in kept:
            assert limits.check_devices([device]) == ((device,), [])


def device(device_id: int, connected: tuple[int, ...] | Unread, core_count: int | Unread = 8) -> DeviceFacts:
    return DeviceFacts(device_id, core_count, connected, (243, device_id), node_present=True)


def built(*read: DeviceFacts, instance_type: str = "trn2.48xlarge") -> topology.Node:
    return topology.build(NodeFacts(instance_type, "2.30.2.0", read), NodeLabels())


def messages(node: topology.Node, kind: str) -> list[str]:
    return [finding.message for finding in node.findings if finding.kind == kind]


def test_a_device_is_not_its_own_neighbour() -> None:
    node = built(device(0, (0, 1)), device(1, (0, 1)))
    assert [each.connected for each in node.devices] == [frozenset({1}), frozenset({0})]


def test_a_list_of_neighbours_that_says_nothing_is_neither_up_nor_down() -> None:
    node = built(device(0, (1,)), device(1, Unread.UNKNOWN))
    assert [each.connected for each in node.devices] == [frozenset(), frozenset()]
    assert not messages(node, "missing-link")
    assert not messages(node, "one-sided-link")
    assert messages(node, "unread-links")[0].startswith("connected_devices of neuron1 says nothing")


def test_an_empty_file_of_neighbours_says_nothing_and_an_empty_line_says_none(tmp_path: Path) -> None:
    folder = fake_node.write(tmp_path, "trn2.48xlarge").folder(0)
    for content, reading in ((b"", Unread.UNKNOWN), (b"\n", ()), (BUSY, Unread.BUSY)):
        (folder / "connected_devices").chmod(0o600)
        (folder / "connected_devices").write_bytes(content)
        assert sysfs.read_node(tmp_path).devices[0].connected == reading


def test_cores_that_cannot_be_read_are_those_of_the_type_and_it_is_said() -> None:
    node = built(device(0, (), Unread.UNKNOWN))
    assert node.devices[0].core_count == 8
    assert messages(node, "unread-core-count")[0].startswith(
        "core_count of neuron0 cannot be read; published with 8 NeuronCores, which trn2.48xlarge has"
    )


def test_cores_that_cannot_be_read_of_an_unknown_type_are_not_published() -> None:
    node = built(device(0, (), Unread.UNKNOWN), instance_type="trn9.48xlarge")
    (published,) = devices.published(node, driver_version="1.2.3")
    assert published.capacity == {}
    assert "without NeuronCores" in messages(node, "unread-core-count")[0]


def test_a_switch_has_no_links_to_read() -> None:
    node = built(device(0, Unread.UNKNOWN, 8), device(1, Unread.UNKNOWN, 8), instance_type="trn3e.24xlarge")
    assert [each.connected for each in node.devices] == [frozenset({1}), frozenset({0})]
    assert not messages(node, "unread-links")


def test_a_class_link_whose_device_is_gone_is_no_device(tmp_path: Path) -> None:
    node = fake_node.write(tmp_path, "trn2.48xlarge")
    folder = node.folder(3)
    folder.rename(folder.with_name("elsewhere"))
    (tmp_path / "sys/class/neuron_device/neuron03").mkdir()
    assert [each.device_id for each in sysfs.read_node(tmp_path).devices] == [i for i in range(16) if i != 3]


def test_devices_come_in_order_of_their_ids_whatever_order_they_are_found_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_node.write(tmp_path, "trn2.48xlarge")
    found = Path.iterdir

    def backwards(self: Path) -> list[Path]:
        return sorted(found(self), reverse=True)

    monkeypatch.setattr(Path, "iterdir", backwards)
    assert [each.device_id for each in sysfs.read_node(tmp_path).devices] == list(range(16))
