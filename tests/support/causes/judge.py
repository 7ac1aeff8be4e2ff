"""Whether the pod default/p runs in a cluster, by judges that are independent of `why`.

- Kubernetes' own scheduler, as a Go program: scheduling gates, taints, selectors, resources, claims and devices.
- What kube-controller-manager does before it: it creates claims from templates, as far as quotas allow. It is written
  here, from Kubernetes' documentation.
- What comes after it, in `after`: the kubelet, the driver and the runtime.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hack.oracle.judge import Scheduler
from neuron_dra.ask.render.findings import ProposedChange
from neuron_dra.core.wire import Obj
from tests.support.causes import after
from tests.support.cluster_faults import all_of, the

NAME: Final = "default/p"
_CLAIMS: Final = "count/resourceclaims.resource.k8s.io"
_OF_CLASS: Final = ".deviceclass.resource.k8s.io/devices"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where the pod runs, or why it does not; `said` is the scheduler's own message."""

    objection: str = ""
    said: str = ""
    reason: str = ""


def verdicts(scheduler: Scheduler, clusters: Sequence[Sequence[Obj]]) -> list[Verdict]:
    """Return the verdict on the pod in each cluster."""
    prepared = [_with_claims(items) for items in clusters]
    decisions = scheduler.ask([items for items, _ in prepared])
    return [_verdict(items, quota, decision.pods) for (items, quota), decision in zip(prepared, decisions, strict=True)]


def _verdict(items: list[Obj], quota: str, decision: Mapping[str, Any]) -> Verdict:
    pod = the(items, "Pod", "p")
    assert pod is not None
    if pod["spec"].get("nodeName"):
        return Verdict(after.objection(items, pod, pod["spec"]["nodeName"]))
    found = decision.get(NAME)
    if found is None:
        return Verdict("no scheduler handles it")
    if "gate" in found:
        return Verdict(quota or f"the plugin {found['gate']} keeps it from the scheduler")
    if "node" not in found:
        return Verdict(found["message"], found["message"], found["reason"])
    return Verdict(quota or after.objection(items, pod, found["node"]))


def _with_claims(items: Sequence[Obj]) -> tuple[list[Obj], str]:
    """Return the cluster with the claims that kube-controller-manager creates, and the quota that forbids one."""
    made = copy.deepcopy(list(items))
    pod = the(made, "Pod", "p")
    assert pod is not None
    status = pod.setdefault("status", {})
    created = {each["name"] for each in status.get("resourceClaimStatuses") or ()}
    for entry in pod["spec"].get("resourceClaims") or ():
        template = _template(made, str(entry.get("resourceClaimTemplateName") or ""))
        if entry["name"] in created or template is None:
            continue
        claim = _claim(pod, entry["name"], template)
        if quota := _over_quota(made, claim["spec"]):
            return made, quota
        made.append(claim)
        status.setdefault("resourceClaimStatuses", []).append(
            {"name": entry["name"], "resourceClaimName": claim["metadata"]["name"]}
        )
    return made, _over_quota(made, _of_limits(pod))


def _template(items: Sequence[Obj], name: str) -> Obj | None:
    here = [each for each in all_of(items, "ResourceClaimTemplate") if each["metadata"]["namespace"] == "default"]
    return the(here, "ResourceClaimTemplate", name)


def _claim(pod: Obj, entry: str, template: Obj) -> Obj:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"], "controller": True}
    meta = {"name": f"p-{entry}-made", "namespace": "default", "uid": "uid-made", "ownerReferences": [owner]}
    spec = copy.deepcopy(template["spec"]["spec"])
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": spec}


def _of_limits(pod: Obj) -> Obj:
    """Return the spec of the claim that the scheduler creates for resources of DeviceClasses."""
    requests = []
    for container in pod["spec"]["containers"]:
        for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            prefix, _, class_name = name.partition("/")
            if prefix == "deviceclass.resource.kubernetes.io":
                exactly = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": int(amount)}
                requests.append({"name": "r", "exactly": exactly})
    return {"devices": {"requests": requests}}


def _over_quota(items: Sequence[Obj], spec: Obj) -> str:
    requests = [each["exactly"] for each in (spec.get("devices") or {}).get("requests") or () if "exactly" in each]
    if not requests:
        return ""
    for quota in all_of(items, "ResourceQuota"):
        for resource, hard in quota["spec"]["hard"].items():
            adds = 1 if resource == _CLAIMS else 0
            adds += sum(
                int(each.get("count") or 1) for each in requests if resource == each["deviceClassName"] + _OF_CLASS
            )
            used = int((quota.get("status") or {}).get("used", {}).get(resource, 0))
            if adds and used + adds > int(hard):
                return f"the quota of {resource} is used up"
    return ""


def changed(items: Sequence[Obj], change: ProposedChange) -> list[Obj]:
    """Return the cluster after somebody has followed a proposed change.

    Objects are edited or deleted as it says. Claims are not: they cannot be edited, so the pod is created again and
    gets new ones, and what deleted pods leave behind is what kube-controller-manager leaves.
    """
    edited = {_key(each): dict(each) for each in change.replaced if each["kind"] != "ResourceClaim"}
    gone = {key for key in change.removed if key[0] != "ResourceClaim"}
    kept = [copy.deepcopy(edited.pop(_key(each), each)) for each in items if _key(each) not in gone]
    left = _collected([*kept, *edited.values()], {name for kind, _, name in gone if kind == "Pod"})
    recreates = any(each["kind"] in ("Pod", "ResourceClaim", "ResourceClaimTemplate") for each in change.replaced)
    return _again(left) if recreates else left


def _key(item: Mapping[str, Any]) -> tuple[str, str, str]:
    meta = item["metadata"]
    return item["kind"], meta.get("namespace") or "", meta["name"]


def _collected(items: list[Obj], pods: set[str]) -> list[Obj]:
    """Return the cluster once the claims of these deleted pods are deleted, or released."""
    left = []
    for item in items:
        if item["kind"] != "ResourceClaim":
            left.append(item)
            continue
        if any(
            owner["kind"] == "Pod" and owner["name"] in pods for owner in item["metadata"].get("ownerReferences", ())
        ):
            continue
        users = (item.get("status") or {}).get("reservedFor") or []
        staying = [each for each in users if each["name"] not in pods]
        if users and not staying:
            item = {**item, "status": {}}
        elif staying != users:
            item = {**item, "status": {**item["status"], "reservedFor": staying}}
        left.append(item)
    return left


def _again(items: list[Obj]) -> list[Obj]:
    """Return the cluster with the pod as it is created again: without the claims that were made for it."""
    pod = the(items, "Pod", "p")
    assert pod is not None
    pod["status"] = {"phase": "Pending"}
    return [
        item
        for item in items
        if item["kind"] != "ResourceClaim"
        or not any(
            owner["kind"] == "Pod" and owner["name"] == "p" for owner in item["metadata"].get("ownerReferences", ())
        )
    ]
