"""A node on which a plugin is killed and restarted: preparation, action, and invariants.

A `Flow` is one action of a plugin: an undisturbed run records its points, and later runs are killed at each. The
invariants do not depend on the flow.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from neuron_dra.api.objects import DEVICE_CLASSES, allocated_claim, neuron_config, node_object
from neuron_dra.core import cdi, metadata
from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.dra_driver import EFA, NEURON, Driver
from neuron_dra.core.ultraserver import NAMESPACE, Allocation, Phase, Tag, object_name, tag_on
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.simulated_efa import EfaTree
from neuron_dra.errors import CheckpointDamaged
from neuron_dra.gen.kubelet.dra.v1 import dra_pb2, dra_pb2_grpc
from neuron_dra.node.files import Files
from tests.support import slots
from tests.support.claim_paths import EFA_PATH
from tests.support.crash_points import START_TIMEOUT_S, Life, Lives, Point
from tests.support.plugin_host import PluginHost
from tests.support.waiting import eventually

BLOCK = "cr-0123456789abcdef0"
SLOT = Allocation(
    "ml", "llm", "uid-llm", "alloc-1", Phase.PENDING, ("node-a",), 1, 0, 1, "node-a", "2026-01-02T03:04:05Z"
)
CALL_S = 45.0  # the kubelet's own limit
PLAIN, WITH_SETS, WITH_EFA = (1, 16), (4, 167), (2, 32)  # slices, devices
INSTANCE_TYPE: Final = "trn2u.48xlarge"

Sabotage = Callable[[], None]


RETRYABLE = (
    "is being rebuilt",
    "did not keep what was written",
    # Files that were written again from memory begin a new era, which rejects what began before it.
    "was unprepared while it was being prepared; the kubelet tries again",
)


class Scene:
    """A Trn2 UltraServer node, its API server, and the claims `old`, `new` and `rival`, which needs the devices of
    `new`. Each claim has devices of all `drivers`.
    """

    def __init__(
        self,
        api: EmbeddedApi,
        root: Path,
        lives: Lives,
        sabotage: Sabotage | None,
        *,
        sets: bool = False,
        drivers: tuple[Driver, ...] = (NEURON,),
    ) -> None:
        """With `sets` the node publishes connected sets; `old` has three cores of a device, `new` a set of four."""
        api.register_neuron_kinds()
        for name in (NAMESPACE, "ml"):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for each in DEVICE_CLASSES:
            api.create(each)
        api.create(node_object("node-a", labels={"topology.k8s.aws/capacity-block-id": BLOCK}))
        self.api, self.lives, self._sabotage = api, lives, None if sets else sabotage
        self.sets, self.drivers = sets, drivers
        hardware: Any = {"instance_type": INSTANCE_TYPE, "node_id": 0, "server_id": "00000000deadbeef"}
        self.host = PluginHost(root, api.url, reuses_hardware=True, **hardware)
        if EFA in drivers and not EfaTree(root / "host").functions:
            EfaTree.write(root / "host", INSTANCE_TYPE)
        self.life: Life | None = None
        self._looked_at = -1  # the revision of `_shown`, for a look at all devices takes as long as a plugin's start
        self._shown: list[str] | None = None
        self.reserve(None)
        self.lost_the_newest_slot = False  # of a claim in it only the CDI file is left, so it is held as adopted
        self.disk_says = ""  # the beginning of the messages of disk errors
        self.disk_errors: list[str] = []  # the errors that the kubelet got from the disk
        self.claims: dict[str, Obj] = {}
        self.answers: dict[tuple[Driver, str], Any] = {}  # results that the kubelet has received, by driver and claim
        old, new = (["neuron-cores-3-0"], ["neuron-set-4-4"]) if sets else ([0], [4, 5, 6, 7])
        self._allocated: dict[str, Obj] = {}  # their statuses, until they are allocated
        for name, devices in (("old", old), ("new", new), ("rival", [7]), ("everything", range(16))):
            results = self._results(devices)
            claim = allocated_claim(name, "node-a", results, namespace="ml", config=[neuron_config(2)])
            self._allocated[name] = claim.pop("status")
            # Points name files by the claim's UID. The server draws UIDs in turn, and the plugin posts Events at any
            # time, so only a claim that is older than the plugin has the same UID in each run.
            self.claims[name] = api.create(claim)

    def _results(self, devices: Iterable[int | str]) -> list[Obj]:
        """Return the allocation's results for devices of each driver; numbers count the devices of a driver."""
        results: list[Obj] = []
        for driver in self.drivers:
            for device in devices:
                if driver is EFA:
                    assert isinstance(device, int)
                    results.append({"device": EFA_PATH.devices[device], "driver": EFA.name, "request": "efa"})
                else:
                    results.append({"device": device})
        return results

    # What others do

    def allocate(self, *names: str) -> None:
        """Allocate claims, as the scheduler does; earlier ones stay."""
        for name in names:
            if name in self._allocated:
                self.api.patch("resourceclaims", name, {"status": self._allocated.pop(name)}, "ml")

    def reserve(self, slot: Allocation | None) -> None:
        """Reserve the node, as the controller does, or release it."""
        self.api.apply(
            {
                "apiVersion": "neuron.aws.com/v1beta1",
                "kind": "NeuronUltraServer",
                "metadata": {"name": object_name(BLOCK), "namespace": NAMESPACE},
                "spec": {"instanceType": "trn2u.48xlarge", "topology": []},
                "status": {"allocations": [slot.to_wire()] if slot else []},
            }
        )

    def reboot(self) -> None:
        """Reboot the host: a new boot id, and an empty /var/run."""
        self.empty_cdi()
        self.host.hardware.set_boot_id()
        self.answers.clear()

    def empty_cdi(self) -> None:
        if self.host.cdi.exists():
            for path in self.host.cdi.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    # The plugin

    def start(self, *, counting: bool = False, killed_at: Point | None = None) -> Life:
        """Start a plugin; the one before has ended."""
        self.end()
        settings = self.host.settings(
            ultraserver_devices="devices",
            connected_sets=self.sets,
            device_metadata=True,
            efa_interfaces=EFA in self.drivers,
        )
        self.life = self.lives.start(settings, counting=counting, killed_at=killed_at, sabotage=self._sabotage)
        return self.life

    def end(self) -> None:
        if self.life is not None:
            self.lives.end(self.life)
            self.life = None

    async def published(self) -> None:
        """Wait until the slice has all devices and the reservation's tag, and the checkpoint has the tag."""
        (found,) = self.api.objects("neuronultraservers")
        wanted = [entry["allocationId"] for entry in found["status"]["allocations"]]
        await eventually(lambda: self._has_published(wanted), CALL_S, f"all devices with the tags {wanted}")

    def _has_published(self, wanted: list[str]) -> bool:
        if self.life is not None and not self.life.alive:
            return True
        if self._looked_at != self.api.store.revision:
            self._looked_at = self.api.store.revision
            self._shown = self._published_tags()
        kept = self.tag_on_disk
        return self._shown == wanted == ([kept.allocation_id] if kept else [])

    def _published_tags(self) -> list[str] | None:
        """Return the allocation ids of the published tags; None if the devices are not those of one generation."""
        items = self.api.objects("resourceslices")
        devices = [device for item in items for device in item["spec"].get("devices", ())]
        pools = {(item["spec"]["driver"], item["spec"]["pool"]["generation"]) for item in items}
        whole = WITH_SETS if self.sets else WITH_EFA if EFA in self.drivers else PLAIN
        if len(pools) != len({name for name, _ in pools}) or (len(items), len(devices)) != whole:
            return None
        tag = tag_on(devices)
        return [tag.allocation_id] if tag else []

    @property
    def tag_on_disk(self) -> Tag | None:
        with contextlib.suppress(FileNotFoundError, CheckpointDamaged):
            return slots.read(self.host.data).tag
        return None

    def folder(self, driver: Driver) -> Path:
        """Return the folder of a driver's checkpoint."""
        return self.host.settings().efa_folder if driver is EFA else self.host.data

    async def call(self, verb: str, name: str, driver: Driver) -> str:
        """Call a driver for one claim as a kubelet does; return the error. The result must equal the earlier one."""
        meta = self.claims[name]["metadata"]
        if verb == "unprepare":
            self.answers.pop((driver, name), None)  # from here on the claim may be prepared or not
        claim = dra_pb2.Claim(namespace="ml", name=name, uid=meta["uid"])
        settings = self.host.settings()
        socket = settings.efa_dra_socket if driver is EFA else settings.dra_socket
        options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
            stub = dra_pb2_grpc.DRAPluginStub(channel)
            try:
                if verb == "prepare":
                    request = dra_pb2.NodePrepareResourcesRequest(claims=[claim])
                    answer: Any = await stub.NodePrepareResources(request, timeout=CALL_S)
                else:
                    gone = dra_pb2.NodeUnprepareResourcesRequest(claims=[claim])
                    answer = await stub.NodeUnprepareResources(gone, timeout=CALL_S)
            except grpc.aio.AioRpcError as err:
                return f"{err.code().name}: {err.details()}"
        result = answer.claims[meta["uid"]]
        if verb == "prepare" and not result.error:
            devices = tuple(d.SerializeToString(deterministic=True) for d in result.devices)
            assert self.answers.setdefault((driver, name), devices) == devices, f"another answer for {name}"
        return str(result.error)

    async def must(self, verb: str, name: str) -> None:
        """Call each driver until it succeeds, as the kubelet does; an error must be retryable."""
        for driver in self.drivers:
            await self._must(verb, name, driver)

    async def _must(self, verb: str, name: str, driver: Driver) -> None:
        for _ in range(100):
            error = await self.call(verb, name, driver)
            disk = f"claim ml/{name}: the node's state cannot be written: {self.disk_says}"
            if self.disk_says and error.startswith(disk):
                self.disk_errors.append(error)
                self.check_commit()
            elif not any(text in error for text in RETRYABLE):
                break
            await asyncio.sleep(0.02)
        assert error == "", f"{verb} {name} by {driver.name}: {error}"

    # What must hold

    def check_commit(self) -> None:
        """At any time each prepared claim in a checkpoint has its complete CDI file."""
        for driver in self.drivers:
            self._check_commit(driver)

    def _check_commit(self, driver: Driver) -> None:
        answered = {name for answering, name in self.answers if answering is driver}
        try:
            checkpoint = slots.read(self.folder(driver))
        except FileNotFoundError:
            assert not answered
            return
        if checkpoint.boot_id != self.host.hardware.boot_id:
            return
        for claim in checkpoint.claims.values():
            if not claim.adopted:
                spec = Files().read(self.host.cdi / cdi.file_name(claim.ref.uid, driver))
                assert spec == cdi.encode(cdi.spec(claim, driver)), "a claim in the checkpoint has no CDI file"
                assert claim.metadata or driver is EFA, "a claim has no device metadata"
                for name, data in metadata.files(claim).items():
                    file = Files().read(self.host.cdi / metadata.FOLDER / name)
                    assert file == data, "a claim in the checkpoint has no metadata file"
        own_claims = [claim for claim in checkpoint.claims.values() if self.lost_the_newest_slot or not claim.adopted]
        assert answered <= {claim.ref.name for claim in own_claims}, "what was answered is not in the checkpoint"

    def check_boot(self) -> None:
        """A serving plugin has the current boot id, and no prepared claims of another boot."""
        for driver in self.drivers:
            with contextlib.suppress(FileNotFoundError, CheckpointDamaged):
                checkpoint = slots.read(self.folder(driver))
                assert checkpoint.boot_id == self.host.hardware.boot_id, "claims of another boot count as prepared"

    async def check(self, prepared: frozenset[str]) -> None:
        """Exactly these claims are prepared, no files are left over, and no device can be prepared twice.

        At the end nothing is held, and a claim for all devices can be prepared, as in `free_node`.
        """
        for name in sorted(prepared):
            await self.must("prepare", name)
        await self.published()
        self._check_clean(prepared)
        self.allocate("rival")
        if "new" in prepared:
            for driver in self.drivers:
                assert "is held by claim ml/new" in await self.call("prepare", "rival", driver)
            await self.must("unprepare", "new")
        await self.must("prepare", "rival")
        self._check_clean(prepared - {"new"} | {"rival"})
        for name in (*sorted(prepared - {"new"}), "rival"):
            await self.must("unprepare", name)
        self._check_clean(frozenset())
        self.allocate("everything")
        for verb in ("prepare", "unprepare"):
            await self.must(verb, "everything")
        self._check_clean(frozenset())

    def _check_clean(self, prepared: frozenset[str]) -> None:
        uids = {self.claims[name]["metadata"]["uid"] for name in prepared}
        for driver in self.drivers:
            checkpoint = self._checkpoint(driver)
            assert (set(checkpoint.claims), self._specified(driver)) == (uids, uids), driver.name
            held_devices: list[int | str] = []
            for claim in checkpoint.claims.values():
                for device in claim.devices:
                    held_devices += device.device_ids or [device.device]
            assert len(held_devices) == len(set(held_devices)), f"a device in two claims: {held_devices}"
        self.check_commit()
        described = Files().names(self.host.cdi / metadata.FOLDER)
        assert {metadata.claim_uid_of(name) for name in described} == (uids if NEURON in self.drivers else set())
        folders = (self.host.cdi, *map(self.folder, self.drivers))
        left = [name for folder in folders for name in os.listdir(folder) if ".tmp" in name]
        assert left == [], "temporary files are left"

    def _checkpoint(self, driver: Driver) -> Checkpoint:
        """Return a driver's checkpoint; an empty one before the first commit, which writes it."""
        try:
            return slots.read(self.folder(driver))
        except FileNotFoundError:
            return Checkpoint(self.host.hardware.boot_id)

    def _specified(self, driver: Driver) -> set[str]:
        """Return the UIDs of the claims that have a CDI file of a driver."""
        uids = (cdi.claim_uid_of(name, driver) for name in os.listdir(self.host.cdi))
        return {uid for uid in uids if uid is not None}


Step = Callable[[Scene], Awaitable[None]]


async def _nothing(scene: Scene) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Flow:
    """One action of a plugin. `arrange` runs with an undisturbed plugin, `damage` after its end."""

    name: str
    act: Step
    prepared: frozenset[str] = field(default=frozenset())  # afterwards
    arrange: Step = _nothing
    damage: Callable[[Scene], None] | None = None  # if so, points are recorded from the process's start
    fresh: bool = False  # no plugin has run on this node
    sets: bool = False  # the node publishes connected sets (16, acceptance 6)
    drivers: tuple[Driver, ...] = (NEURON,)  # whose devices the claims have (4.10, acceptance 2)

    @property
    def from_start(self) -> bool:
        return self.fresh or self.damage is not None


@contextlib.asynccontextmanager
async def arranged(flow: Flow, lives: Lives, sabotage: Sabotage | None) -> AsyncIterator[Scene]:
    """Run the steps before the first point."""
    with lives.folder() as root:
        async with EmbeddedApi(controllers=False) as api:
            scene = Scene(api, root, lives, sabotage, sets=flow.sets, drivers=flow.drivers)
            try:
                if flow.fresh:
                    await flow.arrange(scene)
                else:
                    await scene.start().serving()
                    await scene.published()
                    await flow.arrange(scene)
                if flow.damage is not None:
                    scene.end()
                    flow.damage(scene)
                yield scene
            finally:
                scene.end()


async def _began(flow: Flow, scene: Scene, target: Point | None) -> Life:
    if flow.from_start:
        return scene.start(counting=True, killed_at=target)
    assert scene.life is not None
    scene.life.begin(target)
    return scene.life


async def _acted(flow: Flow, scene: Scene, life: Life) -> None:
    """Act until the action is done or the plugin is dead."""
    try:
        await life.serving()
    except AssertionError:
        if life.alive:
            raise
        return
    await flow.act(scene)


async def recorded(flow: Flow, lives: Lives) -> dict[str, int]:
    """Return the points that a plugin passes in this flow."""
    async with arranged(flow, lives, None) as scene:
        life = await _began(flow, scene, None)
        await _acted(flow, scene, life)
        assert life.alive
        passed = dict(life.passed())
        await scene.check(flow.prepared)
        return passed


async def killed(
    flow: Flow, target: Point, lives: Lives, *, rebooted: bool = False, sabotage: Sabotage | None = None
) -> None:
    """Kill a plugin at a point, start another, and check that nothing is lost, duplicated or left over."""
    async with arranged(flow, lives, sabotage) as scene:
        life = await _began(flow, scene, target)
        acting = asyncio.create_task(_dying(flow, scene, life))
        try:
            # `killed` waits for writes after the action. On a busy machine the start and the action alone take longer.
            await asyncio.wait((acting,), timeout=START_TIMEOUT_S)
            assert await life.killed(), "the point was not reached"
        finally:
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)
        if flow.damage is None:
            scene.check_commit()
        if rebooted:
            scene.reboot()
        await scene.start().serving()
        scene.check_boot()
        await flow.act(scene)
        await scene.check(flow.prepared)


async def _dying(flow: Flow, scene: Scene, life: Life) -> None:
    with contextlib.suppress(AssertionError):
        await _acted(flow, scene, life)


async def failed(flow: Flow, target: Point, lives: Lives, *, sabotage: Sabotage | None = None) -> None:
    """Let an operation fail with a disk error, and check that it is reported, and recovered when the disk works."""
    assert target.error is not None
    async with arranged(flow, lives, sabotage) as scene:
        scene.disk_says = f"[Errno {target.error}] {os.strerror(target.error)}"
        life = await _began(flow, scene, target)
        try:
            await life.serving()
        except AssertionError:
            assert flow.from_start
            await scene.start().serving()  # as a DaemonSet does
        await flow.act(scene)
        await scene.check(flow.prepared)
