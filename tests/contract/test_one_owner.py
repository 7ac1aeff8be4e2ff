"""No device is ever held by two claims: a random walk through all events of a node."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from neuron_dra.core.checkpoint import SLOTS
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.errors import ClaimError, NotFound
from neuron_dra.node.metrics import PluginMetrics
from neuron_dra.node.prepare import recovery
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.transactions import Transactions
from tests.support.claim_paths import EFA_PATH, NEURON_PATH, ClaimPath
from tests.support.faulty_files import (
    DISK_ERRORS,
    FaultyFiles,
    Moment,
    PowerCut,
    disk_error,
)
from tests.support.finds import finds
from tests.support.single_store import SingleStore
from tests.support.timings import IMPATIENT, quicker

NAMES = ("a", "b", "c", "d")
DEVICES = range(4)
LONG = bool(os.environ.get("NEURON_DRA_LONG"))


async def known() -> None:
    """The node needs no discovery."""


HURRIED = quicker(IMPATIENT, rebuild_retry_s=(0.001, 0.01))


class Api:
    """Claims by name, with invalid allocations: a device may be in several."""

    def __init__(self, path: ClaimPath) -> None:
        self._path = path
        self.claims: dict[str, Claim] = {}
        self._made = 0

    def put(self, name: str, devices: frozenset[int]) -> None:
        self._made += 1
        allocated = tuple(AllocatedDevice("r", "node", self._path.devices[number]) for number in sorted(devices))
        self.claims[name] = Claim(ClaimRef("ml", name, f"{name}-{self._made}"), allocated)

    async def fetch(self, ref: ClaimRef) -> Claim:
        if ref.name not in self.claims:
            raise NotFound("gone", status=404)
        if self.claims[ref.name].ref != ref:
            raise ClaimError("replaced")
        return self.claims[ref.name]

    async def named(self, namespace: str, name: str) -> Claim:
        if name not in self.claims:
            raise NotFound("gone", status=404)
        return self.claims[name]

    async def allocated(self) -> AsyncIterator[Claim]:
        for claim in list(self.claims.values()):
            yield claim


@dataclass(frozen=True)
class Admitting:
    """Decides as the plugin does, from the claims of its API server."""

    node: Any

    async def fetch(self, ref: ClaimRef) -> Claim:
        found: Claim = await self.node.api.fetch(ref)
        return found

    async def allocation(self, ref: ClaimRef) -> Claim:
        return await self.fetch(ref)

    def decide(self, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        decision: PreparedClaim = self.node.decide(wanted, held)
        return decision


@dataclass
class Process:
    """A running plugin."""

    files: FaultyFiles
    store: SingleStore
    transactions: Transactions
    recovery: recovery.Recovery


@dataclass(frozen=True)
class Container:
    """The kubelet's result for a claim whose containers may run."""

    devices: frozenset[int]
    answer: PreparedClaim
    spec: bytes


class Node(RuleBasedStateMachine):
    """The kubelet, which keeps all results, with one or two plugins on one disk."""

    path = NEURON_PATH

    def __init__(self) -> None:
        super().__init__()
        logging.disable()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory(
            prefix="nd", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        )
        self.data, self.cdi_root = Path(self.folder.name, "data"), Path(self.folder.name, "cdi")
        self.api, self.boot = Api(self.path), 1
        self.processes: list[Process] = []
        self.running: dict[ClaimRef, Container] = {}
        self.asked: set[ClaimRef] = set()  # not unprepared yet; the kubelet will do so
        self.given_back: set[ClaimRef] = set()
        self.doubtful: set[ClaimRef] = set()  # unprepared, still allocated, and its checkpoint is lost

    def decide(self, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        return self.path.decide(wanted, held, node_name="node")

    def teardown(self) -> None:
        """After all claims are unprepared, all devices can be prepared."""
        try:
            for process in self.processes:
                process.files.heal()
            self.start()  # a new process removes files of dead ones
            process = self.processes[-1]
            for ref in sorted(self.asked, key=str):
                self.call(-1, "unprepare", ref)
            for name in NAMES:
                self.api.claims.pop(name, None)
            self.do(process, process.transactions.prepared.repair())
            held = process.transactions.prepared.claims
            for ref in [claim.ref for claim in held.values()]:
                assert held[ref.uid].adopted or ref in self.doubtful, f"{ref} is still prepared"
                self.call(-1, "unprepare", ref)
            self.api.put("last", frozenset(DEVICES))
            assert isinstance(self.call(-1, "prepare", self.api.claims["last"].ref), PreparedClaim)
            assert {name for name in os.listdir(self.cdi_root) if "last" not in name} == set()
        finally:
            self.loop.close()
            self.folder.cleanup()
            logging.disable(logging.NOTSET)

    def do(self, process: Process, work: Coroutine[Any, Any, Any]) -> Any:
        """Run an operation of a plugin; rebuild its checkpoint if that is damaged.

        Returns an error as a value; a power cut ends the process.
        """
        try:
            try:
                result = self.loop.run_until_complete(work)
            except (ClaimError, NotFound, OSError) as err:
                result = err
            if process.transactions.prepared.damaged is not None:
                self.loop.run_until_complete(process.recovery.rebuild())
            return result
        except PowerCut:
            self.processes.remove(process)
            return PowerCut()

    def call(self, number: int, verb: str, ref: ClaimRef) -> Any:
        """Call a plugin as the kubelet does, with retries."""
        process = self.processes[number % len(self.processes)]
        result = self.do(process, getattr(process.transactions, verb)(ref))
        if isinstance(result, ClaimError) and "is being rebuilt" in str(result) and process in self.processes:
            return self.call(self.processes.index(process), verb, ref)
        return result

    # The cluster

    @rule(name=st.sampled_from(NAMES), devices=st.frozensets(st.sampled_from(DEVICES), min_size=1, max_size=3))
    def allocate(self, name: str, devices: frozenset[int]) -> None:
        """Replace the claim of that name by a new one."""
        self.api.put(name, devices)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        self.api.claims.pop(name, None)

    # The node

    @initialize()
    def begin(self) -> None:
        self.start()

    @precondition(lambda self: len(self.processes) < 2)
    @rule()
    def start(self) -> None:
        """Start the first plugin, one after a crash, or a second one beside the first."""
        files = FaultyFiles()
        store = SingleStore(self.data, self.cdi_root, f"boot-{self.boot}", files, driver=self.path.driver)
        transactions = Transactions(PreparedClaims(store), Admitting(self), timing=HURRIED)
        rebuild = recovery.Recovery(
            transactions.prepared,
            finds(self.api, self.decide, node_name="node", path=self.path),
            known,
            PluginMetrics(),
            HURRIED,
        )
        self.processes.append(Process(files, store, transactions, rebuild))
        self.do(self.processes[-1], transactions.prepared.open())
        if store.needs_inventory():
            self.do(self.processes[-1], transactions.prepared.adopt({}))

    @precondition(lambda self: self.processes)
    @rule(number=st.integers(0, 1))
    def stop(self, number: int) -> None:
        del self.processes[number % len(self.processes)]

    @rule(keeps_cdi=st.booleans())
    def reboot(self, keeps_cdi: bool) -> None:
        self.processes.clear()
        self.running.clear()
        self.boot += 1
        if not keeps_cdi:
            shutil.rmtree(self.cdi_root, ignore_errors=True)

    @rule(number=st.integers(1, 3), keep=st.integers(0, 200))
    def damage(self, number: int, keep: int) -> None:
        """Truncate one slot or both."""
        self.doubtful |= {claim.ref for claim in self.api.claims.values()} & self.given_back
        for bit, name in enumerate(SLOTS):
            if number >> bit & 1 and (self.data / name).exists():
                (self.data / name).write_bytes((self.data / name).read_bytes()[:keep])

    @precondition(lambda self: self.processes)
    @rule()
    def repair(self) -> None:
        """Delete CDI files; the plugin repairs them later."""
        process = self.processes[0]
        failed = isinstance(self.do(process, process.transactions.prepared.repair()), Exception)
        if failed or process not in self.processes:
            return  # the checkpoint may have been damaged: then only the files are left
        held = process.transactions.prepared.claims
        for ref, container in self.running.items():
            if not held[ref.uid].adopted:  # the file is the only trace of an adopted claim
                path = self.cdi_root / self.path.file_name(ref.uid)
                path.unlink(missing_ok=True)
                for _ in range(2):  # the disk may fail once
                    self.do(process, process.transactions.prepared.repair())
                if process in self.processes:
                    assert path.read_bytes() == container.spec

    @precondition(lambda self: self.processes)
    @rule(
        number=st.integers(0, 1),
        nth=st.integers(1, 12),
        moment=st.sampled_from(Moment),
        error=st.sampled_from([None, *DISK_ERRORS]),
    )
    def arm(self, number: int, nth: int, moment: Moment, error: int | None) -> None:
        """Fail the disk or the power at a later operation of a plugin."""
        process = self.processes[number % len(self.processes)]
        process.files.fail(nth, PowerCut() if error is None else disk_error(error), moment)

    # The kubelet

    @precondition(lambda self: self.processes and self.api.claims)
    @rule(number=st.integers(0, 1), data=st.data())
    def prepare(self, number: int, data: st.DataObject) -> None:
        known = sorted({*self.running, *(claim.ref for claim in self.api.claims.values())}, key=str)
        ref = data.draw(st.sampled_from(known))
        self.asked.add(ref)
        result = self.call(number, "prepare", ref)
        if not isinstance(result, PreparedClaim):
            return
        devices = self.path.numbers(result)
        answer = replace(result, doubtful=False)  # internal state, which the kubelet does not get
        prepared = Container(devices, answer, (self.cdi_root / self.path.file_name(ref.uid)).read_bytes())
        assert self.running.setdefault(ref, prepared) == prepared, "another result for the same claim"

    @precondition(lambda self: self.processes and self.asked)
    @rule(number=st.integers(0, 1), data=st.data())
    def unprepare(self, number: int, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(sorted(self.asked, key=str)))
        self.running.pop(ref, None)  # its containers have ended
        if self.call(number, "unprepare", ref) is None:
            self.asked.discard(ref)
            self.given_back.add(ref)

    @invariant()
    def no_device_has_two_owners(self) -> None:
        held = sorted(number for container in self.running.values() for number in container.devices)
        assert len(held) == len(set(held)), f"devices {held} of {sorted(map(str, self.running))}"


class EfaNode(Node):
    """The same with EFA interfaces."""

    path = EFA_PATH


@pytest.fixture(autouse=True)
def logging_again() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


def walk(node: type[Node], walks: int, steps: int, *, always_the_same: bool = not LONG) -> None:
    run_state_machine_as_test(
        node,
        settings=settings(
            max_examples=walks,
            stateful_step_count=steps,
            deadline=None,
            derandomize=always_the_same,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],  # failing walks are not minimized, which would take minutes
        ),
    )


@pytest.mark.timeout(600)
@pytest.mark.contract("P13")
@pytest.mark.contract("P2")
@pytest.mark.parametrize("node", [Node, EfaNode], ids=["neuron", "efa"])
def test_no_device_has_two_holders(node: type[Node], record_property: Callable[[str, str], None]) -> None:
    walks, steps = (1000, 60) if LONG else (200, 40)
    record_property("covered", f"one owner, {node.path.driver.name}: {walks} random walks of up to {steps} steps")
    walk(node, walks, steps)


class Forgetful(Node):
    """Its plugins do not check the holder of a device."""

    def decide(self, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        return super().decide(wanted, [])


def test_walk_finds_a_missing_device_check() -> None:
    with pytest.raises(AssertionError, match="devices"):
        walk(Forgetful, 2000, 40)  # ends with the first that fails, after about 30
