"""Each state of the checkpoint's files, judged by a model of what still shows that a claim is prepared (4.04).

The model knows the claims that have containers, and the evidence that is left: slots, memory of a running plugin, and
CDI files. It knows neither sequences nor checksums.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import pytest

from neuron_dra.core.checkpoint import SLOTS, Checkpoint
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.errors import CheckpointDamaged, DeviceInUse, NotFound
from neuron_dra.node.files import Files
from neuron_dra.node.metrics import PluginMetrics
from neuron_dra.node.prepare import recovery
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from tests.contract.test_running_plugin_is_evidence import BadBlocks
from tests.support import slots
from tests.support.claim_paths import NEURON_PATH, PATHS, ClaimPath
from tests.support.faulty_files import PowerCut, disk_error
from tests.support.finds import finds
from tests.support.single_store import SingleStore

pytestmark = pytest.mark.contract("P20")
T = TypeVar("T")
LONG = bool(os.environ.get("NEURON_DRA_LONG"))


@dataclass(frozen=True, slots=True)
class OneDevice:
    """A claim for the device of this number, of any driver."""

    ref: ClaimRef
    number: int

    def of(self, path: ClaimPath) -> Claim:
        """Return the claim for a driver's device."""
        return Claim(self.ref, (AllocatedDevice("r", "a", path.devices[self.number]),))


def claim(name: str, number: int) -> OneDevice:
    return OneDevice(ClaimRef("ml", name, f"uid-{name}"), number)


KEPT, LAST, RIVAL, SECOND_RIVAL = claim("kept", 1), claim("last", 2), claim("rival", 2), claim("second-rival", 2)
OF_KEPT = claim("rival-of-kept", 1)

SLOT_STATES: Final = ("newest", "older", "torn", "gone", "unreadable")
BOOT_STATES: Final = ("whole", "torn", "gone", "unreadable")
CDI_STATES: Final = ("whole", "without the last", "with the last", "emptied")
PLUGINS: Final = {
    # who did the last commit, and who goes on after the damage, in this order
    "running": ("first", ("first",)),
    "running, the other wrote last": ("second", ("first",)),
    "both running": ("second", ("first", "second")),
    "started": ("first", ("started",)),
    "started beside one that wrote last": ("first", ("started", "first")),
    "started beside one that did not": ("second", ("started", "first")),
}


class Cluster:
    """An API server that has the claims with containers; they are allocated."""

    def __init__(self, path: ClaimPath, *claims: OneDevice) -> None:
        self.path = path
        self._claims = {claim.ref.uid: claim.of(path) for claim in claims}

    async def fetch(self, ref: ClaimRef) -> Claim:
        try:
            return self._claims[ref.uid]
        except KeyError:
            raise NotFound("gone", status=404) from None

    async def named(self, namespace: str, name: str) -> Claim:
        raise NotFound("gone", status=404)

    async def allocated(self) -> AsyncIterator[Claim]:
        for allocated in self._claims.values():
            yield allocated


async def known() -> None:
    """The node is known at once."""


class Node:
    """The folders of a node, and plugins on it."""

    def __init__(self, root: Path, cluster: Cluster, store: type[SingleStore] = SingleStore) -> None:
        self._store = store
        self.data, self.cdi_root, self.files = root / "data", root / "cdi", BadBlocks()
        self.cluster, self.path = cluster, cluster.path

    def plugin(self, boot_id: str = "boot-1", files: Files | None = None) -> Plugin:
        store = self._store(self.data, self.cdi_root, boot_id, files or self.files, driver=self.path.driver)
        return Plugin(self, store)

    def spec(self, wanted: OneDevice) -> Path:
        return self.cdi_root / self.path.file_name(wanted.ref.uid)

    def decided(self, wanted: OneDevice) -> PreparedClaim:
        """Return what a claim gets that has its device to itself."""
        return self.path.decide(wanted.of(self.path), [])


class Plugin:
    """A plugin that rebuilds a damaged checkpoint before it goes on with a call."""

    def __init__(self, node: Node, store: SingleStore) -> None:
        self.store = store
        self._node = node
        self._prepared = PreparedClaims(store)
        self._rebuilt(store.open)

    def prepare(self, wanted: OneDevice) -> PreparedClaim:
        path = self._node.path
        prepared = self._rebuilt(lambda: self.store.prepare(wanted.of(path), path.decide))
        self._prepared.hold(prepared)
        return prepared

    def unprepare(self, unwanted: OneDevice) -> None:
        self._rebuilt(lambda: self.store.unprepare(unwanted.ref.uid))
        self._prepared.drop(unwanted.ref.uid)

    def repair(self) -> None:
        """Do what a plugin does every few seconds."""
        self._rebuilt(self.store.repair)

    def takes(self, wanted: OneDevice) -> bool:
        try:
            self.prepare(wanted)
        except DeviceInUse:
            return False
        return True

    def claims(self) -> dict[str, PreparedClaim]:
        return dict(self._rebuilt(self.store.read).claims)

    def _rebuilt(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except CheckpointDamaged as err:
            self._prepared.found_damaged(err)
        path = self._node.path
        rediscovery = finds(self._node.cluster, path.decide, path=path)
        rebuild = recovery.Recovery(self._prepared, rediscovery, known, PluginMetrics())
        asyncio.run(rebuild.rebuild())
        return call()


@dataclass(frozen=True, slots=True)
class State:
    """What is left. `is_prepared`: the last commit prepared the claim `last`; otherwise it unprepared it."""

    plugins: str
    is_prepared: bool
    slots: tuple[str, str]
    boot: str
    cdi: str

    @property
    def specs(self) -> set[OneDevice]:
        """The claims that have a CDI file."""
        if self.cdi == "emptied":
            return set()
        has_last = self.cdi == "with the last" or (self.cdi == "whole" and self.is_prepared)
        return {KEPT, LAST} if has_last else {KEPT}

    @property
    def documents(self) -> dict[str, set[OneDevice]]:
        """What each whole content of a slot has."""
        return {
            "newest": {KEPT, LAST} if self.is_prepared else {KEPT},
            "older": {KEPT} if self.is_prepared else {KEPT, LAST},
        }

    @property
    def readable(self) -> set[str]:
        return set(self.slots) & {"newest", "older"}

    @property
    def remembered(self) -> list[str]:
        """What the plugins that go on remember, in their order."""
        wrote_last, after = PLUGINS[self.plugins]
        return ["newest" if name == wrote_last else "older" for name in after if name != "started"]

    @property
    def is_damage_visible(self) -> bool:
        return any(slot not in ("newest", "older") for slot in self.slots)

    @property
    def containers(self) -> set[OneDevice]:
        return self.documents["newest"]

    def must_hold(self, claim: OneDevice) -> bool:
        """Return whether a claim that has a container must keep its device, once each plugin has read the files."""
        if claim in self.specs:
            return True
        if not any(claim in self.documents[name] for name in {*self.readable, *self.remembered}):
            return False
        # A plugin that remembers its file takes it for unprepared by the other one: docs/architecture-node.md.
        is_lost = self.is_damage_visible or "newest" not in self.slots
        # The first of two writes such files again, as those of an intact folder, if it sees no damage.
        is_intact = self.specs or (len(PLUGINS[self.plugins][1]) == 2 and set(self.slots) == {"older"})
        return not (is_lost and self.remembered and is_intact)

    def may_hold(self, claim: OneDevice) -> bool:
        """Return whether there is evidence that a claim is prepared, and none that it was unprepared."""
        if claim in self.specs:
            return True
        if "newest" in self.readable or (self.remembered[:1] == ["newest"] and not self.plugins.startswith("started")):
            return claim in self.documents["newest"]
        return any(claim in self.documents[name] for name in {*self.readable, *self.remembered})


def torn(raw: bytes, before: bytes, length: int) -> bytes:
    return raw[:length] + before[length:]


def lived(node: Node, state: State) -> tuple[dict[str, Plugin], dict[str, bytes]]:
    """Run the plugins until the last commit; return them, and the two last contents of slots."""
    plugins = {"first": node.plugin(), "second": node.plugin()}
    plugins["first"].prepare(KEPT)
    if not state.is_prepared:
        plugins["first"].prepare(LAST)
    plugins["first"].store.repair()
    last = plugins[PLUGINS[state.plugins][0]]
    last.store.read()
    older = slots.newest(node.data).read_bytes()
    if state.is_prepared:
        last.prepare(LAST)
    else:
        last.unprepare(LAST)
    return plugins, {"older": older, "newest": slots.newest(node.data).read_bytes()}


def damage(node: Node, state: State, contents: dict[str, bytes]) -> None:
    (node.data / "left").write_bytes(
        node.spec(LAST).read_bytes() if state.is_prepared else node.path.spec(node.decided(LAST))
    )
    for name, slot in zip(SLOTS, state.slots, strict=True):
        path = node.data / name
        match slot:
            case "newest" | "older":
                path.write_bytes(contents[slot])
            case "torn":
                path.write_bytes(torn(contents["newest"], contents["older"], 150))
            case "gone":
                path.unlink()
            case "unreadable":
                node.files.spoil(path)
    boot = node.data / "boot.json"
    match state.boot:
        case "torn":
            boot.write_bytes(boot.read_bytes()[:100])
        case "gone":
            boot.unlink()
        case "unreadable":
            node.files.spoil(boot)
    for wanted in (KEPT, LAST):
        if wanted not in state.specs:
            node.spec(wanted).unlink(missing_ok=True)
    if LAST in state.specs:
        (node.data / "left").replace(node.spec(LAST))
    (node.data / "left").unlink(missing_ok=True)


def judged(node: Node, state: State) -> str:
    """Return what is wrong after the plugins have gone on from a state; nothing if that is right."""
    plugins, contents = lived(node, state)
    damage(node, state, contents)
    after = []
    for name in PLUGINS[state.plugins][1]:
        after.append(node.plugin() if name == "started" else plugins[name])
    for plugin in after:
        plugin.repair()
    first = after[0].claims()
    for wanted in (KEPT, LAST):
        held = first.get(wanted.ref.uid)
        if wanted in state.containers and state.must_hold(wanted) and held is None:
            return f"{wanted.ref.name} is not held"
        if held is not None and not state.may_hold(wanted):
            return f"{wanted.ref.name} is held without evidence"
        is_in_doubt = held is None or held.doubtful or held.adopted
        if wanted not in state.containers | state.specs and state.is_damage_visible and not is_in_doubt:
            return f"{wanted.ref.name} is held without a doubt"
    for rival, owner in ((OF_KEPT, KEPT), (RIVAL, LAST)):
        is_held = owner.ref.uid in first
        for plugin in after:
            if plugin.takes(rival) == is_held:
                return f"{rival.ref.name} {'got' if is_held else 'did not get'} the device"
    if any(plugin.takes(SECOND_RIVAL) for plugin in after):
        return "a device is in two claims"
    for plugin in after:
        for unwanted in (KEPT, LAST, RIVAL, OF_KEPT):
            plugin.unprepare(unwanted)
        if plugin.claims():
            return f"{sorted(plugin.claims())} are held after all claims were unprepared"
        if not plugin.takes(SECOND_RIVAL):
            return "a device that is free is not given out"
        plugin.unprepare(SECOND_RIVAL)
    return ""


def states(plugins: str, is_prepared: bool) -> Iterator[State]:
    """Yield all states, or without `LONG` one of boot.json for each of the rest."""
    boots = itertools.cycle(BOOT_STATES)
    for first, second, specs in itertools.product(SLOT_STATES, SLOT_STATES, CDI_STATES):
        for boot in BOOT_STATES if LONG else (next(boots),):
            yield State(plugins, is_prepared, (first, second), boot, specs)
        next(boots)  # so that each state of boot.json meets each one of the CDI files


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(params=PATHS.values(), ids=list(PATHS))
def path(request: pytest.FixtureRequest) -> ClaimPath:
    driver_path: ClaimPath = request.param
    return driver_path


@pytest.mark.parametrize("is_prepared", [True, False], ids=["prepared last", "unprepared last"])
@pytest.mark.parametrize("plugins", PLUGINS)
def test_no_state_gives_a_device_out_twice_or_holds_one_without_evidence(
    short_path: Path, plugins: str, is_prepared: bool, path: ClaimPath, quiet: None
) -> None:
    wrong = complaints(short_path, states(plugins, is_prepared), path)
    assert not wrong, "\n".join([f"{len(wrong)} states", *wrong[:20]])


def complaints(
    folder: Path, chosen: Iterable[State], path: ClaimPath, store: type[SingleStore] = SingleStore
) -> list[str]:
    wrong = []
    for number, state in enumerate(chosen):
        root = folder / str(number)
        complaint = judged(Node(root, Cluster(path, *state.containers), store), state)
        if complaint:
            wrong.append(f"{state}: {complaint}")
        shutil.rmtree(root)
    assert list(folder.iterdir()) == []
    return wrong


# Kills inside the write


class StoppedWrites(Files):
    """A process that is killed when it has written so many bytes of a slot."""

    def __init__(self, length: int | None = None) -> None:
        self.length = length
        self.written = 0

    def overwrite(self, path: Path, data: bytes) -> None:
        self.written = len(data)
        super().overwrite(path, data if self.length is None else data[: self.length])
        if self.length is not None:
            raise PowerCut


def lengths(written: int) -> list[int]:
    header = range(0, 160, 1 if LONG else 9)
    return [*header, *range(160, written, 1 if LONG else 101), written - 2, written - 1, written]


@pytest.mark.contract("P18")
@pytest.mark.parametrize("is_prepared", [True, False], ids=["prepare", "unprepare"])
@pytest.mark.parametrize(
    "after", [("running",), ("started",), ("running", "started"), ("started", "running")], ids="+".join
)
def test_kill_at_any_byte_of_a_write_is_before_or_after_it(
    short_path: Path, after: tuple[str, ...], is_prepared: bool, path: ClaimPath, quiet: None
) -> None:
    killed_at_any_byte(short_path, after, path, is_prepared=is_prepared)


def killed_at_any_byte(
    folder: Path, after: tuple[str, ...], path: ClaimPath, *, is_prepared: bool, store: type[SingleStore] = SingleStore
) -> None:
    def act(plugin: Plugin) -> None:
        if is_prepared:
            plugin.prepare(LAST)
        else:
            plugin.unprepare(LAST)

    def arranged(root: Path) -> tuple[Node, Plugin, Plugin, StoppedWrites]:
        node = Node(root, Cluster(path, KEPT, LAST), store)
        files = StoppedWrites()
        running, killed = node.plugin(), node.plugin(files=files)
        running.prepare(KEPT)
        if not is_prepared:
            running.prepare(LAST)
        return node, running, killed, files

    _, _, measured, files = arranged(folder / "measured")
    act(measured)
    assert files.written > 400
    for length in lengths(files.written):
        root = folder / str(length)
        node, running, killed, stopped = arranged(root)
        stopped.length = length
        with pytest.raises(PowerCut):
            act(killed)
        plugins = [running if name == "running" else node.plugin() for name in after]
        assert plugins[0].claims()[KEPT.ref.uid] == node.decided(KEPT), length
        assert not plugins[-1].takes(OF_KEPT), length
        assert not plugins[0].takes(RIVAL) or not is_prepared, length
        act(plugins[-1])  # as the kubelet does
        expected = {KEPT.ref.uid, LAST.ref.uid if is_prepared else RIVAL.ref.uid}
        assert [plugin.takes(RIVAL) for plugin in plugins] == [not is_prepared] * len(plugins), length
        assert [set(plugin.claims()) for plugin in plugins] == [expected] * len(plugins), length
        assert not any(claim.adopted or claim.doubtful for claim in plugins[0].claims().values()), length
        shutil.rmtree(root)


# The judges find planted bugs.


class TrustsOneSlot(SingleStore):
    """Does not ask the CDI files what a lost slot may have had."""

    def _corrected(self, current: Checkpoint, *, remembers: bool) -> Checkpoint:
        return current

    def _with_traces(self, current: Checkpoint) -> Checkpoint:
        return current


class OverwritesTheNewest(SingleStore):
    """Writes into the slot that counts."""

    def _write(self, checkpoint: Checkpoint) -> None:
        self._checkpoint._older = 1 - self._checkpoint._older
        super()._write(checkpoint)


@pytest.mark.parametrize(
    ("store", "plugins", "complaint"),
    [
        (TrustsOneSlot, "running, the other wrote last", "last is not held"),
        (TrustsOneSlot, "started", "last is not held"),
    ],
)
def test_the_table_finds(
    short_path: Path, store: type[SingleStore], plugins: str, complaint: str, path: ClaimPath, quiet: None
) -> None:
    assert complaint in "".join(complaints(short_path, states(plugins, is_prepared=True), path, store))


def test_the_kills_find_a_write_into_the_newest_slot(short_path: Path, path: ClaimPath, quiet: None) -> None:
    with pytest.raises((AssertionError, KeyError)):
        killed_at_any_byte(short_path, ("started",), path, is_prepared=True, store=OverwritesTheNewest)


# Space


class FullDisk(Files):
    """A disk on which no file can be created while it is full."""

    is_full = False

    def write(self, path: Path, data: bytes, mode: int) -> None:
        if self.is_full and "cdi" not in path.parts:  # which is in memory
            raise disk_error(errno.ENOSPC)
        super().write(path, data, mode)


@pytest.mark.parametrize("count", [1, 40, 100, 400])
def test_unprepare_needs_no_space(short_path: Path, count: int) -> None:
    """Whatever part of the spare space the last prepare has left: many claims, one at a time."""
    files = FullDisk()
    store = Node(short_path, Cluster(NEURON_PATH)).plugin(files=files).store
    admins = []
    for number in range(count):
        device = AllocatedDevice("r", "a", "neuron-device-0", admin_access=True)
        admins.append(Claim(ClaimRef("ml", f"monitor-{number}", f"uid-{number}"), (device,)))
        store.prepare(admins[-1], NEURON_PATH.decide)
    files.is_full = True
    for number in range(20):
        store.unprepare(f"uid-of-nobody-{number}")
    for admin in admins:
        assert store.unprepare(admin.ref.uid) is not None
    assert store.read().claims == {}


def test_prepare_on_a_full_disk_is_rejected_before_the_spare_space_is_used(short_path: Path) -> None:
    files = FullDisk()
    node = Node(short_path, Cluster(NEURON_PATH))
    store = node.plugin(files=files).store
    files.is_full = True
    device = AllocatedDevice("r", "a", "neuron-device-0", admin_access=True)
    prepared = 0
    try:
        while prepared < 1000:
            store.prepare(
                Claim(ClaimRef("ml", f"monitor-{prepared}", f"uid-{prepared}"), (device,)), NEURON_PATH.decide
            )
            prepared += 1
    except OSError as err:
        assert err.errno == errno.ENOSPC
    assert 100 < prepared < 1000
    assert len(store.read().claims) == len(list(node.cdi_root.glob("*.json"))) == prepared
    for number in range(prepared):
        store.unprepare(f"uid-{number}")
    assert store.read().claims == {}
