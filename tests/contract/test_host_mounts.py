"""Host directories that change below a container: the double against the kernel, and what the plugin says."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.errors import HostFolderReplaced
from neuron_dra.node.files import Files
from neuron_dra.node.prepare.host_folders import HostFolders
from tests.support.host_mounts import Change, HostMounts, hosting, mountinfo
from tests.support.plugin_host import PluginHost
from tests.support.waiting import eventually


@pytest.fixture
def mounts() -> Iterator[HostMounts]:
    with hosting() as mounts:
        yield mounts


@pytest.fixture
def directory(mounts: HostMounts, short_path: Path) -> Path:
    """A directory of the host with one file."""
    made = short_path / "host-directories" / "cdi"
    mounts.make(made)
    (made / "before").touch()
    return made


def seen(lines: str, mount_point: Path, base: Path) -> list[tuple[str, str]]:
    """Return root and mount point of the lines of a mount point, as paths from `base` where they are in it."""
    fields = [line.split(" ") for line in lines.splitlines() if f" {mount_point} " in line]
    return [
        (root.removeprefix("/").partition(f"{base.name}/")[2] or root, point) for _, _, _, root, point, *_ in fields
    ]


@pytest.mark.parametrize("receives_mounts", [True, False])
@pytest.mark.parametrize("change", Change)
def test_mountinfo_is_the_kernels(
    mounts: HostMounts, directory: Path, short_path: Path, change: Change, receives_mounts: bool
) -> None:
    mount_point = short_path / "in-container"
    command = mounts.container({mount_point: directory}, receives_mounts=receives_mounts)
    show = f'echo ready; read -r _; grep " {mount_point} " /proc/self/mountinfo; echo; ls -A {mount_point}'
    with subprocess.Popen(
        [*command, "sh", "-c", show], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        mounts.apply(change, directory)
        lines, _, names = process.communicate("\n", timeout=60)[0].partition("\n\n")
    double = mountinfo(directory, mount_point, change, receives_mounts=receives_mounts)
    assert seen(lines, mount_point, short_path) == seen(double, mount_point, short_path)
    emptied = {Change.REMOVED, Change.REMADE} | ({Change.MOUNTED_OVER} if receives_mounts else set())
    assert names.split() == ([] if change in emptied else ["before"])
    if change is not Change.REMOVED:
        assert mounts.names(directory) == (["before"] if change is Change.NOTHING else [])


def test_mounts_of_a_host_stay_on_it(mounts: HostMounts, directory: Path) -> None:
    mounts.apply(Change.MOUNTED_OVER, directory)
    assert (mounts.names(directory), [path.name for path in directory.iterdir()]) == ([], ["before"])
    mounts.unmount(directory)
    assert mounts.names(directory) == ["before"]


@pytest.mark.parametrize("change", Change)
async def test_prepared_claim_has_a_file_on_the_host(
    mounts: HostMounts, directory: Path, host: PluginHost, api: EmbeddedApi, change: Change
) -> None:
    """The runtime sees the file, or the plugin ends so that the kubelet starts it again with the present folder."""
    host.container = mounts.container({host.cdi: directory}, receives_mounts=True)
    async with ScriptedKubelet(host.registry) as kubelet:
        process = await host.start_process("pod-1")
        await kubelet.registered("neuron.aws.com")
        before = api.create(allocated_claim("before", "node-a", [0], of_its_pod=True))
        [answer] = (await kubelet.prepare([before])).values()
        assert answer.error == ""
        await eventually(lambda: any(before["metadata"]["uid"] in name for name in mounts.names(directory)))
        mounts.apply(change, directory)
        after = api.create(allocated_claim("after", "node-a", [1], of_its_pod=True))
        uid = after["metadata"]["uid"]
        [answer] = (await kubelet.prepare([after])).values()
        is_visible = change is not Change.REMOVED and any(uid in name for name in mounts.names(directory))
        if is_visible:
            assert answer.error == ""
        else:
            await eventually(lambda: not process.running, what="the end of the plugin")


# The decision


FOLDER = Path("/srv/c di")


@pytest.mark.parametrize("receives_mounts", [True, False])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Change.NOTHING, ""),
        (Change.REMOVED, "/srv/c di was removed on the host"),
        (Change.REMADE, "/srv/c di was removed on the host"),
        (Change.RENAMED, "/srv/c di was renamed on the host, to /host/cdi.old"),
        (Change.MOUNTED_OVER, ""),
    ],
)
def test_replaced_folder_is_noticed(tmp_path: Path, change: Change, expected: str, receives_mounts: bool) -> None:
    table = tmp_path / "mountinfo"

    def show(change: Change) -> None:
        lines = mountinfo(Path("/host/cdi"), FOLDER, change, receives_mounts=receives_mounts)
        table.write_text("23 1 0:5 / / rw - ext4 /dev/root rw\n" + lines.replace(str(FOLDER), r"/srv/c\040di"))

    folders = HostFolders(FOLDER, (), Files(), table)
    show(Change.NOTHING)
    folders.check()
    show(change)
    if not expected:
        folders.check()
        return
    for _ in range(2):
        with pytest.raises(HostFolderReplaced, match=expected):
            folders.check()


def test_folder_that_is_no_mount_is_not_checked(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    folders = HostFolders(FOLDER, (), Files(), table)
    folders.check()
    table.write_text(mountinfo(Path("/host/other"), Path("/var/run/other"), Change.REMOVED, receives_mounts=True))
    folders.check()


async def test_plugin_whose_folder_was_renamed_ends(mounts: HostMounts, directory: Path, host: PluginHost) -> None:
    """Without a prepare, too: containers that restart need their files."""
    host.container = mounts.container({host.cdi: directory}, receives_mounts=True)
    process = await host.start_process("pod-1")
    await eventually(lambda: "slices published" in process.log)
    mounts.apply(Change.RENAMED, directory)
    assert await process.ended() == 1
    assert "was renamed on the host" in process.log


def test_folder_is_checked_before_a_write_if_others_changed_it(tmp_path: Path) -> None:
    folder, table = tmp_path / "cdi", tmp_path / "mountinfo"
    folder.mkdir()
    folders = HostFolders(folder, (), Files(), table)

    def show(change: Change) -> None:
        table.write_text(mountinfo(Path("/host/cdi"), folder, change, receives_mounts=True))

    show(Change.NOTHING)
    folders.check()
    folders.wrote()
    show(Change.RENAMED)
    folders.check_before_write()  # as the kernel would not: the folder's own times are as before
    os.utime(folder, ns=(0, 0))
    with pytest.raises(HostFolderReplaced):
        folders.check_before_write()
