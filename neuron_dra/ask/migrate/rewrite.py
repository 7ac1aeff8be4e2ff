"""Rewrites one document: every pod template in it, whatever its kind, and objects of resource.k8s.io's beta versions.

A pod template is recognized by its list of containers, so that custom resources work too: Deployment, CronJob,
LeaderWorkerSet, RayCluster, MPIJob and KServe's predictors have one at different places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from neuron_dra.api import resource_api
from neuron_dra.api.problems import BadInput, CannotMigrate
from neuron_dra.ask.migrate import claims, leftovers, limits
from neuron_dra.ask.migrate.limits import LimitsDemand
from neuron_dra.core import sizes

DNS_LABEL = 63


@dataclass(frozen=True, slots=True)
class Options:
    """`names` is True for extended resources, which connected sets need, False for claims."""

    names: bool
    instance_type: str = ""
    scheduler: str = "my-scheduler"


@dataclass(slots=True)
class Rewritten:
    """The result of a document: `templates` are new objects that it needs, `notes` are for the user to read, `renamed`
    counts the resources that have a new name."""

    templates: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    renamed: int = 0


def rewrite(document: Any, options: Options) -> Rewritten:
    """Change `document`, a tree without shared parts, in place. Raises BadInput or CannotMigrate."""
    outcome = Rewritten()
    for where, owner, mapping in list(_mappings(document, "", {})):
        resource_api.below_exactly(mapping, where)
        resource_api.to_v1(mapping, where)
        if isinstance(mapping.get("resourceClaims"), list):
            _flatten(mapping)
        if isinstance(mapping.get("containers"), list) or _is_predictor(mapping, owner):
            _pod(mapping, where, owner, options, outcome)
    for where, owner, mapping in list(_mappings(document, "", {})):
        if str(owner.get("kind")) not in leftovers.COUNTING:
            _leftover(mapping, where, options, outcome)
    return outcome


def _mappings(
    value: Any, where: str, owner: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any], dict[str, Any]]]:
    """Yield every mapping with its place and the object that contains it."""
    if isinstance(value, dict):
        if "apiVersion" in value and "kind" in value:
            owner = value
        yield where, owner, value
        for key, item in list(value.items()):
            yield from _mappings(item, f"{where}.{key}" if where else str(key), owner)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _mappings(item, f"{where}[{index}]", owner)


def _flatten(pod: dict[str, Any]) -> None:
    """Move what a pod's claims have in `source`, which Kubernetes 1.31 removed, to its place beside their names."""
    for index, entry in enumerate(pod["resourceClaims"]):
        source = entry.get("source") if isinstance(entry, dict) else None
        if isinstance(source, dict):
            kept = {key: value for key, value in entry.items() if key != "source"}
            pod["resourceClaims"][index] = {**kept, **source}


def _pod(pod: dict[str, Any], where: str, owner: Mapping[str, Any], options: Options, outcome: Rewritten) -> None:
    if options.scheduler and pod.get("schedulerName") == options.scheduler:
        del pod["schedulerName"]
    inits: list[LimitsDemand] = []
    mains: list[LimitsDemand] = []
    sidecars: list[LimitsDemand] = []
    listed = [*limits.containers(pod, where), *_models(pod, where)]
    for container, at, ends in listed:
        container_demand = limits.wanted(container, at)
        if container_demand is None:
            continue
        if ends:
            inits.append(container_demand)
        elif ".initContainers[" in at:
            sidecars.append(container_demand)
        else:
            mains.append(container_demand)
    if not (inits or mains or sidecars):
        return
    for demand in (*inits, *sidecars, *mains):
        security = demand.container.get("securityContext")
        if isinstance(security, dict) and security.get("privileged") is True:
            outcome.notes.append(
                f"{demand.where}: the container is privileged, so it sees all Neuron devices of the node, also those "
                "of other pods; remove privileged: the container gets the files of its own devices without that"
            )
    init_counts = limits.init_counts(inits, mains)
    types = limits.instance_types(pod) or ((options.instance_type,) if options.instance_type else ())
    specs = limits.known(types, where)
    counted = [*zip(inits, init_counts, strict=True), *((demand, demand.count) for demand in (*mains, *sidecars))]
    for demand, count in counted[len(inits) if mains else 0 :]:  # an init container uses what a main container requests
        _check_served(demand, count, specs)
    if options.names:
        _ray(owner, where, mains)
        for demand, count in counted:
            _rename(demand, count)
        outcome.renamed += len(counted)
    else:
        _claims(pod, where, owner, [(inits, init_counts), mains, sidecars], specs, outcome)


def _is_predictor(value: Mapping[str, Any], owner: Mapping[str, Any]) -> bool:
    """Return True for a KServe predictor, which is a pod's spec that may have a model and no containers."""
    return owner.get("kind") == "InferenceService" and isinstance(value.get("model"), dict)


def _models(pod: dict[str, Any], where: str) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """Yield what KServe has in place of a container: a predictor's `model`, beside a pod spec's fields."""
    if isinstance(pod.get("model"), dict):
        yield pod["model"], f"{where}.model", False


def _check_served(demand: LimitsDemand, count: int, specs: list[Any]) -> None:
    """Raise CannotMigrate if no type serves the number: none of those that the pod names, or none at all."""
    from neuron_dra.core import catalogue

    if specs:
        if not any(count in sizes.counts(spec, demand.kind) for spec in specs):
            raise CannotMigrate(f"{demand.where}: {sizes.unserved(specs[0], demand.kind, count)}")
    elif not any(count in sizes.counts(spec, demand.kind) for spec in catalogue.all_types()):
        raise CannotMigrate(f"{demand.where}: no instance type serves {count} {demand.kind}s to one container")


def _rename(demand: LimitsDemand, count: int) -> None:
    """Replace the limit, and the request if there is one, by the extended resource of the DeviceClass."""
    new = sizes.resource_name(demand.kind, count)
    resources = demand.container["resources"]
    for name in ("limits", "requests"):
        values = resources.get(name) or {}
        if demand.name in values:
            amount = "1" if isinstance(values[demand.name], str) else 1
            changed: dict[str, Any] = {}  # in the order of the manifest
            for key, value in values.items():
                if key == demand.name:
                    changed[new] = amount
                elif key != new:
                    changed[key] = value
            resources[name] = changed


def _ray(owner: Mapping[str, Any], where: str, mains: list[LimitsDemand]) -> None:
    """Keep a Ray group's number of Neuron cores, which KubeRay takes from the limit that is removed."""
    of_first = (demand for demand in mains if demand.where == f"{where}.containers[0]")
    first = next((demand for demand in of_first if demand.kind == sizes.CORE), None)
    if first is None or not str(owner.get("apiVersion", "")).startswith("ray.io/"):
        return
    group: Any = owner
    for step in where.removesuffix(".template.spec").replace("[", ".").replace("]", "").split("."):
        if isinstance(group, dict) and step in group:
            group = group[step]
        elif isinstance(group, list) and step.isdigit():
            group = group[int(step)]
    parameters = group.get("rayStartParams") if isinstance(group, dict) else None
    if parameters is None and isinstance(group, dict) and "template" in group:
        parameters = group["rayStartParams"] = {}
    if isinstance(parameters, dict) and "resources" not in parameters:
        parameters["resources"] = json.dumps(json.dumps({"neuron_cores": first.count}))


def _claims(
    pod: dict[str, Any], where: str, owner: Mapping[str, Any], demands: list[Any], specs: list[Any], outcome: Rewritten
) -> None:
    """Replace the limits by claims: one for each main container and sidecar, which init containers use too."""
    (inits, init_counts), mains, sidecars = demands
    if not specs:
        raise CannotMigrate(
            f"{where}: claims depend on the instance type; set nodeSelector node.kubernetes.io/instance-type, or pass "
            "--instance-type"
        )
    meta = owner.get("metadata") or {}
    namespace = str(meta.get("namespace") or "")
    is_queued = _has_key(owner, claims.QUEUE)
    by_count: dict[int, str] = {}
    for demand in (*mains, *sidecars):
        name = _claim(pod, demand, claims.template(demand, specs, namespace, is_queued=is_queued), outcome)
        if demand in mains:
            by_count.setdefault(demand.count, name)
    for init, count in zip(inits, init_counts, strict=True):
        if count not in by_count:
            sized = LimitsDemand(init.container, init.where, init.kind, init.name, count)
            by_count[count] = _claim(pod, sized, claims.template(sized, specs, namespace, is_queued=is_queued), outcome)
        else:
            _use(init, by_count[count])


def _has_key(value: Any, name: str) -> bool:
    """Return True if a value has a key of this name anywhere, as an object and the templates in it have labels."""
    if isinstance(value, dict):
        return name in value or any(_has_key(item, name) for item in value.values())
    return isinstance(value, list) and any(_has_key(item, name) for item in value)


def _claim(pod: dict[str, Any], demand: LimitsDemand, template: dict[str, Any], outcome: Rewritten) -> str:
    """Add a claim to the pod, give it to the container and return its name."""
    if template not in outcome.templates:
        outcome.templates.append(template)
        outcome.notes += [text for text in (claims.note(template),) if text]
    listed = pod.setdefault("resourceClaims", [])
    if not isinstance(listed, list):
        raise BadInput(f"resourceClaims is {listed!r:.60}, not a list")
    taken = {pod_claim.get("name") for pod_claim in listed if isinstance(pod_claim, dict)}
    # Three characters stay free for the number of a second claim of this name, such as -12.
    stem = f"neurons-{demand.container.get('name') or 'model'}"[: DNS_LABEL - 3].rstrip("-")
    name = next(name for name in (stem, *(f"{stem}-{n}" for n in range(2, 99))) if name not in taken)
    listed.append({"name": name, "resourceClaimTemplateName": template["metadata"]["name"]})
    _use(demand, name)
    return name


def _use(demand: LimitsDemand, claim: str) -> None:
    """Let a container use a claim in place of its limit."""
    resources = demand.container["resources"]
    for name in ("limits", "requests"):
        if isinstance(resources.get(name), dict):
            resources[name].pop(demand.name, None)
            if not resources[name]:
                del resources[name]
    resources["claims"] = [*(resources.get("claims") or []), {"name": claim}]


def _leftover(value: dict[str, Any], where: str, options: Options, outcome: Rewritten) -> None:
    """Rewrite resources that are of no list of containers, such as those of KServe's model, of a TrainJob's nodes or in
    the values of a Helm chart. Their pod is not known."""
    listed = [value.get(name) for name in ("limits", "requests")]
    if not any(isinstance(amounts, dict) and sizes.KINDS.keys() & amounts.keys() for amounts in listed):
        return
    container = {"resources": value}
    at = where.removesuffix(".resources") or "the document"
    demand = limits.wanted(container, at, where or at)
    if demand is None:
        return
    if not options.names:
        raise CannotMigrate(f"{where}: this is no list of containers, so a claim has no place; write it by hand")
    _check_served(demand, demand.count, limits.known([options.instance_type] if options.instance_type else [], where))
    _rename(demand, demand.count)
    outcome.renamed += 1
