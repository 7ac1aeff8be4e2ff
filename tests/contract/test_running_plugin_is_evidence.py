"""What a running plugin has read is evidence: files that disappear or cannot be read lose no claim (4.04)."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import cdi
from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.core.decision import decide
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.errors import DeviceInUse
from neuron_dra.node.files import Files, locked
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from tests.support import slots
from tests.support.faulty_files import disk_error
from tests.support.plugin_host import PluginHost
from tests.support.single_store import SingleStore
from tests.support.timings import quicker
from tests.support.waiting import eventually

pytestmark = pytest.mark.contract("P20")
NODE = healthy_node("trn2.48xlarge")


def claim(name: str, number: int) -> Claim:
    return Claim(ClaimRef("ml", name, f"uid-{name}"), (AllocatedDevice("r", "a", f"neuron-device-{number}"),))


def decided(wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
    return decide(wanted, node_name="a", node=NODE, held=held, device_files=cdi.DeviceFiles(), prepared_at="then")


FIRST, SECOND, RIVAL = claim("first", 1), claim("second", 2), claim("rival", 1)


class BadBlocks(Files):
    """A disk on which files cannot be read while they have the inode that `spoil` saw."""

    def __init__(self) -> None:
        self._bad: set[int] = set()
        self.takes_writes = True

    def spoil(self, path: Path) -> None:
        self._bad.add(path.stat().st_ino)

    def read(self, path: Path) -> bytes | None:
        stamp = self.stamp(path)
        if stamp is not None and stamp[0] in self._bad:
            raise disk_error(errno.EIO)
        return super().read(path)

    def write(self, path: Path, data: bytes, mode: int) -> None:
        if not self.takes_writes:
            raise disk_error(errno.EROFS)
        super().write(path, data, mode)

    def overwrite(self, path: Path, data: bytes) -> None:
        if not self.takes_writes:
            raise disk_error(errno.EROFS)
        super().overwrite(path, data)


class Disk:
    """The folders of a node."""

    def __init__(self, root: Path) -> None:
        self.data, self.cdi_root, self.files = root / "data", root / "cdi", BadBlocks()

    def store(self) -> SingleStore:
        store = SingleStore(self.data, self.cdi_root, "boot-1", self.files)
        store.open()
        return store

    def spec(self, wanted: Claim) -> Path:
        return self.cdi_root / cdi.file_name(wanted.ref.uid)


@pytest.fixture
def disk(short_path: Path) -> Disk:
    return Disk(short_path)


def emptied(disk: Disk) -> None:
    for name in os.listdir(disk.data):
        (disk.data / name).unlink()


def spoiled(disk: Disk) -> None:
    for name in os.listdir(disk.data):
        disk.files.spoil(disk.data / name)


def slots_alone(disk: Disk) -> None:
    slots.remove_all(disk.data)


def torn(disk: Disk) -> None:
    slots.tear_all(disk.data)


def newest_alone(disk: Disk) -> None:
    slots.tear(slots.newest(disk.data))


HARM = pytest.mark.parametrize("harm", [emptied, spoiled, slots_alone, torn, newest_alone])


@HARM
def test_lost_checkpoint_is_written_from_memory(disk: Disk, harm: Callable[[Disk], None]) -> None:
    store = disk.store()
    answer = store.prepare(FIRST, decided)
    harm(disk)
    with pytest.raises(DeviceInUse, match="held by claim ml/first"):
        store.prepare(RIVAL, decided)
    assert store.known(FIRST.ref.uid) == answer
    assert disk.store().read().claims == {FIRST.ref.uid: answer}


@HARM
def test_claim_that_the_other_plugin_unprepared_is_not_restored(disk: Disk, harm: Callable[[Disk], None]) -> None:
    """Its CDI file is gone from a folder that has others."""
    one, other = disk.store(), disk.store()
    one.prepare(FIRST, decided)
    kept = one.prepare(SECOND, decided)
    other.unprepare(FIRST.ref.uid)
    harm(disk)
    assert one.repair()[1].claims == {SECOND.ref.uid: kept}
    assert one.prepare(RIVAL, decided) == decided(RIVAL, [])


@HARM
def test_claim_that_the_other_plugin_prepared_is_adopted(disk: Disk, harm: Callable[[Disk], None]) -> None:
    one, other = disk.store(), disk.store()
    other.prepare(FIRST, decided)
    harm(disk)
    with pytest.raises(DeviceInUse, match="held by claim ml/first"):
        one.prepare(RIVAL, decided)


def test_claims_without_any_file_are_held_and_doubted(disk: Disk) -> None:
    """The CDI folder was emptied too, so it does not show that the other plugin unprepared a claim."""
    store = disk.store()
    answer = store.prepare(FIRST, decided)
    emptied(disk)
    disk.spec(FIRST).unlink()
    assert store.repair()[1].claims == {FIRST.ref.uid: replace(answer, doubtful=True)}
    assert disk.spec(FIRST).exists()


ONE_FILE = pytest.mark.parametrize(
    "harm", [lambda disk, path: path.unlink(), lambda disk, path: disk.files.spoil(path)]
)


@ONE_FILE
def test_boot_record_is_written_from_memory(disk: Disk, harm: Callable[[Disk, Path], None]) -> None:
    store = disk.store()
    path = disk.data / "boot.json"
    before = checkpoints.decode(path.read_bytes())
    harm(disk, path)
    store.repair()
    assert checkpoints.decode(disk.files.read(path) or b"") == before


@ONE_FILE
def test_older_slot_is_created_again(disk: Disk, harm: Callable[[Disk, Path], None]) -> None:
    store = disk.store()
    answer = store.prepare(FIRST, decided)
    path = slots.older(disk.data)
    harm(disk, path)
    store.repair()
    assert checkpoints.decode(disk.files.read(path) or b"").claims == {FIRST.ref.uid: answer}
    before = {path.name: path.read_bytes() for path in disk.data.iterdir()}
    store.repair()
    assert {path.name: path.read_bytes() for path in disk.data.iterdir()} == before


def test_removed_folder_is_made_again(disk: Disk) -> None:
    store = disk.store()
    answer = store.prepare(FIRST, decided)
    shutil.rmtree(disk.data)
    assert store.repair()[1].claims == {FIRST.ref.uid: answer}
    assert disk.store().read().claims == {FIRST.ref.uid: answer}


def test_lock_on_a_file_that_lost_its_name_excludes_nobody(short_path: Path) -> None:
    """A process that waits for a lock takes it on the file that has the name then."""
    path = short_path / "lock"
    events: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def second() -> None:
        with locked(path, timeout_s=60.0):
            events.append("second")
            entered.set()
            leave.wait(60.0)

    with locked(path, timeout_s=60.0):
        waiting = threading.Thread(target=second)
        waiting.start()
        path.unlink()
        path.touch()
    assert entered.wait(60.0)
    with pytest.raises(TimeoutError), locked(path, timeout_s=0.0):
        events.append("third beside the second")
    leave.set()
    waiting.join()
    with locked(path, timeout_s=0.0):
        events.append("fourth")
    assert events == ["second", "fourth"]


@pytest.fixture
def timing() -> PluginTiming:
    return quicker(DEFAULT_TIMING, prepare={"repair_s": 0.05})


@pytest.mark.parametrize("folder", [".", "efa"], ids=["neuron", "efa"])
async def test_plugin_is_not_ready_while_its_state_can_be_neither_read_nor_written(
    folder: str, api: EmbeddedApi, host: PluginHost
) -> None:
    files = BadBlocks()
    async with host.running(files=files, efa_interfaces=folder == "efa") as plugin:
        await eventually(lambda: plugin.publish_state.result is not None)
        await eventually(lambda: slots.paths(host.data / folder))
        files.takes_writes = False
        for path in slots.paths(host.data / folder):
            files.spoil(path)
        await eventually(lambda: "state cannot be read or written: [Errno 30]" in plugin.why_not_ready())
        files.takes_writes = True
        await eventually(lambda: "state cannot be read" not in plugin.why_not_ready())
