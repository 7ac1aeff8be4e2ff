"""The only writer of ResourceSlices: makes the slices of one pool say what they should."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_dra.core import names, slices
from neuron_dra.errors import AlreadyExists, Conflict, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import RESOURCE_SLICES

log = logging.getLogger(__name__)


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

    @property
    def current(self) -> list[dict[str, Any]]:
        """The slices as last seen, by name."""
        return [self._reflector.items[key] for key in sorted(self._reflector.items)]

    async def publish(self, pool: slices.Pool, devices: Sequence[slices.Wire]) -> Published:
        """Write what differs. Raises ApiError; after Conflict or AlreadyExists the list is fresh, try again."""
        plan = slices.diff(pool, self.current, devices, known_generation=self._generation, accepted=self._accepted)
        dropped = list(self._reported)
        try:
            for item in plan.delete:
                await self._delete(item)
            for item in plan.update:
                dropped += self._stored(item, await self._client.replace(RESOURCE_SLICES, "", item))
            for item in plan.create:
                dropped += self._stored(item, await self._client.create(RESOURCE_SLICES, "", item))
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
