"""The only writer of ResourceSlices: brings the slices of one pool to their desired state."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.core import health, names, signals, slices
from neuron_dra.core.wire import Wire
from neuron_dra.errors import AlreadyExists, ApiError, Conflict, NotFound, Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import RESOURCE_SLICES

log = logging.getLogger(__name__)

REJECTED: Final = (400, 422)
"""Statuses with which the API server rejects an object for what it contains. Any other error says nothing about fields:
missing rights, a proxy, an overloaded server.
"""
PROBES: Final = (99, 98, 97)  # indices beyond any node's slices


@dataclass(frozen=True, slots=True)
class Published:
    """The result of one successful publish; `writes` is 0 if nothing had to change.

    `dropped` are the paths of fields that the API server did not store. `undone` are the slices that were deleted or
    changed, with the program that wrote them last, if the API server says it.
    """

    generation: int
    slices: int
    devices: int
    writes: int
    dropped: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()


class SlicePublisher:
    """Compares the watched slices of a pool with the desired devices and writes the difference."""

    def __init__(self, client: KubeClient, cache: Reflector) -> None:
        self._client = client
        self.cache = cache
        self._generation = 0
        self._accepted: dict[str, tuple[Sequence[Wire], Sequence[Wire]]] = {}
        self._reported: tuple[str, ...] = ()
        self.taken: dict[str, str] = {}
        """This driver's slice names that other programs' slices have, and the owners of those slices."""
        self.keeps_taints: bool | None = None  # whether the API server kept the last taint; None before the first
        self.keeps_counters: bool | None = None  # likewise, shared counters

    @property
    def current(self) -> list[dict[str, Any]]:
        """The slices as last seen, sorted by name."""
        return [self.cache.items[key] for key in sorted(self.cache.items)]

    @property
    def devices(self) -> list[Wire]:
        """The devices in these slices."""
        devices: list[Wire] = []
        for resource_slice in self.current:
            devices += resource_slice["spec"].get("devices") or []
        return devices

    async def publish(
        self,
        pool: slices.Pool,
        devices: Sequence[Wire],
        counters: Sequence[Wire] = (),
        position: Mapping[str, int] | None = None,
    ) -> Published:
        """Write the difference and return the result. Raises ApiError.

        `counters` and `position` are those of slices.diff.
        After Conflict, AlreadyExists or NotFound the slices have been listed again, and the caller can retry.
        """
        count = len(slices.layout(devices, position)) + bool(counters)
        if len(self.taken) + count > slices.NAMES:
            raise ApiError(
                f"other programs' slices have {len(self.taken)} of the {slices.NAMES} slice names of node "
                f"{pool.node_name}; delete those slices"
            )
        plan = slices.diff(
            pool,
            self.current,
            devices,
            counters=counters,
            position=position,
            known_generation=self._generation,
            accepted=self._accepted,
            taken=self.taken,
        )
        undone = tuple(map(self._described, (*plan.delete, *plan.update)))
        dropped = list(self._reported)
        try:
            for resource_slice in plan.delete:
                await self._delete(resource_slice)
            for resource_slice in plan.update:
                stored = await self._client.replace(RESOURCE_SLICES, "", resource_slice)
                dropped += self._stored(resource_slice, stored)
            for resource_slice in plan.create:
                try:
                    stored = await self._client.create(RESOURCE_SLICES, "", resource_slice)
                    dropped += self._stored(resource_slice, stored)
                except AlreadyExists:
                    await self._look_who_has(resource_slice["metadata"]["name"], pool)
                    raise
        except (Conflict, AlreadyExists, NotFound):
            await self.cache.relist()
            raise
        self._generation = max(self._generation, plan.generation)
        self._report(tuple(dict.fromkeys(dropped)))
        return Published(
            generation=plan.generation,
            slices=count,
            devices=len(devices),
            writes=len(plan.delete) + len(plan.update) + len(plan.create),
            dropped=self._reported,
            undone=undone,
        )

    async def withdraw(self, node_name: str, driver: str) -> None:
        """Delete the slices that have this driver's names; those of other programs stay. Raises ApiError."""
        for resource_slice in self.current:
            if slices.is_ours(resource_slice["metadata"]["name"], node_name, driver):
                await self._delete(resource_slice)

    def _described(self, resource_slice: Mapping[str, Any]) -> str:
        """Return a slice's name, and the program that wrote it last."""
        name = str(resource_slice["metadata"]["name"])
        managed_fields = self.cache.items.get(f"/{name}", {}).get("metadata", {}).get("managedFields")
        if isinstance(managed_fields, list):
            entries = [entry for entry in managed_fields if isinstance(entry, dict)]
        else:
            entries = []
        last_write = max(entries, key=lambda entry: str(entry.get("time")), default={})
        if last_write.get("manager"):
            return f"{name} (written by {last_write['manager']})"
        return name

    async def learn_taints(self, pool: slices.Pool) -> None:
        """Find out by a dry run whether the API server keeps taints, before an unhealthy device is published.

        If the API server rejects the object, it counts as keeping none. Raises ApiError for other errors.
        """
        taint = {"key": health.TAINT_KEY, "value": signals.MISSING, "effect": "NoSchedule"}
        (probe_slice,) = slices.desired(pool, [{"name": "neuron-device-0", "taints": [taint]}], generation=1)
        try:
            stored = await self._probe(probe_slice, pool)
            kept_devices = _entries(stored, "devices")
        except ApiError as err:
            if err.status not in REJECTED:
                raise
            log.warning("cannot determine whether the API server keeps taints", extra={"error": str(err)})
            self.keeps_taints = False
        else:
            self.keeps_taints = any(device.get("taints") for device in kept_devices)
        if not self.keeps_taints:
            log.warning(
                "the API server keeps no taints of devices: unhealthy ones leave the slice once no claim has them"
            )

    async def learn_counters(self, pool: slices.Pool) -> None:
        """Find out by dry runs whether the API server keeps shared counters, and what devices consume of them.

        If the API server rejects an object, it counts as keeping none. Raises ApiError for other errors.
        """
        counter_set = {"name": "devices", "counters": {"device-0": {"value": "1"}}}
        device = {
            "name": "neuron-device-0",
            "consumesCounters": [{"counterSet": "devices", "counters": counter_set["counters"]}],
        }
        keeps = []
        for probe_slice in slices.desired(pool, [device], generation=1, counters=[counter_set]):
            field = "devices" if "devices" in probe_slice["spec"] else "sharedCounters"
            try:
                kept_entries = _entries(await self._probe(probe_slice, pool), field)
            except ApiError as err:
                if err.status not in REJECTED:
                    raise
                log.warning("cannot determine whether the API server keeps counters", extra={"error": str(err)})
                kept_entries = []
            expected_field = "consumesCounters" if field == "devices" else "counters"
            keeps.append(any(kept_entry.get(expected_field) for kept_entry in kept_entries))
        self.keeps_counters = all(keeps)

    async def _probe(self, probe_slice: dict[str, Any], pool: slices.Pool) -> dict[str, Any]:
        """Create a slice as a dry run, under a name that is not in use, and return it. Raises ApiError."""
        *first_names, last_name = (slices.slice_name(pool.node_name, index, pool.driver) for index in PROBES)
        for name in first_names:
            with contextlib.suppress(AlreadyExists):
                probe_slice["metadata"]["name"] = name
                return await self._client.create(RESOURCE_SLICES, "", probe_slice, dry_run=True)
        probe_slice["metadata"]["name"] = last_name
        return await self._client.create(RESOURCE_SLICES, "", probe_slice, dry_run=True)

    async def _look_who_has(self, name: str, pool: slices.Pool) -> None:
        """Record in `taken` whether the slice `name`, which the watch has not shown, belongs to another program.

        Raises ApiError.
        """
        with contextlib.suppress(NotFound):  # deleted meanwhile: the next publish can use the name
            spec = (await self._client.read(RESOURCE_SLICES, "", name)).get("spec", {})
            driver, node = str(spec.get("driver")), str(spec.get("nodeName") or "")
            if "driver" not in spec:
                raise Unavailable(f"the API server's response for slice {name} is not a ResourceSlice")
            if (driver, node) != (pool.driver, pool.node_name):
                of = f"node {node}" if node else "no node"
                self.taken[name] = f"of driver {driver} and {of}"
                log.error(
                    "a slice of another program has the name of ours", extra={"slice": name, "by": self.taken[name]}
                )

    async def _delete(self, resource_slice: Mapping[str, Any]) -> None:
        """Delete a slice, if it is still the one that was seen."""
        meta = resource_slice["metadata"]
        with contextlib.suppress(NotFound):
            await self._client.delete(
                RESOURCE_SLICES, "", meta["name"], uid=meta.get("uid"), version=meta.get("resourceVersion")
            )
        self.cache.forget(resource_slice)

    def _stored(self, sent: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str, ...]:
        """Record the stored version of the sent devices, and return the paths of dropped fields."""
        sent_devices, stored_devices = _entries(sent, "devices"), _entries(stored, "devices")
        kept_counters = _entries(stored, "sharedCounters")
        self.cache.remember(stored)
        dropped = slices.dropped_fields(sent_devices, stored_devices)
        if any(device.get("taints") for device in sent_devices):
            self.keeps_taints = not any(path.endswith(".taints") for path in dropped)
        if any(path.endswith(".consumesCounters") for path in dropped) or (
            sent["spec"].get("sharedCounters") and not kept_counters
        ):
            self.keeps_counters = False
        name = sent["metadata"]["name"]
        if dropped:
            self._accepted[name] = (sent_devices, stored_devices)
        else:
            self._accepted.pop(name, None)
        return dropped

    def _report(self, dropped: tuple[str, ...]) -> None:
        """Log the fields that the API server has dropped, once for each set of fields."""
        if dropped and dropped != self._reported:
            log.warning(
                "the API server dropped fields of our ResourceSlice: their feature is turned off there",
                extra={"fields": ",".join(dropped[:8]), "driver": names.DRIVER},
            )
        self._reported = dropped if self._accepted else ()


def _entries(resource_slice: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    """Return the named entries of a list in a slice's spec. Raises Unavailable if this is no ResourceSlice."""
    spec = resource_slice.get("spec")
    if isinstance(spec, Mapping) and "driver" in spec:
        entries = spec.get(field) or []
    else:
        entries = None
    if not isinstance(entries, list) or not all(_is_named(entry) for entry in entries):
        name = resource_slice["metadata"]["name"]
        raise Unavailable(f"the API server's response for slice {name} is not a ResourceSlice")
    return entries


def checked(resource_slice: dict[str, Any]) -> dict[str, Any]:
    """Return a slice as it was read. Raises ValueError if the parts that the plugin reads have not their types."""
    spec = resource_slice.get("spec")
    if not isinstance(spec, dict) or not _is_pool(spec.get("pool")):
        raise ValueError("it is not a ResourceSlice")
    for field in ("devices", "sharedCounters"):
        entries = spec.get(field) or []
        if not isinstance(entries, list) or not all(map(_is_named, entries)):
            raise ValueError(f"spec.{field} is not a list of named entries")
    return resource_slice


def _is_pool(pool: object) -> bool:
    return isinstance(pool, dict) and isinstance(pool.get("name"), str) and isinstance(pool.get("generation", 0), int)


def _is_named(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str)
