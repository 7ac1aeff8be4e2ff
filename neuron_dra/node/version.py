"""Checks the versions of the API server and the kubelet against those that the driver supports."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuron_dra.core import backoff, releases, versions
from neuron_dra.core.versions import VersionProblem
from neuron_dra.errors import ApiError, Unavailable
from neuron_dra.kube.client import KubeClient, decode_object
from neuron_dra.kube.replies import serves
from neuron_dra.node.timing import DEFAULT_TIMING

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """The API server's version, and whether it serves resource.k8s.io/v1."""

    version: str
    serves_v1: bool  # resource.k8s.io/v1


async def server(client: KubeClient, retry_s: tuple[float, float] = DEFAULT_TIMING.version_retry_s) -> ServerVersion:
    """Return the API server's version; retry until it answers. `retry_s` is the first and the longest wait."""
    for wait_s in backoff.delays(*retry_s, random.random):
        try:
            found = decode_object(await client.request("GET", "/version")).get("gitVersion")
            if not isinstance(found, str):
                raise Unavailable("the API server's response is no version")
            # Only a list of groups without ours shows that it is not served: a proxy may answer 404, too.
            groups = await client.request("GET", "/apis")
            return ServerVersion(found, serves_v1=serves(groups, "resource.k8s.io", "v1"))
        except ApiError:
            await asyncio.sleep(wait_s)
    raise AssertionError("unreachable")


async def asked_apart(client: KubeClient) -> str | None:
    """Return the version of an API server, over a connection of its own; None if there is no answer, or another one."""
    try:
        found = decode_object(await client.get_apart("/version")).get("gitVersion")
    except ApiError as err:
        log.info("no answer about the API server's version", extra={"error": str(err)})
        return None
    if isinstance(found, str):
        return found
    return None


def kubelet(node: Mapping[str, Any] | None) -> str:
    """Return the kubelet's version from a Node object; empty if it has none."""
    return str((((node or {}).get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or "")


def problems(found: ServerVersion, node_info: Mapping[str, Any]) -> list[VersionProblem]:
    """Return the problems of this API server and this node's kubelet."""
    result = []
    release = versions.parse(found.version)
    wanted = f"{versions.text(versions.OLDEST)} to {versions.text(versions.NEWEST)}"
    if not found.serves_v1:
        result.append(
            VersionProblem(
                "KubernetesTooOld",
                f"the API server ({found.version}) does not serve resource.k8s.io/v1; Kubernetes {wanted} does",
                fatal=True,
            )
        )
    elif release is not None and release > versions.NEWEST:
        result.append(
            VersionProblem(
                "KubernetesUntested",
                f"the API server is {found.version}; this release of the driver was tested with {wanted}",
            )
        )
    kubelet_version = str(node_info.get("kubeletVersion", ""))
    return [*result, *releases.kubelet_problems(kubelet_version), *releases.kubelet_notes(kubelet_version)]
