"""Reads what `doctor` checks from outside: a snapshot and the objects of an installation, from a cluster or a file."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import email.utils
import gc
import itertools
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from neuron_dra.ask.doctor import crd_fields, requested
from neuron_dra.ask.doctor.seen import (
    BINDINGS,
    CRDS,
    KINDS,
    LEASE,
    LEASES,
    NAMESPACE,
    POLICIES,
    BindingView,
    LeaseView,
    Seen,
)
from neuron_dra.ask.doctor.timing import DEFAULT_TIMING, DoctorTiming
from neuron_dra.ask.read import cluster, source, views
from neuron_dra.ask.read.pod_views import PodOwners
from neuron_dra.ask.read.snapshot import DamagedObject, Snapshot, named
from neuron_dra.core import shapes
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ApiError, Forbidden, NotFound, NotServed, SettingsError
from neuron_dra.kube import requests
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.objects import MALFORMED, Page
from neuron_dra.kube.requests import Resource

_TEXT: Final = {"type": str, "status": str, "reason": str, "message": str}
_SHAPES: Final[Mapping[str, Any]] = {
    CRDS: {"spec": {"versions": [{"name": str, "served": bool, "schema": {}}]}, "status": {"conditions": [_TEXT]}},
    POLICIES: {"spec": {}},
    BINDINGS: views.shape(BindingView),
    LEASES: views.shape(LeaseView),
}
NOT_SERVED: Final = "this API server does not serve them"
T = TypeVar("T")
_PART: Final = "app.kubernetes.io/name"


def from_file(name: str, version: str = "") -> Seen:
    """Return what a file has; what it lacks is unknown. A `version` that is given is the API server's.

    Raises SettingsError.
    """
    snapshot, items = source.from_file(name, whole=True)  # as objects go into a report
    objects_by_kind: dict[str, list[Wire]] = {kind: [] for kind in KINDS}
    for raw_object in items:
        kind = raw_object["kind"]
        is_other_lease = kind == LEASES and raw_object["metadata"]["name"] != LEASE
        if kind in KINDS and not is_other_lease:
            objects_by_kind[kind].append(_checked(raw_object))
    unread = {kind: "the file has none" for kind, objects in objects_by_kind.items() if not objects}
    damaged = requested.damaged(items)
    known_version = version or snapshot.version  # a bundle of `doctor` has it
    snapshot = replace(snapshot, version=known_version)
    return Seen(
        snapshot,
        objects_by_kind,
        unread,
        damaged,
        known_version,
        why_no_version="" if known_version else "a file does not have it",
    )


def connected(args: argparse.Namespace) -> tuple[KubeConfig, str, asyncio.Runner]:
    """Return the connection that the flags name, the namespace, and the event loop for it. Raises SettingsError."""
    gc.disable()  # a snapshot has millions of values, none of which is garbage
    kube = cluster.connection(args.kubeconfig, args.context)
    return kube, args.namespace or kube.namespace or "default", asyncio.Runner()


def live(
    kube: KubeConfig,
    namespace: str,
    run: Callable[[Coroutine[Any, Any, Any]], Any],
    timing: DoctorTiming = DEFAULT_TIMING,
) -> Seen:
    """Return what the API server shows. Raises SettingsError if it does not answer, or rejects the credentials."""
    snapshot: Snapshot = cluster.read(kube, namespace, run)
    seen: Seen = run(_rest(kube, snapshot, timing))
    return seen


async def _rest(kube: KubeConfig, snapshot: Snapshot, timing: DoctorTiming) -> Seen:
    pods = [PodOwners.of(pod).metadata for pod in snapshot.all("Pod")]
    spaces = set()
    for meta in pods:
        if "neuron-ultraserver" in str(meta.labels.get(_PART)):
            spaces.add(meta.namespace)
    unread: dict[str, str] = {}
    crd_keys = [("", name) for name in crd_fields.wanted()]
    lease_keys = [(space, LEASE) for space in spaces or {NAMESPACE}]
    async with KubeClient(kube) as client:

        async def read(kind: str, reading: Coroutine[Any, Any, list[Wire]]) -> list[Wire]:
            return await _read(kind, unread, reading, timing.kind_s)

        readings = (_asked(client, kind, unread, timing.kind_s) for kind in requested.RESOURCES)
        reading_requested = asyncio.gather(*readings)
        definitions, policies, bindings, leases, seen, damaged = await asyncio.gather(
            read(CRDS, _by_name(client, CRDS, requests.DEFINITIONS, crd_keys)),
            read(POLICIES, _list(client, POLICIES, requests.POLICIES)),
            read(BINDINGS, _list(client, BINDINGS, requests.POLICY_BINDINGS)),
            read(LEASES, _by_name(client, LEASES, requests.LEASES, lease_keys)),
            _version(client, Seen(snapshot), timing.kind_s),
            reading_requested,
        )
    objects = {CRDS: definitions, POLICIES: policies, BINDINGS: bindings, LEASES: leases}
    return replace(seen, objects=objects, unread=unread, damaged=list(itertools.chain.from_iterable(damaged)))


async def _asked(client: KubeClient, kind: str, unread: dict[str, str], limit_s: float) -> list[DamagedObject]:
    """Return the objects of a kind that cannot be read; none of a kind that the cluster does not have."""
    unreadable = await _read(kind, unread, _listed(client, kind), limit_s)
    if unread.get(kind) == NOT_SERVED:
        del unread[kind]
    return unreadable


async def _listed(client: KubeClient, kind: str) -> list[DamagedObject]:
    """Return the objects of a kind that cannot be read. Only their names are kept: a cluster may have many jobs.

    Raises ApiError, and one of MALFORMED for a page that is no list.
    """
    resource = requested.RESOURCES[kind]
    unreadable: list[DamagedObject] = []
    version = f"{resource.group}/{resource.version}"
    async for page in client.list(resource):
        read = page.decoded(dict[str, Any])
        raw_objects = ({**raw_object, "apiVersion": version, "kind": kind} for raw_object in read.objects)
        unreadable += requested.damaged(raw_objects)
        for damaged in read.damaged:
            unreadable.append(DamagedObject(kind, damaged.namespace, damaged.name, damaged.paths, damaged.why))
    return unreadable


async def _read(kind: str, unread: dict[str, str], reading: Coroutine[Any, Any, list[T]], limit_s: float) -> list[T]:
    """Return the objects; if they cannot be read within `limit_s` seconds, none, and `unread` gets the reason."""
    try:
        async with asyncio.timeout(limit_s):
            return await reading
    except TimeoutError:
        unread[kind] = f"no answer within {limit_s:g} s"
    except Forbidden as err:
        if err.status == 403:
            unread[kind] = "forbidden"
        else:
            unread[kind] = "the API server rejects the credentials"
    except NotServed:
        unread[kind] = NOT_SERVED
    except (ApiError, SettingsError) as err:
        unread[kind] = str(err)
    except MALFORMED:
        unread[kind] = "the API server's answer is no list"
    return []


async def _by_name(client: KubeClient, kind: str, resource: Resource, keys: Iterable[tuple[str, str]]) -> list[Wire]:
    """Return the objects with these names that exist: a list of the kind can be very large."""
    objects = []
    for namespace, name in keys:
        try:
            raw = await client.get(resource, namespace, name)
        except NotFound:
            continue
        checked = _checked({**_decoded(raw), "kind": kind})
        if checked["metadata"].get("name") != name:
            raise ApiError(f"the API server's answer is not {kind} {name}")
        objects.append(checked)
    return objects


async def _list(client: KubeClient, kind: str, resource: Resource) -> list[Wire]:
    objects = []
    async for page in client.list(resource):
        objects += [_checked({**raw_object, "kind": kind}) for raw_object in items(page, resource)]
    return objects


def items(page: Page, resource: Resource) -> list[dict[str, Any]]:
    """Return the objects of a page of a list. Raises ApiError for any other answer."""
    try:
        return page.decoded(dict[str, Any]).objects
    except MALFORMED as err:
        raise ApiError(f"the API server's answer is not a list of {resource.plural}") from err


async def _version(client: KubeClient, seen: Seen, limit_s: float) -> Seen:
    """Return `seen` with the version and the clock of the API server."""
    try:
        async with asyncio.timeout(limit_s):
            version_object = _decoded(await client.request("GET", "/version"))
            now = clock(client.date)
            try:
                await client.request("GET", "/apis/resource.k8s.io/v1")
                serves = True
            except NotServed:
                serves = False
    except (ApiError, TimeoutError) as err:
        return replace(seen, why_no_version=str(err) or f"no answer within {limit_s:g} s")
    return replace(seen, version=str(version_object.get("gitVersion") or ""), serves_v1=serves, now=now)


def clock(date: str) -> datetime.datetime | None:
    """Return the time in a header Date; None if it is none."""
    try:
        time = email.utils.parsedate_to_datetime(date)
    except ValueError:
        return None
    if time.tzinfo is not None:
        return time
    return None


def _decoded(raw: bytes) -> dict[str, Any]:
    """Return an object of the API server, or of a proxy before it. Raises ApiError."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise ApiError(f"the API server's answer is not JSON: {err}") from err


def _checked(raw_object: Any) -> Wire:
    """Return an object with fields of the right types. Raises SettingsError."""
    try:
        kind = str(raw_object["kind"])
        wrong = shapes.wrong(raw_object, {"metadata": {"name": str, "namespace": str}, **_SHAPES[kind]})
        name = named(raw_object)
    except (KeyError, TypeError, AttributeError) as err:
        raise SettingsError(f"an object without a name: {json.dumps(str(raw_object)[:80])}") from err
    if wrong:
        raise SettingsError(f"{name}: {wrong}")
    return dict(raw_object)
