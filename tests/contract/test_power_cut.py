"""Power cuts during writes of the checkpoint and the CDI files: every state of the disk that they may leave.

Three things are checked. After the end of the process alone nothing is lost: all results that the kubelet got are
there. After a power cut there is another boot: nothing is prepared, and the tag is there; the CDI folder may be in
memory or on the disk. And a disk may lose in the same boot what it accepted: then no device of a claim is given to
another.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.core import cdi, metadata, notice
from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.core.ultraserver import Allocation, Phase, Tag
from neuron_dra.errors import CheckpointDamaged, DeviceInUse, NotFound
from neuron_dra.node.files import Files
from neuron_dra.node.metrics import PluginMetrics
from neuron_dra.node.prepare import recovery
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.store import Decide
from neuron_dra.node.publish.publisher_lock import PublisherLock
from tests.support import slots
from tests.support.claim_paths import EFA_PATH, NEURON_PATH, PATHS, ClaimPath
from tests.support.finds import finds
from tests.support.power_cut import (
    Contents,
    Cut,
    Mark,
    RecordingFiles,
    cuts,
)
from tests.support.single_store import SingleStore

pytestmark = pytest.mark.contract("P18")
SLOT = Allocation("ml", "llm", "uid-llm", "alloc-1", Phase.BOUND, ("a",), 1, 0, 1, "a", "2026-01-02T03:04:05Z")
PENDING, BOUND = (Tag.of(replace(SLOT, phase=phase)) for phase in (Phase.PENDING, Phase.BOUND))


EVERY = 1 if os.environ.get("NEURON_DRA_LONG") else 11  # of the states after a power cut
DESCRIBED = 5  # the claim that has a metadata file; with one for each, there would be too many states
METADATA = metadata.MetadataSource("/var/run/cdi", "1.2.3")


def claim(number: int, path: ClaimPath = NEURON_PATH) -> Claim:
    name = f"job-{number}"
    allocated = AllocatedDevice("r", "a", path.devices[number])
    return Claim(ClaimRef("ml", name, f"uid-{number}"), (allocated,), (), name)


def decides(path: ClaimPath) -> Decide:
    def decided(wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        described = wanted.ref.uid == f"uid-{DESCRIBED}"
        result = path.decide(wanted, held, metadata=METADATA if described else None)
        return notice.added(replace(result, workload="llm"), "/var/run/cdi/notices") if described else result

    return decided


class Quick(Files):
    """For disks without a power cut."""

    def sync_file(self, path: Path) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


FOLDERS = {metadata.FOLDER, notice.FOLDER}
COARSE = (Path("run/cdi"), *(Path("run/cdi") / name for name in FOLDERS))  # their files only have to go with the boot
Recorder = Callable[[Path], RecordingFiles]
MakeStore = Callable[[Path, Files, str, ClaimPath], SingleStore]
PLUGIN = Path("plugins/neuron.aws.com")  # the plugin's folder, with its lock and the store of the Neuron driver


def folder_of(root: Path, path: ClaimPath) -> Path:
    """Return the folder of a driver's checkpoint."""
    return root / PLUGIN / "efa" if path is EFA_PATH else root / PLUGIN


def store_of(root: Path, files: Files, boot_id: str, path: ClaimPath) -> SingleStore:
    return SingleStore(folder_of(root, path), root / "run" / "cdi", boot_id, files, driver=path.driver)


async def opened(store: SingleStore, path: ClaimPath, *, may_be_damaged: bool) -> Checkpoint:
    """Open a store as the plugin does; a damaged one is rebuilt with an API server that has claims 7 and 8."""
    prepared = PreparedClaims(store)
    await prepared.open()
    if prepared.damaged is not None:
        assert may_be_damaged, f"the checkpoint is damaged: {prepared.damaged}"
        await recovery.Recovery(
            prepared, finds(Cluster(path), decides(path), path=path), known, PluginMetrics()
        ).rebuild()
    return store.read()


class Cluster:
    """An API server that has claims 7 and 8."""

    def __init__(self, path: ClaimPath) -> None:
        self._path = path

    async def fetch(self, ref: ClaimRef) -> Claim:
        return claim(int(ref.uid.removeprefix("uid-")), self._path)

    async def named(self, namespace: str, name: str) -> Claim:
        raise NotFound("gone", status=404)

    async def allocated(self) -> AsyncIterator[Claim]:
        for number in (7, 8):
            yield claim(number, self._path)


async def known() -> None:
    """The node is known at once."""


# What is recorded.


class Life:
    """A plugin's operations on a disk, with marks for calls and results. Each claim has a device of each driver."""

    def __init__(
        self, root: Path, boot_id: str, make_store: MakeStore, recorder: Recorder, paths: Iterable[ClaimPath]
    ) -> None:
        self.files = recorder(root)
        self.stores = {path: make_store(root, self.files, boot_id, path) for path in paths}
        self.lock = PublisherLock(root / PLUGIN, "pod-1", self.files)

    async def open(self) -> None:
        for path, store in self.stores.items():
            await opened(store, path, may_be_damaged=True)

    def begin(self) -> None:
        """Open the stores of a node where no driver has run."""
        for store in self.stores.values():
            store.open()
        self.lock.begin()
        for store in self.stores.values():
            store.adopt({})

    def repair(self) -> None:
        for store in self.stores.values():
            store.repair()

    def flush(self) -> None:
        for store in self.stores.values():
            store.flush()

    def prepare(self, *numbers: int) -> None:
        for path, store in self.stores.items():
            self._mark(path, "asked to prepare", numbers)
            claims = [claim(number, path) for number in numbers]
            store.prepare_all([(wanted, None) for wanted in claims], decides(path))
            self._mark(path, "prepared", numbers)

    def unprepare(self, *numbers: int) -> None:
        for path, store in self.stores.items():
            self._mark(path, "asked to unprepare", numbers)
            store.unprepare_all([f"uid-{number}" for number in numbers])
            self._mark(path, "unprepared", numbers)

    def keep(self, tag: Tag | None) -> None:
        for path, store in self.stores.items():
            self._mark(path, "asked to keep", [tag])
            store.keep_tag(tag)
            self._mark(path, "kept", [tag])

    def _mark(self, path: ClaimPath, what: str, about: Iterable[Any]) -> None:
        for value in about:
            self.files.mark((path, what, value))


async def from_the_first_start(life: Life) -> None:
    life.begin()
    life.keep(PENDING)
    life.prepare(0)
    life.prepare(1)
    life.flush()
    life.unprepare(0)
    life.keep(BOUND)
    life.prepare(2, 3)
    life.unprepare(1, 2)
    life.lock.release()


async def after_a_restart(life: Life) -> None:
    await life.open()
    life.repair()
    life.unprepare(7)
    life.prepare(7)
    life.unprepare(8)
    life.keep(None)


async def with_metadata(life: Life) -> None:
    """18.6: the metadata file is there before the commit, and gone after the unprepare."""
    await life.open()
    life.prepare(DESCRIBED)
    life.repair()
    life.unprepare(DESCRIBED)
    life.prepare(DESCRIBED)


def nothing(root: Path, path: ClaimPath) -> None:
    """The driver was never here."""


def earlier(root: Path, path: ClaimPath) -> None:
    """Claims 7 and 8 were prepared in the boot `boot-1`."""
    store = store_of(root, Quick(), "boot-1", path)
    store.open()
    store.adopt({})
    store.keep_tag(PENDING)
    for number in (7, 8):
        store.prepare(claim(number, path), decides(path))


def a_file_is_lost(root: Path, path: ClaimPath) -> None:
    earlier(root, path)
    (root / "run/cdi" / path.file_name("uid-8")).unlink()


def the_host_was_rebooted(root: Path, path: ClaimPath) -> None:
    earlier(root, path)
    shutil.rmtree(root / "run")


def the_checkpoint_is_damaged(root: Path, path: ClaimPath) -> None:
    earlier(root, path)
    slots.tear_all(folder_of(root, path))


@dataclass(frozen=True, slots=True)
class Story:
    """The disk at the start, its promises, and the operations. `whole`: no CDI file is missing."""

    live: Callable[[Life], Awaitable[None]]
    before: Callable[[Path, ClaimPath], None]
    prepared: frozenset[int] = frozenset({7, 8})
    tags: tuple[Tag | None, ...] = (PENDING,)
    boot_id: str = "boot-1"
    whole: bool = True
    damaged: bool = False


STORIES = {
    "first start": Story(from_the_first_start, nothing, frozenset(), (None,)),
    "restart": Story(after_a_restart, earlier),
    "metadata": Story(with_metadata, earlier),
    "repair": Story(after_a_restart, a_file_is_lost, whole=False),
    "reboot": Story(after_a_restart, the_host_was_rebooted, frozenset(), boot_id="boot-2"),
    "rebuild": Story(after_a_restart, the_checkpoint_is_damaged, tags=(PENDING, None), damaged=True),
}


# What must hold.


@dataclass(slots=True)
class Promised:
    """Return the claims that must be prepared after these marks, and those that may be."""

    prepared: set[int]
    tags: list[Tag | None]
    perhaps: set[int] = field(default_factory=set)

    def record(self, what: str, about: Any) -> None:
        match what:
            case "asked to prepare" | "asked to unprepare":
                self.perhaps.add(about)
                self.prepared.discard(about)
            case "prepared":
                self.perhaps.discard(about)
                self.prepared.add(about)
            case "unprepared":
                self.perhaps.discard(about)
            case "asked to keep":
                self.tags.append(about)
            case "kept":
                self.tags = [about]
            case _:
                raise AssertionError(what)


class Judge:
    """Restores states and starts a driver's store on each; `paths` are all drivers that use the disk."""

    def __init__(
        self, root: Path, story: Story, make_store: MakeStore, path: ClaimPath, paths: tuple[ClaimPath, ...]
    ) -> None:
        self.root, self.story, self.make_store, self.path, self.paths = root, story, make_store, path, paths
        self.decided = decides(path)
        self.data, self.cdi_root = folder_of(root, path), root / "run/cdi"

    def restored(self, cut: Cut) -> Promised:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        cut.restore(self.root)
        promised = Promised(set(self.story.prepared), list(self.story.tags))
        for path, what, about in cut.promises:
            if path is self.path:
                promised.record(what, about)
        return promised

    async def judge(self, cut: Cut, memory: Contents) -> None:
        """Judge a state; `memory` are the CDI files if they are in memory, where the disk loses none."""
        if cut.is_whole:
            promised = self.restored(cut)
            if self.story.whole:
                self.commit_was_last()
            await self.same_boot(promised)
            return
        await self.next_boot(self.restored(cut))
        promised = self.restored(cut)
        shutil.rmtree(self.root / "run", ignore_errors=True)
        await self.next_boot(promised)
        on_disk = {item for item in cut.contents if item[0].parts[:1] != ("run",)}
        await self.same_boot_after_a_loss(self.restored(replace(cut, contents=frozenset(on_disk | memory))))

    def commit_was_last(self) -> None:
        try:
            current = slots.read(self.data)
        except FileNotFoundError:
            return
        except CheckpointDamaged:
            assert self.story.damaged, "the checkpoint is damaged"
            return
        for prepared in current.claims.values() if current.boot_id == self.story.boot_id else ():
            spec = Files().read(self.cdi_root / self.path.file_name(prepared.ref.uid))
            assert spec == self.path.spec(prepared), "a claim in the checkpoint has no CDI file"
            for name, data in metadata.files(prepared).items():
                file = Files().read(self.cdi_root / metadata.FOLDER / name)
                assert file == data, "a claim in the checkpoint has no metadata file"
            if notice.has_folder(prepared):
                folder = self.cdi_root / notice.FOLDER / notice.folder_name(prepared.ref.uid)
                assert folder.is_dir(), "a claim in the checkpoint has no folder for notices"

    async def same_boot(self, promised: Promised) -> None:
        store = self.make_store(self.root, Quick(), self.story.boot_id, self.path)
        current = await opened(store, self.path, may_be_damaged=self.story.damaged)
        numbers = {int(uid.removeprefix("uid-")) for uid in current.claims}
        assert promised.prepared <= numbers, "a claim with a result is not in the checkpoint"
        assert numbers <= promised.prepared | promised.perhaps, "an unprepared claim is still held"
        assert current.tag in promised.tags, "the tag is another one"
        self.clean(current)
        for number in promised.prepared | promised.perhaps:
            answer = store.prepare(claim(number, self.path), self.decided)
            # After damage only the kubelet can show that a claim was not unprepared.
            assert replace(answer, doubtful=False) == self.decided(claim(number, self.path), [])
            assert self.story.damaged or not answer.doubtful
        for number in promised.prepared | promised.perhaps:
            store.unprepare(f"uid-{number}")
        self.clean(store.read())

    async def same_boot_after_a_loss(self, promised: Promised) -> None:
        store = self.make_store(self.root, Quick(), self.story.boot_id, self.path)
        current = await opened(store, self.path, may_be_damaged=True)
        for number in promised.prepared:
            assert f"uid-{number}" in current.claims, "a claim with a result is not held"
            rival = replace(claim(number, self.path), ref=ClaimRef("ml", "rival", "uid-rival"))
            with pytest.raises(DeviceInUse):
                store.prepare(rival, self.decided)

    async def next_boot(self, promised: Promised) -> None:
        store = self.make_store(self.root, Quick(), "boot-9", self.path)
        current = await opened(store, self.path, may_be_damaged=False)
        assert current.claims == {}, "claims of an earlier boot count as prepared"
        assert current.tag in promised.tags, "the tag is another one"
        self.clean(current)
        answer = store.prepare(claim(7, self.path), self.decided)
        assert replace(answer, doubtful=False) == self.decided(claim(7, self.path), [])
        self.clean(store.read())

    def clean(self, current: Checkpoint) -> None:
        uids = {uid for uid, prepared in current.claims.items() if not prepared.adopted}
        names = set(os.listdir(self.cdi_root)) - FOLDERS
        other_names = {name for path in self.paths if path is not self.path for name in names if path.has_file(name)}
        specified_uids = {cdi.claim_uid_of(name, self.path.driver) for name in names - other_names}
        wanted = {name for prepared in current.claims.values() for name in metadata.files(prepared)}
        held = set(current.claims) - uids
        described = set(Files().names(self.cdi_root / metadata.FOLDER))
        described = {name for name in described if metadata.claim_uid_of(name) not in held}
        assert described == wanted, "metadata files and checkpoint differ"
        told = {notice.claim_uid_of(name) for name in Files().names(self.cdi_root / notice.FOLDER)} - held
        having = {uid for uid, prepared in current.claims.items() if notice.has_folder(prepared)}
        assert told == having, "folders for notices and checkpoint differ"
        assert uids <= specified_uids <= set(current.claims), "CDI files and checkpoint differ"
        PublisherLock(self.root / PLUGIN, "pod-2", Quick()).sweep()
        assert [name for name in os.listdir(self.data) if name.endswith(".tmp")] == []


async def run(
    story: Story,
    folder: Path,
    make_store: MakeStore = store_of,
    recorder: Recorder = RecordingFiles,
    every: int = EVERY,
    paths: tuple[ClaimPath, ...] = (NEURON_PATH,),
) -> tuple[int, int]:
    """Record a scenario and check the states that a power cut may leave; return operations and states."""
    live, cut_root = folder / "live", folder / "cut"
    live.mkdir()
    for path in paths:
        story.before(live, path)
    life = Life(live, story.boot_id, make_store, recorder, paths)
    await story.live(life)
    judges = [Judge(cut_root, story, make_store, path, paths) for path in paths]
    states = 0
    memory: Contents = frozenset()
    for number, cut in enumerate(cuts(life.files, COARSE)):
        if not cut.is_whole and number % every:
            continue
        if cut.is_whole:
            memory = frozenset(item for item in cut.contents if item[0].parts[:1] == ("run",))
        for judge in judges:
            await judge.judge(cut, memory)
        states += 1
    return len(life.files.log), states


@pytest.mark.parametrize("name", STORIES)
async def test_promises_survive_any_power_cut(
    name: str, short_path: Path, record_property: Callable[[str, str], None]
) -> None:
    operations, states = await run(STORIES[name], short_path)
    record_property("covered", f"power cut, {name}: {states} states after {operations} operations")


@pytest.mark.parametrize("paths", [(EFA_PATH,), tuple(PATHS.values())], ids=["efa", "both"])
@pytest.mark.parametrize("name", [name for name in STORIES if name != "metadata"])  # of which EFA claims have none
async def test_promises_of_efa_claims_survive_any_power_cut(
    name: str, paths: tuple[ClaimPath, ...], short_path: Path, record_property: Callable[[str, str], None]
) -> None:
    every = EVERY if len(paths) == 1 else 5 * EVERY  # the unflushed changes of two drivers have many combinations
    operations, states = await run(STORIES[name], short_path, every=every, paths=paths)
    drivers = " and ".join(path.driver.name for path in paths)
    record_property("covered", f"power cut, {drivers}, {name}: {states} states after {operations} operations")


# The harness detects planted bugs.


class WithoutFolderFlush(RecordingFiles):
    def sync_folder(self, folder: Path) -> None:
        pass


class WithoutFileFlush(RecordingFiles):
    def sync_file(self, path: Path) -> None:
        pass


class CheckpointFirst(SingleStore):
    """Commits before the CDI files are written."""

    def _write_spec(self, claim: PreparedClaim, **more: Any) -> None:
        self.__dict__.setdefault("late", []).append((claim, more))

    def _write(self, checkpoint: Checkpoint) -> None:
        super()._write(checkpoint)
        for claim, more in self.__dict__.pop("late", []):
            super()._write_spec(claim, **more)


def checkpoint_first(root: Path, files: Files, boot_id: str, path: ClaimPath) -> SingleStore:
    return CheckpointFirst(folder_of(root, path), root / "run/cdi", boot_id, files, driver=path.driver)


class WithoutTraces(SingleStore):
    """Removes CDI files that have no claim."""

    def _with_traces(self, current: Checkpoint) -> Checkpoint:
        return current


def without_traces(root: Path, files: Files, boot_id: str, path: ClaimPath) -> SingleStore:
    return WithoutTraces(folder_of(root, path), root / "run/cdi", boot_id, files, driver=path.driver)


class TakesAllFiles(SingleStore):
    """Removes the CDI files that all drivers have of a claim."""

    def unprepare_all(self, uids: Sequence[str]) -> list[PreparedClaim | Exception | None]:
        for path in PATHS.values():
            for uid in uids:
                self._files.remove(self.cdi_root / path.file_name(uid))
        return super().unprepare_all(uids)


def takes_all_files(root: Path, files: Files, boot_id: str, path: ClaimPath) -> SingleStore:
    return TakesAllFiles(folder_of(root, path), root / "run/cdi", boot_id, files, driver=path.driver)


class WithoutBootRecord(RecordingFiles):
    """The disk has no boot.json."""

    def read(self, path: Path) -> bytes | None:
        return None if path.name == "boot.json" else super().read(path)

    def rename(self, source: Path, target: Path) -> None:
        if target.name == "boot.json":
            self.remove(source)
        else:
            super().rename(source, target)


def without_boot_id(root: Path, files: Files, boot_id: str, path: ClaimPath) -> SingleStore:
    return store_of(root, files, "always the same", path)


@pytest.mark.parametrize(
    ("name", "make_store", "recorder", "complaint"),
    [
        ("first start", store_of, WithoutFolderFlush, "the checkpoint is damaged|the tag is another one"),
        ("first start", store_of, WithoutFileFlush, "the checkpoint is damaged"),
        ("first start", store_of, WithoutBootRecord, "the checkpoint is damaged|the tag is another one"),
        ("first start", checkpoint_first, RecordingFiles, "a claim in the checkpoint has no CDI file"),
        ("first start", without_traces, RecordingFiles, "a claim with a result is not held"),
        ("first start", without_boot_id, RecordingFiles, "the checkpoint is damaged|claims of an earlier boot"),
    ],
    ids=[
        "no fsync of folders",
        "no fsync of files",
        "no record of the boot",
        "checkpoint before CDI",
        "no look at CDI files",
        "no look at the boot id",
    ],
)
async def test_the_power_cut_finds(
    name: str, make_store: MakeStore, recorder: Recorder, complaint: str, short_path: Path
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        await run(STORIES[name], short_path, make_store, recorder)


async def test_the_power_cut_finds_a_driver_that_removes_the_files_of_another(short_path: Path) -> None:
    with pytest.raises(AssertionError, match="a claim in the checkpoint has no CDI file"):
        await run(STORIES["first start"], short_path, takes_all_files, paths=tuple(PATHS.values()))


# The model.


def found(files: RecordingFiles) -> set[frozenset[tuple[str, bytes]]]:
    """Return the states that a power cut at the end may leave."""
    last = [cut for cut in cuts(files) if cut.promises == ("end",)]
    return {frozenset((path.name, data) for path, data in cut.contents if data is not None) for cut in last}


def test_unflushed_folder_changes_may_be_lost(short_path: Path) -> None:
    (short_path / "a").write_bytes(b"old")
    files = RecordingFiles(short_path)
    files.write(short_path / "b", b"new", 0o600)
    files.sync_file(short_path / "b")
    files.rename(short_path / "b", short_path / "a")
    files.mark("end")
    old, new, spare = ("a", b"old"), ("a", b"new"), ("b", b"new")
    assert found(files) == {frozenset({old}), frozenset({old, spare}), frozenset({new})}
    files.sync_folder(short_path)
    files.log.remove(Mark("end"))
    files.mark("end")
    assert found(files) == {frozenset({new})}


def test_unflushed_file_may_have_partial_bytes(short_path: Path) -> None:
    (short_path / "a").write_bytes(b"old!")
    files = WithoutFileFlush(short_path)
    files.write(short_path / "a", b"new!", 0o600)
    files.mark("end")
    assert found(files) == {frozenset({("a", data)}) for data in (b"old!", b"", b"ne", bytes(4), b"new!")}


def test_lost_folder_loses_its_files(short_path: Path) -> None:
    class WithoutRootFlush(RecordingFiles):
        def sync_folder(self, folder: Path) -> None:
            if folder != self.root:
                super().sync_folder(folder)

    files = WithoutRootFlush(short_path)
    files.make_folder(short_path / "data", 0o700)
    files.write(short_path / "data" / "a", b"new", 0o600)
    files.sync_file(short_path / "data" / "a")
    files.sync_folder(short_path / "data")
    files.mark("end")
    assert found(files) == {frozenset(), frozenset({("a", b"new")})}
