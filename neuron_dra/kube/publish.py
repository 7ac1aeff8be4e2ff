"""The only writer of ResourceSlices: makes the slices of one pool say what they should."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.core import health, names, slices
from neuron_dra.errors import AlreadyExists, ApiError, Conflict, NotFound, Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import RESOURCE_SLICES

log = logging.getLogger(__name__)

PROBES: Final = (99, 98, 97)  # no node has so many slices


@dataclass(frozen=True, slots=True)
class Published:
    """What one successful publish left behind; `writes` is 0 when nothing had to change."""

    generation: int
    slices: int
    devices: int
    writes: int
    dropped: tuple[str, ...] = ()


class SlicePublisher:
    """Compares the watched slices of a pool with the wanted devices and writes the difference."""

    def __init__(self, client: KubeClient, reflector: Reflector) -> None:
        self._client = client
        self._reflector = reflector
        self._generation = 0
        self._accepted: dict[str, tuple[Sequence[slices.Wire], Sequence[slices.Wire]]] = {}
        self._reported: tuple[str, ...] = ()
        self.taken: dict[str, str] = {}
        """Names of ours that slices of others have, and whose they are."""
        self.keeps_taints: bool | None = None  # what the server did with the last taint; None before the first

    @property
    def current(self) -> list[dict[str, Any]]:
        """The slices as last seen, by name."""
        return [self._reflector.items[key] for key in sorted(self._reflector.items)]

    async def publish(self, pool: slices.Pool, devices: Sequence[slices.Wire]) -> Published:
        """Write what differs. Raises ApiError; after Conflict or AlreadyExists the list is fresh, try again."""
        if len(self.taken) + len(slices.layout(devices)) > slices.NAMES:
            raise ApiError(f"slices of others have {len(self.taken)} of the names that are for node {pool.node_name}")
        plan = slices.diff(
            pool,
            self.current,
            devices,
            known_generation=self._generation,
            accepted=self._accepted,
            taken=self.taken,
        )
        dropped = list(self._reported)
        try:
            for item in plan.delete:
                await self._delete(item)
            for item in plan.update:
                dropped += self._stored(item, await self._client.replace(RESOURCE_SLICES, "", item))
            for item in plan.create:
                try:
                    dropped += self._stored(item, await self._client.create(RESOURCE_SLICES, "", item))
                except AlreadyExists:
                    await self._look_who_has(item["metadata"]["name"], pool)
                    raise
        except (Conflict, AlreadyExists, NotFound):
            await self._reflector.relist()
            raise
        self._generation = max(self._generation, plan.generation)
        self._report(tuple(dict.fromkeys(dropped)))
        return Published(
            generation=plan.generation,
            slices=len(slices.layout(devices)),
            devices=len(devices),
            writes=len(plan.delete) + len(plan.update) + len(plan.create),
            dropped=self._reported,
        )

    async def learn_taints(self, pool: slices.Pool) -> None:
        """Find out whether the server keeps taints, by a dry run: before it is known, a sick device is not published.

        A server that will not say counts as one that does not. Raises ApiError for what may be better next time.
        """
        taint = {"key": health.TAINT_KEY, "value": health.MISSING, "effect": "NoSchedule"}
        (item,) = slices.desired(pool, [{"name": "neuron-device-0", "taints": [taint]}], generation=1)
        try:
            stored = await self._probe(item, pool)
        except ApiError as err:
            if not 400 <= err.status < 500 or err.status == 429:
                raise
            log.warning("whether the API server keeps taints cannot be found out", extra={"error": str(err)})
            self.keeps_taints = False
        else:
            self.keeps_taints = bool((stored["spec"].get("devices") or [{}])[0].get("taints"))
        if not self.keeps_taints:
            log.warning("the API server keeps no taints of devices: sick ones leave the slice once nobody has them")

    async def _probe(self, item: dict[str, Any], pool: slices.Pool) -> dict[str, Any]:
        """Make a slice that nobody keeps, under a name that nobody has. Raises ApiError."""
        *first, last = (slices.slice_name(pool.node_name, index) for index in PROBES)
        for name in first:
            with contextlib.suppress(AlreadyExists):
                item["metadata"]["name"] = name
                return await self._client.create(RESOURCE_SLICES, "", item, dry_run=True)
        item["metadata"]["name"] = last
        return await self._client.create(RESOURCE_SLICES, "", item, dry_run=True)

    async def _look_who_has(self, name: str, pool: slices.Pool) -> None:
        """A slice of this name exists that was not seen: ours, of a moment ago, or somebody else's. Raises ApiError."""
        with contextlib.suppress(NotFound):
            try:
                spec = json.loads(await self._client.get(RESOURCE_SLICES, "", name))["spec"]
                driver, node = str(spec.get("driver")), str(spec.get("nodeName") or "")
            except (ValueError, LookupError, TypeError, AttributeError) as err:
                raise Unavailable(f"slice {name} is not one: {err!r}") from err
            if (driver, node) != (names.DRIVER, pool.node_name):
                of = f"node {node}" if node else "no node"
                self.taken[name] = f"of driver {driver} and {of}"
                log.error("the name of a slice of ours is taken", extra={"slice": name, "by": self.taken[name]})

    async def _delete(self, item: Mapping[str, Any]) -> None:
        meta = item["metadata"]
        with contextlib.suppress(NotFound):
            await self._client.delete(
                RESOURCE_SLICES, "", meta["name"], uid=meta.get("uid"), version=meta.get("resourceVersion")
            )
        self._reflector.forget(item)

    def _stored(self, sent: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str, ...]:
        """Take in the server's version of what we sent, and return what it took off."""
        self._reflector.remember(stored)
        before, after = sent["spec"].get("devices") or [], stored["spec"].get("devices") or []
        dropped = slices.dropped_fields(before, after)
        if any(device.get("taints") for device in before):
            self.keeps_taints = not any(path.endswith(".taints") for path in dropped)
        name = sent["metadata"]["name"]
        if dropped:
            self._accepted[name] = (before, after)
        else:
            self._accepted.pop(name, None)
        return dropped

    def _report(self, dropped: tuple[str, ...]) -> None:
        if dropped and dropped != self._reported:
            log.warning(
                "the API server dropped fields of our ResourceSlice: their feature is switched off there",
                extra={"fields": ",".join(dropped[:8]), "driver": names.DRIVER},
            )
        self._reported = dropped if self._accepted else ()
