"""Admission policies of the chart, evaluated with the simulator's CEL engine instead of an API server.

The engine knows no JSONPatch, so its objects are read as maps. What the API server does beside CEL is here: the
namespace selector, the order of the two kinds of policy, and default requests.

`MutatingPolicies` applies those of an embedded API server to new pods. Validating policies are applied by tests alone:
they judge users, and the embedded API server has none.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import errors
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource
from neuron_dra.emulation.embedded_api.store import ObjectStore
from neuron_dra.simulate import cel_engine

MUTATING: Final = "MutatingAdmissionPolicy"
_PATCH = re.compile(r"JSONPatch\{op: (?P<op>'\w+'), path: (?P<rest>.*?)(, value: (?P<value>'[^']*'))?\}", re.DOTALL)
_NAMES = ("object", "oldObject", "request", "namespaceObject", "variables")


class Denied(Exception):
    """A validating policy rejects the request; the message is its own."""


class NoValue(Exception):
    """An expression of a policy has no value; the message is the engine's."""


@lru_cache(maxsize=1)
def _engine() -> Any:
    return cel_engine.environment(dict.fromkeys(_NAMES, cel.Type.DYN))


@lru_cache(maxsize=256)
def _compiled(expression: str) -> Any:
    as_map = _PATCH.sub(
        lambda m: f"{{'op': {m['op']}, 'path': {m['rest']}, 'value': {m['value'] or chr(39) * 2}}}", expression
    )
    return _engine().compile(as_map)


def evaluate(expression: str, inputs: Mapping[str, Any]) -> Any:
    """Return the value of an expression. Raises NoValue if it has none."""
    cel_value = _compiled(expression).eval(data=dict.fromkeys(_NAMES) | dict(inputs))
    value = _plain(cel_value.value())
    if cel_value.type() == cel.Type.ERROR:
        raise NoValue(f"{value}: {expression}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, cel.Value):
        return _plain(value.value())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def admit(
    policies: list[Obj],
    obj: Obj,
    namespace: Obj,
    *,
    old: Obj | None = None,
    user: str = "",
    groups: Sequence[str] = (),
    node: str = "",
) -> Obj:
    """Return the object that an API server with these policies would store, of this user. Raises Denied.

    `node` is that of the user's pod, as the token from its kubelet has it.
    """
    obj = _with_requests(copy.deepcopy(obj))
    old = old and _with_requests(copy.deepcopy(old))
    extra = {"authentication.kubernetes.io/node-name": [node]} if node else {}
    info = {"username": user, "groups": list(groups), "extra": extra}
    request = {"operation": "UPDATE" if old else "CREATE", "userInfo": info}
    inputs = {"oldObject": old, "namespaceObject": namespace, "request": request}
    for policy in sorted(policies, key=lambda policy: policy["kind"]):  # MutatingAdmissionPolicy before Validating…
        if not _selected(policy["spec"], obj, namespace, old is not None):
            continue
        inputs["object"] = obj
        if all(evaluate(condition["expression"], inputs) for condition in policy["spec"]["matchConditions"]):
            obj = _applied(policy["spec"], inputs)
    return obj


def _applied(spec: Obj, inputs: dict[str, Any]) -> Obj:
    obj: Obj = inputs["object"]
    for mutation in spec.get("mutations", ()):
        inputs["object"] = obj
        obj = copy.deepcopy(obj)
        for patch in evaluate(mutation["jsonPatch"]["expression"], inputs | variables(spec, inputs)):
            _patch(obj, patch)
    for check in spec.get("validations", ()):
        scope = inputs | variables(spec, inputs)
        if not evaluate(check["expression"], scope):
            raise Denied(
                evaluate(check["messageExpression"], scope) if "messageExpression" in check else check["message"]
            )
    return obj


def variables(spec: Obj, inputs: Mapping[str, Any]) -> Obj:
    """Return the input `variables` of a policy."""
    variable_values: Obj = {}
    for variable in spec.get("variables", ()):
        variable_values[variable["name"]] = evaluate(variable["expression"], {**inputs, "variables": variable_values})
    return {"variables": variable_values}


def _selected(spec: Obj, obj: Obj, namespace: Obj, is_update: bool) -> bool:
    constraints = spec["matchConstraints"]
    resource = f"{obj['kind'].lower()}s"
    operation = "UPDATE" if is_update else "CREATE"
    labels = namespace["metadata"].get("labels", {})
    return any(
        resource in rule["resources"] and operation in rule["operations"] for rule in constraints["resourceRules"]
    ) and all(
        (labels.get(requirement["key"]) in requirement["values"]) == (requirement["operator"] == "In")
        for requirement in constraints.get("namespaceSelector", {}).get("matchExpressions", ())
    )


def pod_specs(item: Any) -> Iterator[Obj]:
    """Yield every pod spec of an object."""
    if isinstance(item, dict):
        if "containers" in item:
            yield item
        for value in item.values():
            yield from pod_specs(value)


def _with_requests(obj: Obj) -> Obj:
    """Fill in requests that are not set, as the API server does before admission."""
    for spec in pod_specs(obj):
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            resources = container.get("resources", {})
            if resources.get("limits"):
                resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    return obj


def _patch(obj: Obj, patch: Obj) -> None:
    *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in patch["path"].split("/")[1:]]
    at: Any = obj
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at[step]
    if patch["op"] == "remove":
        del at[last]
    elif patch["op"] == "add" or last in at:
        at[last] = patch["value"]
    else:
        raise NoValue(f"no field at {patch['path']} to replace")


class MutatingPolicies:
    """Changes new pods as the stored MutatingAdmissionPolicies say that a binding puts into force: a mutator."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __call__(self, resource: EmbeddedResource, obj: Obj) -> None:
        """Change a new pod in place. Raises StatusError if a policy cannot be evaluated."""
        meta = obj["metadata"]
        if resource.plural != "pods" or resource.group or "resourceVersion" in meta:
            return
        bound = {binding["spec"]["policyName"] for binding in self._stored(f"{MUTATING}Binding")}
        policies = [policy for policy in self._stored(MUTATING) if policy["metadata"]["name"] in bound]
        namespace = self._store.get(self._store.registry.named("namespaces"), "", meta["namespace"])
        try:
            changed = admit(policies, obj, namespace)
        except NoValue as err:
            raise errors.StatusError(500, "InternalError", f"a MutatingAdmissionPolicy has no value: {err}") from err
        obj.clear()
        obj.update(changed)

    def _stored(self, kind: str) -> list[Obj]:
        return self._store.list(self._store.registry.named(kind))
