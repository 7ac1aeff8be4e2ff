"""Reads a snapshot from the API server: all kinds at once, page by page."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from neuron_dra.ask.read import job_objects, snapshot
from neuron_dra.ask.read.snapshot import Key, Snapshot
from neuron_dra.errors import ApiError, Forbidden, NeuronDraError, NotFound, NotServed, SettingsError
from neuron_dra.kube import config, objects, requests
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.requests import Resource

RESOURCES: Final[Mapping[str, Resource]] = {
    "ResourceSlice": requests.RESOURCE_SLICES,
    "ResourceClaim": requests.RESOURCE_CLAIMS,
    "ResourceClaimTemplate": requests.CLAIM_TEMPLATES,
    "DeviceClass": requests.DEVICE_CLASSES,
    "DeviceTaintRule": requests.DEVICE_TAINT_RULES,
    "Node": requests.NODES,
    "Namespace": requests.NAMESPACES,
    "NeuronUltraServer": requests.NEURON_ULTRASERVERS,
    "NeuronUltraServerWorkload": requests.NEURON_WORKLOADS,
    "Pod": requests.PODS,
    "ResourceQuota": requests.RESOURCE_QUOTAS,
    "PodDisruptionBudget": requests.DISRUPTION_BUDGETS,
    "Event": requests.EVENTS,
    "Workload": requests.KUEUE_WORKLOADS,
    "PodGroup": requests.POD_GROUPS,
}
OLDER: Final = {
    "DeviceTaintRule": ("v1beta2", "v1alpha3"),
    "Workload": ("v1beta1",),
    "PodGroup": ("v1alpha2",),
}
"""Versions of a kind that older API servers have in place of the one in RESOURCES."""
OPTIONAL: Final = ("Workload", "PodGroup", "Namespace")
"""Kinds of other projects, behind a gate, or that few answers need: these answers say that they were not read."""


def connection(kubeconfig: str, context: str) -> KubeConfig:
    """Return how to reach the cluster: --kubeconfig, KUBECONFIG, ~/.kube/config, or the pod's service account.

    Raises SettingsError if none of them leads to an API server.
    """
    home = Path.home() / ".kube" / "config"
    paths = kubeconfig or os.environ.get("KUBECONFIG", "") or (str(home) if home.exists() else "")
    if paths:
        return config.from_kubeconfig(paths, context)
    if context:
        raise SettingsError(f"--context {context}: there is no kubeconfig; set --kubeconfig or KUBECONFIG")
    try:
        return config.in_cluster(os.environ)
    except SettingsError:
        raise SettingsError(
            "no cluster: set --kubeconfig or KUBECONFIG, or read a file with --snapshot (see --help)"
        ) from None


def read(kube: KubeConfig, namespace: str, run: Callable[..., Any] = asyncio.run, jobs: Sequence[Key] = ()) -> Snapshot:
    """Return the snapshot of a cluster, with these workloads; one without a namespace is in `namespace`.

    Kinds that it lacks, or that may not be read, are left out. `namespace` is read where all namespaces are forbidden.
    `run` runs a coroutine.
    Raises SettingsError if the API server does not answer, or rejects the credentials.
    """
    try:
        cluster_snapshot: Snapshot = run(_read(kube, namespace, jobs))
    except NeuronDraError as err:
        raise SettingsError(reason(err)) from err
    return cluster_snapshot


def reason(err: NeuronDraError) -> str:
    """Return why the API server could not be read, for a person."""
    if isinstance(err, Forbidden) and err.status == 401:
        return "the API server rejects the credentials (401): log in again, and check the context"
    return str(err)


async def _read(kube: KubeConfig, namespace: str, jobs: Sequence[Key]) -> Snapshot:
    left_out: dict[str, str] = {}
    damaged: list[snapshot.DamagedObject] = []
    async with KubeClient(kube) as client:
        kinds = (_kind(client, kind, namespace, left_out, damaged) for kind in RESOURCES)
        named = (_job(client, kind, own_namespace or namespace, name, left_out) for kind, own_namespace, name in jobs)
        object_lists = await asyncio.gather(*kinds, *named)
        server = await _version(client)
    for kind in OPTIONAL:
        left_out.pop(kind, None)
    if all(kind in left_out for kind in RESOURCES if kind not in OPTIONAL):
        raise SettingsError(f"nothing can be read from {kube.url}: {next(iter(left_out.values()))}")
    built = snapshot.build([raw_object for items in object_lists for raw_object in items], left_out, damaged)
    return dataclasses.replace(built, version=server)


async def _version(client: KubeClient) -> str:
    """Return the version of the API server; empty if it cannot be read, which answers then say."""
    try:
        return await version(client)
    except NeuronDraError:
        return ""


async def version(client: KubeClient) -> str:
    """Return the version of the API server, empty if it tells none. Raises NeuronDraError."""
    text = await client.request("GET", "/version")
    try:
        version_object = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return ""
    return str(version_object.get("gitVersion") or "")


async def _kind(
    client: KubeClient, kind: str, namespace: str, left_out: dict[str, str], damaged: list[snapshot.DamagedObject]
) -> list[dict[str, Any]]:
    resource = RESOURCES[kind]
    versions = (resource.version, *OLDER.get(kind, ()))
    for version in versions:
        try:
            served = Resource(resource.group, version, resource.plural, resource.namespaced)
            items = await _list(client, kind, served, damaged)
            left_out.pop(kind, None)  # an older version was missing
            return items
        except NotServed:
            left_out[kind] = snapshot.NOT_SERVED
        except Forbidden as err:
            if err.status == 401:
                raise
            left_out[kind] = "forbidden"
            if kind == "Namespace":
                return await _own_namespace(client, namespace)
            if not resource.namespaced:
                return []
            try:
                items = await _list(client, kind, resource, damaged, namespace)
            except (Forbidden, NotServed):
                return []
            left_out[kind] = f"only namespace {namespace}, the others are forbidden"
            return items
    return []


async def _own_namespace(client: KubeClient, namespace: str) -> list[dict[str, Any]]:
    """Return one Namespace, which a RoleBinding in it allows to read; nothing if it does not."""
    try:
        raw_namespace = await client.read(requests.NAMESPACES, "", namespace)
    except (Forbidden, NotFound):
        return []
    return [{**raw_namespace, "apiVersion": "v1", "kind": "Namespace"}]


async def _job(
    client: KubeClient, kind: str, namespace: str, name: str, left_out: dict[str, str]
) -> list[dict[str, Any]]:
    """Return a workload; nothing if it does not exist, or if its kind is left out."""
    job_resource = job_objects.RESOURCES[kind]
    resource = Resource(job_resource.group, job_resource.version, job_resource.plural, namespaced=True)
    try:
        raw_workload = await client.read(resource, namespace, name)
    except NotFound:
        return []
    except NotServed:
        left_out[kind] = snapshot.NOT_SERVED
        return []
    except Forbidden:
        left_out[kind] = "forbidden"
        return []
    return [{**raw_workload, "apiVersion": f"{resource.group}/{resource.version}", "kind": kind}]


async def _list(
    client: KubeClient, kind: str, resource: Resource, damaged: list[snapshot.DamagedObject], namespace: str = ""
) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if resource.group:
        version = f"{resource.group}/{resource.version}"
    else:
        version = resource.version
    async for page in client.list(resource, namespace):
        try:
            listed = page.decoded(dict[str, Any])
        except objects.MALFORMED as err:
            raise ApiError(f"the API server's list of {resource.plural} cannot be read: {err}") from err
        items += [{**raw_object, "apiVersion": version, "kind": kind} for raw_object in listed.objects]
        for unread in listed.damaged:
            damaged.append(snapshot.DamagedObject(kind, unread.namespace, unread.name, unread.paths, unread.why))
    return items
