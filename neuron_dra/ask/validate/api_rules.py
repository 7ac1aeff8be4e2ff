"""What the API server rejects besides fields and types: required values, names, unions and limits. Pure.

OpenAPI does not say these rules. docs/validate-rules.md lists them, and those that are not checked. A rule is
here only if every supported release has it. Source: kubernetes@v1.37.0 pkg/apis/{core,apps,batch,resource}/validation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from neuron_dra.ask.render import words
from neuron_dra.ask.validate.specs import ManifestProblem
from neuron_dra.core.wire import Wire

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_QUALIFIED: Final = re.compile(r"[^/]+/[A-Za-z0-9_]+", re.ASCII)
_MOST_REQUESTS: Final = 32
"""The API server's limit of requests, constraints and configurations of a claim, and of selectors of a request."""
_MOST_ALTERNATIVES: Final = 8
"""The API server's limit of entries in firstAvailable."""
_LABEL_KEY: Final = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_STANDARD: Final = ("cpu", "memory", "ephemeral-storage")
"""Resources of containers without a domain, besides huge pages."""
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_RESTARTS: Final = ("Always", "OnFailure", "Never")
_WORKLOADS: Final = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet")

Problems = Iterator[tuple[str, str]]
"""Path and text of what is wrong."""


def of_object(where: str, raw_object: Wire) -> Iterator[ManifestProblem]:
    """Yield what the API server rejects in an object whose fields have the right types."""
    for path, text in _problems(raw_object):
        yield ManifestProblem(where, "ApiRejects", f"{path}: {text}")


def _problems(raw_object: Wire) -> Problems:
    kind, group = str(raw_object.get("kind")), str(raw_object.get("apiVersion")).rpartition("/")[0]
    spec = _mapping(raw_object.get("spec"))
    if group == "resource.k8s.io" and kind == "ResourceClaim":
        yield from _claim(spec, "spec", raw_object)
    elif group == "resource.k8s.io" and kind == "ResourceClaimTemplate":
        yield from _claim(_mapping(spec.get("spec")), "spec.spec", raw_object)
    elif group == "resource.k8s.io" and kind == "DeviceClass":
        for rule in (_selectors, _config):
            yield from rule(spec, "spec")
    elif (group, kind) == ("", "Pod"):
        yield from _pod(spec, "spec")
    elif group == "apps" and kind in _WORKLOADS:
        yield from _workload(spec)
    elif (group, kind) == ("batch", "Job"):
        yield from _job(spec, "spec")
    elif (group, kind) == ("batch", "CronJob"):
        if not spec.get("schedule"):
            yield "spec.schedule", "it is required"
        yield from _job(_mapping(_mapping(spec.get("jobTemplate")).get("spec")), "spec.jobTemplate.spec")


def _claim(spec: Wire, path: str, raw_object: Wire) -> Problems:
    devices = _mapping(spec.get("devices"))
    requests = _list(devices.get("requests"))
    at = f"{path}.devices"
    for name in ("requests", "constraints", "config"):
        if len(_list(devices.get(name))) > _MOST_REQUESTS:
            yield f"{at}.{name}", f"it has {len(devices[name])} items; write at most {_MOST_REQUESTS}"
    yield from _names(requests, f"{at}.requests", _LABEL)
    has_exactly = not str(raw_object.get("apiVersion")).endswith("v1beta1")
    for index, request in enumerate(requests):
        yield from _request(request, f"{at}.requests[{index}]", has_exactly=has_exactly)
    request_names = set(_request_names(requests))
    for field in ("constraints", "config"):
        for index, entry in enumerate(_list(devices.get(field))):
            for request_name in entry.get("requests") or ():
                if request_name not in request_names:
                    have = ", ".join(sorted(request_names)) or "none"
                    yield f"{at}.{field}[{index}].requests", f"there is no request {request_name}; the claim has {have}"
    for index, constraint in enumerate(_list(devices.get("constraints"))):
        attributes = [constraint[name] for name in ("matchAttribute", "distinctAttribute") if constraint.get(name)]
        if not attributes:
            yield f"{at}.constraints[{index}].matchAttribute", "it is required"
        for attribute in attributes:
            if not _QUALIFIED.fullmatch(attribute):
                yield f"{at}.constraints[{index}]", f"the attribute {attribute!r} needs its domain: write domain/name"
    yield from _config(devices, at)


def _request_names(requests: Sequence[Wire]) -> Iterator[str]:
    """Yield the names that constraints and configuration may use: of requests, and of their alternatives."""
    for request in requests:
        yield str(request.get("name"))
        for alternative in _list(request.get("firstAvailable")):
            yield f"{request.get('name')}/{alternative.get('name')}"


def _request(request: Wire, path: str, *, has_exactly: bool) -> Problems:
    alternatives = _list(request.get("firstAvailable"))
    exactly = request.get("exactly") if has_exactly else request
    is_exact = isinstance(exactly, dict) and (has_exactly or bool(request.get("deviceClassName")))
    if has_exactly and is_exact and alternatives:
        yield path, "exactly and firstAvailable: keep one of them"
    if not is_exact and not alternatives:
        yield path, "write exactly, or firstAvailable" if has_exactly else "write deviceClassName, or firstAvailable"
    if len(alternatives) > _MOST_ALTERNATIVES:
        yield f"{path}.firstAvailable", f"it has {len(alternatives)} items; write at most {_MOST_ALTERNATIVES}"
    yield from _names(alternatives, f"{path}.firstAvailable", _LABEL)
    parts = [(f"{path}.firstAvailable[{index}]", part) for index, part in enumerate(alternatives)]
    if is_exact and isinstance(exactly, dict):
        parts.append((f"{path}.exactly" if has_exactly else path, exactly))
    for at, part in parts:
        if not part.get("deviceClassName"):
            yield f"{at}.deviceClassName", "it is required"
        elif not _SUBDOMAIN.fullmatch(str(part["deviceClassName"])):
            yield f"{at}.deviceClassName", f"{part['deviceClassName']!r} cannot be the name of a DeviceClass"
        yield from _selectors(part, at)
        for index, toleration in enumerate(_list(part.get("tolerations"))):
            if toleration.get("operator") not in (None, "", "Exists", "Equal"):
                yield f"{at}.tolerations[{index}].operator", f"{toleration['operator']!r}: write Exists or Equal"


def _selectors(owner: Wire, path: str) -> Problems:
    selectors = _list(owner.get("selectors"))
    if len(selectors) > _MOST_REQUESTS:
        yield f"{path}.selectors", f"it has {len(selectors)} items; write at most {_MOST_REQUESTS}"
    for index, selector in enumerate(selectors):
        if not _mapping(selector.get("cel")).get("expression"):
            yield f"{path}.selectors[{index}].cel.expression", "it is required"


def _config(owner: Wire, path: str) -> Problems:
    for index, entry in enumerate(_list(owner.get("config"))):
        at = f"{path}.config[{index}].opaque"
        opaque = _mapping(entry.get("opaque"))
        if not opaque:
            yield at, "it is required"
            continue
        if not opaque.get("driver"):
            yield f"{at}.driver", "it is required"
        if not isinstance(opaque.get("parameters"), dict):
            yield f"{at}.parameters", "it is required, and an object"


def _pod(spec: Wire, path: str) -> Problems:
    mains, inits = _list(spec.get("containers")), _list(spec.get("initContainers"))
    if not mains:
        yield f"{path}.containers", "it is required"
    yield from _names([*mains, *inits], f"{path}.containers", _LABEL)
    claims = _list(spec.get("resourceClaims"))
    yield from _names(claims, f"{path}.resourceClaims", _LABEL)
    for index, claim in enumerate(claims):
        given = [name for name in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(name)]
        if len(given) != 1 and "source" not in claim:
            yield f"{path}.resourceClaims[{index}]", "write one of resourceClaimName and resourceClaimTemplateName"
    entries = {claim.get("name") for claim in claims}
    volumes = {volume.get("name") for volume in _list(spec.get("volumes"))}
    yield from _names(_list(spec.get("volumes")), f"{path}.volumes", _LABEL)
    for field, containers in (("containers", mains), ("initContainers", inits)):
        for index, container in enumerate(containers):
            at = f"{path}.{field}[{index}]"
            if not container.get("image"):
                yield f"{at}.image", "it is required"
            yield from _resource_names(_mapping(container.get("resources")), f"{at}.resources")
            for use in _list(_mapping(container.get("resources")).get("claims")):
                if use.get("name") not in entries:
                    text = f"the pod has no claim {use.get('name')} in resourceClaims"
                    yield f"{at}.resources.claims", text
            for mount in _list(container.get("volumeMounts")):
                if mount.get("name") not in volumes:
                    yield f"{at}.volumeMounts", f"the pod has no volume {mount.get('name')}"
                if not mount.get("mountPath"):
                    yield f"{at}.volumeMounts.mountPath", "it is required"
            for variable in _list(container.get("env")):
                if not variable.get("name"):
                    yield f"{at}.env.name", "it is required"
            for port in _list(container.get("ports")):
                if not port.get("containerPort"):
                    yield f"{at}.ports.containerPort", "it is required"
    for index, toleration in enumerate(_list(spec.get("tolerations"))):
        if toleration.get("effect") not in (None, "", *_EFFECTS):
            text = f"{toleration['effect']!r}: write {', '.join(_EFFECTS)}, or nothing for all effects"
            yield f"{path}.tolerations[{index}].effect", text
    for key in _mapping(spec.get("nodeSelector")):
        if not _LABEL_KEY.fullmatch(key):
            yield f"{path}.nodeSelector", f"{key!r} cannot be the key of a label"
    if _mapping(spec.get("resources")).get("claims"):
        yield f"{path}.resources.claims", "claims belong into the resources of containers"
    restart = spec.get("restartPolicy")
    if restart not in (None, "", *_RESTARTS):
        yield f"{path}.restartPolicy", f"{restart!r}: write Always, OnFailure or Never"


def _resource_names(resources: Wire, path: str) -> Problems:
    """Yield the names of resources that are neither Kubernetes' own nor of a domain."""
    for field in ("limits", "requests"):
        for name in _mapping(resources.get(field)):
            if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
                near = words.nearest(name, _STANDARD)
                hint = f", did you mean {near}?" if near else "; write domain/name"
                yield f"{path}.{field}", f"there is no resource {name}{hint}"


def _workload(spec: Wire) -> Problems:
    template = _mapping(spec.get("template"))
    labels = _mapping(_mapping(template.get("metadata")).get("labels"))
    selector = _mapping(spec.get("selector"))
    match_labels = _mapping(selector.get("matchLabels"))
    if not selector or (not match_labels and not selector.get("matchExpressions")):
        yield "spec.selector", "it is required"
    different = {key: value for key, value in match_labels.items() if labels.get(key) != value}
    if different:
        yield "spec.template.metadata.labels", f"the pods lack {different}, by which spec.selector finds them"
    pod = _mapping(template.get("spec"))
    if pod.get("restartPolicy") not in (None, "", "Always"):
        yield "spec.template.spec.restartPolicy", f"{pod['restartPolicy']!r}: write Always"
    yield from _pod(pod, "spec.template.spec")
    if isinstance(spec.get("replicas"), int) and spec["replicas"] < 0:
        yield "spec.replicas", f"{spec['replicas']}: write a number from 0 on"


def _job(spec: Wire, path: str) -> Problems:
    pod = _mapping(_mapping(spec.get("template")).get("spec"))
    yield from _pod(pod, f"{path}.template.spec")
    if pod.get("restartPolicy") not in ("OnFailure", "Never"):
        yield f"{path}.template.spec.restartPolicy", "write OnFailure or Never: the pods of a Job end"


def _names(items: Sequence[Wire], path: str, form: re.Pattern[str]) -> Problems:
    """Yield items without a name, with a name that cannot be one, or with one that another item has."""
    taken: set[str] = set()
    for index, item in enumerate(items):
        name = str(item.get("name") or "")
        if not name:
            yield f"{path}[{index}].name", "it is required"
        elif not form.fullmatch(name):
            yield f"{path}[{index}].name", f"{name!r}: write at most 63 lower-case letters, digits and -"
        elif name in taken:
            yield f"{path}[{index}].name", f"{name!r} is the name of another item"
        taken.add(name)


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    return {}


def _list(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        return []
    return [{} if item is None else item for item in value]
