"""A cluster at one moment: the objects that placement depends on, from the API server or from a file. Pure."""

from __future__ import annotations

import copy
import difflib
import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from neuron_dra.api import resource_api
from neuron_dra.api.problems import BadInput, CannotMigrate
from neuron_dra.ask.read import job_objects, views
from neuron_dra.ask.read.claim_views import ClaimTemplateView, ClaimView, DeviceClassView
from neuron_dra.ask.read.node_views import KubeNodeView, SliceView, TaintRuleView, TaintView
from neuron_dra.ask.read.pod_views import KueueWorkloadView, PodClaims, PodGroupView, PodView
from neuron_dra.core import shapes
from neuron_dra.core.wire import Wire
from neuron_dra.errors import SettingsError

Key = tuple[str, str, str]
"""Kind, namespace (empty for cluster-scoped kinds) and name."""

_VIEWS: Final[Mapping[str, type[views.ObjectView]]] = {
    "ResourceClaim": ClaimView,
    "ResourceClaimTemplate": ClaimTemplateView,
    "DeviceClass": DeviceClassView,
    "DeviceTaintRule": TaintRuleView,
    "Node": KubeNodeView,
    "NeuronUltraServer": views.UltraServerView,
    "NeuronUltraServerWorkload": views.WorkloadView,
    "Pod": PodView,
    "Namespace": views.NamespaceView,
    "PodGroup": PodGroupView,
    "Workload": KueueWorkloadView,
    "ResourceQuota": views.QuotaView,
    "PodDisruptionBudget": views.BudgetView,
}
_JOBS: Final = dict.fromkeys(job_objects.RESOURCES, job_objects.JobObjectView)
KINDS: Final = ("ResourceSlice", *_VIEWS, "Event")
"""The kinds of a snapshot, apart from those of workloads, of which only `why` reads one. Other objects are ignored."""
_READ: Final = frozenset((*KINDS, *_JOBS))


@functools.cache
def shape(kind: str) -> Mapping[str, Any]:
    """Return the fields that are read of a kind."""
    if kind == "ResourceSlice":
        fields = views.shape(SliceView)
        return {**fields, "spec": {**fields["spec"], "devices": [_device({})]}}
    if kind == "Event":
        return {**views.shape(views.EventView), "metadata": views.shape(views.MetaView)}
    view_fields: Mapping[str, Any] = views.shape({**_VIEWS, **_JOBS}[kind])
    return view_fields


def _device(values: Any) -> Mapping[str, Any]:
    """Return the shape of a device; `values` is that of its attributes and capacity."""
    return {"name": str, "attributes": values, "capacity": values, "taints": [views.shape(TaintView)]}


ABBREVIATIONS: Final = {
    "pod": "Pod",
    "po": "Pod",
    "no": "Node",
    "claim": "ResourceClaim",
    "resourceclaim": "ResourceClaim",
    "node": "Node",
    "workload": "NeuronUltraServerWorkload",
    "nus": "NeuronUltraServer",
    "ultraserver": "NeuronUltraServer",
    "neuronultraserver": "NeuronUltraServer",
    "neuronultraserverworkload": "NeuronUltraServerWorkload",
    "nusw": "NeuronUltraServerWorkload",
}
"""The words for kinds in TYPE/NAME; a plural form means the same."""


NOT_IN_FILE: Final = "the file has none"
"""Why a kind is left out of which a file has no object, and of which the cluster has some."""
NOT_SERVED: Final = "this cluster does not have it"
"""Why a kind is left out that has no objects, because the API server does not serve it."""


@dataclass(frozen=True, slots=True)
class DamagedObject:
    """An object with values that cannot be decoded: those at `paths`, or the whole object if there are none."""

    kind: str
    namespace: str
    name: str
    paths: tuple[str, ...] = ()
    why: str = ""

    @property
    def key(self) -> str:
        """namespace/name, or the name alone."""
        if self.namespace:
            return f"{self.namespace}/{self.name}"
        return self.name


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Objects by key, in the order in which they were read.

    `left_out` are kinds that could not be read, or not in every namespace, and why. `damaged` are single objects.
    `version` is that of the API server, empty if it is unknown.
    """

    objects: Mapping[Key, Wire]
    left_out: Mapping[str, str] = field(default_factory=dict)
    by_kind: Mapping[str, Sequence[Wire]] = field(default_factory=dict)
    damaged: Sequence[DamagedObject] = ()
    version: str = ""

    def all(self, kind: str) -> Sequence[Wire]:
        """Return the objects of a kind."""
        return self.by_kind.get(kind, ())

    def get(self, kind: str, name: str, namespace: str = "") -> Wire | None:
        """Return one object, or None."""
        return self.objects.get((kind, namespace, name))

    def near(self, kind: str, name: str, namespace: str = "") -> str:
        """Return the name of an object of this kind that resembles `name`, or an empty string."""
        names = [key[2] for key in self.objects if key[:2] == (kind, namespace)]
        return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.6)), "")

    def changed(self, replaced: Sequence[Wire] = (), removed: Sequence[Key] = ()) -> Snapshot:
        """Return this snapshot with other objects; lists of kinds that do not change stay the same lists."""
        objects = dict(self.objects)
        lists = dict(self.by_kind)
        put: dict[int, Wire | None] = {}  # by the identity of the object that was there
        for key in removed:
            if (old := objects.pop(key, None)) is not None:
                put[id(old)] = None
        added: dict[Key, Wire] = {}
        for raw_object in replaced:
            key = key_of(raw_object)
            old = self.objects.get(key)
            objects[key] = raw_object
            if old is None:
                added[key] = raw_object
            else:
                put[id(old)] = raw_object
        kinds = {kind for kind, _, _ in removed}
        kinds.update(str(raw_object["kind"]) for raw_object in replaced)
        for kind in kinds:
            kept = [put.get(id(raw_object), raw_object) for raw_object in self.all(kind)]
            new = [raw_object for key, raw_object in added.items() if key[0] == kind]
            lists[kind] = [raw_object for raw_object in kept if raw_object is not None] + new
        return replace(self, objects=objects, by_kind=lists)


def key_of(raw_object: Wire) -> Key:
    """Return the key of an object."""
    return str(raw_object["kind"]), raw_object["metadata"].get("namespace") or "", raw_object["metadata"]["name"]


class CheckedObject(dict[str, Any]):
    """An object of v1 that was checked while it was read: `problem` returns nothing for it."""

    __slots__ = ()


def build(
    items: Iterable[dict[str, Any]],
    left_out: Mapping[str, str] | None = None,
    damaged: Sequence[DamagedObject] | None = None,
) -> Snapshot:
    """Return the snapshot of a list of objects.

    An object with a field of a wrong type raises SettingsError; with `damaged`, it is left out and added to these.
    """
    objects: dict[Key, Wire] = {}
    lists: dict[str, list[Wire]] = {}
    valid: dict[int, Any] = {}
    unread = list(damaged or ())
    for given in items:
        if str(given.get("kind")) not in _READ or _another_kind(given):
            continue
        try:
            checked = _checked(given, valid)
            key = key_of(checked)
        except (SettingsError, LookupError, TypeError, AttributeError) as err:
            if damaged is None:
                raise
            meta = given["metadata"]
            unread.append(DamagedObject(str(given["kind"]), meta.get("namespace") or "", meta["name"], why=str(err)))
            continue
        if key not in objects:
            lists.setdefault(key[0], []).append(checked)
            objects[key] = checked
    unread.sort(key=lambda damaged_object: (damaged_object.kind, damaged_object.key))
    return Snapshot(objects, dict(left_out or {}), lists, unread)


_GROUPS: Final = {"Workload": "kueue.x-k8s.io", "PodGroup": "scheduling.k8s.io"}
"""The groups of kinds whose names other groups have too."""


def _another_kind(given: Wire) -> bool:
    """Return True for a kind of another group that has the name of one that is read."""
    kind = str(given["kind"])
    group = job_objects.RESOURCES[kind].group if kind in job_objects.RESOURCES else _GROUPS.get(kind)
    return group is not None and not str(given.get("apiVersion", "")).startswith(f"{group}/")


def _checked(given: dict[str, Any], valid: dict[int, Any]) -> dict[str, Any]:
    """Return an object in the form of v1. Raises SettingsError for one with a field of a wrong type.

    `valid` has lists of devices that were checked, by identity: equal nodes share them, and each is checked once.
    """
    if isinstance(given, CheckedObject):
        return given
    kind = str(given["kind"])
    converted = given
    if str(converted.get("apiVersion", "")).startswith(resource_api.GROUP + "v1beta"):
        converted = copy.deepcopy(given)
        try:
            resource_api.to_v1(converted, f"{kind} {converted['metadata']['name']}")
        except (BadInput, CannotMigrate) as err:
            raise SettingsError(str(err)) from err
    spec = converted.get("spec")
    if kind == "ResourceSlice" and isinstance(spec, dict):
        devices = spec.get("devices")
    else:
        devices = None
    if id(devices) in valid:
        without_devices = {**converted, "spec": {**(spec or {}), "devices": None}}
    else:
        without_devices = converted
    if text := problem(without_devices):
        raise SettingsError(f"{named(converted)}: {text}")
    if devices:
        valid[id(devices)] = devices
    return converted


def problem(raw_object: Wire) -> str:
    """Return which field of an object of v1 has a wrong type, or is missing; empty if the object can be used."""
    kind = str(raw_object["kind"])
    is_valid = _compiled(kind).has(raw_object)
    text = "" if is_valid else shapes.wrong(raw_object, shape(kind))
    return text or _missing(raw_object, valid=is_valid)


@functools.cache
def _compiled(kind: str) -> shapes.CompiledShape:
    """Return the shape of a kind, compiled, or its view; of slices also the types of all attributes and capacities."""
    if kind in _VIEWS:
        return shapes.CompiledShape(_VIEWS[kind])
    fields = shape(kind)
    if kind == "ResourceSlice":
        fields = {**fields, "spec": {**fields["spec"], "devices": [_device(_VALUES)]}}
    return shapes.CompiledShape(fields)


_VALUES: Final = dict[str, dict[str, str | int | bool | list[Any]]]
"""Attributes or capacities of a device; there are hundreds of them in each slice."""
_NAMED: Final[Mapping[str, Sequence[tuple[str, ...]]]] = {
    "ResourceSlice": [("spec", "devices")],
    "ResourceClaim": [("spec", "devices", "requests"), ("status", "reservedFor")],
    "ResourceClaimTemplate": [("spec", "spec", "devices", "requests")],
    "Pod": [
        ("spec", "containers"),
        ("spec", "initContainers"),
        ("spec", "resourceClaims"),
        ("spec", "schedulingGates"),
        ("status", "resourceClaimStatuses"),
        ("status", "containerStatuses"),
        ("status", "initContainerStatuses"),
    ],
}
"""Lists whose entries have names."""
_REQUIRED: Final[Mapping[str, Sequence[tuple[str, ...]]]] = {
    "ResourceSlice": [("spec", "driver"), ("spec", "pool", "name"), ("spec", "pool", "resourceSliceCount")],
    "Pod": [("spec",)],
    "ResourceClaim": [("spec",)],
    "ResourceClaimTemplate": [("spec", "spec")],
    "DeviceTaintRule": [("spec", "taint", "key")],
}


def absent_from_file(snapshot: Snapshot) -> dict[str, str]:
    """Return the kinds of which a file has no object, and that it lacks rather than the cluster."""
    absent = []
    for kind in ("DeviceClass", "ResourceSlice", "Node", "Pod", "ResourceClaimTemplate"):
        if not snapshot.all(kind):
            absent.append(kind)
    used = any(PodClaims.of(pod).status.resource_claim_statuses for pod in snapshot.all("Pod"))
    if used and not snapshot.all("ResourceClaim"):
        absent.append("ResourceClaim")
    return dict.fromkeys(absent, NOT_IN_FILE)


def _missing(raw_object: Wire, *, valid: bool) -> str:
    """Return which field that the commands need is absent, or unless `valid` which value of a device is wrong."""
    kind = str(raw_object["kind"])
    for path in _REQUIRED.get(kind, ()):
        if _at(raw_object, path) in (None, ""):
            return f"{'.'.join(path)} is missing"
    for path in _NAMED.get(kind, ()):
        entries = _at(raw_object, path) or ()
        requests = path[-1] == "requests"
        if not requests and all(map(_name_of, entries)):
            continue
        if text := _nameless(".".join(path), entries, requests=requests):
            return text
    if kind == "ResourceClaim":
        for number, result in enumerate(_at(raw_object, ("status", "allocation", "devices", "results")) or ()):
            if not all(map(result.get, _OF_RESULT)):
                return f"status.allocation.devices.results[{number}] needs request, driver, pool and device"
    if kind == "ResourceSlice" and not valid:
        return _device_values(raw_object)
    return ""


_name_of: Final = operator.methodcaller("get", "name")  # without a step of Python for each device of a fleet
_OF_RESULT: Final = ("request", "driver", "pool", "device")


def _nameless(path: str, entries: Sequence[Wire], *, requests: bool) -> str:
    """Return which entry of a list has no name; of requests, also which of their alternatives."""
    for number, entry in enumerate(entries):
        if not entry.get("name"):
            return f"{path}[{number}].name is missing"
        alternatives = entry.get("firstAvailable") or ()
        for below, alternative in enumerate(alternatives if requests else ()):
            if not alternative.get("name"):
                return f"{path}[{number}].firstAvailable[{below}].name is missing"
    return ""


def _at(raw_object: Wire, path: Sequence[str]) -> Any:
    part: Any = raw_object
    for name in path:
        part = (part or {}).get(name)
    return part


def _device_values(raw_object: Wire) -> str:
    """Return which attribute or capacity of a slice has a wrong type."""
    for device in raw_object["spec"].get("devices") or ():
        for part, types in (("attributes", (str, int, bool, list)), ("capacity", (str, int))):
            for name, entry in (device.get(part) or {}).items():
                if type(entry) is not dict or any(not isinstance(value, types) for value in entry.values()):
                    return f"{part}.{name} of device {device['name']} is {shapes.called(entry)}"
    return ""


def named(raw_object: Wire) -> str:
    """Return kind, namespace and name of an object, for messages."""
    kind, namespace, name = key_of(raw_object)
    if namespace:
        return f"{kind} {namespace}/{name}"
    return f"{kind} {name}"
