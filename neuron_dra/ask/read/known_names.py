"""The names of objects of a cluster, for completion: none if the cluster does not answer soon, or forbids it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from neuron_dra.ask.read import cluster
from neuron_dra.errors import NeuronDraError
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig

LIMIT_S: Final = 3.0
"""A person who types waits no longer."""


def names(kind: str, kubeconfig: str, context: str, namespace: str) -> list[str]:
    """Return the names of the objects of a kind, of one namespace if the kind has them."""
    try:
        kube = cluster.connection(kubeconfig, context)
        return asyncio.run(_names(kube, kind, namespace or kube.namespace or "default"))
    except (NeuronDraError, OSError, TimeoutError):
        return []


async def _names(kube: KubeConfig, kind: str, namespace: str) -> list[str]:
    resource = cluster.RESOURCES[kind]
    names: list[str] = []
    async with asyncio.timeout(LIMIT_S), KubeClient(kube) as client:
        async for page in client.list(resource, namespace if resource.namespaced else ""):
            for raw_object in page.decoded(dict[str, Any]).objects:
                names.append(str(raw_object["metadata"]["name"]))
    return sorted(names)
