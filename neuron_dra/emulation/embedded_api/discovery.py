"""Discovery: /api, /apis, /apis/<group>, /apis/<group>/<version>."""

from __future__ import annotations

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource, Registry

_WORKLOADS = ("pods", "services", "daemonsets", "deployments", "replicasets", "statefulsets", "jobs")
"""What `kubectl get all` asks for."""
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def version(git_version: str) -> Obj:
    major, minor, *_ = git_version.removeprefix("v").split(".")
    return {"major": major, "minor": minor, "gitVersion": git_version, "platform": "python"}


def core_versions() -> Obj:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups(registry: Registry) -> Obj:
    names = dict.fromkeys(resource.group for resource in registry if resource.group)
    api_groups = [group(registry, name) for name in names]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [api_group for api_group in api_groups if api_group]}


def group(registry: Registry, name: str) -> Obj | None:
    versions = list(dict.fromkeys(v for resource in registry if resource.group == name for v in resource.versions))
    if not versions or not name:
        return None
    listed = []
    for version in versions:
        listed.append({"groupVersion": f"{name}/{version}", "version": version})
    return {"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": listed, "preferredVersion": listed[0]}


def resources(registry: Registry, name: str, version: str) -> Obj | None:
    served = []
    for resource in registry:
        if resource.group == name and version in resource.versions:
            served.append(resource)
    if not served:
        return None
    entries = [entry for resource in served for entry in _entries(resource)]
    group_version = f"{name}/{version}" if name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}


def _entries(resource: EmbeddedResource) -> list[Obj]:
    whole: Obj = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _VERBS,
    }
    if resource.short_names:
        whole["shortNames"] = list(resource.short_names)
    if resource.plural in _WORKLOADS and not resource.custom:
        whole["categories"] = ["all"]
    entries = [whole]
    if resource.status:
        entries.append(_part(resource, "status", resource.kind, ["get", "patch", "update"]))
    for name in resource.subresources:
        kind = {"eviction": "Eviction", "scale": "Scale"}.get(name, "Binding")
        entries.append(_part(resource, name, kind, ["get", "patch", "update"] if name == "scale" else ["create"]))
    return entries


def _part(resource: EmbeddedResource, name: str, kind: str, verbs: list[str]) -> Obj:
    part: Obj = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced,
                 "kind": kind, "verbs": verbs}  # fmt: skip
    if kind == "Scale":
        part |= {"group": "autoscaling", "version": "v1"}
    if kind == "Eviction":
        part |= {"group": "policy", "version": "v1"}
    return part
