"""No call waits for a flush: what is flushed afterwards, what counts after a loss, and which of the files rules."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import cdi, metadata
from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.core.decision import decide
from neuron_dra.core.evidence import Listing
from neuron_dra.core.in_use import ListedClaim, ListedPod
from neuron_dra.core.ultraserver import Allocation, Phase, Tag
from neuron_dra.errors import CheckpointDamaged, ClaimError, DeviceInUse, NotFound
from neuron_dra.node.files import Files
from neuron_dra.node.metrics import PluginMetrics
from neuron_dra.node.prepare import recovery
from neuron_dra.node.prepare.flusher import Flusher
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.transactions import Transactions
from tests.support import slots
from tests.support.faulty_files import FaultyFiles, disk_error
from tests.support.finds import ListedBy, finds
from tests.support.single_store import SingleStore
from tests.support.timings import IMPATIENT, quicker
from tests.support.waiting import eventually

NODE = healthy_node("trn2.48xlarge")
SLOT = Allocation("ml", "llm", "uid-llm", "alloc-1", Phase.BOUND, ("a",), 1, 0, 1, "a", "2026-01-02T03:04:05Z")
ONE, TWO, THREE = (Tag.of(replace(SLOT, allocation_id=name)) for name in ("one", "two", "three"))
HURRIED = quicker(IMPATIENT, flush_s=0.0, flush_retry_s=(0.001, 0.01), rebuild_retry_s=(0.001, 0.01))


def claim(number: int, name: str = "") -> Claim:
    name = name or f"job-{number}"
    device = AllocatedDevice("r", "a", f"neuron-device-{number}")
    return Claim(ClaimRef("ml", name, f"uid-{name}"), (device,), pod=name, of_its_pod=True)


def decided(wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
    source = metadata.MetadataSource("/var/run/cdi", "1.2.3")
    return decide(
        wanted,
        node_name="a",
        node=NODE,
        held=held,
        device_files=cdi.DeviceFiles(),
        prepared_at="then",
        metadata=source,
    )


class Api:
    """An API server whose claims are those that tests prepare."""

    def __init__(self) -> None:
        self.claims: dict[str, Claim] = {}

    async def fetch(self, ref: ClaimRef) -> Claim:
        return self.claims[ref.uid]

    async def allocation(self, ref: ClaimRef) -> Claim:
        return self.claims[ref.uid]

    def decide(self, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        return decided(wanted, held)

    async def named(self, namespace: str, name: str) -> Claim:
        raise NotFound("gone", status=404)

    async def allocated(self) -> AsyncIterator[Claim]:
        for each in list(self.claims.values()):
            yield each


async def known() -> None:
    """The node is known at once."""


class Disk(FaultyFiles):
    """A disk that may fail to keep what it accepted: it then has the files as they were flushed last."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.fails: set[str] = set()  # parts of the names of files and folders whose flush fails
        self.kept: dict[str, bytes] = {}

    def sync_file(self, path: Path) -> None:
        self._unless_it_fails(path)
        super().sync_file(path)
        if path.name in self.kept:
            self.kept[path.name] = path.read_bytes()

    def sync_folder(self, folder: Path) -> None:
        self._unless_it_fails(folder)
        super().sync_folder(folder)
        if folder == self.root / "data":
            self.kept = {path.name: path.read_bytes() for path in self._files()}

    def _unless_it_fails(self, path: Path) -> None:
        if any(part in path.name for part in self.fails):
            raise disk_error(errno.EIO)

    def _files(self) -> list[Path]:
        return [*slots.paths(self.root / "data"), *(self.root / "data").glob("boot.json")]

    def lose(self) -> None:
        """Go back to what was flushed last."""
        for path in self._files():
            path.unlink()
        for name, data in self.kept.items():
            (self.root / "data" / name).write_bytes(data)


class Plugin:
    """The part of a plugin that prepares claims, in one process."""

    def __init__(
        self, root: Path, files: Files, api: Api, boot_id: str = "boot-1", kubelet: ListedBy | None = None
    ) -> None:
        self.api = api
        self.store = SingleStore(root / "data", root / "cdi", boot_id, files)
        self.prepared = PreparedClaims(self.store)
        self.transactions = Transactions(self.prepared, api, timing=HURRIED)
        self.events: list[str] = []
        self.flusher = Flusher(self.prepared, self.events.append, HURRIED)
        self.recovery = recovery.Recovery(
            self.prepared, finds(api, decided, kubelet=kubelet), known, PluginMetrics(), HURRIED
        )

    async def started(self) -> Plugin:
        await self.prepared.open()
        if self.prepared.damaged is not None:
            await self.recovery.rebuild()
        return self

    async def prepare(self, wanted: Claim) -> PreparedClaim:
        self.api.claims[wanted.ref.uid] = wanted
        return await self.transactions.prepare(wanted.ref)


@pytest.fixture
def disk(short_path: Path) -> Disk:
    return Disk(short_path)


async def plugin(
    disk: Disk, api: Api | None = None, boot_id: str = "boot-1", kubelet: ListedBy | None = None
) -> Plugin:
    return await Plugin(disk.root, disk, api or Api(), boot_id, kubelet).started()


def kubelet_with(*names: str) -> ListedBy:
    """Return a kubelet whose pods have these claims: the evidence that is left when the disk lost all files."""
    kubelet = ListedBy()
    pods = []
    for number, name in enumerate(names):
        devices = frozenset({("neuron.aws.com", "a", f"neuron-device-{number}")})
        pods.append(ListedPod("ml", name, (ListedClaim("ml", name, devices, uid=f"uid-{name}"),)))
    kubelet.listing = Listing(tuple(pods), is_trusted=True)
    return kubelet


# No call waits


@pytest.mark.contract("P35")
async def test_prepare_and_unprepare_wait_for_no_flush(disk: Disk) -> None:
    made = await plugin(disk)
    disk.changes.clear()
    await asyncio.gather(*(made.prepare(claim(number)) for number in range(4)))
    await made.prepare(claim(0))
    await asyncio.gather(*(made.transactions.unprepare(claim(number).ref) for number in range(4)))
    assert [change for change in disk.changes if change.startswith("sync")] == []
    assert len(disk.changes) > 20


@pytest.mark.contract("P35")
async def test_calls_are_answered_while_a_flush_hangs(disk: Disk) -> None:
    made = await plugin(disk)
    disk.hold(1)
    flush = asyncio.create_task(made.flusher.flush())
    await eventually(lambda: disk.holding)
    try:
        answers = [await made.prepare(claim(number)) for number in range(3)]
        assert answers == [decided(claim(number), []) for number in range(3)]
        await made.transactions.unprepare(claim(0).ref)
        assert not flush.done()
    finally:
        disk.release()
    await flush


async def test_one_flush_follows_many_writes(disk: Disk) -> None:
    made = await plugin(disk)
    disk.changes.clear()
    disk.hold(1)
    loop = asyncio.create_task(made.flusher.run())
    await eventually(lambda: disk.holding)
    for number in range(6):
        await made.prepare(claim(number))
    disk.release()
    await eventually(lambda: len(disk.changes) > 0 and disk.changes[-1].startswith("sync_file checkpoint."))
    loop.cancel()
    assert [change.split(".")[0] for change in disk.changes].count("sync_file checkpoint") == 2
    newest = slots.newest(disk.root / "data")
    assert (disk.kept[newest.name], made.events) == (newest.read_bytes(), [])


# A disk that does not keep what it accepted


@pytest.mark.contract("P35")
async def test_failed_flush_rejects_new_claims_until_the_disk_has_them(disk: Disk) -> None:
    made = await plugin(disk)
    held = await made.prepare(claim(0))
    disk.fails = {"checkpoint."}
    writing = asyncio.create_task(made.flusher.flush())
    await eventually(lambda: made.prepared.unflushed)
    with pytest.raises(ClaimError) as caught:
        await made.prepare(claim(1))
    assert str(caught.value) == (
        "claim ml/job-1: the node's disk did not keep what was written ([Errno 5] Input/output error), so nothing new "
        "is prepared; the plugin writes it again, and the kubelet tries again. Check the disk of the kubelet's folder"
    )
    assert await made.prepare(claim(0)) == held
    assert set(made.events) == {
        f"the disk of {disk.root}/data did not keep what neuron.aws.com wrote ([Errno 5] Input/output error), so no "
        "new claim is prepared on this node until it does; prepared claims keep working. Check the disk and the "
        "kernel's log"
    }
    disk.fails = set()
    await writing
    assert made.prepared.unflushed is None
    assert await made.prepare(claim(1)) == decided(claim(1), [])


LOST = pytest.mark.parametrize(
    "cdi_too", [False, True], ids=["the checkpoint is lost", "the checkpoint and the CDI files are lost"]
)


@pytest.mark.contract("P35")
@LOST
@pytest.mark.parametrize("fails", [{"checkpoint."}, {"checkpoint.", "boot."}], ids=["slots", "all files"])
async def test_claim_that_the_disk_lost_is_never_handed_out_again(disk: Disk, fails: set[str], cdi_too: bool) -> None:
    """EIO at write-back; then a plugin starts in the same boot, and finds older slots."""
    api = Api()
    made = await plugin(disk, api)
    await made.prepare(claim(0))
    await made.flusher.flush()
    await made.prepare(claim(1))
    disk.fails = fails
    writing = asyncio.create_task(made.flusher.flush())
    await eventually(lambda: len(made.events) > 1)
    writing.cancel()
    await made.prepared.worker.do(str)  # the thread has finished what it had begun
    disk.lose()
    if cdi_too and "boot." not in fails:
        (disk.root / "cdi" / cdi.file_name("uid-job-1")).unlink()
    disk.fails = set()
    after = await plugin(disk, api, kubelet=kubelet_with("job-0", "job-1"))
    assert set(after.prepared.claims) == {"uid-job-0", "uid-job-1"}
    with pytest.raises(DeviceInUse, match="held by claim ml/job-1"):
        await after.prepare(claim(1, "rival"))
    await after.transactions.unprepare(claim(1).ref)
    assert await after.prepare(claim(1, "rival")) == decided(claim(1, "rival"), [])


@pytest.mark.contract("P35")
async def test_slots_that_become_older_under_a_plugin_are_written_again(disk: Disk) -> None:
    """A volume that is mounted again, without what was not flushed."""
    made = await plugin(disk)
    await made.prepare(claim(0))
    await made.flusher.flush()
    answer = await made.prepare(claim(1))
    disk.lose()
    await made.prepared.repair()
    assert on_disk(disk).claims[claim(1).ref.uid] == answer
    with pytest.raises(DeviceInUse, match="held by claim ml/job-1"):
        await made.prepare(claim(1, "rival"))


@pytest.mark.contract("P35")
async def test_slots_that_another_plugin_wrote_after_a_loss_are_damage(disk: Disk) -> None:
    """It has continued from the older slots, so the sequence does not show the loss."""
    made = await plugin(disk)
    await made.flusher.flush()
    await made.prepare(claim(1))
    disk.lose()
    (disk.root / "cdi" / cdi.file_name(claim(1).ref.uid)).unlink()
    other = await plugin(disk)
    for number in range(2, 6):
        await other.prepare(claim(number))
    with pytest.raises(ClaimError, match="is being rebuilt"):
        await made.prepare(claim(1, "rival"))
    assert made.prepared.damaged == "the checkpoint has lost claim ml/job-1: the disk has lost writes"
    await made.recovery.rebuild()
    assert set(made.prepared.claims) == {f"uid-job-{number}" for number in range(1, 6)}
    with pytest.raises(DeviceInUse, match="held by claim ml/job-1"):
        await made.prepare(claim(1, "rival"))


async def test_unprepare_by_another_process_is_no_loss(disk: Disk) -> None:
    one, other = await plugin(disk), await plugin(disk)
    await one.prepare(claim(0))
    await other.transactions.unprepare(claim(0).ref)
    await one.prepared.repair()
    assert (one.prepared.damaged, one.prepared.claims) == (None, {})


# Which file rules


def on_disk(disk: Disk) -> Checkpoint:
    return slots.read(disk.root / "data")


def torn(disk: Disk) -> None:
    slots.tear_all(disk.root / "data")


def gone(disk: Disk) -> None:
    slots.remove_all(disk.root / "data")


def whole(disk: Disk) -> None:
    pass


async def test_boot_record_has_what_outlives_a_boot(disk: Disk) -> None:
    made = await plugin(disk)
    await made.prepared.keep_tag(ONE)
    await made.prepare(claim(0))
    found = checkpoints.decode((disk.root / "data/boot.json").read_bytes())
    assert found == Checkpoint("boot-1", {}, extra=found.extra).with_tag(ONE)
    assert on_disk(disk).outlives_as(found)
    assert disk.kept["boot.json"] == (disk.root / "data/boot.json").read_bytes()


@pytest.mark.contract("P19")
@pytest.mark.parametrize("harm", [torn, gone, whole])
async def test_tag_survives_a_power_cut(disk: Disk, harm: Callable[[Disk], None]) -> None:
    made = await plugin(disk)
    await made.prepared.keep_tag(ONE)
    await made.prepare(claim(0))
    harm(disk)
    after = await plugin(disk, boot_id="boot-2")
    assert (after.prepared.damaged, after.prepared.claims, after.prepared.tag) == (None, {}, ONE)
    assert sorted(os.listdir(disk.root / "data")) == ["boot.json", "checkpoint.0", "checkpoint.1", "serialize.lock"]
    assert os.listdir(disk.root / "cdi") == [metadata.FOLDER]
    assert os.listdir(disk.root / "cdi" / metadata.FOLDER) == []


@pytest.mark.contract("P19")
async def test_older_slots_after_a_power_cut_do_not_bring_back_their_tag(disk: Disk) -> None:
    made = await plugin(disk)
    await made.prepared.keep_tag(ONE)
    older = {path: path.read_bytes() for path in slots.paths(disk.root / "data")}
    await made.prepared.keep_tag(TWO)
    for path, raw in older.items():
        path.write_bytes(raw)
    assert (await plugin(disk, boot_id="boot-2")).prepared.tag == TWO


@pytest.mark.contract("P20")
async def test_tag_survives_damage_in_the_same_boot(disk: Disk) -> None:
    made = await plugin(disk)
    await made.prepared.keep_tag(ONE)
    torn(disk)
    after = Plugin(disk.root, disk, Api())
    await after.prepared.open()
    assert (after.prepared.damaged is not None, after.prepared.tag) == (True, ONE)
    await after.recovery.rebuild()
    assert (after.prepared.tag, on_disk(disk).tag) == (ONE, ONE)


@pytest.mark.parametrize("harm", [torn, gone, whole])
async def test_tag_of_the_other_plugin_survives_a_power_cut(disk: Disk, harm: Callable[[Disk], None]) -> None:
    """Each of two plugins has read boot.json before the other wrote it."""
    made, other = await plugin(disk), await plugin(disk)
    for turn, tag in ((made, ONE), (other, TWO), (made, ONE), (made, THREE), (other, TWO)):
        await turn.prepared.keep_tag(tag)
    await made.prepare(claim(0))
    harm(disk)
    assert (await plugin(disk, boot_id="boot-2")).prepared.tag == TWO


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (gone, r"checkpoint\.0 is gone, checkpoint\.1 is gone"),
        (torn, r"checkpoint\.0 is damaged: it has no header of a checkpoint, checkpoint\.1 is damaged"),
    ],
)
async def test_lost_checkpoint_is_damage_in_the_same_boot(disk: Disk, harm: Callable[[Disk], None], why: str) -> None:
    await plugin(disk)
    harm(disk)
    with pytest.raises(CheckpointDamaged, match=why):
        SingleStore(disk.root / "data", disk.root / "cdi", "boot-1", Files()).open()
