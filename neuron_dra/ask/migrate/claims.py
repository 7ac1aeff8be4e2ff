"""Claims in place of limits, for releases of Kubernetes on which nodes publish no connected sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuron_dra.api.problems import CannotMigrate
from neuron_dra.ask.migrate.limits import LimitsDemand
from neuron_dra.core import groups, names, releases, sizes
from neuron_dra.core.catalogue import InstanceType

LATER = f"needs Kubernetes {releases.text(releases.OLDEST_FOR_SETS)}"
QUEUE = "kueue.x-k8s.io/queue-name"
PART = 4
"""The most devices of a group in one request: the schedulers of 1.34 and 1.35 try those of a request in every order.

Where one of a group's eight devices is held, that is 13,700 steps for one request for eight, and 500 for two for four.
"""


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """How a claim requests `count` devices: as one whole node, as all devices of a node, or as some of one group."""

    count: int
    mode: str  # node, all or exact
    group: str = ""


def template(
    demand: LimitsDemand, types: Sequence[InstanceType], namespace: str, *, is_queued: bool = False
) -> dict[str, Any]:
    """Return the ResourceClaimTemplate for what a container requests on nodes of `types`.

    `is_queued` means that Kueue admits the pod; it refuses claims for all devices of a node for ever.

    Raises CannotMigrate, with what to do instead, if Kubernetes 1.34 cannot allocate it.
    """
    plans = {_plan(demand, spec, is_queued=is_queued) for spec in types}
    type_names = [spec.name for spec in types]
    if len(plans) > 1:
        raise CannotMigrate(f"{demand.where}: {' and '.join(type_names)} need different claims; name one instance type")
    [plan] = plans
    parts = ["neurons"]
    if plan.group and plan.count > PART:
        parts = [f"neurons-{n}" for n in range(plan.count // PART)]
    request = _request(plan, type_names)
    devices: dict[str, Any] = {"requests": [{"name": name, "exactly": dict(request)} for name in parts]}
    if plan.group:
        devices["constraints"] = [{"requests": parts, "matchAttribute": plan.group}]
    if len(parts) > 1:
        devices["constraints"] += [{"requests": [name], "matchAttribute": group_attribute(PART)} for name in parts]
    spec: dict[str, Any] = {"spec": {"devices": devices}}
    if plan.mode == "all":
        spec = {"metadata": {"annotations": {names.COUNT_ANNOTATION: str(plan.count)}}, **spec}
    what = "node" if plan.mode == "node" else str(plan.count)
    metadata = {"name": "-".join(["neuron", what, *(name.replace(".", "-") for name in type_names)])}
    if namespace:
        metadata["namespace"] = namespace
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    return {**kind, "metadata": metadata, "spec": spec}


def _request(plan: ClaimPlan, type_names: Sequence[str]) -> dict[str, Any]:
    """Return a request for a whole node, for all devices of one, or for at most PART of them."""
    resource = "neuron_node" if plan.mode == "node" else "neuron_device"
    listed = [f"'{name.removeprefix('ml.')}'" for name in type_names]
    of_type = f"in [{', '.join(listed)}]"
    if len(listed) == 1:
        of_type = f"== {listed[0]}"
    device = f"device.attributes['{names.DRIVER}']"
    expression = f"{device}.resourceType == '{resource}' && {device}.instanceType {of_type}"
    request: dict[str, Any] = {
        "deviceClassName": names.DRIVER,
        "allocationMode": "ExactCount",
        "selectors": [{"cel": {"expression": expression}}],
    }
    if plan.mode == "all":
        request["allocationMode"] = "All"
    elif plan.mode == "exact":
        request["count"] = min(plan.count, PART)
    else:
        request["count"] = 1
    return request


def _plan(demand: LimitsDemand, spec: InstanceType, *, is_queued: bool) -> ClaimPlan:
    cores_per_device = sizes.cores_per_device(spec)
    if demand.count not in sizes.counts(spec, demand.kind):
        raise CannotMigrate(f"{demand.where}: {sizes.unserved(spec, demand.kind, demand.count)}")
    if demand.kind == sizes.CORE and demand.count % cores_per_device:
        cores = next(count * cores_per_device for count in _offered(spec) if count * cores_per_device > demand.count)
        raise CannotMigrate(
            f"{demand.where}: {demand.name}: {demand.count} on {spec.name} takes a part of a device, which {LATER}; "
            f"before that a pod gets whole devices of {cores_per_device} cores each: request {cores} cores, or upgrade "
            "the cluster"
        )
    count = demand.count // cores_per_device if demand.kind == sizes.CORE else demand.count
    plan = _devices(demand, spec, count)
    if plan.mode != "all" or not is_queued:
        return plan
    if count in groups.SIZES and spec.efa:
        return ClaimPlan(count, "exact", group_attribute(count))
    raise CannotMigrate(
        f"{demand.where}: {count} devices on {spec.name} are all of a node, which a claim requests with allocationMode "
        f"All, and Kueue refuses that for ever: remove the label {QUEUE}, or use connected sets, which are one device "
        f"of a class: this {LATER}"
    )


def _devices(demand: LimitsDemand, spec: InstanceType, count: int) -> ClaimPlan:
    if count == spec.device_count:
        if spec.whole_node:
            return ClaimPlan(count, "node")
        return ClaimPlan(count, "all" if count > 1 else "exact")
    if count == 1:
        return ClaimPlan(1, "exact")
    if _has_groups(spec) and count in groups.SIZES:
        return ClaimPlan(count, "exact", group_attribute(count))
    offered = _offered(spec)
    raise CannotMigrate(
        f"{demand.where}: {count} connected devices on {spec.name}: this {LATER}; before that request "
        f"{', '.join(map(str, offered[:-1]))} or {offered[-1]} devices, or upgrade the cluster. If the devices need "
        f"not be connected with each other, write a ResourceClaimTemplate with count: {count} and no constraint"
    )


def _has_groups(spec: InstanceType) -> bool:
    return bool(spec.efa) and spec.shape not in ("ring", "line")


def _offered(spec: InstanceType) -> list[int]:
    """Return how many connected devices a claim can request without connected sets."""
    sizes_of_groups = groups.SIZES if _has_groups(spec) else ()
    return sorted({1, *(size for size in sizes_of_groups if size < spec.device_count), spec.device_count})


def group_attribute(size: int) -> str:
    """Return the attribute that the devices of a group of this size have in common."""
    return f"{names.GROUP_DOMAIN}/devicegroup{size}_id"


def note(claim_template: dict[str, Any]) -> str:
    """Return a note for the user about a template, or an empty string."""
    name = claim_template["metadata"]["name"]
    if name.startswith("neuron-node-"):
        return f"{name} requests a whole node: it needs the chart's draDriver.ultraserverDevices=node, the default"
    types = claim_template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]["cel"]["expression"]
    if not any(f"'{spec}" in types for spec in ("trn2u", "trn3")):
        return ""
    return (
        f"{name} requests single devices of an UltraServer's node, which are published with the chart's "
        "draDriver.ultraserverDevices=devices"
    )
