"""What the containers of a pod request from the Neuron device plugin, and how init containers relate to the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_dra.api.problems import BadInput, CannotMigrate
from neuron_dra.core import catalogue, sizes
from neuron_dra.core.names import INSTANCE_TYPE_LABEL

TYPE_LABELS = (INSTANCE_TYPE_LABEL, "beta.kubernetes.io/instance-type")
_WHOLE = re.compile(r"\+?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class LimitsDemand:
    """What one container requests: `count` devices or cores, under the resource `name`."""

    container: dict[str, Any]
    where: str
    kind: str
    name: str
    count: int


def wanted(container: Any, where: str, resources_at: str = "") -> LimitsDemand | None:
    """Return what a container requests from the device plugin, or None if that is nothing.

    `resources_at` is the place of its resources, if that is not under `where`. Raises BadInput if Kubernetes would
    reject it, and CannotMigrate if it requests devices and cores at once.
    """
    at = resources_at or f"{where}.resources"
    resources = _mapping(_mapping(container, where).get("resources"), at)
    limits = _counts(resources, "limits", at)
    requests = _counts(resources, "requests", at)
    for name, count in requests.items():
        if limits.get(name) != count:
            stated = "there is no limit"
            if name in limits:
                stated = f"the limit is {limits[name]}"
            raise BadInput(f"{at}.requests: {name} is {count} and {stated}; write the same limit")
    nonzero = {name: count for name, count in limits.items() if count}
    if not nonzero:
        return None
    if len(nonzero) > 1:
        raise CannotMigrate(f"{at}.limits: {both(sorted(nonzero))}")
    [(name, count)] = nonzero.items()
    served = []
    for key, value in (resources.get("limits") or {}).items():
        if _is_ours(key) and str(value) != "0":
            served.append(key)
    if served:
        raise CannotMigrate(f"{at}.limits: {both([name, served[0]])}")
    return LimitsDemand(container, where, sizes.KINDS[name], name, count)


def both(names: Sequence[str]) -> str:
    """Return the message about a container that requests two resources of which it can have only one."""
    return f"requests {' and '.join(names)} at once; keep one of them"


def _is_ours(name: Any) -> bool:
    return str(name).startswith(tuple(sizes.RESOURCE_PREFIX + prefix for prefix in sizes.CLASS_PREFIX.values()))


def _counts(resources: dict[str, Any], field: str, at: str) -> dict[str, int]:
    values = _mapping(resources.get(field), f"{at}.{field}")
    count_by_name = {}
    for name in sizes.KINDS:
        if name in values:
            count_by_name[name] = _whole(values[name], f"{at}.{field}: {name}")
    return count_by_name


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or not _WHOLE.fullmatch(str(value)):
        raise BadInput(f"{where} is {value!r}; write a whole number, such as 4")
    return int(value)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadInput(f"{where} is {value!r:.60}, not a mapping")
    return value


def containers(pod: dict[str, Any], where: str) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """Yield each container of a pod spec, its place, and whether it ends before the main containers start."""
    for field in ("initContainers", "containers"):
        listed = pod.get(field) or []
        if not isinstance(listed, list):
            raise BadInput(f"{where}.{field} is {listed!r:.60}, not a list")
        for index, container in enumerate(listed):
            at = f"{where}.{field}[{index}]"
            ends = field == "initContainers" and _mapping(container, at).get("restartPolicy") != "Always"
            yield _mapping(container, at), at, ends


def init_counts(inits: Sequence[LimitsDemand], mains: Sequence[LimitsDemand]) -> list[int]:
    """Return the number that each init container has to request, so that it uses a main container's devices.

    `mains` are the main containers; sidecars are not among them, because they keep their devices. The scheduler reuses
    a device only under the same name, so a smaller init container requests the smallest main number that holds its own.
    Raises CannotMigrate for one that is larger than every main container, or counts something else.
    """
    if not mains:
        largest = max((init.count for init in inits), default=0)
        if len({init.kind for init in inits}) > 1:
            raise CannotMigrate(
                f"{inits[0].where}: init containers request devices and cores; use one of them in a pod"
            )
        return [largest] * len(inits)
    counts = []
    for init in inits:
        same = [main.count for main in mains if main.kind == init.kind]
        if not same:
            raise CannotMigrate(
                f"{init.where} requests {init.name}, the main containers {mains[0].name}; use one of them in a pod"
            )
        if init.count > max(same):
            raise CannotMigrate(f"{init.where}: {larger(init.kind, init.count, max(same))}")
        counts.append(min(count for count in same if count >= init.count))
    return counts


def larger(kind: str, count: int, most: int) -> str:
    """Return the message about an init container that requests more than every main container."""
    return (
        f"an init container requests {count} {kind}s and no main container more than {most}; the scheduler would give "
        f"it devices of its own, which the pod keeps until it ends: request at most {most}, or {count} in a main "
        "container"
    )


def instance_types(pod: dict[str, Any]) -> tuple[str, ...]:
    """Return the instance types to which node selector or required node affinity limit a pod; none if they do not."""
    selector = pod.get("nodeSelector")
    for label in TYPE_LABELS:
        if isinstance(selector, dict) and isinstance(selector.get(label), str):
            return (selector[label],)
    terms: Any = pod
    for field in ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"):
        terms = terms.get(field) if isinstance(terms, dict) else None
    named: list[str] = []
    for term in terms if isinstance(terms, list) else ():
        listed = _types_of(term)
        if listed is None:
            return ()  # this alternative allows any type
        named += listed
    return tuple(dict.fromkeys(named))


def _types_of(term: Any) -> list[str] | None:
    """Return the instance types of a term of a node affinity; None if it allows any."""
    if isinstance(term, dict):
        expressions = term.get("matchExpressions") or ()
    else:
        expressions = ()
    for expression in expressions:
        if isinstance(expression, dict) and expression.get("key") in TYPE_LABELS and expression.get("operator") == "In":
            return [str(value) for value in expression.get("values") or ()]
    return None


def known(names: Sequence[str], where: str) -> list[catalogue.InstanceType]:
    """Return the types of these names. Raises CannotMigrate if one of them is unknown."""
    specs = []
    for name in names:
        spec = catalogue.lookup(name)
        if spec is None:
            raise CannotMigrate(f"{where}: {name} is not an instance type with Neuron devices{catalogue.nearest(name)}")
        specs.append(spec)
    return specs
