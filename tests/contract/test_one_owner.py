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


@dataclass(frozen=True)
class Allocated:
    """A claim, and the numbers of the devices that it has of each driver."""

    ref: ClaimRef
    devices: frozenset[int]

    def of(self, path: ClaimPath) -> Claim:
        """Return the claim as a driver decodes it."""
        allocated = tuple(AllocatedDevice("r", "node", path.devices[number]) for number in sorted(self.devices))
        return Claim(self.ref, allocated)


class Api:
    """Claims by name, with invalid allocations: a device may be in several."""

    def __init__(self) -> None:
        self.claims: dict[str, Allocated] = {}
        self._made = 0

    def put(self, name: str, devices: frozenset[int]) -> None:
        self._made += 1
        self.claims[name] = Allocated(ClaimRef("ml", name, f"{name}-{self._made}"), devices)


@dataclass(frozen=True)
class DriverApi:
    """The API server as a driver reads it."""

    api: Api
    path: ClaimPath

    async def fetch(self, ref: ClaimRef) -> Claim:
        if ref.name not in self.api.claims:
            raise NotFound("gone", status=404)
        if self.api.claims[ref.name].ref != ref:
            raise ClaimError("replaced")
        return self.api.claims[ref.name].of(self.path)

    async def named(self, namespace: str, name: str) -> Claim:
        if name not in self.api.claims:
            raise NotFound("gone", status=404)
        return self.api.claims[name].of(self.path)

    async def allocated(self) -> AsyncIterator[Claim]:
        for claim in list(self.api.claims.values()):
            yield claim.of(self.path)


@dataclass(frozen=True)
class Admitting:
    """Decides as the plugin does, from the claims of its API server."""

    node: Any
    api: DriverApi

    async def fetch(self, ref: ClaimRef) -> Claim:
        return await self.api.fetch(ref)

    async def allocation(self, ref: ClaimRef) -> Claim:
        return await self.fetch(ref)

    def decide(self, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        decision: PreparedClaim = self.node.decide(self.api.path, wanted, held)
        return decision


@dataclass
class RunningDriver:
    """A driver of a running plugin."""

    store: SingleStore
    transactions: Transactions
    recovery: recovery.Recovery


@dataclass
class Process:
    """A running plugin."""

    files: FaultyFiles
    drivers: dict[ClaimPath, RunningDriver]


@dataclass(frozen=True)
class Container:
    """The kubelet's result for a claim whose containers may run."""

    devices: frozenset[int]
    answer: PreparedClaim
    spec: bytes


Call = tuple[ClaimPath, ClaimRef]
"""What the kubelet calls a driver for."""


def _text(call: Call) -> str:
    path, ref = call
    return f"{path.driver.name} {ref}"


class Node(RuleBasedStateMachine):
    """The kubelet, which keeps all results, with one or two plugins on one disk. Claims have devices of all `paths`."""

    paths: tuple[ClaimPath, ...] = (NEURON_PATH,)

    def __init__(self) -> None:
        super().__init__()
        logging.disable()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory(
            prefix="nd", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        )
        self.data, self.cdi_root = Path(self.folder.name, "data"), Path(self.folder.name, "cdi")
        self.api, self.boot = Api(), 1
        self.processes: list[Process] = []
        self.running: dict[Call, Container] = {}
        self.asked: set[Call] = set()  # not unprepared yet; the kubelet will do so
        self.given_back: set[Call] = set()
        self.doubtful: set[Call] = set()  # unprepared, still allocated, and its checkpoint is lost

    def decide(self, path: ClaimPath, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        return path.decide(wanted, held, node_name="node")

    def teardown(self) -> None:
        """After all claims are unprepared, all devices can be prepared."""
        try:
            for process in self.processes:
                process.files.heal()
            self.start()  # a new process removes files of dead ones
            process = self.processes[-1]
            for call in sorted(self.asked, key=_text):
                self.call(-1, "unprepare", call)
            for name in NAMES:
                self.api.claims.pop(name, None)
            self.api.put("last", frozenset(DEVICES))
            for path in self.paths:
                prepared = process.drivers[path].transactions.prepared
                self.do(process, path, prepared.repair())
                for ref in [claim.ref for claim in prepared.claims.values()]:
                    is_held = prepared.claims[ref.uid].adopted or (path, ref) in self.doubtful
                    assert is_held, f"{ref} is still prepared"
                    self.call(-1, "unprepare", (path, ref))
                assert isinstance(self.call(-1, "prepare", (path, self.api.claims["last"].ref)), PreparedClaim)
            assert {name for name in os.listdir(self.cdi_root) if "last" not in name} == set()
        finally:
            self.loop.close()
            self.folder.cleanup()
            logging.disable(logging.NOTSET)

    def do(self, process: Process, path: ClaimPath, work: Coroutine[Any, Any, Any]) -> Any:
        """Run an operation of a driver; rebuild its checkpoint if that is damaged.

        Returns an error as a value; a power cut ends the process.
        """
        driver = process.drivers[path]
        try:
            try:
                result = self.loop.run_until_complete(work)
            except (ClaimError, NotFound, OSError) as err:
                result = err
            if driver.transactions.prepared.damaged is not None:
                self.loop.run_until_complete(driver.recovery.rebuild())
            return result
        except PowerCut:
            self.processes.remove(process)
            return PowerCut()

    def call(self, number: int, verb: str, call: Call) -> Any:
        """Call a driver as the kubelet does, with retries."""
        process = self.processes[number % len(self.processes)]
        path, ref = call
        result = self.do(process, path, getattr(process.drivers[path].transactions, verb)(ref))
        if isinstance(result, ClaimError) and "is being rebuilt" in str(result) and process in self.processes:
            return self.call(self.processes.index(process), verb, call)
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
        process = Process(files, {path: self._driver(path, files) for path in self.paths})
        self.processes.append(process)
        for path, driver in process.drivers.items():
            if process in self.processes:
                self.do(process, path, driver.transactions.prepared.open())
            if process in self.processes and driver.store.needs_inventory():
                self.do(process, path, driver.transactions.prepared.adopt({}))

    def _driver(self, path: ClaimPath, files: FaultyFiles) -> RunningDriver:
        folder = self.data / path.driver.name
        store = SingleStore(folder, self.cdi_root, f"boot-{self.boot}", files, driver=path.driver)
        api = DriverApi(self.api, path)
        transactions = Transactions(PreparedClaims(store), Admitting(self, api), timing=HURRIED)

        def decide(wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
            return self.decide(path, wanted, held)

        rebuild = recovery.Recovery(
            transactions.prepared,
            finds(api, decide, node_name="node", path=path),
            known,
            PluginMetrics(),
            HURRIED,
        )
        return RunningDriver(store, transactions, rebuild)

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

    @rule(number=st.integers(1, 3), keep=st.integers(0, 200), data=st.data())
    def damage(self, number: int, keep: int, data: st.DataObject) -> None:
        """Truncate one slot or both of a driver."""
        path = self._one_of_the_paths(data)
        self.doubtful |= {(path, claim.ref) for claim in self.api.claims.values()} & self.given_back
        for bit, name in enumerate(SLOTS):
            slot = self.data / path.driver.name / name
            if number >> bit & 1 and slot.exists():
                slot.write_bytes(slot.read_bytes()[:keep])

    def _one_of_the_paths(self, data: st.DataObject) -> ClaimPath:
        return self.paths[0] if len(self.paths) == 1 else data.draw(st.sampled_from(self.paths))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def repair(self, data: st.DataObject) -> None:
        """Delete CDI files of a driver; the plugin repairs them later."""
        process, driven = self.processes[0], self._one_of_the_paths(data)
        prepared = process.drivers[driven].transactions.prepared
        failed = isinstance(self.do(process, driven, prepared.repair()), Exception)
        if failed or process not in self.processes:
            return  # the checkpoint may have been damaged: then only the files are left
        held = prepared.claims
        for (path, ref), container in self.running.items():
            if path is driven and not held[ref.uid].adopted:  # the file is the only trace of an adopted claim
                file = self.cdi_root / path.file_name(ref.uid)
                file.unlink(missing_ok=True)
                for _ in range(2):  # the disk may fail once
                    self.do(process, path, prepared.repair())
                if process in self.processes:
                    assert file.read_bytes() == container.spec

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
        """Call a driver for a claim. A claim of both drivers takes two such calls, and anything may come between."""
        allocated = {(path, claim.ref) for path in self.paths for claim in self.api.claims.values()}
        call = data.draw(st.sampled_from(sorted({*self.running, *allocated}, key=_text)))
        self.asked.add(call)
        result = self.call(number, "prepare", call)
        if not isinstance(result, PreparedClaim):
            return
        path, ref = call
        devices = path.numbers(result)
        answer = replace(result, doubtful=False)  # internal state, which the kubelet does not get
        prepared = Container(devices, answer, (self.cdi_root / path.file_name(ref.uid)).read_bytes())
        assert self.running.setdefault(call, prepared) == prepared, "another result for the same claim"

    @precondition(lambda self: self.processes and self.asked)
    @rule(number=st.integers(0, 1), data=st.data())
    def unprepare(self, number: int, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(sorted(self.asked, key=_text)))
        self.running.pop(call, None)  # its containers have ended
        if self.call(number, "unprepare", call) is None:
            self.asked.discard(call)
            self.given_back.add(call)

    @invariant()
    def no_device_has_two_owners(self) -> None:
        for path in self.paths:
            held = sorted(
                number for call, container in self.running.items() if call[0] is path for number in container.devices
            )
            assert len(held) == len(set(held)), f"devices {held} of {sorted(map(_text, self.running))}"

    @invariant()
    def each_container_has_its_files(self) -> None:
        """A driver leaves the files of another alone, also those of the same claim."""
        for (path, ref), container in self.running.items():
            file = self.cdi_root / path.file_name(ref.uid)
            assert not file.exists() or file.read_bytes() == container.spec


class EfaNode(Node):
    """The same with EFA interfaces."""

    paths = (EFA_PATH,)


class BothNode(Node):
    """The same with claims for both drivers of a plugin."""

    paths = (NEURON_PATH, EFA_PATH)


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
@pytest.mark.parametrize("node", [Node, EfaNode, BothNode], ids=["neuron", "efa", "both"])
def test_no_device_has_two_holders(node: type[Node], record_property: Callable[[str, str], None]) -> None:
    walks, steps = (1000, 60) if LONG else (200, 40)
    drivers = " and ".join(path.driver.name for path in node.paths)
    record_property("covered", f"one owner, {drivers}: {walks} random walks of up to {steps} steps")
    walk(node, walks, steps)


class Forgetful(Node):
    """Its plugins do not check the holder of a device."""

    def decide(self, path: ClaimPath, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        return super().decide(path, wanted, [])


class ForgetfulOfInterfaces(BothNode):
    """Its plugins do not check the holder of an EFA interface."""

    def decide(self, path: ClaimPath, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        return super().decide(path, wanted, [] if path is EFA_PATH else held)


@pytest.mark.parametrize("node", [Forgetful, ForgetfulOfInterfaces], ids=["neuron", "both"])
def test_walk_finds_a_missing_device_check(node: type[Node]) -> None:
    with pytest.raises(AssertionError, match="devices"):
        walk(node, 2000, 40)  # ends with the first that fails, after about 30
