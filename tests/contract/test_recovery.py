"""A damaged checkpoint: prepared claims are restored from three sources before new ones are prepared."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import cdi
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.core.decision import decide
from neuron_dra.core.evidence import Listing
from neuron_dra.core.in_use import ListedClaim, ListedPod
from neuron_dra.errors import ApiError, ClaimError, NotFound, Unavailable
from neuron_dra.node.files import Files
from neuron_dra.node.metrics import PluginMetrics
from neuron_dra.node.prepare import recovery
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.transactions import Transactions
from tests.support import slots
from tests.support.faulty_files import DISK_ERRORS, FaultyFiles, disk_error
from tests.support.finds import ListedBy, finds
from tests.support.single_store import SingleStore
from tests.support.timings import IMPATIENT, quicker

pytestmark = pytest.mark.contract("P20")
NODE = healthy_node("trn2.48xlarge")


def claim(number: int) -> Claim:
    name = f"job-{number}"
    return Claim(
        ClaimRef("ml", name, f"uid-{number}"), (AllocatedDevice("r", "a", f"neuron-device-{number}"),), (), name
    )


def decided(wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
    return decide(wanted, node_name="a", node=NODE, held=held, device_files=cdi.DeviceFiles(), prepared_at="then")


class Cluster:
    """the claims of the API server; while `error` is set, it is the reply to all requests."""

    def __init__(self) -> None:
        self.claims: dict[str, Claim] = {}
        self.error: Exception | None = None
        self.lists = 0

    async def fetch(self, ref: ClaimRef) -> Claim:
        if self.error is not None:
            raise self.error
        for found in self.claims.values():
            if (found.ref.namespace, found.ref.name) == (ref.namespace, ref.name):
                if found.ref.uid != ref.uid:
                    raise ClaimError(f"claim {ref} was replaced")
                return found
        raise NotFound("gone", status=404)

    async def named(self, namespace: str, name: str) -> Claim:
        for claim in self.claims.values():
            if (claim.ref.namespace, claim.ref.name) == (namespace, name):
                return claim
        raise NotFound("gone", status=404)

    async def allocation(self, ref: ClaimRef) -> Claim:
        return await self.fetch(ref)

    def decide(self, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        return decided(wanted, held)

    async def allocated(self) -> AsyncIterator[Claim]:
        self.lists += 1
        if self.error is not None:
            raise self.error
        for found in list(self.claims.values()):
            yield found


def listing(*numbers: int) -> Listing:
    """The kubelet's list, with pods that have these claims."""
    pods = []
    for number in numbers:
        devices = frozenset({("neuron.aws.com", "a", f"neuron-device-{number}")})
        claim = ListedClaim("ml", f"job-{number}", devices, uid=f"uid-{number}")
        pods.append(ListedPod("ml", f"pod-{number}", (claim,)))
    return Listing(tuple(pods), is_trusted=True)


def found_again(number: int) -> PreparedClaim:
    """The result is the same, but only the kubelet can show that the claim was not unprepared."""
    return replace(decided(claim(number), []), doubtful=True)


async def known() -> None:
    """The node is known at once."""


HURRIED = quicker(IMPATIENT, rebuild_retry_s=(0.01, 0.05))


class Node:
    """A plugin's transactions and recovery on a real disk."""

    def __init__(self, root: Path, cluster: Cluster) -> None:
        self.root, self.cluster, self.kubelet = root, cluster, ListedBy()
        self.data, self.cdi_root = root / "data", root / "cdi"

    def process(self, files: Files | None = None, boot_id: str = "boot-1") -> tuple[Transactions, recovery.Recovery]:
        store = SingleStore(self.root / "data", self.cdi_root, boot_id, files or Files())
        transactions = Transactions(PreparedClaims(store), self.cluster, timing=HURRIED)
        return transactions, recovery.Recovery(
            transactions.prepared,
            finds(self.cluster, decided, kubelet=self.kubelet),
            known,
            PluginMetrics(),
            HURRIED,
        )

    async def recovered(self, boot_id: str = "boot-1") -> Transactions:
        transactions, rebuild = self.process(boot_id=boot_id)
        await transactions.prepared.open()
        assert transactions.prepared.damaged
        async with asyncio.timeout(60):
            await rebuild.rebuild()
        assert not transactions.prepared.damaged
        return transactions

    @property
    def specs(self) -> set[str]:
        return {uid for name in os.listdir(self.cdi_root) if (uid := cdi.claim_uid_of(name))}


@pytest.fixture
async def node(short_path: Path) -> Node:
    """Claims 0, 1 and 2 are prepared; the older slot has 0 and 1."""
    made = Node(short_path, Cluster())
    made.cluster.claims = {c.ref.uid: c for c in map(claim, range(3))}
    transactions, _ = made.process()
    await transactions.prepared.open()
    await transactions.prepared.adopt({})
    for number in range(3):
        await transactions.prepare(claim(number).ref)
    return made


HARM: list[Callable[[Path], object]] = [
    slots.tear,
    lambda path: path.unlink(),
    lambda path: path.write_bytes(b""),
]


@pytest.mark.parametrize("harm", HARM)
async def test_recovery_restores_all_prepared_claims(node: Node, harm: Callable[[Path], object]) -> None:
    for path in slots.paths(node.data):
        harm(path)
    transactions = await node.recovered()
    assert transactions.prepared.claims == {f"uid-{n}": found_again(n) for n in range(3)}
    assert node.specs == {"uid-0", "uid-1", "uid-2"}
    assert await transactions.prepare(claim(2).ref) == found_again(2)
    node.cluster.error = Unavailable("away")
    for number in range(3):
        await transactions.unprepare(claim(number).ref)
    assert node.specs == set()


@pytest.mark.parametrize("harm", HARM)
async def test_older_slot_and_cdi_files_are_enough(node: Node, harm: Callable[[Path], object]) -> None:
    """The newest slot was damaged after it was written."""
    harm(slots.newest(node.data))
    transactions, _ = node.process()
    await transactions.prepared.open()
    assert transactions.prepared.damaged is None
    assert {uid: c.adopted for uid, c in transactions.prepared.claims.items()} == {
        "uid-0": False,
        "uid-1": False,
        "uid-2": True,
    }
    assert [await transactions.prepare(claim(n).ref) for n in range(3)] == [decided(claim(n), []) for n in range(3)]
    assert len(slots.paths(node.data)) == 2


def lose_all_files(node: Node) -> None:
    slots.tear_all(node.data)
    for name in os.listdir(node.cdi_root):
        os.unlink(node.cdi_root / name)


async def test_recovery_uses_the_kubelets_list_without_files(node: Node) -> None:
    lose_all_files(node)
    node.kubelet.listing = listing(*range(3))
    transactions = await node.recovered()
    assert transactions.prepared.claims == {f"uid-{n}": found_again(n) for n in range(3)}
    assert node.specs == {"uid-0", "uid-1", "uid-2"}


async def test_allocation_alone_is_not_recovered(node: Node) -> None:
    """The kubelet may not have prepared the claim, and then it never unprepares it."""
    lose_all_files(node)
    node.cluster.claims["uid-7"] = claim(7)
    transactions = await node.recovered()
    assert transactions.prepared.claims == {}
    node.cluster.claims["rival"] = Claim(ClaimRef("ml", "rival", "rival"), claim(7).devices)
    assert await transactions.prepare(ClaimRef("ml", "rival", "rival"))


async def test_rebuild_after_a_foreign_checkpoint_adopts_all_allocations(node: Node) -> None:
    lose_all_files(node)
    slots.remove_all(node.data)
    (node.data / "checkpoint.json").write_text('{"checksum":1713104513,"v1":{"preparedClaims":{}}}')
    node.cluster.claims["uid-7"] = claim(7)
    transactions = await node.recovered()
    assert {uid: c.adopted for uid, c in transactions.prepared.claims.items()} == dict.fromkeys(
        ("uid-0", "uid-1", "uid-2", "uid-7"), True
    )
    node.cluster.claims["rival"] = Claim(ClaimRef("ml", "rival", "rival"), claim(7).devices)
    with pytest.raises(ClaimError, match="neuron7 is held by claim ml/job-7"):
        await transactions.prepare(ClaimRef("ml", "rival", "rival"))
    assert await transactions.prepare(claim(7).ref) == decided(claim(7), [])
    assert sorted(os.listdir(node.data)) == [
        "boot.json",
        "checkpoint.0",
        "checkpoint.1",
        "checkpoint.json.damaged",
        "serialize.lock",
    ]


async def test_foreign_checkpoint_beside_ours_puts_our_claims_in_doubt(node: Node) -> None:
    """Another driver, or a version before the first release, has run after us. It may have unprepared our claims."""
    (node.data / "checkpoint.json").write_text('{"checksum":"c7fe","version":"v1","bootId":"boot-1","claims":{}}')
    node.cluster.claims["uid-7"] = claim(7)
    transactions = await node.recovered()
    assert transactions.prepared.claims.pop("uid-7").adopted
    assert transactions.prepared.claims == {f"uid-{n}": found_again(n) for n in range(3)}


async def test_slots_of_a_later_release_are_not_overwritten(node: Node) -> None:
    path = slots.older(node.data)
    path.write_bytes(
        slots.sealed({"bootId": "boot-1", "claims": [["in a form of its own"]]}, sequence=99, version="v2")
    )
    before = {path.name: path.read_bytes() for path in node.data.iterdir()}
    transactions, rebuild = node.process()
    await transactions.prepared.open()
    running = asyncio.create_task(rebuild.rebuild())
    async with asyncio.timeout(60):
        while "Install that release again" not in transactions.prepared.rebuild_waits:
            await asyncio.sleep(0.005)
    with pytest.raises(ClaimError, match="format 'v2' is unknown to this release, which reads v1"):
        await transactions.prepare(claim(5).ref)
    running.cancel()
    assert {path.name: path.read_bytes() for path in node.data.iterdir()} == before


async def test_deleted_claim_keeps_devices_until_unprepared(node: Node) -> None:
    slots.tear_all(node.data)
    del node.cluster.claims["uid-2"]
    before = (node.cdi_root / cdi.file_name("uid-2")).read_bytes()
    transactions = await node.recovered()
    assert transactions.prepared.claims["uid-2"].adopted
    assert transactions.prepared.claims["uid-2"].devices[0].device_ids == (2,)
    assert (node.cdi_root / cdi.file_name("uid-2")).read_bytes() == before, "a container that restarts needs it"
    await transactions.unprepare(claim(2).ref)
    assert node.specs == {"uid-0", "uid-1"}


async def test_replaced_claim_keeps_devices_until_unprepared(node: Node) -> None:
    slots.tear_all(node.data)
    node.cluster.claims["uid-2"] = Claim(ClaimRef("ml", "job-2", "uid-new"), claim(9).devices)
    transactions = await node.recovered()
    assert transactions.prepared.claims["uid-2"].devices[0].device_ids == (2,)
    assert "uid-new" not in transactions.prepared.claims


async def test_unprepared_claim_stays_so(node: Node) -> None:
    transactions, _ = node.process()
    await transactions.prepared.open()
    await transactions.unprepare(claim(1).ref)
    del node.cluster.claims["uid-1"]
    slots.tear_all(node.data)
    assert set((await node.recovered()).prepared.claims) == {"uid-0", "uid-2"}


async def test_claim_that_the_lost_slot_had_unprepared_is_in_doubt(node: Node) -> None:
    """The older slot has it, and its CDI file is gone. So it is released once the kubelet does not list it."""
    transactions, _ = node.process()
    await transactions.prepared.open()
    await transactions.unprepare(claim(1).ref)
    slots.tear(slots.newest(node.data))
    transactions, _ = node.process()
    await transactions.prepared.open()
    assert {uid: c.doubtful for uid, c in transactions.prepared.claims.items()} == {
        "uid-0": False,
        "uid-1": True,
        "uid-2": False,
    }


@pytest.mark.parametrize("harm", HARM)
async def test_checkpoint_of_an_earlier_boot_needs_no_recovery(node: Node, harm: Callable[[Path], object]) -> None:
    for path in slots.paths(node.data):
        harm(path)
    node.cluster.error = Unavailable("away")
    transactions, _ = node.process(boot_id="boot-2")
    await transactions.prepared.open()
    assert (transactions.prepared.damaged, transactions.prepared.claims) == (None, {})
    assert node.specs == set()
    assert sorted(os.listdir(node.data)) == ["boot.json", "checkpoint.0", "checkpoint.1", "serialize.lock"]
    node.cluster.error = None
    assert await transactions.prepare(claim(0).ref) == decided(claim(0), [])


async def test_foreign_files_are_ignored(node: Node) -> None:
    slots.tear_all(node.data)
    for number, text in enumerate(("", "[]", "{", '{"annotations": {"neuron.aws.com/claim-uid": "other"}}')):
        (node.cdi_root / cdi.file_name(f"odd-{number}")).write_text(text)
    assert set((await node.recovered()).prepared.claims) == {"uid-0", "uid-1", "uid-2"}


@pytest.mark.parametrize(
    "error", [Unavailable("away"), ClaimError("the answer is no list"), ApiError("418"), OSError("token")]
)
async def test_recovery_retries_and_rejects_meanwhile(node: Node, error: Exception) -> None:
    slots.tear_all(node.data)
    node.cluster.error = error
    transactions, rebuild = node.process()
    await transactions.prepared.open()
    running = asyncio.create_task(rebuild.rebuild())
    async with asyncio.timeout(60):
        while node.cluster.lists < 2:
            await asyncio.sleep(0.005)
    with pytest.raises(ClaimError, match="being rebuilt"):
        await transactions.prepare(claim(5).ref)
    assert node.specs == {"uid-0", "uid-1", "uid-2"}
    node.cluster.error = None
    async with asyncio.timeout(60):
        await running
    assert set(transactions.prepared.claims) == {"uid-0", "uid-1", "uid-2"}


async def test_full_disk_does_not_end_recovery(node: Node) -> None:
    slots.tear_all(node.data)
    files = FaultyFiles()
    transactions, rebuild = node.process(files)
    await transactions.prepared.open()
    files.fail(1, disk_error(DISK_ERRORS[0]), times=6)
    async with asyncio.timeout(60):
        await rebuild.rebuild()
    assert set(transactions.prepared.claims) == {"uid-0", "uid-1", "uid-2"}


def blocked(node: Node, uid: str) -> Path:
    """Put a folder in the place of a claim's CDI file."""
    path = node.cdi_root / cdi.file_name(uid)
    path.unlink()
    path.mkdir()
    return path


async def test_folder_at_a_cdi_path_does_not_end_recovery(node: Node) -> None:
    """31, mend 12: one claim's file kept the whole node from new claims."""
    slots.tear_all(node.data)
    blocked(node, "uid-1")
    async with asyncio.timeout(60):
        transactions = await node.recovered()
    assert set(transactions.prepared.claims) == {"uid-0", "uid-1", "uid-2"}
    assert await transactions.prepare(claim(0).ref) == found_again(0)


async def test_folder_at_a_cdi_path_of_a_forgotten_claim_leaves_no_other_file(node: Node) -> None:
    """31, mend 12."""
    transactions, _ = node.process()
    await transactions.prepared.open()
    blocked(node, "uid-0")
    with pytest.raises(IsADirectoryError):
        await transactions.prepared.forget(list(transactions.prepared.claims.values()))
    assert node.specs == {"uid-0"}


async def test_second_recovery_keeps_later_claims(node: Node) -> None:
    slots.tear_all(node.data)
    (one, first), (two, second) = node.process(), node.process()
    await one.prepared.open()
    await two.prepared.open()
    assert two.prepared.damaged is not None
    await first.rebuild()
    collected = await second._collect()
    node.cluster.claims["uid-5"] = claim(5)
    await one.prepare(claim(5).ref)
    await one.unprepare(claim(0).ref)
    await two.prepared.rebuilt(collected)
    assert set(two.prepared.claims) == {"uid-1", "uid-2", "uid-5"}
    assert node.specs == {"uid-1", "uid-2", "uid-5"}


async def test_rebuilt_checkpoint_loads_at_the_next_start(node: Node) -> None:
    slots.tear_all(node.data)
    await node.recovered()
    transactions, _ = node.process()
    await transactions.prepared.open()
    assert transactions.prepared.damaged is None
    assert set(transactions.prepared.claims) == {"uid-0", "uid-1", "uid-2"}
    assert slots.read(node.data).extra["inventoryTaken"] is True


async def test_unreadable_checkpoint_is_rebuilt_at_a_start(node: Node) -> None:
    """A bad block under the file: only another file can be read."""

    class BadBlock(Files):
        def __init__(self, *paths: Path) -> None:
            self.inodes = {path.stat().st_ino for path in paths}

        def read(self, path: Path) -> bytes | None:
            stamp = self.stamp(path)
            if stamp is not None and stamp[0] in self.inodes:
                raise disk_error(errno.EIO)
            return super().read(path)

    transactions, rebuild = node.process(BadBlock(*slots.paths(node.data)))
    await transactions.prepared.open()
    assert "cannot be read" in (transactions.prepared.damaged or "")
    async with asyncio.timeout(60):
        await rebuild.rebuild()
    assert set(transactions.prepared.claims) == {"uid-0", "uid-1", "uid-2"}
    await transactions.unprepare(claim(0).ref)
