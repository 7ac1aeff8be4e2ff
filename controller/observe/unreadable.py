"""What stands in for claims and custom resources that cannot be read.

An unreadable claim holds the nodes of its allocation, which are read alone. If these cannot be read either, it holds
what it held when it was last read; if it was never read, the nodes of the pods in its `reservedFor`. Without an
allocation it holds nothing. Only fields that the scheduler writes count, never a text that a user writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from neuron_dra.core import names
from neuron_dra.errors import ApiError
from neuron_dra.kube import objects
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.objects import MALFORMED, UNREADABLE
from neuron_dra.kube.reflector import Item, Raw, Reflector, Salvage
from neuron_dra.kube.requests import PODS
from neuron_dra.planner.observed.model import ClaimUse

log = logging.getLogger(__name__)

RESULTS: Final = ("status", "allocation", "devices", "results")
RETRY_S: Final = 30.0
AT_ONCE: Final = 16  # claims whose pods are read at the same time


class _Result(msgspec.Struct, rename="camel"):
    driver: str
    pool: str
    admin_access: bool | None = None


_Results: Any = list[_Result] | None


class _Consumer(msgspec.Struct):
    name: str
    resource: str = ""
    uid: str = ""


def claim(raw: Raw, last_read: Item | None) -> Item | None:
    """Return what an unreadable claim holds; nodes that only its pods show are added by `PodNodes`."""
    who = objects.identity(raw)
    pods = _pods(raw)
    try:
        results = objects.value_at(raw, RESULTS, _Results)
    except MALFORMED:
        if last_read is not None:
            return last_read
        return _item(_use(who, (), pods))
    nodes = set()
    for result in results or ():
        if result.driver == names.DRIVER and not result.admin_access:
            nodes.add(result.pool)
    return _item(_use(who, tuple(sorted(nodes)), pods) if nodes else None)


def existing(make: Callable[[Any], Any], spec: object = UNREADABLE) -> Salvage:
    """Return a function for kinds of which an unreadable object must not count as deleted.

    It returns what was last read, else the stand-in that `make` returns.
    """

    def salvage(raw: Raw, last_read: Item | None) -> Item | None:
        return last_read if last_read is not None else stand_in(make, raw, spec)

    return salvage


def until_deleted(make: Callable[[Any], Any]) -> Salvage:
    """Return such a function, also for a kind of which one that is being deleted has to be released.

    That needs only its metadata.
    """

    def salvage(raw: Raw, last_read: Item | None) -> Item | None:
        if last_read is not None and not metadata(raw).get("deletionTimestamp"):
            return last_read
        return stand_in(make, raw)

    return salvage


def stand_in(make: Callable[[Any], Any], raw: Raw, spec: object = UNREADABLE) -> Item:
    """Return what `make` returns for an object with its metadata, this `spec` and no status.

    If the metadata cannot be read either, it has only what identifies the object.
    """
    try:
        return {"value": make({"metadata": metadata(raw), "spec": spec})}
    except MALFORMED:
        return {"value": make({"metadata": msgspec.to_builtins(objects.identity(raw)), "spec": spec})}


def metadata(raw: Raw) -> Item:
    """Return the metadata of an object, read alone; only what identifies it if that cannot be decoded."""
    who: Item = msgspec.to_builtins(objects.identity(raw))
    try:
        return objects.value_at(raw, ("metadata",), dict[str, Any]) or who
    except MALFORMED:
        return who


def _use(who: objects.Identity, nodes: tuple[str, ...], pods: tuple[tuple[str, str], ...]) -> ClaimUse:
    return ClaimUse(who.namespace, who.name, nodes, workload_uid=None, pods=pods, uid=who.uid)


def _item(use: ClaimUse | None) -> Item:
    return {"value": use}


def _pods(raw: Raw) -> tuple[tuple[str, str], ...]:
    """Return name and UID of the pods in `reservedFor`, as far as they can be read."""
    try:
        consumers = objects.value_at(raw, ("status", "reservedFor"), list[_Consumer]) or ()
    except MALFORMED:
        return ()
    return tuple(sorted((consumer.name, consumer.uid) for consumer in consumers if consumer.resource == "pods"))


class PodNodes:
    """Finds the nodes of unreadable claims by their pods."""

    def __init__(self, client: KubeClient, claims: Reflector, on_change: Callable[[], None]) -> None:
        self._client = client
        self._claims = claims
        self._on_change = on_change

    async def run(self) -> None:
        """Look for the nodes of such claims until cancelled."""
        while True:
            await self.find()
            await asyncio.sleep(RETRY_S)

    async def find(self) -> None:
        """Add the nodes of the pods of each claim that is not placed yet. Errors are logged."""
        semaphore = asyncio.Semaphore(AT_ONCE)
        items = {key: self._claims.items.get(key) for key in self._claims.damaged}
        await asyncio.gather(*(self._place(key, item, semaphore) for key, item in items.items() if item is not None))

    async def _place(self, key: str, item: Item, semaphore: asyncio.Semaphore) -> None:
        use: ClaimUse | None = item["value"]
        if use is None or use.nodes:
            return
        async with semaphore:
            nodes = {await self._node_of(use.namespace, *pod) for pod in use.pods} - {""}
        if nodes and self._claims.items.get(key) is item:
            placed = ClaimUse(use.namespace, use.name, tuple(sorted(nodes)), None, use.pods)
            self._claims.put(key, {**item, "value": placed})
            self._on_change()

    async def _node_of(self, namespace: str, pod_name: str, uid: str) -> str:
        """Return the node of a pod; empty if it has none or cannot be read."""
        try:
            pod = await self._client.read(PODS, namespace, pod_name)
            if pod["metadata"]["uid"] == uid:
                return str((pod.get("spec") or {}).get("nodeName") or "")
            return ""
        except (ApiError, *MALFORMED) as err:
            log.warning(
                "a pod could not be read", extra={"pod": f"{namespace}/{pod_name}", "error": str(err) or repr(err)}
            )
            return ""
