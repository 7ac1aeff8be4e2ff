"""The Node object that this plugin runs on, watched by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import NODES
from neuron_dra.node import version


class OwnNode:
    """Keeps the Node up to date. `then` is called when it changes."""

    def __init__(self, client: KubeClient, name: str, then: Callable[[], None]) -> None:
        self.name = name
        self._reflector = Reflector(client, NODES, field_selector=f"metadata.name={name}", on_change=then)
        self.synced = self._reflector.synced

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._reflector.run()

    @property
    def object(self) -> dict[str, Any] | None:
        """The Node as last read; None while unknown, or if it does not exist."""
        node = self._reflector.items.get(f"/{self.name}")
        if node is not None and _is_node(node):
            return node
        return None

    @property
    def labels(self) -> Mapping[str, str]:
        """The Node's labels."""
        return ((self.object or {}).get("metadata") or {}).get("labels") or {}

    @property
    def info(self) -> Mapping[str, Any]:
        """The Node's `status.nodeInfo`."""
        return ((self.object or {}).get("status") or {}).get("nodeInfo") or {}

    @property
    def kubelet_version(self) -> str:
        """The version of the node's kubelet; empty while unknown."""
        return version.kubelet(self.object)


def _is_node(node: Mapping[str, Any]) -> bool:
    """Return True if the parts of a Node that this package reads have their types, whatever the server sent."""
    meta, status = node["metadata"], node.get("status") or {}
    if not isinstance(meta.get("uid"), str) or not isinstance(status, Mapping):
        return False
    parts = (meta.get("labels"), status.get("nodeInfo"), status.get("allocatable"))
    return all(isinstance(part or {}, Mapping) for part in parts)
