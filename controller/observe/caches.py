"""Caches of everything that a plan depends on, kept by watches. They keep only what `decode` returns."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from controller.observe import unreadable
from controller.timing import CacheTiming
from neuron_dra.core import capacity_block, names, node_conditions
from neuron_dra.core.node_conditions import FaultCondition
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.errors import ApiError, Forbidden, NotFound, Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.objects import MALFORMED, Damaged
from neuron_dra.kube.reflector import Reflector, Salvage, keep_last
from neuron_dra.kube.replies import check_identity
from neuron_dra.kube.requests import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    NAMESPACES,
    NEURON_ULTRASERVERS,
    NEURON_WORKLOADS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from neuron_dra.planner.observed import decode, projections
from neuron_dra.planner.observed.agents import Reports
from neuron_dra.planner.observed.model import (
    JOBS_QUEUED,
    ClaimUse,
    ClusterNode,
    PublishedNode,
    Template,
    UltraServer,
    Workload,
)
from neuron_dra.planner.observed.slices import PublishedSlice, published_nodes, published_slice

log = logging.getLogger(__name__)

KEPT = ("name", "namespace", "uid", "resourceVersion")


def projected(make: Callable[[Mapping[str, Any]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the projection that keeps an object's identity and what `make` returns for it."""

    def project(item: dict[str, Any]) -> dict[str, Any]:
        meta = item["metadata"]
        return {"metadata": {key: meta[key] for key in KEPT if key in meta}, "value": make(item)}

    return project


def wall_clock() -> datetime.datetime:
    """Return the current time."""
    return datetime.datetime.now(datetime.UTC)


CLAIMS_FOR_A_NODE = 50
"""The number of claims whose reading costs as much as the pods of one node."""
NODES_AT_ONCE = 8
OURS = f"spec.driver={names.DRIVER}"
"""The field selector of our driver's slices."""


class Index(Protocol):
    """The index that the caches update; the plan's FleetIndex. A value of None removes the object."""

    node_by_name: dict[str, ClusterNode]
    namespaces: dict[str, str] | None
    workload_class: bool

    def put_node(self, name: str, node: ClusterNode | None) -> None:
        """Set a Node."""

    def put_published(self, name: str, published: PublishedNode | None) -> None:
        """Set what a node publishes in all its slices."""

    def put_claim(self, key: str, use: ClaimUse | None) -> None:
        """Set a ResourceClaim by namespace/name."""

    def put_ultraserver(self, name: str, ultraserver: UltraServer | None) -> None:
        """Set a NeuronUltraServer."""

    def put_workload(self, key: str, workload: Workload | None) -> None:
        """Set a NeuronUltraServerWorkload by namespace/name."""

    def put_template(self, key: tuple[str, str], template: Template | None) -> None:
        """Set a ResourceClaimTemplate by namespace and name."""

    def put_namespace(self, name: str, limit: str | None) -> None:
        """Set a namespace's limit of reserved nodes, empty without one."""

    def refresh(self) -> None:
        """Derive what depends on the changed objects."""


IndexT = TypeVar("IndexT", bound=Index)


class Caches(Generic[IndexT]):
    """The watches. They call `on_change` after every change."""

    def __init__(
        self,
        client: KubeClient,
        on_change: Callable[[], None],
        index: IndexT,
        timing: CacheTiming,
        claims_for_a_node: int | None = None,
        *,
        fault_conditions: Sequence[FaultCondition] = node_conditions.DEFAULT,
        block_annotation: str = capacity_block.ANNOTATION,
        clock: Callable[[], datetime.datetime] = wall_clock,
    ) -> None:
        """`claims_for_a_node`: above this number of claims for each node, its pods are read instead of all claims.

        `fault_conditions` are the conditions of Nodes with which agents report faults; `block_annotation` says when
        their capacity block ends.
        """

        self._client = client
        self._on_change = on_change
        node = functools.partial(
            decode.cluster_node, fault_conditions=fault_conditions, block_annotation=block_annotation
        )
        self.nodes = self._watched(NODES, node, read=projections.NodeFields, gather_s=timing.heartbeats_s)
        self.slices = self._watched(RESOURCE_SLICES, published_slice, field_selector=OURS, read=projections.Slice)
        self.claims = self._watched(RESOURCE_CLAIMS, decode.claim_use, salvage=unreadable.claim)
        self.ultraservers = self._watched(
            NEURON_ULTRASERVERS,
            decode.ultraserver,
            namespace=NAMESPACE,
            salvage=unreadable.existing(decode.ultraserver),
        )
        released = unreadable.until_deleted(decode.workload)
        self.workloads = self._watched(NEURON_WORKLOADS, decode.workload, salvage=released)
        self.templates = self._watched(
            CLAIM_TEMPLATES, decode.template, salvage=unreadable.existing(decode.template, {})
        )
        self.namespaces = self._watched(
            NAMESPACES, decode.namespace, gives_up_on=(Forbidden,), salvage=unreadable.existing(decode.namespace, {})
        )
        self.classes = self._watched(DEVICE_CLASSES, decode.name, salvage=unreadable.existing(decode.name, {}))
        if claims_for_a_node is None:
            self._claims_for_a_node = CLAIMS_FOR_A_NODE
        else:
            self._claims_for_a_node = claims_for_a_node
        self.others: dict[str, Reflector] = {}
        """Watches of other parts of the controller, by the plural: `damaged` has their objects, too."""
        self._pod_nodes = unreadable.PodNodes(client, self.claims, on_change)
        self._timing = timing
        self._namespaces_forbidden = False  # Namespaces cannot be read
        self.queued_namespaces: set[str] = set()
        """Those in which every new reservation needs a queue."""
        self._index = index
        self._index.namespaces = {}
        self._pinned = False
        self._clock = clock
        self._reports = Reports(datetime.timedelta(seconds=timing.well_s))
        self._slices_of: dict[str, dict[str, PublishedSlice]] = {}  # by node
        self._node_of_slice: dict[str, str] = {}

    def _watched(
        self,
        resource: Resource,
        make: Callable[[Mapping[str, Any]], Any],
        *,
        namespace: str = "",
        field_selector: str = "",
        read: type[msgspec.Struct] | None = None,
        gather_s: float = 0.0,
        gives_up_on: tuple[type[ApiError], ...] = (),
        salvage: Salvage = keep_last,
    ) -> Reflector:
        """Return the watch of a kind of objects; `make` decodes one."""
        return Reflector(
            self._client,
            resource,
            namespace=namespace,
            field_selector=field_selector,
            on_change=self._on_change,
            project=projected(make),
            fields=read,
            gather_s=gather_s,
            gives_up_on=gives_up_on,
            salvage=salvage,
        )

    @property
    def by_name(self) -> dict[str, Reflector]:
        """Every watch, by the plural of its resource."""
        return {
            "nodes": self.nodes,
            "resourceslices": self.slices,
            "resourceclaims": self.claims,
            "neuronultraservers": self.ultraservers,
            "neuronultraserverworkloads": self.workloads,
            "resourceclaimtemplates": self.templates,
            "deviceclasses": self.classes,
            "namespaces": self.namespaces,
        }

    def missing(self) -> list[str]:
        """Return the resources that are not listed yet, without Namespaces if these cannot be read."""
        missing = []
        for resource, watch in self._readable().items():
            if not watch.synced.is_set():
                missing.append(resource)
        return missing

    @property
    def _without_namespaces(self) -> bool:
        """True while Namespaces cannot be read."""
        return self._namespaces_forbidden and not self.namespaces.synced.is_set()

    def _readable(self) -> dict[str, Reflector]:
        """Return every watch of a resource that can be read."""
        without = (self.namespaces,) if self._without_namespaces else ()
        return {resource: watch for resource, watch in self.by_name.items() if watch not in without}

    def watches(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the coroutine function to run for each watch, by resource. None of them ends by itself."""
        runs = {resource: watch.run for resource, watch in self.by_name.items()}
        return runs | {"namespaces": self._watch_namespaces, "pods of unreadable claims": self._pod_nodes.run}

    @property
    def damaged(self) -> dict[str, Mapping[str, Damaged]]:
        """The objects that cannot be read, or not all of them, by the plural of the resource and namespace/name."""
        return {resource: watch.damaged for resource, watch in (self.others | self.by_name).items()}

    @property
    def unreadable(self) -> dict[str, tuple[int, int]]:
        """The numbers of objects of which values, and of which the whole cannot be read, by the plural."""
        numbers = {}
        for resource, damaged in self.damaged.items():
            partly = sum(bool(damage.paths) for damage in damaged.values())
            numbers[resource] = partly, len(damaged) - partly
        return numbers

    async def _watch_namespaces(self) -> None:
        """Watch Namespaces. The ClusterRoles of AWS and of releases without limits do not allow it."""
        while True:
            try:
                await self.namespaces.run()
            except Forbidden as err:
                if not self._namespaces_forbidden:
                    log.warning(
                        "namespaces cannot be read, so their limits are not enforced: allow get, list and watch of "
                        "namespaces in the controller's ClusterRole",
                        extra={"error": str(err)},
                    )
                self._namespaces_forbidden = True
                self._on_change()
                await asyncio.sleep(self._timing.forbidden_s)

    async def relist(self) -> None:
        """List everything again: a new leader must not plan on a follower's caches. Raises ApiError."""
        async with asyncio.TaskGroup() as group:
            for watch in self._readable().values():
                group.create_task(watch.relist())
        await self.find_nodes_of_pods()

    async def resume(self) -> None:
        """Open all watches again, for a leader that regained its Lease; nothing is listed. Raises ApiError.

        What kept its Lease from being renewed may have broken the watches, too.
        """
        async with asyncio.TaskGroup() as group:
            for watch in self._readable().values():
                group.create_task(watch.resume())
        await self.find_nodes_of_pods()

    async def find_nodes_of_pods(self) -> None:
        """Find the nodes of unreadable claims that only their pods show."""
        await self._pod_nodes.find()

    async def reread_claims(self, nodes: Collection[str]) -> None:
        """Read again which claims are allocated on these nodes: all claims, or only those of the nodes' pods.

        The latter leaves out claims without a pod on the node; the node rejects these once it has its tag.
        Raises ApiError.
        """
        if len(self.claims.items) > self._claims_for_a_node * len(nodes):
            semaphore = asyncio.Semaphore(NODES_AT_ONCE)
            error: Exception | None = None
            try:
                async with asyncio.TaskGroup() as group:
                    for node in sorted(nodes):
                        group.create_task(self._reread_claims_on(node, semaphore))
                return
            except* Forbidden:
                pass  # the ClusterRole of an earlier release does not allow to list pods
            except* ApiError as failed:
                error = failed.exceptions[0]  # as it is: the outbox sends again after some errors, and not after others
            except* MALFORMED as failed:
                error = Unavailable(f"the list of pods cannot be read: {failed.exceptions[0]!r}")
            if error is not None:
                raise error
        await self.claims.relist()

    async def _reread_claims_on(self, node: str, semaphore: asyncio.Semaphore) -> None:
        """Read the claims of a node's pods that the watch does not show on the node. Raises ApiError, MALFORMED.

        If a pod cannot be read, all claims are: its claims are not known.
        """
        claim_keys: set[tuple[str, str]] = set()
        async with semaphore:
            async for page in self._client.list(
                PODS, most_bytes=projections.SMALL_PAGE_BYTES, fieldSelector=f"spec.nodeName={node}"
            ):
                listed = page.decoded(projections.Pod)
                if listed.damaged:
                    await self.claims.relist()
                    return
                for pod in listed.objects:
                    claim_keys |= {(pod.metadata.namespace, claim_name) for claim_name in pod.claims}
            for namespace, claim_name in sorted(claim_keys):
                cached = self.claims.items.get(f"{namespace}/{claim_name}")
                use: ClaimUse | None = cached["value"] if cached is not None else None
                if use is None or node not in use.nodes:  # it may be shown where it was before
                    with contextlib.suppress(NotFound):
                        raw = await self._client.get(RESOURCE_CLAIMS, namespace, claim_name)
                        check_identity(raw, namespace, claim_name)
                        self.claims.remember_raw(raw)

    def index(self) -> IndexT:
        """Update the index with all changes since the last call, and return it; it is always the same object.

        While a plan has pinned it, it stays as it is.
        """
        index = self._index
        if self._pinned:
            return index
        self._follow_nodes(index, self._clock())
        nodes = {
            node_name
            for key, published_part in _touched(self.slices)
            for node_name in self._put_slice(key, published_part)
        }
        for node_name in nodes:
            published = published_nodes(self._slices_of.get(node_name, {}).values())
            index.put_published(node_name, published[0] if published else None)
        for key, claim in _touched(self.claims):
            index.put_claim(key, claim)
        for key, ultraserver in _touched(self.ultraservers):
            index.put_ultraserver(_name(key), ultraserver)
        for key, workload in _touched(self.workloads):
            index.put_workload(key, workload)
        for key, template in _touched(self.templates):
            namespace, _, name = key.partition("/")
            index.put_template((namespace, name), template)
        if self._without_namespaces:
            index.namespaces = None
        for key, namespace in _touched(self.namespaces):
            index.put_namespace(_name(key), None if namespace is None else namespace.limit)
            if namespace is not None and namespace.jobs == JOBS_QUEUED:
                self.queued_namespaces.add(_name(key))
            else:
                self.queued_namespaces.discard(_name(key))
        index.workload_class = f"/{decode.WORKLOAD_CLASS}" in self.classes.items
        index.refresh()
        return index

    def _follow_nodes(self, index: IndexT, now: datetime.datetime) -> None:
        """Put the Nodes that changed into the index, and those that were well for long enough."""
        changed = {_name(key): node for key, node in _touched(self.nodes)}
        for node_name in self._reports.due(now):
            item = self.nodes.items.get(f"/{node_name}")
            changed.setdefault(node_name, None if item is None else item["value"])
        for node_name, node in changed.items():
            before = index.node_by_name.get(node_name)
            if node is None:
                self._reports.gone(node_name)
                index.put_node(node_name, None)
                continue
            after = self._reports.follow(node, before, now)
            if after is not before and after != before:  # a heartbeat changes nothing
                index.put_node(node_name, after)

    def next_recovery(self) -> datetime.datetime | None:
        """Return when the next Node counts as well that agents reported; None if none is about to."""
        return self._reports.next_due()

    def end_waits(self) -> None:
        """Count each Node as well that is: the clock was set back."""
        self._reports.end_waits()

    def unread_ultraservers(self) -> dict[str, str]:
        """Return why NeuronUltraServers cannot be read, by name: what they have is unknown, so nothing is written."""
        reasons = {}
        for key, damage in self.ultraservers.damaged.items():
            if not damage.paths:
                reasons[_name(key)] = f"the object cannot be read: {damage.why}"
        return reasons

    def unread_workloads(self) -> frozenset[str]:
        """Return the UIDs of the workloads that cannot be read: what they ask for now is unknown."""
        items = (self.workloads.items.get(key) for key in self.workloads.unreadable)
        return frozenset(item["value"].uid for item in items if item is not None)

    @property
    def is_pinned(self) -> bool:
        """True while a plan keeps the index as it is."""
        return self._pinned

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep the index as it is: a plan reads it, and pauses so that other tasks run."""
        self._pinned = True
        try:
            yield
        finally:
            self._pinned = False

    def _put_slice(self, key: str, published_part: PublishedSlice | None) -> set[str]:
        """Store a slice with the others of its node; return the nodes whose slices changed."""
        changed = set()
        before = self._node_of_slice.pop(key, None)
        if before is not None:
            changed.add(before)
            del self._slices_of[before][key]
            if not self._slices_of[before]:
                del self._slices_of[before]
        if published_part is not None:
            changed.add(published_part.node.name)
            self._node_of_slice[key] = published_part.node.name
            self._slices_of.setdefault(published_part.node.name, {})[key] = published_part
        return changed


def _touched(reflector: Reflector) -> Iterator[tuple[str, Any]]:
    """Yield key and value of each change since the last call; the value is None for deleted objects."""
    for key in reflector.take_touched():
        item = reflector.items.get(key)
        yield key, None if item is None else item["value"]


def _name(key: str) -> str:
    return key.partition("/")[2]
