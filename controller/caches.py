"""Watched copies of everything that a plan depends on. Only what `decode` makes of an object is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from controller import decode, fields
from controller.model import Snapshot
from neuron_dra.core import names
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    NEURON_ULTRASERVERS,
    NEURON_WORKLOADS,
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)

KEPT = ("name", "namespace", "uid", "resourceVersion")


def _projected(make: Callable[[Mapping[str, Any]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the projection that keeps an object's identity and what `make` makes of it."""

    def project(item: dict[str, Any]) -> dict[str, Any]:
        meta = item["metadata"]
        return {"metadata": {key: meta[key] for key in KEPT if key in meta}, "value": make(item)}

    return project


HEARTBEATS_S = 0.5
"""Kubelets' heartbeats, 17 a second with 5,000 nodes, are read together: of what they change nothing is kept."""


class Caches:
    """The watches. `on_change` is called after every change of any of them."""

    def __init__(self, client: KubeClient, on_change: Callable[[], None]) -> None:
        def watched(
            resource: Resource,
            make: Callable[[Mapping[str, Any]], Any],
            *,
            namespace: str = "",
            field_selector: str = "",
            read: type[msgspec.Struct] | None = None,
            gather_s: float = 0.0,
        ) -> Reflector:
            return Reflector(
                client,
                resource,
                namespace=namespace,
                field_selector=field_selector,
                on_change=on_change,
                project=_projected(make),
                fields=read,
                gather_s=gather_s,
            )

        self.nodes = watched(NODES, decode.cluster_node, read=fields.Node, gather_s=HEARTBEATS_S)
        self.slices = watched(RESOURCE_SLICES, decode.published_slice, field_selector=f"spec.driver={names.DRIVER}")
        self.claims = watched(RESOURCE_CLAIMS, decode.claim_use)
        self.ultraservers = watched(NEURON_ULTRASERVERS, decode.ultraserver, namespace=NAMESPACE)
        self.workloads = watched(NEURON_WORKLOADS, decode.workload)
        self.templates = watched(CLAIM_TEMPLATES, decode.template)
        self.classes = watched(DEVICE_CLASSES, lambda item: item["metadata"]["name"])

    @property
    def by_name(self) -> dict[str, Reflector]:
        """Every watch, with the name of what it watches."""
        return {
            "nodes": self.nodes,
            "resourceslices": self.slices,
            "resourceclaims": self.claims,
            "neuronultraservers": self.ultraservers,
            "neuronultraserverworkloads": self.workloads,
            "resourceclaimtemplates": self.templates,
            "deviceclasses": self.classes,
        }

    def missing(self) -> list[str]:
        """What was not listed yet."""
        return [name for name, each in self.by_name.items() if not each.synced.is_set()]

    async def relist(self) -> None:
        """Read everything afresh: a new leader must not plan on what it saw as a follower. Raises ApiError."""
        async with asyncio.TaskGroup() as group:
            for each in self.by_name.values():
                group.create_task(each.relist())

    def snapshot(self, blocked_evictions: Mapping[str, str]) -> Snapshot:
        """Return what is known now."""
        return Snapshot(
            published=decode.published_nodes(each for each in _values(self.slices) if each),
            nodes=tuple(_values(self.nodes)),
            claims=tuple(each for each in _values(self.claims) if each),
            ultraservers=tuple(_values(self.ultraservers)),
            workloads=tuple(_values(self.workloads)),
            templates=tuple(_values(self.templates)),
            workload_class=decode.WORKLOAD_CLASS in set(_values(self.classes)),
            blocked_evictions=dict(blocked_evictions),
        )


def _values(reflector: Reflector) -> Iterator[Any]:
    return (item["value"] for item in reflector.items.values())
