"""The controllers of kube-controller-manager that the embedded API server runs, in one task."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api.claim_controller import ClaimController
from neuron_dra.emulation.embedded_api.eviction import budget_status
from neuron_dra.emulation.embedded_api.garbage import GarbageCollector
from neuron_dra.emulation.embedded_api.history import Event
from neuron_dra.emulation.embedded_api.job_controller import JobController
from neuron_dra.emulation.embedded_api.store import DeleteOptions, ObjectStore
from neuron_dra.emulation.embedded_api.workload_controllers import (
    DaemonSetController,
    DeploymentController,
    ReplicaSetController,
)

_BURST = 200  # changes handled before other tasks can run
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


class EmulatedController(Protocol):
    def __call__(self, event: Event) -> None:
        """Handle one change, without awaiting."""


class Controllers:
    """Passes each change of the store to every controller, after the request that made it was answered."""

    def __init__(self, store: ObjectStore, *, workloads: bool = False) -> None:
        """`workloads` adds the controllers of Deployments, ReplicaSets, DaemonSets and Jobs."""
        self._kinds = (*_KINDS, *(_OF_WORKLOADS if workloads else ()))
        self._queue: deque[Event] = deque()
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._store = store
        self._controllers = self._started()
        store.listeners.append(self._on_event)

    def begin_again(self) -> None:
        """Forget all that was seen, and handle every object as a new one, as controllers that start do."""
        self._controllers = self._started()
        self._queue.clear()
        for resource, obj in self._store.everything():
            self._on_event(Event(self._store.revision, "ADDED", resource, obj, None))

    def _started(self) -> list[EmulatedController]:
        return [kind(self._store) for kind in self._kinds]

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="embedded controllers")

    async def stop(self) -> None:
        """Stop. Raises the exception that ended a controller, if any."""
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and (error := task.exception()):
            raise error

    async def idle(self) -> None:
        """Return when all changes, and those that they led to, are handled."""
        waits = [asyncio.create_task(self._idle.wait())] + ([self._task] if self._task else [])
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        waits[0].cancel()
        for task in done - {waits[0]}:
            task.result()

    def _on_event(self, event: Event) -> None:
        self._queue.append(event)
        self._idle.clear()
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for count in range(1, len(self._queue) + 1):
                event = self._queue.popleft()
                for controller in self._controllers:
                    controller(event)
                if count % _BURST == 0:
                    await asyncio.sleep(0)
            if self._queue:
                self._wanted.set()
            else:
                self._idle.set()


class NamespaceController:
    """Deletes the contents of a terminating namespace, then the namespace."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._namespaces = store.registry.named("namespaces")

    def __call__(self, event: Event) -> None:
        meta = event.obj["metadata"]
        if event.resource is self._namespaces:
            name = meta["name"]
        else:
            name = meta.get("namespace")
        namespace = self._store.find(self._namespaces, "", name) if name else None
        if namespace is None or not namespace["metadata"].get("deletionTimestamp"):
            return
        remaining = 0
        for resource in self._store.registry:
            if resource.namespaced:
                for obj in self._store.list(resource, str(name)):
                    _, is_gone = self._store.delete(resource, str(name), obj["metadata"]["name"])
                    remaining += not is_gone
        if not remaining:
            self._store.remove(self._namespaces, "", str(name))


class BudgetController:
    """Updates the status of PodDisruptionBudgets."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pods = store.registry.named("pods")
        self._budgets = store.registry.named("poddisruptionbudgets")

    def __call__(self, event: Event) -> None:
        if event.resource not in (self._pods, self._budgets) or (
            event.type == "DELETED" and event.resource is self._budgets
        ):
            return
        namespace = event.obj["metadata"]["namespace"]
        for budget in self._store.list(self._budgets, namespace):
            status = budget_status(budget, self._store.list(self._pods, namespace))
            if status != budget.get("status"):
                name = budget["metadata"]["name"]
                self._store.update(self._budgets, namespace, name, {**budget, "status": status}, subresource="status")


class PodCollector:
    """Deletes the pods of a deleted Node, and terminating pods of a Node with the out-of-service taint.

    A scheduler that has not seen the deletion yet may bind another pod to that Node: it is deleted too.
    kube-controller-manager waits 40 s before it deletes the pods of a deleted Node; this one does not wait.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pods = store.registry.named("pods")
        self._nodes = store.registry.named("nodes")
        self._deleted_nodes: set[str] = set()

    def __call__(self, event: Event) -> None:
        if event.resource is self._nodes:
            self._on_node(event)
        elif event.resource is self._pods and _node_name(event.obj) in self._deleted_nodes:
            meta = event.obj["metadata"]
            pod = self._store.find(self._pods, meta["namespace"], meta["name"])
            if pod is not None and pod["metadata"]["uid"] == meta["uid"]:
                self._delete(pod)

    def _on_node(self, event: Event) -> None:
        name = event.obj["metadata"]["name"]
        if event.type == "DELETED":
            self._deleted_nodes.add(name)
            self._collect(name, terminating_only=False)
            return
        self._deleted_nodes.discard(name)
        taints = (event.obj.get("spec") or {}).get("taints") or []
        if any(taint["key"] == _OUT_OF_SERVICE for taint in taints):
            self._collect(name, terminating_only=True)

    def _collect(self, node: str, *, terminating_only: bool) -> None:
        for pod in self._store.list(self._pods):
            if _node_name(pod) == node and (pod["metadata"].get("deletionTimestamp") or not terminating_only):
                self._delete(pod)

    def _delete(self, pod: Obj) -> None:
        meta = pod["metadata"]
        self._store.delete(self._pods, meta["namespace"], meta["name"], DeleteOptions(grace_s=0))


def _node_name(pod: Obj) -> str | None:
    return (pod.get("spec") or {}).get("nodeName")


_KINDS: Final[tuple[Callable[[ObjectStore], EmulatedController], ...]] = (
    GarbageCollector,
    ClaimController,
    NamespaceController,
    BudgetController,
    PodCollector,
)
_OF_WORKLOADS: Final[tuple[Callable[[ObjectStore], EmulatedController], ...]] = (
    ReplicaSetController,
    DeploymentController,
    DaemonSetController,
    JobController,
)
