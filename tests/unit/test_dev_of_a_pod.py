"""Whether a device has its file in /dev: the host's, where it is visible, decides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neuron_dra.emulation import simulated_node
from neuron_dra.node.hardware import helper, sysfs
from neuron_dra.node.hardware.sysfs import DeviceFolder


@pytest.fixture
def host(tmp_path: Path) -> Path:
    simulated_node.write(tmp_path / "host", "trn2.48xlarge")
    return tmp_path / "host"


def files(host: Path, dev: DeviceFolder | None = None) -> dict[int, bool | None]:
    """Return, by device, whether it has a file."""
    return {device.device_id: device.device_file for device in sysfs.read_node(host, dev=dev).devices}


def test_missing_file_is_missing_among_others_and_alone(host: Path) -> None:
    (host / "dev/neuron7").unlink()
    assert files(host) == {device_id: device_id != 7 for device_id in range(16)}
    for file in (host / "dev").glob("neuron*"):
        file.unlink()
    assert files(host) == dict.fromkeys(range(16), False)


def test_dev_of_the_pod_itself_says_nothing(host: Path) -> None:
    """A privileged pod has copies of the files that were there when it started, others have none."""
    (host / "dev/neuron7").unlink()
    own = DeviceFolder(str(host / "dev"), is_hosts=False)
    assert files(host, own) == dict.fromkeys(range(16))


def test_file_that_cannot_be_seen_is_unknown(host: Path) -> None:
    """As where SELinux forbids it; a loop is what root cannot see either."""
    (host / "dev/neuron7").unlink()
    (host / "dev/neuron7").symlink_to("neuron7")
    assert files(host) == {device_id: None if device_id == 7 else True for device_id in range(16)}


@pytest.mark.parametrize(
    ("root", "mounted", "expected"),
    [
        ("X/host", "X/none", DeviceFolder("X/host/dev")),
        ("X/empty", "X/host/dev", DeviceFolder("X/empty/dev", is_hosts=False)),
        ("/", "X/host/dev", DeviceFolder("X/host/dev")),
        ("/", "X/none", DeviceFolder("/dev", is_hosts=False)),
    ],
    ids=["root", "root-without-dev", "mounted", "not-mounted"],
)
def test_folder_is_that_of_the_root_or_the_mount(host: Path, root: str, mounted: str, expected: DeviceFolder) -> None:
    def there(path: str) -> str:
        return path.replace("X", str(host.parent))

    found = sysfs.device_folder(Path(there(root)), there(mounted))
    assert found == DeviceFolder(there(expected.path), expected.is_hosts)


def test_kind_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    (tmp_path / "loop").symlink_to("loop")
    kinds = [helper.Source().kind(str(tmp_path / name)) for name in ("plain", "none", "plain/below", "loop")]
    assert kinds == [helper.A_PLAIN_FILE, helper.NO_FILE, helper.NO_FILE, helper.UNREADABLE]
    assert helper.Source().kind(os.devnull) == helper.A_DEVICE
