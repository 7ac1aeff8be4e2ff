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
            git_version = decode_object(await client.request("GET", "/version")).get("gitVersion")
            if not isinstance(git_version, str):
                raise Unavailable("the API server's response is no version")
            # Only a list of groups without ours shows that it is not served: a proxy may answer 404, too.
            groups = await client.request("GET", "/apis")
            return ServerVersion(git_version, serves_v1=serves(groups, "resource.k8s.io", "v1"))
        except ApiError:
            await asyncio.sleep(wait_s)
    raise AssertionError("unreachable")


async def asked_apart(client: KubeClient) -> str | None:
    """Return the version of an API server, over a connection of its own; None if there is no answer, or another one."""
    try:
        git_version = decode_object(await client.get_apart("/version")).get("gitVersion")
    except ApiError as err:
        log.info("no answer about the API server's version", extra={"error": str(err)})
        return None
    if isinstance(git_version, str):
        return git_version
    return None


def kubelet(node: Mapping[str, Any] | None) -> str:
    """Return the kubelet's version from a Node object; empty if it has none."""
    return str((((node or {}).get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or "")


def problems(api_server: ServerVersion, node_info: Mapping[str, Any]) -> list[VersionProblem]:
    """Return the problems of this API server and this node's kubelet."""
    api_server_problems = []
    release = versions.parse(api_server.version)
    supported = f"{versions.text(versions.OLDEST)} to {versions.text(versions.NEWEST)}"
    if not api_server.serves_v1:
        api_server_problems.append(
            VersionProblem(
                "KubernetesTooOld",
                f"the API server ({api_server.version}) does not serve resource.k8s.io/v1; Kubernetes {supported} does",
                fatal=True,
            )
        )
    elif release is not None and release > versions.NEWEST:
        api_server_problems.append(
            VersionProblem(
                "KubernetesUntested",
                f"the API server is {api_server.version}; this release of the driver was tested with {supported}",
            )
        )
    kubelet_version = str(node_info.get("kubeletVersion", ""))
    return [*api_server_problems, *releases.kubelet_problems(kubelet_version), *releases.kubelet_notes(kubelet_version)]
