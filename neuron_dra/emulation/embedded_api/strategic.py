"""Strategic merge patches, which `kubectl apply` and `kubectl cordon` send for built-in kinds.

They are merge patches in which some lists are merged by a field of their entries, and which have directives.

Source: kubernetes/apimachinery@v0.37.0 pkg/util/strategicpatch/patch.go; the keys are the `patchMergeKey` of the types.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api.errors import bad_request

MEDIA_TYPE: Final = "application/strategic-merge-patch+json"

_KEYS: Final = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "resourceClaims": "name",
    "resourceClaimStatuses": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""The field by which entries of a list are merged; other lists are replaced."""
_PORTS: Final = {"containers": "containerPort", "initContainers": "containerPort", "spec": "port"}
"""That of a list `ports`, by the field that it is in."""
_PRIMITIVE: Final = ("finalizers",)
"""Lists of texts to which a patch adds."""
_DIRECTIVE: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_ORDER: Final = "$setElementOrder/"
_REMOVE: Final = "$deleteFromPrimitiveList/"


def merge(target: Any, patch: Obj, within: str = "") -> Obj:
    """Return an object after a patch; neither argument is changed. `within` is the field that has the object.

    Raises ApiError 400 for an unknown directive.
    """
    directive = patch.get(_DIRECTIVE)
    if directive is not None:
        return _directed(patch, directive)
    merged = dict(target) if isinstance(target, Mapping) else {}
    if _RETAIN in patch:
        merged = {name: value for name, value in merged.items() if name in patch[_RETAIN]}
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            merged[name] = merge(merged.get(name), dict(value), name)
        elif isinstance(value, list):
            merged[name] = _list(merged.get(name), value, name, within)
        else:
            merged[name] = value
    _remove(merged, patch)
    _order(merged, patch, within)
    return merged


def _directed(patch: Obj, directive: object) -> Obj:
    if directive == "delete":
        return {}
    if directive == "replace":
        replaced_fields = {}
        for name, value in patch.items():
            if name != _DIRECTIVE:
                replaced_fields[name] = copy.deepcopy(value)
        return replaced_fields
    raise bad_request(f"Unknown patch type found: {directive}")


def _list(target: Any, patch: list[Any], name: str, within: str) -> list[Any]:
    elements = list(target) if isinstance(target, list) else []
    if name in _PRIMITIVE:
        return [*elements, *(element for element in patch if element not in elements)]
    key = _key(name, within)
    if not key:
        return copy.deepcopy(patch)
    if any(element.get(_DIRECTIVE) == "replace" for element in patch):
        return [copy.deepcopy(element) for element in patch if _DIRECTIVE not in element]
    for element in patch:
        if key not in element:
            raise bad_request(f"map: {element} does not contain declared merge key: {key}")
        place = next((at for at, old in enumerate(elements) if old.get(key) == element[key]), None)
        if element.get(_DIRECTIVE) == "delete":
            elements = [old for old in elements if old.get(key) != element[key]]
        elif place is None:
            elements.append(merge({}, element, name))
        else:
            elements[place] = merge(elements[place], element, name)
    return elements


def _key(name: str, within: str) -> str:
    if name == "ports":
        return _PORTS.get(within, "")
    if name == "imagePullSecrets" and within != "spec":
        return ""  # those of a ServiceAccount are replaced
    return _KEYS.get(name, "")


def _remove(merged: Obj, patch: Obj) -> None:
    """Apply the directives `$deleteFromPrimitiveList`."""
    for name, removed_texts in patch.items():
        if name.startswith(_REMOVE):
            field = name.removeprefix(_REMOVE)
            merged[field] = [text for text in merged.get(field) or () if text not in removed_texts]


def _order(merged: Obj, patch: Obj, within: str) -> None:
    """Give the entries that a patch orders its order; the others keep their places."""
    for name, order in patch.items():
        field = name.removeprefix(_ORDER)
        if field == name or not isinstance(merged.get(field), list):
            continue
        key = _key(field, within)
        ranks = {(element.get(key) if key else element): number for number, element in enumerate(order)}
        listed = list(merged[field])
        places = [at for at, element in enumerate(listed) if (element.get(key) if key else element) in ranks]
        moved = sorted((listed[at] for at in places), key=lambda element: ranks[element.get(key) if key else element])
        for at, element in zip(places, moved, strict=True):
            listed[at] = element
        merged[field] = listed
