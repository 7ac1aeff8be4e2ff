"""The folders with the notices of workloads: order, crashes, full disks, leftovers, updates and downgrades."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import cdi, notice
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.core.decision import decide
from neuron_dra.core.notice import Notice, Told
from neuron_dra.emulation.cdi_runtime import CdiRuntime
from neuron_dra.node.files import Files
from tests.support.faulty_files import DISK_ERRORS, FaultyFiles, Moment, PowerCut, disk_error
from tests.support.single_store import SingleStore

NODE = healthy_node("trn2.48xlarge")
ENDS = Notice("CapacityBlockEnds", "2026-12-01T10:30:00Z")
LATER = Notice("CapacityBlockEnds", "2026-12-02T10:30:00Z")
STEPS = range(1, 13)  # more than any transaction here has; an unreached step tests the success


def claim(number: int) -> Claim:
    device = AllocatedDevice("r", "n", f"neuron-device-{number}")
    return Claim(ClaimRef("ml", f"job-{number}", f"uid-{number}"), (device,))


def told(found: Notice | None, workload: str = "llm") -> Told:
    return Told("ml", workload, found)


class Node:
    """A node's disk."""

    def __init__(self, root: Path) -> None:
        self.data, self.cdi_root = root / "neuron.aws.com", root / "cdi"
        self.root = self.cdi_root / notice.FOLDER
        self.store().open()
        self.store().adopt({})

    def store(self, files: Files | None = None, boot_id: str = "boot-1") -> SingleStore:
        return SingleStore(self.data, self.cdi_root, boot_id, files or Files())

    def plain(self, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        """As a release without notices prepares a claim."""
        made = decide(wanted, node_name="n", node=NODE, held=held, device_files=cdi.DeviceFiles())
        return replace(made, workload="llm")

    def decided(self, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        return notice.added(self.plain(wanted, held), str(self.root))

    @property
    def notices(self) -> dict[str, bytes | None]:
        """By folder: the notice in it."""
        return {name: Files().read(self.root / name / notice.FILE) for name in Files().names(self.root)}

    @property
    def leftovers(self) -> list[str]:
        return [str(path) for path in self.root.rglob("*.tmp")]


@pytest.fixture
def node(short_path: Path) -> Node:
    made = Node(short_path)
    made.store().prepare(claim(0), made.decided)
    return made


def test_each_claim_of_a_workload_has_an_empty_folder(node: Node) -> None:
    node.store().prepare(claim(1), node.decided)
    assert node.notices == {"claim_uid-0": None, "claim_uid-1": None}
    modes = [path.stat().st_mode & 0o777 for path in (node.root, node.root / "claim_uid-0")]
    assert modes == [0o755, 0o755]


def test_folder_precedes_the_cdi_file_and_outlasts_it(node: Node) -> None:
    """A container whose mount has no source does not start."""
    files = FaultyFiles()
    node.store(files).prepare(claim(1), node.decided)
    order = ["make_folder claim_uid-1", f"rename {cdi.file_name('uid-1')}", "overwrite checkpoint"]
    assert [change for change in files.changes if change in order] == order
    files.changes.clear()
    node.store(files).unprepare("uid-1")
    order = ["overwrite checkpoint", f"remove {cdi.file_name('uid-1')}", "remove_folder claim_uid-1"]
    assert [change for change in files.changes if change in order] == order


def test_prepare_costs_one_folder_and_no_flush(node: Node) -> None:
    def changes(decided: Callable[[Claim, list[PreparedClaim]], PreparedClaim], number: int) -> list[str]:
        files = FaultyFiles()
        node.store(files).prepare(claim(number), decided)
        return [change.split()[0] for change in files.changes]

    before, after = changes(node.plain, 1), changes(node.decided, 2)
    assert sorted([*before, "make_folder"]) == sorted(after)


def test_notice_is_renamed_into_every_folder_of_the_workload(node: Node) -> None:
    """A program never reads half of it, and a running container has the folder mounted."""
    node.store().prepare(claim(1), node.decided)
    folder = (node.root / "claim_uid-0").stat().st_ino
    files = FaultyFiles()
    node.store(files).tell(told(ENDS))
    assert node.notices == dict.fromkeys(("claim_uid-0", "claim_uid-1"), ENDS.encode())
    assert files.changes[1::2] == ["rename notice.json"] * 2
    assert (node.root / "claim_uid-0").stat().st_ino == folder
    assert (node.root / "claim_uid-0" / notice.FILE).stat().st_mode & 0o777 == 0o644


def test_notice_of_another_workload_concerns_no_claim_here(node: Node) -> None:
    node.store().tell(told(ENDS, "other"))
    assert node.notices == {"claim_uid-0": None}


def test_notice_moves_and_is_taken_back(node: Node) -> None:
    """The block was extended: first a little, then until long after."""
    for found in (ENDS, LATER, None):
        node.store().tell(told(found))
        assert node.notices == {"claim_uid-0": None if found is None else found.encode()}


def test_same_notice_is_not_written_twice(node: Node) -> None:
    node.store().tell(told(ENDS))
    files = FaultyFiles()
    node.store(files).tell(told(ENDS))
    assert files.changes == []


def test_claim_that_is_prepared_later_finds_the_notice(node: Node) -> None:
    """A pod that is restarted by its owner half an hour before the end."""
    store = node.store()
    store.tell(told(ENDS))
    store.prepare(claim(1), node.decided)
    assert node.notices["claim_uid-1"] == ENDS.encode()


def test_repeated_prepare_keeps_the_notice_of_an_earlier_process(node: Node) -> None:
    node.store().tell(told(ENDS))
    store = node.store()
    store.open()
    store.prepare(claim(0), node.decided)
    assert node.notices == {"claim_uid-0": ENDS.encode()}


def test_unprepare_removes_only_the_claims_folder(node: Node) -> None:
    node.store().prepare(claim(1), node.decided)
    node.store().tell(told(ENDS))
    node.store().unprepare("uid-0")
    assert node.notices == {"claim_uid-1": ENDS.encode()}
    node.store().unprepare("uid-1")
    node.store().unprepare("uid-1")
    assert node.notices == {}


def test_container_finds_the_file_that_its_variable_names(node: Node) -> None:
    prepared = node.store().known("uid-0")
    assert prepared is not None
    container = CdiRuntime([node.cdi_root]).create(prepared.devices[0].cdi_ids)
    path = Path(container.env["NEURON_DRA_NOTICE_FILE"])
    mount = container.mounts[str(path.parent)]
    assert "ro" in mount.options
    assert not path.is_relative_to("/var/run")
    node.store().tell(told(ENDS))
    assert json.loads((Path(mount.host_path) / path.name).read_text()) == ENDS.to_wire()


def test_two_claims_in_a_container_are_told_the_same(node: Node) -> None:
    """The later claim's variable and mount replace the earlier one's; both folders have the notice."""
    node.store().prepare(claim(1), node.decided)
    node.store().tell(told(ENDS))
    ids = [node.store().read().claims[uid].devices[0].cdi_ids[0] for uid in ("uid-0", "uid-1")]
    for order in (ids, ids[::-1]):
        container = CdiRuntime([node.cdi_root]).create(order)
        path = Path(container.env["NEURON_DRA_NOTICE_FILE"])
        source = Path(container.mounts[str(path.parent)].host_path) / path.name
        assert source.read_bytes() == ENDS.encode()


def test_claim_of_an_earlier_release_stays_without(node: Node) -> None:
    node.store().prepare(claim(1), node.plain)
    node.store().tell(told(ENDS))
    assert node.store().repair()[0] == []
    assert node.notices == {"claim_uid-0": ENDS.encode()}


def test_earlier_release_keeps_the_mount_and_ends_the_claim(node: Node) -> None:
    """It does not know the folder: containers start, and the next release removes what it left."""

    class Earlier(Files):
        """Leaves folders of notices alone."""

        def remove_folder(self, folder: Path) -> bool:
            return False

    spec = (node.cdi_root / cdi.file_name("uid-0")).read_bytes()
    earlier = node.store(Earlier())
    earlier.open()
    assert (node.cdi_root / cdi.file_name("uid-0")).read_bytes() == spec
    earlier.unprepare("uid-0")
    assert node.notices == {"claim_uid-0": None}
    node.store().open()
    assert node.notices == {}


@pytest.mark.parametrize("damage", ["file", "folder", "all"])
def test_damage_is_repaired(node: Node, damage: str) -> None:
    """The kubelet does not call again, and a container of the pod may still have to start."""
    store = node.store()
    store.tell(told(ENDS))
    match damage:
        case "file":
            (node.root / "claim_uid-0" / notice.FILE).write_bytes(b"{")
        case "folder":
            shutil.rmtree(node.root / "claim_uid-0")
        case "all":
            shutil.rmtree(node.root)
    assert store.repair()[0] == [claim(0).ref]
    assert node.notices == {"claim_uid-0": ENDS.encode()}
    assert store.repair()[0] == []


def test_reboot_removes_the_folders(node: Node) -> None:
    node.store().tell(told(ENDS))
    node.store(boot_id="boot-2").open()
    assert node.notices == {}


def test_start_removes_leftovers_and_nothing_else(node: Node) -> None:
    (node.root / "claim_uid-gone").mkdir()
    (node.root / "claim_uid-gone" / ".notice.json.7.tmp").write_bytes(b"{")
    (node.root / "theirs").mkdir()
    node.store().tell(told(ENDS))
    node.store().open()
    assert node.notices == {"claim_uid-0": ENDS.encode(), "theirs": None}


def whole(node: Node, *names: str) -> None:
    """Assert that exactly these claims are prepared, and that each of them has its folder."""
    assert sorted(node.store().read().claims) == sorted(names)
    assert sorted(node.notices) == sorted(notice.folder_name(name) for name in names)
    assert node.leftovers == []


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.HALF, Moment.AFTER])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["prepare", "unprepare", "tell", "withdraw"])
def test_killed_at_each_step(node: Node, name: str, step: int, moment: Moment) -> None:
    """A claim in the checkpoint always has its folder, and the repeated call ends what was begun."""
    if name == "withdraw":
        node.store().tell(told(ENDS))
    files = FaultyFiles()
    store = node.store(files)

    def act(of: SingleStore) -> None:
        match name:
            case "prepare":
                of.tell(told(ENDS))
                of.prepare(claim(1), node.decided)
            case "unprepare":
                of.unprepare("uid-0")
            case "tell":
                of.tell(told(ENDS))
            case "withdraw":
                of.tell(told(None))

    files.fail(step, PowerCut(), moment)
    with contextlib.suppress(PowerCut):
        act(store)
    committed = node.store().read().claims
    assert {notice.folder_name(uid) for uid in committed} <= set(node.notices)
    again = node.store()
    again.open()
    act(again)
    whole(node, *{"prepare": ("uid-0", "uid-1"), "unprepare": ()}.get(name, ("uid-0",)))
    if name != "unprepare":
        assert set(node.notices.values()) == {None if name == "withdraw" else ENDS.encode()}


@pytest.mark.parametrize("error", DISK_ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("step", range(1, 5))
def test_full_disk_costs_the_notice_and_no_claim(node: Node, error: int, step: int) -> None:
    files = FaultyFiles()
    store = node.store(files)
    files.fail(step, disk_error(error), times=None)
    try:
        store.tell(told(ENDS))
    except OSError as err:
        assert err.errno == error
    files.heal()
    store.tell(told(ENDS))
    whole(node, "uid-0")
    assert node.notices == {"claim_uid-0": ENDS.encode()}


@pytest.mark.parametrize("error", DISK_ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("step", STEPS)
def test_prepared_claim_has_its_folder_on_a_full_disk(node: Node, error: int, step: int) -> None:
    files = FaultyFiles()
    store = node.store(files)
    files.fail(step, disk_error(error), times=None)
    with contextlib.suppress(OSError):
        store.prepare(claim(1), node.decided)
    assert {notice.folder_name(uid) for uid in node.store().read().claims} <= set(node.notices)
    files.heal()
    store.prepare(claim(1), node.decided)
    node.store().open()
    whole(node, "uid-0", "uid-1")
