"""The kinds that the embedded API server serves: names, versions, and the rules for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import claim_rules, core_rules, slice_rules
from neuron_dra.emulation.embedded_api.columns import Column
from neuron_dra.emulation.embedded_api.errors import Cause

DRA_GROUP = "resource.k8s.io"


def _nothing(obj: Obj, old: Obj | None, now: str) -> None:
    """Leave the object unchanged."""


def _no_causes(obj: Obj, old: Obj | None) -> list[Cause]:
    return []


@dataclass(frozen=True, slots=True)
class EmbeddedResource:
    """One kind. `versions` are the served ones, preferred first; `storage` is the stored one.

    `prepare(obj, old, now)` sets defaults before an object is stored (`old` is None on create, `now` a timestamp);
    `check` and `check_status` return the problems of a write to the object and to its status.
    """

    group: str
    kind: str
    plural: str
    namespaced: bool
    versions: tuple[str, ...] = ("v1",)
    storage: str = "v1"
    status: bool = False
    keeps_status_on_create: bool = False
    generation: bool = False
    selectable: tuple[str, ...] = ()
    blind_update: bool = True  # PUT without resourceVersion is accepted
    custom: bool = False
    returns_deleted: bool = True  # DELETE returns the object instead of a Status
    subresources: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()  # of a custom kind; built-in kinds have them in columns.py
    prepare: Callable[[Obj, Obj | None, str], None] = _nothing
    check: Callable[[Obj, Obj | None], list[Cause]] = _no_causes
    check_status: Callable[[Obj, Obj | None], list[Cause]] = _no_causes

    @property
    def key(self) -> tuple[str, str]:
        return self.group, self.plural

    @property
    def qualified(self) -> str:
        if self.group:
            return f"{self.plural}.{self.group}"
        return self.plural

    def api_version(self, version: str) -> str:
        if self.group:
            return f"{self.group}/{version}"
        return version


def _core() -> Iterator[EmbeddedResource]:
    yield EmbeddedResource("", "Namespace", "namespaces", False, status=True, selectable=("status.phase",),
                   short_names=("ns",), prepare=core_rules.prepare_namespace)  # fmt: skip
    yield EmbeddedResource("", "Node", "nodes", False, status=True, keeps_status_on_create=True, returns_deleted=False,
                   selectable=("spec.unschedulable",), short_names=("no",))  # fmt: skip
    yield EmbeddedResource("", "Pod", "pods", True, status=True, generation=True,
                   selectable=("spec.nodeName", "status.phase", "spec.schedulerName", "spec.serviceAccountName"),
                   subresources=("binding", "eviction"), short_names=("po",),
                   prepare=core_rules.prepare_pod, check=core_rules.check_pod)  # fmt: skip
    yield EmbeddedResource("", "Event", "events", True, returns_deleted=False, short_names=("ev",),
                   selectable=("involvedObject.kind", "involvedObject.name", "involvedObject.namespace",
                               "involvedObject.uid", "reason", "type"))  # fmt: skip
    for kind, plural, short in (
        ("ConfigMap", "configmaps", "cm"),
        ("Secret", "secrets", ""),
        ("ServiceAccount", "serviceaccounts", "sa"),
        ("Service", "services", "svc"),
    ):
        yield EmbeddedResource("", kind, plural, True, returns_deleted=kind in ("ServiceAccount", "Service"),
                       short_names=(short,) if short else ())  # fmt: skip


def _dra() -> Iterator[EmbeddedResource]:
    yield EmbeddedResource(DRA_GROUP, "ResourceSlice", "resourceslices", False, generation=True,
                   selectable=("spec.driver", "spec.nodeName", "spec.pool.name"),
                   prepare=slice_rules.prepare, check=slice_rules.check)  # fmt: skip
    yield EmbeddedResource(DRA_GROUP, "ResourceClaim", "resourceclaims", True, status=True,
                   prepare=claim_rules.prepare_claim, check=claim_rules.check_claim,
                   check_status=claim_rules.check_status)  # fmt: skip
    yield EmbeddedResource(DRA_GROUP, "ResourceClaimTemplate", "resourceclaimtemplates", True,
                   prepare=claim_rules.prepare_template, check=claim_rules.check_template)  # fmt: skip
    yield EmbeddedResource(DRA_GROUP, "DeviceClass", "deviceclasses", False, generation=True,
                   prepare=claim_rules.prepare_class, check=claim_rules.check_class)  # fmt: skip


def _others() -> Iterator[EmbeddedResource]:
    yield EmbeddedResource("coordination.k8s.io", "Lease", "leases", True, blind_update=False, returns_deleted=False)
    yield EmbeddedResource("policy", "PodDisruptionBudget", "poddisruptionbudgets", True, status=True, generation=True,
                   returns_deleted=False, short_names=("pdb",), check=core_rules.check_budget)  # fmt: skip
    for kind, short in (("Deployment", "deploy"), ("DaemonSet", "ds"), ("StatefulSet", "sts"), ("ReplicaSet", "rs")):
        yield EmbeddedResource(
            "apps", kind, f"{kind.lower()}s", True, status=True, generation=True, returns_deleted=False,
            short_names=(short,), subresources=() if kind == "DaemonSet" else ("scale",),
        )  # fmt: skip
    yield EmbeddedResource("discovery.k8s.io", "EndpointSlice", "endpointslices", True, generation=True,
                   check=core_rules.check_endpoint_slice)  # fmt: skip
    yield EmbeddedResource("batch", "Job", "jobs", True, status=True, generation=True, returns_deleted=False)
    for kind, plural, namespaced in (
        ("Role", "roles", True),
        ("RoleBinding", "rolebindings", True),
        ("ClusterRole", "clusterroles", False),
        ("ClusterRoleBinding", "clusterrolebindings", False),
    ):
        yield EmbeddedResource("rbac.authorization.k8s.io", kind, plural, namespaced, returns_deleted=False)
    yield EmbeddedResource("scheduling.k8s.io", "PriorityClass", "priorityclasses", False, returns_deleted=False)


class Registry:
    """The served resources; `add` registers another."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], EmbeddedResource] = {}
        for resource in (*_core(), *_dra(), *_others()):
            self.add(resource)

    def add(self, resource: EmbeddedResource) -> None:
        self._by_key[resource.key] = resource

    def remove(self, resource: EmbeddedResource) -> None:
        del self._by_key[resource.key]

    def __iter__(self) -> Iterator[EmbeddedResource]:
        return iter(self._by_key.values())

    def at(self, group: str, version: str, plural: str) -> EmbeddedResource | None:
        resource = self._by_key.get((group, plural))
        if resource and version in resource.versions:
            return resource
        return None

    def is_built_in(self, group: str) -> bool:
        """Return True if the server has kinds of this group that no CRD defines."""
        return any(resource.group == group and not resource.custom for resource in self)

    def named(self, name: str) -> EmbeddedResource:
        """Return a resource by plural or kind, `pods` or `Pod`. Raises KeyError if the server has no such kind."""
        for resource in self:
            if name in (resource.plural, resource.kind, resource.qualified):
                return resource
        raise KeyError(f"the embedded API server serves no {name!r}")

    def of_object(self, obj: Obj) -> tuple[EmbeddedResource, str]:
        """Return resource and version for an object's apiVersion and kind. Raises KeyError."""
        group, _, version = obj["apiVersion"].rpartition("/")
        for resource in self:
            if (resource.group, resource.kind) == (group, obj["kind"]) and version in resource.versions:
                return resource, version
        raise KeyError(f"the embedded API server serves no {obj['apiVersion']} {obj['kind']}")

    def by_kind(self, api_version: str, kind: str) -> EmbeddedResource | None:
        """As `of_object`, for an owner reference, which may name any version of the group."""
        group = api_version.rpartition("/")[0]
        for resource in self:
            if (resource.group, resource.kind) == (group, kind):
                return resource
        return None
