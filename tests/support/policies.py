"""Admission policies of the chart, evaluated with the simulator's CEL engine instead of an API server.

The engine knows no JSONPatch, so its objects are read as maps. What the API server does beside CEL is here: the
namespace selector, the order of the two kinds of policy, and default requests.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from cel_expr_python import cel

from neuron_dra.core.wire import Obj
from neuron_dra.simulate import cel_functions

_CONFIG = """
extensions: [{name: bindings}, {name: lists}, {name: optional}, {name: sets}, {name: strings, version: 2},
             {name: two-var-comprehensions}]
stdlib: {exclude_functions: [{name: _<_}, {name: _<=_}, {name: _>_}, {name: _>=_}]}
"""
_PATCH = re.compile(r"JSONPatch\{op: (?P<op>'\w+'), path: (?P<rest>.*?)(, value: (?P<value>'[^']*'))?\}", re.DOTALL)
_NAMES = ("object", "oldObject", "request", "namespaceObject", "variables")


class Denied(Exception):
    """A validating policy rejects the request; the message is its own."""


@lru_cache(maxsize=1)
def _engine() -> Any:
    return cel.NewEnv(
        cel_functions.POOL,
        config=cel.NewEnvConfigFromYaml(_CONFIG),
        variables=dict.fromkeys(_NAMES, cel.Type.DYN),
        extensions=[cel_functions.extension()],
        functions=cel_functions.declarations(),
    )


@lru_cache(maxsize=256)
def _compiled(expression: str) -> Any:
    as_map = _PATCH.sub(
        lambda m: f"{{'op': {m['op']}, 'path': {m['rest']}, 'value': {m['value'] or chr(39) * 2}}}", expression
    )
    return _engine().compile(as_map)


def evaluate(expression: str, inputs: Mapping[str, Any]) -> Any:
    """Return the value of an expression. Raises AssertionError with the engine's message if it has none."""
    found = _compiled(expression).eval(data=dict.fromkeys(_NAMES) | dict(inputs))
    value = _plain(found.value())
    assert found.type() != cel.Type.ERROR, f"{value}: {expression}"
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, cel.Value):
        return _plain(value.value())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def admit(
    policies: list[Obj],
    item: Obj,
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
    item = _with_requests(copy.deepcopy(item))
    old = old and _with_requests(copy.deepcopy(old))
    extra = {"authentication.kubernetes.io/node-name": [node]} if node else {}
    info = {"username": user, "groups": list(groups), "extra": extra}
    request = {"operation": "UPDATE" if old else "CREATE", "userInfo": info}
    inputs = {"oldObject": old, "namespaceObject": namespace, "request": request}
    for policy in sorted(policies, key=lambda each: each["kind"]):  # MutatingAdmissionPolicy before Validating…
        if not _selected(policy["spec"], item, namespace, old is not None):
            continue
        inputs["object"] = item
        if all(evaluate(each["expression"], inputs) for each in policy["spec"]["matchConditions"]):
            item = _applied(policy["spec"], inputs)
    return item


def _applied(spec: Obj, inputs: dict[str, Any]) -> Obj:
    item: Obj = inputs["object"]
    for mutation in spec.get("mutations", ()):
        inputs["object"] = item
        item = copy.deepcopy(item)
        for patch in evaluate(mutation["jsonPatch"]["expression"], inputs | variables(spec, inputs)):
            _patch(item, patch)
    for check in spec.get("validations", ()):
        scope = inputs | variables(spec, inputs)
        if not evaluate(check["expression"], scope):
            raise Denied(
                evaluate(check["messageExpression"], scope) if "messageExpression" in check else check["message"]
            )
    return item


def variables(spec: Obj, inputs: Mapping[str, Any]) -> Obj:
    """Return the input `variables` of a policy."""
    found: Obj = {}
    for variable in spec.get("variables", ()):
        found[variable["name"]] = evaluate(variable["expression"], {**inputs, "variables": found})
    return {"variables": found}


def _selected(spec: Obj, item: Obj, namespace: Obj, is_update: bool) -> bool:
    constraints = spec["matchConstraints"]
    resource, operation = f"{item['kind'].lower()}s", "UPDATE" if is_update else "CREATE"
    labels = namespace["metadata"].get("labels", {})
    return any(
        resource in rule["resources"] and operation in rule["operations"] for rule in constraints["resourceRules"]
    ) and all(
        (labels.get(each["key"]) in each["values"]) == (each["operator"] == "In")
        for each in constraints.get("namespaceSelector", {}).get("matchExpressions", ())
    )


def pod_specs(item: Any) -> Iterator[Obj]:
    """Yield every pod spec of an object."""
    if isinstance(item, dict):
        if "containers" in item:
            yield item
        for value in item.values():
            yield from pod_specs(value)


def _with_requests(item: Obj) -> Obj:
    """Fill in requests that are not set, as the API server does before admission."""
    for spec in pod_specs(item):
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            resources = container.get("resources", {})
            if resources.get("limits"):
                resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    return item


def _patch(item: Obj, patch: Obj) -> None:
    *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in patch["path"].split("/")[1:]]
    at: Any = item
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at[step]
    if patch["op"] == "remove":
        del at[last]
    else:
        assert patch["op"] == "add" or last in at, patch
        at[last] = patch["value"]
