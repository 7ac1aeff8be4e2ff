"""The stores of both drivers in one CDI folder: killed at each change of the disk, and a disk that fails (4.10)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from neuron_dra.core import cdi, decision, efa, names, topology
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.core.dra_driver import EFA, NEURON, Driver
from neuron_dra.core.efa import EfaReading, Interface
from neuron_dra.core.facts import NodeLabels
from neuron_dra.emulation import simulated_node
from neuron_dra.node.files import Files
from neuron_dra.node.hardware import sysfs
from tests.support.faulty_files import FaultyFiles, Moment, PowerCut, disk_error
from tests.support.single_store import SingleStore

INTERFACES: Final = tuple(
    Interface(f"0000:{bus}:00.0", f"rdma{bus}", number) for number, bus in enumerate(("56", "57"))
)
READING: Final = EfaReading({interface.name: interface for interface in INTERFACES})
UIDS: Final = tuple(f"{number}1111111-2222-3333-4444-555555555555" for number in range(2))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> topology.Node:
    root = tmp_path_factory.mktemp("host")
    simulated_node.write(root, "trn2.48xlarge")
    return topology.build(sysfs.read_node(root), NodeLabels.from_labels({}))


class Disk:
    """The folders of one node, and claims that have a Neuron device and an EFA interface each."""

    def __init__(self, root: Path, node: topology.Node) -> None:
        self.root, self.node = root, node
        self.cdi = root / "cdi"

    def store(self, driver: Driver, files: Files | None = None, boot_id: str = "boot-1") -> SingleStore:
        store = SingleStore(self.root / driver.name, self.cdi, boot_id, files or Files(), driver=driver)
        store.open()
        return store

    def claim(self, number: int, driver: Driver) -> Claim:
        device = INTERFACES[number].name if driver is EFA else f"{names.DEVICE_PREFIX}{number}"
        ref = ClaimRef("ml", f"job-{number}", UIDS[number])
        return Claim(ref, (AllocatedDevice("request", "a", device),))

    def decide(self, driver: Driver) -> Callable[[Claim, list[PreparedClaim]], PreparedClaim]:
        common: dict[str, Any] = {"node_name": "a", "device_files": cdi.DeviceFiles(), "prepared_at": "then"}
        if driver is EFA:
            return lambda claim, held: efa.decide(
                claim, held=held, reading=READING, watch={}, effect="NoSchedule", **common
            )
        return lambda claim, held: decision.decide(claim, held=held, node=self.node, **common)

    def run(self, driver: Driver, files: Files) -> None:
        """Prepare a claim, unprepare it, and prepare two."""
        store = self.store(driver, files)
        store.prepare(self.claim(0, driver), self.decide(driver))
        store.unprepare(UIDS[0])
        for number in (0, 1):
            store.prepare(self.claim(number, driver), self.decide(driver))

    def specified(self, driver: Driver) -> dict[str, Any]:
        """Return the CDI files of a driver's claims, by UID."""
        documents = {}
        for name in os.listdir(self.cdi):
            if uid := cdi.claim_uid_of(name, driver):
                documents[uid] = json.loads((self.cdi / name).read_text())
        return documents

    def check(self, driver: Driver) -> None:
        """The next process prepares both claims, twice with the same result, and unprepares them without a trace."""
        store = self.store(driver)
        results = [store.prepare(self.claim(number, driver), self.decide(driver)) for number in (0, 1)]
        assert store.read().claims == {result.ref.uid: result for result in results}
        assert self.specified(driver) == {
            result.ref.uid: json.loads(cdi.encode(cdi.spec(result, driver))) for result in results
        }
        for number in (0, 1):
            assert store.known(UIDS[number]) == results[number]
            store.unprepare(UIDS[number])
        assert (store.read().claims, self.specified(driver)) == ({}, {})


def changes(node: topology.Node, driver: Driver) -> list[str]:
    files = FaultyFiles()
    with tempfile.TemporaryDirectory() as folder:
        Disk(Path(folder), node).run(driver, files)
    return files.changes


@pytest.mark.parametrize("driver", [NEURON, EFA], ids=["neuron", "efa"])
def test_kill_at_each_change_leaves_the_other_driver_alone(driver: Driver, node: topology.Node) -> None:
    count = len(changes(node, driver))
    assert count > 10
    other = EFA if driver is NEURON else NEURON
    for nth in range(1, count + 1):
        for moment in Moment:
            with tempfile.TemporaryDirectory() as folder:
                disk, files = Disk(Path(folder), node), FaultyFiles()
                others_store = disk.store(other)
                held = [others_store.prepare(disk.claim(number, other), disk.decide(other)) for number in (0, 1)]
                before = disk.specified(other)
                files.fail(nth, PowerCut(), moment, times=None)
                with contextlib.suppress(PowerCut):  # the last change does not come: the CDI folder exists
                    disk.run(driver, files)
                disk.check(driver)
                assert disk.specified(other) == before
                assert list(disk.store(other).read().claims.values()) == held


def test_full_disk_at_each_change_is_recovered(node: topology.Node) -> None:
    for nth in range(1, len(changes(node, EFA)) + 1):
        with tempfile.TemporaryDirectory() as folder:
            disk, files = Disk(Path(folder), node), FaultyFiles()
            files.fail(nth, disk_error(errno.ENOSPC))
            try:
                disk.run(EFA, files)
            except OSError as err:
                assert err.errno == errno.ENOSPC
            disk.check(EFA)


def test_lost_checkpoint_is_rebuilt_from_the_cdi_files(tmp_path: Path, node: topology.Node) -> None:
    disk = Disk(tmp_path, node)
    disk.run(EFA, Files())
    for name in ("checkpoint.0", "checkpoint.1", "boot.json"):
        (tmp_path / EFA.name / name).unlink()
    claims = disk.store(EFA).read().claims
    assert {uid: (claim.adopted, claim.devices[0].device) for uid, claim in claims.items()} == {
        uid: (True, INTERFACES[number].name) for number, uid in enumerate(UIDS)
    }
    disk.check(EFA)


def test_reboot_ends_the_claims_of_both(tmp_path: Path, node: topology.Node) -> None:
    disk = Disk(tmp_path, node)
    for driver in (NEURON, EFA):
        disk.run(driver, Files())
    for driver in (NEURON, EFA):
        assert disk.store(driver, boot_id="boot-2").read().claims == {}
        assert disk.specified(driver) == {}
