"""Checks the versions of the API server and the kubelet against those that the driver supports."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.core import backoff
from neuron_dra.errors import ApiError, NotFound
from neuron_dra.kube.client import KubeClient

OLDEST: Final = (1, 34)
NEWEST: Final = (1, 37)
OLDEST_KUBELET: Final = (1, 33)
BROKEN_KUBELETS: Final = ("v1.34.0", "v1.34.1")
"""Their connection to a plugin hangs after 30 idle minutes (kubernetes/kubernetes issue 133920)."""


@dataclass(frozen=True, slots=True)
class Server:
    """The API server's version, and whether it serves resource.k8s.io/v1."""

    version: str
    serves_v1: bool  # resource.k8s.io/v1


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with a version; if it is `fatal`, the driver cannot work."""

    reason: str
    text: str
    fatal: bool = False


async def server(client: KubeClient) -> Server:
    """Return the API server's version; retry until it answers."""
    for wait_s in backoff.delays(1.0, 30.0, random.random):
        try:
            body = json.loads(await client.request("GET", "/version"))
            try:
                await client.request("GET", "/apis/resource.k8s.io/v1")
            except NotFound:
                return Server(str(body.get("gitVersion", "")), serves_v1=False)
            return Server(str(body.get("gitVersion", "")), serves_v1=True)
        except (ApiError, ValueError):
            await asyncio.sleep(wait_s)
    raise AssertionError("unreachable")


def kubelet(node: Mapping[str, Any] | None) -> str:
    """Return the kubelet's version from a Node object; empty if it has none."""
    return str((((node or {}).get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or "")


def parse(version: str) -> tuple[int, int] | None:
    """Return (major, minor) of a version such as v1.34.4-eks-1234, or None."""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def problems(found: Server, node_info: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of this API server and this node's kubelet."""
    result = []
    release = parse(found.version)
    wanted = f"{_text(OLDEST)} to {_text(NEWEST)}"
    if not found.serves_v1:
        result.append(
            Problem(
                "KubernetesTooOld",
                f"the API server ({found.version}) does not serve resource.k8s.io/v1; Kubernetes {wanted} does",
                fatal=True,
            )
        )
    elif release is not None and release > NEWEST:
        result.append(
            Problem(
                "KubernetesUntested",
                f"the API server is {found.version}; this release of the driver was tested with {wanted}",
            )
        )
    kubelet = str(node_info.get("kubeletVersion", ""))
    if kubelet.split("-")[0].split("+")[0] in BROKEN_KUBELETS:
        result.append(
            Problem(
                "KubeletBroken",
                f"kubelet {kubelet} may hang when it prepares devices after half an hour without pods "
                "(kubernetes issue 133920); use 1.33, or 1.34.2 and later",
            )
        )
    parsed = parse(kubelet)
    if parsed is not None and parsed < OLDEST_KUBELET:
        result.append(
            Problem("KubeletTooOld", f"kubelet {kubelet} is too old; use {_text(OLDEST_KUBELET)} or later", fatal=True)
        )
    return result


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
