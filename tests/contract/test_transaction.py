"""Preparing and unpreparing on a real disk: despite failures, a claim is prepared completely or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import cdi, metadata, notice
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.decision import decide
from neuron_dra.errors import (
    CheckpointDamaged,
    ClaimError,
    DeviceInUse,
    Forbidden,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from neuron_dra.node.files import Files, locked
from neuron_dra.node.prepare.daemon_worker import Worker
from neuron_dra.node.prepare.group_commit import GroupCommit
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.transactions import FORBIDDEN_TRIES, Transactions
from tests.support import slots
from tests.support.faulty_files import (
    DISK_ERRORS,
    FaultyFiles,
    Moment,
    PowerCut,
    disk_error,
)
from tests.support.single_store import SingleStore
from tests.support.timings import IMPATIENT, quicker

NODE = healthy_node("trn2.48xlarge")
METADATA = metadata.MetadataSource("/var/run/cdi", "1.2.3")
NOTICES = f"/var/run/cdi/{notice.FOLDER}"
STEPS = range(1, 23)  # more than any transaction has; an unreached step tests the success


def claim(number: int, name: str = "") -> Claim:
    name = name or f"job-{number}"
    return Claim(ClaimRef("ml", name, f"uid-{name}"), (AllocatedDevice("r", "a", f"neuron-device-{number}"),), (), name)


FOLDERS = {metadata.FOLDER, notice.FOLDER}
OLD, NEW = claim(0, "old"), claim(1, "new")


def decided(wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
    made = decide(
        wanted,
        node_name="a",
        node=NODE,
        held=held,
        device_files=cdi.DeviceFiles(),
        prepared_at="then",
        metadata=METADATA,
    )
    return notice.added(replace(made, workload="llm"), NOTICES)


class Disk:
    """The two folders of a node, and their contents."""

    def __init__(self, root: Path) -> None:
        self.folder, self.cdi_root = root / "neuron.aws.com", root / "cdi"

    def store(self, files: Files | None = None, boot_id: str = "boot-1") -> SingleStore:
        return SingleStore(self.folder, self.cdi_root, boot_id, files or Files())

    @property
    def checkpointed(self) -> set[str]:
        return {c.ref.name for c in slots.read(self.folder).claims.values()}

    @property
    def specified(self) -> set[str]:
        return {
            json.loads((self.cdi_root / name).read_text())["annotations"][cdi.NAME]
            for name in os.listdir(self.cdi_root)
            if not name.endswith(".tmp") and name not in FOLDERS
        }

    @property
    def described(self) -> set[str]:
        """The claims that have a complete metadata file."""
        folder = self.cdi_root / metadata.FOLDER
        texts = [(folder / name).read_text() for name in Files().names(folder) if not name.endswith(".tmp")]
        assert all(len(text.splitlines()) == len(metadata.VERSIONS) for text in texts)
        return {json.loads(line)["metadata"]["name"] for text in texts for line in text.splitlines()}

    @property
    def told(self) -> set[str]:
        """The claims that have a folder for notices."""
        return {name.removeprefix("claim_uid-") for name in Files().names(self.cdi_root / notice.FOLDER)}

    @property
    def leftovers(self) -> list[str]:
        folders = (self.folder, self.cdi_root, self.cdi_root / metadata.FOLDER)
        return [name for folder in folders for name in Files().names(folder) if name.endswith(".tmp")]

    def is_clean(self, *prepared: str) -> bool:
        same = self.checkpointed == self.specified == self.described == self.told == set(prepared)
        return same and not self.leftovers


@pytest.fixture
def disk(short_path: Path) -> Disk:
    return Disk(short_path)


@pytest.fixture
def used(disk: Disk) -> Disk:
    """A node on which one claim is prepared."""
    store = disk.store()
    store.open()
    store.adopt({})
    store.prepare(OLD, decided)
    return disk


# The store.


@pytest.mark.contract("P21")
def test_prepared_claim_is_on_disk_before_the_reply(used: Disk) -> None:
    prepared = used.store().prepare(NEW, decided)
    assert used.is_clean("old", "new")
    spec = json.loads((used.cdi_root / "k8s.neuron.aws.com-claim_uid-new.json").read_text())
    assert [f"{spec['kind']}={device['name']}" for device in spec["devices"]] == list(prepared.devices[0].cdi_ids)
    assert (used.cdi_root / "k8s.neuron.aws.com-claim_uid-new.json").stat().st_mode & 0o777 == 0o644
    assert [path.stat().st_mode & 0o777 for path in slots.paths(used.folder)] == [0o600, 0o600]


@pytest.mark.contract("P2")
def test_repeated_prepare_writes_nothing(used: Disk) -> None:
    files = FaultyFiles()
    store = used.store(files)

    def never(wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        raise AssertionError("judged again")

    assert store.known("uid-old") == store.prepare(OLD, never) == decided(OLD, [])
    assert files.changes == []


@pytest.mark.contract("P18")
@pytest.mark.contract("N7")
@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("step", STEPS)
def test_power_cut_during_prepare_is_atomic(used: Disk, step: int, moment: Moment) -> None:
    files = FaultyFiles()
    store = used.store(files)
    files.fail(step, PowerCut(), moment)
    try:
        store.prepare(NEW, decided)
    except PowerCut:
        used.store().open()
        assert used.is_clean("old") or used.is_clean("old", "new")
    else:
        assert step > len(files.changes)
    after = used.store()
    assert after.prepare(NEW, decided) == decided(NEW, [])
    assert used.is_clean("old", "new")
    after.unprepare("uid-new")
    assert used.is_clean("old")


@pytest.mark.contract("P18")
@pytest.mark.parametrize("step", STEPS)
def test_unprepare_cleans_up_after_a_power_cut(used: Disk, step: int) -> None:
    files = FaultyFiles()
    files.fail(step, PowerCut())
    try:
        used.store(files).prepare(NEW, decided)
    except PowerCut:
        used.store().unprepare("uid-new")
        assert used.checkpointed == used.specified == {"old"}


@pytest.mark.contract("P18")
@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("step", STEPS)
def test_power_cut_during_unprepare_is_retried(used: Disk, step: int, moment: Moment) -> None:
    files = FaultyFiles()
    files.fail(step, PowerCut(), moment)
    try:
        used.store(files).unprepare("uid-old")
    except PowerCut:
        used.store().open()
        assert used.is_clean("old") or used.is_clean()
    used.store().unprepare("uid-old")
    assert used.is_clean()


@pytest.mark.contract("P22")
@pytest.mark.contract("P3")
@pytest.mark.parametrize("number", DISK_ERRORS)
@pytest.mark.parametrize("step", STEPS)
def test_disk_error_in_prepare_fails_then_succeeds(used: Disk, step: int, number: int) -> None:
    files = FaultyFiles()
    store = used.store(files)
    files.fail(step, disk_error(number), Moment.HALF)
    try:
        store.prepare(NEW, decided)
    except OSError as err:
        assert err.errno == number
        assert used.is_clean("old") or used.is_clean("old", "new")
    assert store.prepare(NEW, decided) == decided(NEW, [])
    assert used.is_clean("old", "new")


@pytest.mark.contract("P22")
@pytest.mark.parametrize("number", DISK_ERRORS)
@pytest.mark.parametrize("step", STEPS)
def test_broken_disk_prepares_nothing(used: Disk, step: int, number: int) -> None:
    files = FaultyFiles()
    store = used.store(files)
    files.fail(step, disk_error(number), times=None)
    try:
        store.prepare(NEW, decided)
    except OSError:
        files.heal()
        assert "new" not in used.checkpointed or used.specified == {"old", "new"}
        used.store().open()
        assert used.is_clean("old") or used.is_clean("old", "new")


@pytest.mark.contract("N5")
@pytest.mark.parametrize("step", STEPS)
def test_disk_error_in_unprepare_fails_then_succeeds(used: Disk, step: int) -> None:
    files = FaultyFiles()
    store = used.store(files)
    files.fail(step, disk_error(DISK_ERRORS[0]))
    try:
        store.unprepare("uid-old")
    except OSError:
        assert "old" in used.specified | used.described | used.told
    files.heal()
    store.unprepare("uid-old")
    assert used.is_clean()


@pytest.mark.contract("N1")
@pytest.mark.contract("N2")
@pytest.mark.contract("N3")
def test_unprepare_always_succeeds(used: Disk) -> None:
    store = used.store()
    assert store.unprepare("uid-old") == decided(OLD, [])
    assert store.unprepare("uid-old") is None
    assert store.unprepare("uid-never-seen") is None
    assert used.is_clean()


@pytest.mark.contract("N6")
@pytest.mark.contract("P2")
def test_another_process_serves_prepared_claims(used: Disk) -> None:
    other = used.store()
    assert other.open().claims == {"uid-old": decided(OLD, [])}
    assert other.known("uid-old") == decided(OLD, [])
    other.unprepare("uid-old")
    assert used.store().known("uid-old") is None


@pytest.mark.contract("N8")
@pytest.mark.contract("P13")
def test_device_is_not_reused_before_unprepare(used: Disk) -> None:
    heir = claim(0, "heir")
    with pytest.raises(ClaimError, match="held by claim ml/old"):
        used.store().prepare(heir, decided)
    assert used.is_clean("old")
    used.store().unprepare("uid-old")
    used.store().prepare(heir, decided)
    assert used.is_clean("heir")


def test_rejected_claim_leaves_no_files(used: Disk) -> None:
    files = FaultyFiles()
    with pytest.raises(ClaimError):
        used.store(files).prepare(claim(99), decided)
    assert files.changes == []


# Reboot and repair.


@pytest.mark.contract("P19")
@pytest.mark.parametrize("wiped", [True, False])
def test_reboot_discards_prepared_claims(used: Disk, wiped: bool) -> None:
    if wiped:
        shutil.rmtree(used.cdi_root)
    store = used.store(boot_id="boot-2")
    assert store.open().claims == {}
    assert used.is_clean()
    assert store.known("uid-old") is None
    store.prepare(OLD, decided)
    assert used.is_clean("old")


@pytest.mark.contract("P19")
@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("step", STEPS)
def test_power_cut_at_open_after_reboot_is_harmless(used: Disk, step: int, moment: Moment) -> None:
    files = FaultyFiles()
    files.fail(step, PowerCut(), moment)
    try:
        used.store(files, "boot-2").open()
    except PowerCut:
        assert used.store(boot_id="boot-2").open().claims == {}
    assert used.is_clean()


@pytest.mark.contract("P19")
@pytest.mark.parametrize(
    "harm", [lambda path: path.unlink(), lambda path: path.write_text("{"), lambda path: path.write_text("")]
)
def test_missing_or_changed_cdi_file_is_rewritten(used: Disk, harm: Callable[[Path], None]) -> None:
    path = used.cdi_root / "k8s.neuron.aws.com-claim_uid-old.json"
    before = path.read_bytes()
    harm(path)
    assert used.store().repair()[0] == [OLD.ref]
    assert path.read_bytes() == before
    assert used.store().repair()[0] == []
    harm(path)
    used.store().known("uid-old")
    assert path.read_bytes() == before


def test_missing_cdi_folder_is_recreated(used: Disk) -> None:
    shutil.rmtree(used.cdi_root)
    assert used.store().repair()[0] == [OLD.ref]
    assert used.is_clean("old")


@pytest.mark.contract("C5")
def test_opening_removes_own_orphaned_files_only(used: Disk) -> None:
    temporary = f".{cdi.file_name('uid-job-9')}.1.tmp"
    strangers = {"k8s.gpu.nvidia.com-claim_1.json", "neuron.yaml", "k8s.neuron.aws.com-claim_1.yaml"}
    for name in (temporary, *strangers):
        (used.cdi_root / name).write_text("{}")
    used.store().open()
    ours = {"k8s.neuron.aws.com-claim_uid-old.json", *FOLDERS}
    assert set(os.listdir(used.cdi_root)) == strangers | ours


@pytest.mark.contract("P18")
def test_claim_that_has_only_a_file_holds_its_devices(used: Disk) -> None:
    """Its prepare or its unprepare did not end, and the kubelet repeats it; or the disk has lost the checkpoint."""
    half = claim(9)
    (used.cdi_root / cdi.file_name("uid-job-9")).write_bytes(cdi.encode(cdi.spec(decided(half, []))))
    store = used.store()
    assert store.open().claims["uid-job-9"] == PreparedClaim(
        half.ref, (PreparedDevice("", "", "neuron-device-9", (9,), (), {}),), adopted=True
    )
    with pytest.raises(DeviceInUse, match="held by claim ml/job-9"):
        store.prepare(claim(9, "rival"), decided)
    assert store.prepare(half, decided) == decided(half, [])
    store.unprepare("uid-job-9")
    assert used.is_clean("old")


# Taking over from another driver


def adopted(wanted: Claim) -> PreparedClaim:
    return PreparedClaim(wanted.ref, decided(wanted, []).devices, adopted=True)


FILE_NAMES = pytest.mark.parametrize(
    "name_of", [cdi.file_name, cdi.other_file_name], ids=["as ours", "as CDI's library"]
)


@pytest.mark.contract("C5")
@FILE_NAMES
def test_adopted_files_stay_until_unprepare(disk: Disk, name_of: Callable[[str], str]) -> None:
    disk.cdi_root.mkdir(parents=True)
    running, gone = (disk.cdi_root / name_of(uid) for uid in ("uid-old", "uid-gone"))
    for path in (running, gone):
        path.write_text('{"cdiVersion": "0.6.0", "kind": "k8s.neuron.aws.com/claim", "devices": []}')
    store = disk.store()
    store.open()
    assert running.exists()
    assert store.needs_inventory()
    store.adopt({"uid-old": adopted(OLD)})
    assert (running.exists(), gone.exists()) == (True, False)
    disk.store().open()
    assert running.exists()
    with pytest.raises(ClaimError, match="held by claim ml/old"):
        store.prepare(claim(0, "heir"), decided)
    store.unprepare("uid-old")
    assert not running.exists()
    store.prepare(claim(0, "heir"), decided)


def test_claim_that_was_unprepared_before_the_inventory_is_not_adopted(disk: Disk) -> None:
    """The list of claims may be older than the unprepare, which the kubelet does not repeat."""
    store = disk.store()
    store.open()
    store.unprepare("uid-old")
    store.adopt({"uid-old": adopted(OLD)})
    assert store.prepare(claim(0, "heir"), decided) == decided(claim(0, "heir"), [])


@FILE_NAMES
def test_claim_that_another_driver_prepared_after_our_unprepare_is_adopted(
    disk: Disk, name_of: Callable[[str], str]
) -> None:
    store = disk.store()
    store.open()
    store.unprepare("uid-old")
    (disk.cdi_root / name_of("uid-old")).write_text("{}")
    assert set(store.adopt({"uid-old": adopted(OLD)}).claims) == {"uid-old"}


def test_claim_that_an_earlier_process_unprepared_is_adopted(disk: Disk) -> None:
    """Another driver may have run, and prepared the claim, between the two processes."""
    disk.store().open()
    disk.store().unprepare("uid-old")
    store = disk.store()
    store.open()
    assert set(store.adopt({"uid-old": adopted(OLD)}).claims) == {"uid-old"}


def test_prepare_takes_over_an_adopted_claim(disk: Disk) -> None:
    store = disk.store()
    store.open()
    store.adopt({"uid-old": adopted(OLD)})
    assert store.known("uid-old") is None
    assert store.prepare(OLD, decided) == decided(OLD, [])
    assert disk.is_clean("old")


@pytest.mark.contract("C3")
@pytest.mark.parametrize("counted", ["before", "after", "after a crash"])
def test_taken_over_claim_leaves_the_foreign_file(disk: Disk, counted: str) -> None:
    """Runtimes reject a device that is in two files."""
    disk.cdi_root.mkdir(parents=True)
    theirs = disk.cdi_root / cdi.other_file_name("uid-old")
    theirs.write_text("kind: k8s.neuron.aws.com/claim")
    store = disk.store()
    store.open()
    if counted == "before":
        store.adopt({"uid-old": adopted(OLD)})
        assert theirs.exists()
    store.prepare(OLD, decided)
    if counted == "after":
        store.adopt({"uid-old": adopted(OLD)})
    if counted == "after a crash":
        disk.store().open()
    assert disk.is_clean("old")
    assert set(os.listdir(disk.cdi_root)) == {cdi.file_name("uid-old"), *FOLDERS}


def test_files_of_an_interim_driver_are_adopted(used: Disk) -> None:
    theirs = used.cdi_root / cdi.other_file_name("uid-since")
    theirs.write_text("kind: k8s.neuron.aws.com/claim")
    store = used.store()
    store.open()
    assert (store.needs_inventory(), theirs.exists()) == (True, True)
    assert set(store.adopt({}).claims) == {"uid-old"}
    assert (store.needs_inventory(), theirs.exists()) == (False, False)


def test_second_inventory_keeps_prepared_claims(used: Disk) -> None:
    """Another driver ran on the node: it may have unprepared our claims."""
    after = used.store().adopt({"uid-old": adopted(OLD)}, others_ran=True).claims["uid-old"]
    assert after == replace(decided(OLD, []), doubtful=True)


def test_inventory_without_another_driver_doubts_nothing(used: Disk) -> None:
    assert used.store().adopt({"uid-old": adopted(OLD)}).claims["uid-old"] == decided(OLD, [])


# A damaged checkpoint.


@pytest.mark.contract("P20")
@pytest.mark.parametrize(
    "harm",
    [
        slots.tear,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes().replace(b"boot-1", b"boot-2")),
        lambda path: path.write_bytes(slots.sealed({"bootId": "boot-1", "claims": {}}, version="v9")),
        lambda path: path.unlink(),
    ],
)
def test_damaged_checkpoint_is_not_empty(used: Disk, harm: Callable[[Path], None]) -> None:
    for path in slots.paths(used.folder):
        harm(path)
    damaged = [path.read_bytes() for path in slots.paths(used.folder)]
    store = used.store()
    for attempt in (store.open, store.read, lambda: store.known("uid-old"), lambda: store.unprepare("uid-old")):
        with pytest.raises(CheckpointDamaged):
            attempt()
    assert used.specified == {"old"}
    assert [path.read_bytes() for path in slots.paths(used.folder)] == damaged


# Transactions.


# Group commits

SOME = [claim(number) for number in (1, 2, 3)]


def test_concurrent_prepares_share_one_commit(used: Disk) -> None:
    files = FaultyFiles()
    answers = used.store(files).prepare_all(unmarked(SOME), decided)
    assert answers == [decided(c, []) for c in SOME]
    assert used.is_clean("old", "job-1", "job-2", "job-3")
    assert files.changes.count("overwrite checkpoint") == 1


def test_concurrent_unprepares_share_one_commit(used: Disk) -> None:
    used.store().prepare_all(unmarked(SOME), decided)
    files = FaultyFiles()
    held = used.store(files).unprepare_all(["uid-job-1", "uid-never-seen", "uid-old"])
    assert held == [decided(SOME[0], []), None, decided(OLD, [])]
    assert used.is_clean("job-2", "job-3")
    assert files.changes.count("overwrite checkpoint") == 1


@pytest.mark.contract("P13")
def test_first_of_two_claims_in_a_group_gets_the_device(used: Disk) -> None:
    first, second = used.store().prepare_all(unmarked([claim(3, "first"), claim(3, "second")]), decided)
    assert first == decided(claim(3, "first"), [])
    assert isinstance(second, ClaimError)
    assert "neuron3 is held by claim ml/first" in str(second)
    assert used.is_clean("old", "first")


def test_claims_of_a_group_fail_independently(used: Disk) -> None:
    def picky(wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        if wanted is SOME[1]:
            raise KeyError("a bug")
        return decided(wanted, held)

    answers = used.store().prepare_all(unmarked([OLD, *SOME]), picky)
    assert [type(answer).__name__ for answer in answers] == [
        "PreparedClaim",
        "PreparedClaim",
        "KeyError",
        "PreparedClaim",
    ]
    assert used.is_clean("old", "job-1", "job-3")


@pytest.mark.parametrize("step", [6, 8, 9], ids=["metadata", "notices", "CDI"])
def test_cdi_write_error_fails_its_claim_only(used: Disk, step: int) -> None:
    files = FaultyFiles()
    files.fail(step, disk_error(DISK_ERRORS[0]))  # five changes for the first claim, then the second's
    answers = used.store(files).prepare_all(unmarked(SOME), decided)
    assert [isinstance(answer, OSError) for answer in answers] == [False, True, False]
    assert used.is_clean("old", "job-1", "job-3")


@pytest.mark.contract("P18")
@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("step", range(1, 29))
def test_power_cut_during_group_commit_is_atomic(used: Disk, step: int, moment: Moment) -> None:
    files = FaultyFiles()
    store = used.store(files)
    files.fail(step, PowerCut(), moment)
    everything = ("old", "job-1", "job-2", "job-3")
    try:
        store.prepare_all(unmarked(SOME), decided)
    except PowerCut:
        held = used.store().open().claims.values()
        assert used.is_clean(*everything[: len(held)])
        answered = {claim.ref.name for claim in held if not claim.adopted}
        assert answered in ({"old"}, set(everything))
    else:
        assert step > len(files.changes)
    assert used.store().prepare_all(unmarked(SOME), decided) == [decided(c, []) for c in SOME]
    assert used.is_clean(*everything)


@pytest.mark.parametrize("step", range(16, 25))
def test_failed_group_commit_fails_all_its_claims(used: Disk, step: int) -> None:
    files = FaultyFiles()
    files.fail(step, disk_error(DISK_ERRORS[0]))  # after the files of the three claims
    answers = used.store(files).prepare_all(unmarked([OLD, *SOME]), decided)
    assert answers[0] == decided(OLD, [])
    committed = {answer.ref.name for answer in answers[1:] if isinstance(answer, PreparedClaim)}
    assert committed in (set(), {"job-1", "job-2", "job-3"})
    if not committed and "job-1" not in used.checkpointed:
        assert used.specified == {"old"}
    assert used.store().prepare_all(unmarked(SOME), decided) == [decided(c, []) for c in SOME]
    assert used.is_clean("old", "job-1", "job-2", "job-3")


async def test_queued_claims_are_committed_together(used: Disk) -> None:
    claims = [claim(number) for number in range(1, 16)]
    files = SlowFiles()
    made = await transactions(used, Api(*claims), files)
    asked = [asyncio.create_task(made.prepare(c.ref)) for c in claims]
    await asyncio.to_thread(files.began.wait, 120)
    for _ in range(100):  # the others queue
        await asyncio.sleep(0)
    files.go_on.set()
    assert await asyncio.gather(*asked) == [decided(c, []) for c in claims]
    assert files.changes.count("overwrite checkpoint") == 2, "one for the first, and one for the other fourteen"


async def test_abandoned_transaction_ends_with_the_next(disk: Disk) -> None:
    asked: list[list[str]] = []
    began, go_on = threading.Event(), threading.Event()

    def work(items: list[str]) -> list[str]:
        asked.append(items)
        began.set()
        go_on.wait(120)
        return [item.upper() for item in items]

    together = GroupCommit(asyncio.Lock(), Worker("test"), work)
    leader, other = (asyncio.create_task(together(name)) for name in "ab")
    await asyncio.to_thread(began.wait, 120)
    leader.cancel()
    go_on.set()
    assert await other == "B"
    assert leader.cancelled()
    assert asked == [["a"], ["a", "b"]]


@pytest.mark.contract("P2")
async def test_claim_of_another_process_needs_no_api_request(disk: Disk) -> None:
    own = replace(NEW, of_its_pod=True)
    one, other = await transactions(disk, Api(own)), await transactions(disk, Api())
    await one.prepare(NEW.ref)
    assert await other.prepare(NEW.ref) == decided(own, [])


async def test_unchanged_checkpoint_is_not_searched_again(used: Disk) -> None:
    store = used.store()
    store.open()
    assert store.surely_unknown("uid-new")
    assert not store.surely_unknown("uid-old")
    used.store().prepare(NEW, decided)
    assert not store.surely_unknown("uid-new")
    assert not store.surely_unknown("uid-never-seen")
    store.read()
    assert store.surely_unknown("uid-never-seen")


class SlowFiles(FaultyFiles):
    """Files whose first write blocks until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.go_on = threading.Event(), threading.Event()

    def write(self, path: Path, data: bytes, mode: int) -> None:
        self.began.set()
        self.go_on.wait(120)
        super().write(path, data, mode)


class Api:
    """An API server with claims that counts requests, and may be slow or unavailable."""

    def __init__(self, *claims: Claim) -> None:
        self.claims = {c.ref.uid: c for c in claims}
        self.gets: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.error: Exception | None = None

    async def fetch(self, ref: ClaimRef) -> Claim:
        self.gets.append(ref.uid)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        if ref.uid not in self.claims:
            raise NotFound(f"claim {ref} does not exist", status=404)
        return self.claims[ref.uid]

    async def allocation(self, ref: ClaimRef) -> Claim:
        return await self.fetch(ref)

    def decide(self, claim: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        return decided(claim, held)


def unmarked(claims: Sequence[Claim]) -> list[tuple[Claim, None]]:
    return [(claim, None) for claim in claims]


async def transactions(disk: Disk, api: Api, files: Files | None = None, *, device_wait_s: float = 0.0) -> Transactions:
    made = Transactions(PreparedClaims(disk.store(files)), api, device_wait_s, IMPATIENT)
    await made.prepared.open()
    return made


async def test_claim_life_cycle(disk: Disk) -> None:
    api = Api(NEW)
    made = await transactions(disk, api)
    seen = made.prepared.changed.count
    assert await made.prepare(NEW.ref) == decided(NEW, [])
    assert disk.is_clean("new")
    assert (list(made.prepared.claims), made.prepared.changed.count) == ([NEW.ref.uid], seen + 1)
    await made.unprepare(NEW.ref)
    assert disk.is_clean()
    assert (made.prepared.claims, made.prepared.changed.count) == ({}, seen + 2)


@pytest.mark.contract("P2")
@pytest.mark.contract("N4")
async def test_prepared_claim_of_a_pod_needs_no_api_request(disk: Disk) -> None:
    own = replace(NEW, of_its_pod=True)
    api = Api(own)
    made = await transactions(disk, api)
    await made.prepare(NEW.ref)
    api.error = Unavailable("away")
    assert await made.prepare(NEW.ref) == decided(own, [])
    await made.unprepare(NEW.ref)
    assert api.gets == ["uid-new"]
    assert disk.is_clean()


# A claim that is allocated anew under the same UID, before it is unprepared

MOVED = replace(claim(2, "old"), pod="next")
REALLOCATED = (
    "claim ml/old was allocated again before it was unprepared: neuron-device-0 (r) of it are prepared for pod ml/old, "
    "and neuron-device-2 (r) is allocated now; delete pod ml/next, and the claim is prepared for the next one. Until "
    "then the devices of both allocations stay held"
)


@pytest.mark.contract("P34")
async def test_new_allocation_of_a_prepared_claim_is_refused(used: Disk) -> None:
    made = await transactions(used, Api(MOVED))
    with pytest.raises(ClaimError) as caught:
        await made.prepare(OLD.ref)
    assert str(caught.value) == REALLOCATED
    assert made.prepared.claims == {"uid-old": decided(OLD, [])}
    assert used.is_clean("old")


@pytest.mark.contract("P34")
async def test_new_allocation_is_prepared_after_the_unprepare(used: Disk) -> None:
    made = await transactions(used, Api(MOVED))
    with pytest.raises(ClaimError):
        await made.prepare(OLD.ref)
    await made.unprepare(OLD.ref)
    assert await made.prepare(OLD.ref) == decided(MOVED, [])


@pytest.mark.contract("P34")
def test_new_allocation_is_refused_under_the_lock(used: Disk) -> None:
    """Another process has prepared the claim since it was known as not prepared."""
    store = used.store()
    store.open()
    with pytest.raises(ClaimError) as caught:
        store.prepare(MOVED, decided)
    assert str(caught.value) == REALLOCATED


@pytest.mark.contract("P34")
@pytest.mark.parametrize(
    "now",
    [
        (AllocatedDevice("r", "a", "neuron-device-0", share_id="s"),),
        (AllocatedDevice("r", "a", "neuron-device-0", admin_access=True),),
        (AllocatedDevice("other", "a", "neuron-device-0"),),
        (AllocatedDevice("r", "a", "neuron-device-0"), AllocatedDevice("r", "a", "neuron-device-1")),
        (),
    ],
)
async def test_any_other_result_is_a_new_allocation(used: Disk, now: tuple[AllocatedDevice, ...]) -> None:
    made = await transactions(used, Api(replace(OLD, devices=now)))
    with pytest.raises(ClaimError, match="was allocated again"):
        await made.prepare(OLD.ref)


@pytest.mark.contract("P2")
async def test_repeated_prepare_of_a_claim_that_pods_share_reads_it(used: Disk) -> None:
    api = Api(replace(OLD, pod="another"))
    made = await transactions(used, api)
    assert await made.prepare(OLD.ref) == decided(OLD, [])
    assert api.gets == ["uid-old"]


@pytest.mark.contract("P34")
async def test_claim_that_cannot_be_read_is_not_answered(used: Disk) -> None:
    api = Api(OLD)
    api.error = Unavailable("away")
    made = await transactions(used, api)
    with pytest.raises(Unavailable):
        await made.prepare(OLD.ref)
    assert made.prepared.claims == {"uid-old": decided(OLD, [])}


async def test_claim_unprepared_during_the_read_is_not_answered(used: Disk) -> None:
    api = Api(OLD)
    made = await transactions(used, api)
    api.answers.clear()
    again = asyncio.create_task(made.prepare(OLD.ref))
    while not api.gets:
        await asyncio.sleep(0.001)
    await made.unprepare(OLD.ref)
    api.answers.set()
    with pytest.raises(ClaimError, match="was unprepared while it was being prepared"):
        await again
    assert used.is_clean()


@pytest.mark.contract("P5")
async def test_unprepared_claim_is_read_each_time(disk: Disk) -> None:
    api = Api()
    made = await transactions(disk, api)
    for _ in range(2):
        with pytest.raises(NotFound):
            await made.prepare(NEW.ref)
    assert api.gets == ["uid-new", "uid-new"]


@pytest.mark.contract("P17")
async def test_concurrent_calls_prepare_a_claim_once(disk: Disk) -> None:
    api = Api(NEW)
    made = await transactions(disk, api)
    answers = await asyncio.gather(*(made.prepare(NEW.ref) for _ in range(50)))
    assert set(map(repr, answers)) == {repr(decided(NEW, []))}
    assert api.gets == ["uid-new"]


@pytest.mark.contract("P17")
async def test_concurrent_claims_do_not_mix(disk: Disk) -> None:
    claims = [claim(number) for number in range(16)]
    made = await transactions(disk, Api(*claims))
    answers = await asyncio.gather(*(made.prepare(c.ref) for c in claims))
    assert [a.devices[0].device_ids for a in answers] == [(number,) for number in range(16)]
    assert disk.is_clean(*(c.ref.name for c in claims))
    assert made.prepared.claims == disk.store().read().claims
    await asyncio.gather(*(made.unprepare(c.ref) for c in claims))
    assert disk.is_clean()


@pytest.mark.contract("P13")
async def test_one_of_two_claims_gets_the_device(disk: Disk) -> None:
    rivals = [claim(3, name) for name in ("one", "two", "three")]
    made = await transactions(disk, Api(*rivals))
    answers = await asyncio.gather(*(made.prepare(c.ref) for c in rivals), return_exceptions=True)
    assert sum(isinstance(answer, ClaimError) for answer in answers) == 2
    assert len(disk.checkpointed) == 1


# A device that another claim still holds

HEIR = claim(0, "heir")  # of the device that OLD holds


async def waiting(made: Transactions, api: Api) -> asyncio.Task[PreparedClaim]:
    """Let HEIR wait for its device."""
    task = asyncio.create_task(made.prepare(HEIR.ref))
    while api.gets != ["uid-heir"] or made.prepared.claims.keys() != {"uid-old"}:
        await asyncio.sleep(0.001)
    await made.prepared.repair()  # queued behind the attempt for HEIR
    assert not task.done()
    return task


@pytest.mark.contract("N8")
@pytest.mark.contract("P13")
async def test_claim_waits_for_its_device(used: Disk) -> None:
    api = Api(HEIR, NEW)
    made = await transactions(used, api, device_wait_s=60)
    task = await waiting(made, api)
    assert await made.prepare(NEW.ref) == decided(NEW, []), "nobody else waits for it"
    assert used.is_clean("old", "new")
    await made.unprepare(OLD.ref)
    assert await task == decided(HEIR, [])
    assert used.is_clean("heir", "new")


@pytest.mark.contract("N8")
async def test_unprepare_by_another_process_frees_the_device(used: Disk) -> None:
    api = Api(HEIR)
    made, other = await transactions(used, api, device_wait_s=60), await transactions(used, api)
    task = await waiting(made, api)
    await other.unprepare(OLD.ref)
    await made.prepared.repair()
    assert await task == decided(HEIR, [])
    assert used.is_clean("heir")


async def test_one_of_many_waiting_claims_gets_the_device(used: Disk) -> None:
    heirs = [claim(0, f"heir-{number}") for number in range(4)]
    made = await transactions(used, Api(*heirs), device_wait_s=3600)
    calls = {asyncio.create_task(made.prepare(heir.ref)) for heir in heirs}
    before = OLD.ref
    while calls:
        await made.unprepare(before)
        done, calls = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=120)
        [first] = done
        before = first.result().ref
        assert used.is_clean(before.name)


@pytest.mark.contract("P13")
async def test_timed_out_wait_names_the_holder(used: Disk) -> None:
    api = Api(HEIR)
    made = await transactions(used, api, device_wait_s=0.05)
    with pytest.raises(DeviceInUse, match="neuron0 is held by claim ml/old") as caught:
        await made.prepare(HEIR.ref)
    assert caught.value.holder == "uid-old"
    assert used.is_clean("old")


@pytest.mark.contract("P16")
async def test_claim_unprepared_while_waiting_fails(used: Disk) -> None:
    api = Api(HEIR)
    made = await transactions(used, api, device_wait_s=60)
    task = await waiting(made, api)
    await made.unprepare(HEIR.ref)
    with pytest.raises(ClaimError, match="was unprepared while it was being prepared"):
        await task
    assert used.is_clean("old")


@pytest.mark.contract("P5")
async def test_claim_deleted_while_waiting_fails(used: Disk) -> None:
    api = Api(HEIR)
    made = await transactions(used, api, device_wait_s=60)
    task = await waiting(made, api)
    api.claims.clear()
    await made.unprepare(OLD.ref)
    with pytest.raises(NotFound):
        await task
    assert used.is_clean()


async def test_stop_rejects_waiting_claims(used: Disk) -> None:
    api = Api(HEIR)
    made = await transactions(used, api, device_wait_s=60)
    task = await waiting(made, api)
    made.hurry()
    with pytest.raises(DeviceInUse):
        await task


@pytest.mark.contract("P17")
async def test_two_processes_keep_each_others_claims(disk: Disk) -> None:
    claims = [claim(number) for number in range(12)]
    api = Api(*claims)
    one, other = await transactions(disk, api), await transactions(disk, api)
    await asyncio.gather(*((one if i % 2 else other).prepare(c.ref) for i, c in enumerate(claims)))
    assert disk.is_clean(*(c.ref.name for c in claims))
    await asyncio.gather(*((other if i % 2 else one).unprepare(c.ref) for i, c in enumerate(claims[:6])))
    assert disk.is_clean(*(c.ref.name for c in claims[6:]))
    await asyncio.gather(one.prepared.repair(), other.prepared.repair())
    assert one.prepared.claims == other.prepared.claims == disk.store().read().claims


@pytest.mark.contract("P16")
async def test_retry_joins_the_running_prepare(disk: Disk) -> None:
    api = Api(NEW)
    made = await transactions(disk, api)
    api.answers.clear()
    first = asyncio.create_task(made.prepare(NEW.ref))
    while not api.gets:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    retry = asyncio.create_task(made.prepare(NEW.ref))
    await asyncio.sleep(0)
    api.answers.set()
    assert await retry == decided(NEW, [])
    assert api.gets == ["uid-new"]
    assert disk.is_clean("new")


@pytest.mark.contract("P16")
async def test_prepare_completes_without_its_caller(disk: Disk) -> None:
    api = Api(NEW)
    made = await transactions(disk, api)
    api.answers.clear()
    call = asyncio.create_task(made.prepare(NEW.ref))
    while not api.gets:
        await asyncio.sleep(0.001)
    call.cancel()
    api.answers.set()
    await made.finish(5)
    assert disk.is_clean("new")


async def test_unprepare_wins_over_an_abandoned_prepare(disk: Disk) -> None:
    api = Api(NEW)
    made = await transactions(disk, api)
    api.answers.clear()
    call = asyncio.create_task(made.prepare(NEW.ref))
    while not api.gets:
        await asyncio.sleep(0.001)
    call.cancel()
    await made.unprepare(NEW.ref)
    api.answers.set()
    await made.finish(5)
    assert (made.prepared.claims, disk.specified) == ({}, set())
    assert await made.prepare(NEW.ref) == decided(NEW, [])


@pytest.mark.contract("P3")
@pytest.mark.contract("P22")
async def test_full_disk_fails_then_retry_succeeds(disk: Disk) -> None:
    files = FaultyFiles()
    made = await transactions(disk, Api(NEW), files)
    files.fail(1, disk_error(DISK_ERRORS[0]), times=None)
    with pytest.raises(OSError, match="No space left on device"):
        await made.prepare(NEW.ref)
    assert made.prepared.claims == {}
    files.heal()
    await made.prepare(NEW.ref)
    assert disk.is_clean("new")


async def test_lock_of_another_process_is_reported(disk: Disk) -> None:
    store = SingleStore(disk.folder, disk.cdi_root, "boot-1", Files(), lock_s=0.05)
    made = Transactions(PreparedClaims(store), Api(NEW), timing=IMPATIENT)
    await made.prepared.open()
    with locked(disk.folder / "serialize.lock", timeout_s=1):
        with pytest.raises(TimeoutError, match="locked by another process"):
            await made.prepare(NEW.ref)
    await made.prepare(NEW.ref)


async def test_finish_is_bounded_and_leaves_no_task(disk: Disk) -> None:
    api = Api(NEW)
    made = await transactions(disk, api)
    api.answers.clear()
    call = asyncio.create_task(made.prepare(NEW.ref))
    while not api.gets:
        await asyncio.sleep(0.001)
    async with asyncio.timeout(60):
        await made.finish(0.05)
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("prepare")] == []
    assert disk.store().open().claims == {}


@pytest.mark.contract("P20")
async def test_damaged_checkpoint_rejects_all_calls(used: Disk) -> None:
    slots.tear_all(used.folder)
    made = Transactions(PreparedClaims(used.store()), Api(NEW), timing=IMPATIENT)
    await made.prepared.open()
    for call in (made.prepare(NEW.ref), made.prepare(OLD.ref), made.unprepare(OLD.ref)):
        with pytest.raises(ClaimError, match="checkpoint was damaged and is being rebuilt"):
            await call
    assert made.prepared.changed.count == 1
    assert used.specified == {"old"}


@pytest.mark.contract("P20")
async def test_damage_under_a_plugin_is_repaired_at_the_next_call(used: Disk) -> None:
    made = await transactions(used, Api(NEW))
    slots.tear_all(used.folder)
    assert await made.prepared.repair() == []
    assert slots.read(used.folder).claims == {"uid-old": decided(OLD, [])}
    slots.tear_all(used.folder)
    with pytest.raises(ClaimError, match="was unprepared while it was being prepared"):  # a new era has begun
        await made.prepare(NEW.ref)
    assert await made.prepare(NEW.ref) == decided(NEW, [])
    assert used.is_clean("old", "new")


# Two plugins of a rolling update: the old one still prepares a claim that the new one has unprepared.


async def waits_in(made: Transactions, api: Api) -> asyncio.Task[PreparedClaim]:
    """Return a prepare of `NEW` that waits for the API server; its caller has given up."""
    api.answers.clear()
    call = asyncio.create_task(made.prepare(NEW.ref))
    while not api.gets:
        await asyncio.sleep(0.001)
    return call


@pytest.mark.contract("R13")
@pytest.mark.parametrize("prepared_meanwhile", [False, True])
async def test_claim_unprepared_elsewhere_is_not_committed(used: Disk, *, prepared_meanwhile: bool) -> None:
    """14.4: the claim would stay prepared, because the kubelet does not unprepare it again."""
    api = Api(NEW)
    old, new = await transactions(used, api), await transactions(used, Api(NEW))
    call = await waits_in(old, api)
    if prepared_meanwhile:
        await new.prepare(NEW.ref)
    await new.unprepare(NEW.ref)
    api.answers.set()
    with pytest.raises(ClaimError, match="was unprepared while it was being prepared"):
        await call
    assert used.is_clean("old")
    assert await old.prepare(NEW.ref) == await new.prepare(NEW.ref) == decided(NEW, [])
    assert used.is_clean("old", "new")


async def test_other_claims_unprepare_stops_nothing(used: Disk) -> None:
    api = Api(NEW)
    old, new = await transactions(used, api), await transactions(used, api)
    call = await waits_in(old, api)
    await new.unprepare(OLD.ref)
    api.answers.set()
    assert await call == decided(NEW, [])


async def test_many_unprepares_of_others_do_not_reject_a_prepare(used: Disk) -> None:
    api = Api(NEW)
    old, new = await transactions(used, api), await transactions(used, api)
    call = await waits_in(old, api)
    for number in range(100):
        await new.unprepare(ClaimRef("ml", f"other-{number}", f"uid-other-{number}"))
    api.answers.set()
    assert await call == decided(NEW, [])


async def test_withdrawal_survives_its_time(used: Disk) -> None:
    api = Api(NEW)
    old, new = await transactions(used, api), await transactions(used, api)
    call = await waits_in(old, api)
    await new.unprepare(NEW.ref)
    later = SingleStore(used.folder, used.cdi_root, "boot-1", Files(), clock=lambda: time.monotonic() + 1000)
    later.unprepare("uid-other")
    assert later.read().withdrawals.claims == {"uid-other": 2}
    api.answers.set()
    with pytest.raises(ClaimError, match="was unprepared"):
        await call
    assert used.is_clean("old")


async def test_withdrawal_survives_a_torn_checkpoint(used: Disk) -> None:
    api = Api(NEW)
    old, new = await transactions(used, api), await transactions(used, api)
    call = await waits_in(old, api)
    await new.unprepare(NEW.ref)
    slots.tear_all(used.folder)
    await new.prepared.repair()
    api.answers.set()
    with pytest.raises(ClaimError, match="was unprepared"):
        await call
    assert used.is_clean("old")


async def test_later_prepare_is_not_withdrawn(used: Disk) -> None:
    """The withdrawal precedes this prepare, so it does not apply."""
    old, new = await transactions(used, Api(NEW)), await transactions(used, Api(NEW))
    await new.prepare(NEW.ref)
    await new.unprepare(NEW.ref)
    assert await old.prepare(NEW.ref) == decided(NEW, [])


async def test_unrecorded_unprepare_fails(used: Disk) -> None:
    """The kubelet retries, and until then the running prepare may still commit."""
    files = FaultyFiles()
    api = Api(NEW)
    old, new = await transactions(used, api), await transactions(used, api, files)
    call = await waits_in(old, api)
    files.fail(1, disk_error(DISK_ERRORS[0]), times=None)
    with pytest.raises(OSError, match=disk_error(DISK_ERRORS[0]).strerror):
        await new.unprepare(NEW.ref)
    api.answers.set()
    assert await call == decided(NEW, [])
    files.heal()
    await new.unprepare(NEW.ref)
    assert used.is_clean("old")


# A short outage of the API server


class Away:
    """An API server that fails until `error` is cleared."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.asked = 0

    async def fetch(self, ref: ClaimRef) -> Claim:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return NEW

    async def allocation(self, ref: ClaimRef) -> Claim:
        return await self.fetch(ref)

    def decide(self, claim: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        return decided(claim, held)


async def asking(disk: Disk, away: Away) -> tuple[Transactions, asyncio.Task[PreparedClaim]]:
    """Return a prepare that retries its request."""
    made = Transactions(PreparedClaims(disk.store()), away, timing=quicker(IMPATIENT, fetch_patience_s=600.0))
    await made.prepared.open()
    return made, asyncio.create_task(made.prepare(NEW.ref))


async def test_fetch_retries_until_success(disk: Disk) -> None:
    """14.7."""
    away = Away(Unavailable("refused"))
    _, task = await asking(disk, away)
    while away.asked < 2:
        await asyncio.sleep(0.01)
    away.error = None
    assert await task == decided(NEW, [])


@pytest.mark.parametrize(
    ("error", "tries"),
    [(NotFound("gone", status=404), 1), (Forbidden("no", status=403), FORBIDDEN_TRIES), (ClaimError("not so"), 1)],
)
async def test_permanent_api_error_is_not_retried(disk: Disk, error: Exception, tries: int) -> None:
    away = Away(error)
    _, task = await asking(disk, away)
    with pytest.raises(type(error)):
        await task
    assert away.asked == tries


async def test_retry_after_beyond_the_deadline_fails(disk: Disk) -> None:
    away = Away(TooManyRequests("wait", status=429, retry_after_s=3600.0))
    made = Transactions(PreparedClaims(disk.store()), away, timing=quicker(IMPATIENT, fetch_patience_s=1.0))
    await made.prepared.open()
    with pytest.raises(TooManyRequests):
        await made.prepare(NEW.ref)
    assert away.asked == 1


async def test_stopping_plugin_ends_retries(disk: Disk) -> None:
    away = Away(Unavailable("refused"))
    made, task = await asking(disk, away)
    while not away.asked:
        await asyncio.sleep(0.001)
    made.hurry()
    with pytest.raises(Unavailable):
        await task


async def test_unprepare_ends_api_retries(disk: Disk) -> None:
    away = Away(TooManyRequests("wait", status=429, retry_after_s=8.0))
    made, task = await asking(disk, away)
    while not away.asked:
        await asyncio.sleep(0.001)
    await made.unprepare(NEW.ref)
    with pytest.raises(TooManyRequests):
        await task
    assert away.asked == 1
