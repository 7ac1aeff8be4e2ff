"""From sysfs to published devices: any file contents give correct and valid devices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_dra.core import devices, limits, topology
from neuron_dra.core.facts import DeviceFacts, NodeFacts, NodeLabels, Unread
from neuron_dra.emulation import simulated_node
from neuron_dra.errors import NeuronDraError
from neuron_dra.node.hardware import sysfs

REPOSITORY = Path(__file__).resolve().parents[2]
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
    """Return a node and its files that are read: of two neighbors, the class, DMI and the module."""
    root = tmp_path_factory.mktemp("node")
    node = simulated_node.write(root, "trn2u.48xlarge", node_id=1)
    files = [folder / path for folder in map(node.folder, (0, 1)) for paths in READ.values() for path in paths]
    files += [path for path in (root / simulated_node.CLASS).iterdir() if not path.is_symlink()]
    files += [root / path for path in (*sysfs.PRODUCT_NAME, *sysfs.DRIVER_VERSION)]
    return root, [path for path in files if path.exists()]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_file_content_gives_valid_devices(ultraserver_node: tuple[Path, list[Path]], data: st.DataObject) -> None:
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


def test_a_device_is_not_its_own_neighbour() -> None:
    read = tuple(DeviceFacts(i, 8, (0, 1), (243, i), device_file=True) for i in (0, 1))
    node = topology.build(NodeFacts("trn2.48xlarge", "2.30.2.0", read), NodeLabels())
    assert [each.connected for each in node.devices] == [frozenset({1}), frozenset({0})]


@pytest.mark.parametrize("gone", [0, 1])
def test_simulated_link_breaks_on_both_ends(tmp_path: Path, gone: int) -> None:
    node = simulated_node.write(tmp_path, "trn2.48xlarge")
    node.remove_device(gone)
    with pytest.raises(NeuronDraError, match=f"has no connected_devices of neuron{gone}"):
        node.break_link(0, 1)
    node.restore_device(gone)
    first, second, *_ = sysfs.read_node(tmp_path).devices
    assert not isinstance(first.connected, Unread)
    assert not isinstance(second.connected, Unread)
    assert 1 in first.connected
    assert 0 in second.connected


def test_fake_node_runs_on_a_bare_python(tmp_path: Path) -> None:
    words = ["fake-node", "--instance-type", "trn1.2xlarge", "--root", str(tmp_path)]
    code = f"import sys, runpy; sys.path.insert(0, {str(REPOSITORY)!r}); sys.argv = {words!r}; "
    code += "runpy.run_module('neuron_dra.emulation.fake_node_command', run_name='__main__')"
    # -I -S: no environment and no site-packages, only the standard library and the repository
    done = subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"{tmp_path}: trn1.2xlarge, 1 device, driver 2.30.2.0\n",
        "",
    )
