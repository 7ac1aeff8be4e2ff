"""The opaque parameters that users write, NeuronConfig and UltraServerConfig, decoded strictly.

Every apiVersion that AWS's documents have used is accepted; all mean the same. pydantic's validator checks the fields;
its models would cost each node 5 MiB for two kinds of objects.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import PydanticCustomError, SchemaValidator, ValidationError, core_schema

from neuron_dra.core import names
from neuron_dra.core.config import NeuronSettings, UltraServerSettings
from neuron_dra.errors import ClaimError

API_VERSIONS = (
    f"{names.DRIVER}/v1",
    f"{names.DRIVER}/v1beta1",
    f"{names.DRIVER}/v1alphav1",
    f"resource.{names.DRIVER}/v1alphav1",
)


def _whole(value: object) -> object:
    """Return `value` if it is an integer; Python's equality would also accept `true` and `1.0` for 1."""
    if type(value) is not int:
        raise PydanticCustomError("whole_number", "input should be a whole number")
    return value


def _one_of(*numbers: int) -> core_schema.CoreSchema:
    """Return the schema of a field that must be one of these integers."""
    return core_schema.no_info_before_validator_function(_whole, core_schema.literal_schema(list(numbers)))


_OBJECT_NAME = core_schema.nullable_schema(core_schema.str_schema(min_length=1, max_length=63))


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of configuration: its fields, their valid values, and its conversion to core's settings."""

    fields: Mapping[str, core_schema.CoreSchema]
    required: tuple[str, ...]
    settings: Callable[[Mapping[str, Any]], NeuronSettings | UltraServerSettings]

    def validator(self) -> SchemaValidator:
        """Return the validator for objects of this kind; unknown fields are errors."""
        every = {"apiVersion": core_schema.str_schema(), "kind": core_schema.str_schema(), **self.fields}
        required = ("apiVersion", "kind", *self.required)
        fields = {
            name: core_schema.typed_dict_field(schema, required=name in required) for name, schema in every.items()
        }
        strict = core_schema.CoreConfig(strict=True)
        return SchemaValidator(core_schema.typed_dict_schema(fields, extra_behavior="forbid", config=strict))


_KINDS: Final = {
    # The number of physical NeuronCores in a logical one.
    "NeuronConfig": _Kind(
        {"logicalNeuronCore": _one_of(1, 2)},
        ("logicalNeuronCore",),
        lambda given: NeuronSettings(given["logicalNeuronCore"]),
    ),
    # The number of nodes in a group of an UltraServer, and the workload.
    "UltraServerConfig": _Kind(
        {"ultraserverMode": _one_of(1, 2, 4), "workloadId": _OBJECT_NAME, "workloadUid": _OBJECT_NAME},
        ("ultraserverMode",),
        lambda given: UltraServerSettings(given["ultraserverMode"], given.get("workloadId"), given.get("workloadUid")),
    ),
}
_VALIDATORS: Final = {name: kind.validator() for name, kind in _KINDS.items()}


def decode(parameters: object, path: str) -> NeuronSettings | UltraServerSettings:
    """Return the settings in `parameters`, an entry's `opaque.parameters`; `path` is its place for error messages.

    Raises ClaimError, which names each wrong field by its path, and the nearest valid name for an unknown field.
    """
    if not isinstance(parameters, Mapping):
        raise ClaimError(f"error applying config: {path} is not an object; write a NeuronConfig or UltraServerConfig")
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version not in API_VERSIONS:
        raise ClaimError(
            f"error applying config: {path}.apiVersion {_show(version)} is not known; use {API_VERSIONS[0]!r}"
        )
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ClaimError(
            f"error applying config: {path}.kind {_show(kind)} is not known"
            + _suggestion(str(kind), _KINDS, otherwise=f"; use {' or '.join(_KINDS)}")
        )
    try:
        return _KINDS[kind].settings(_VALIDATORS[kind].validate_python(dict(parameters)))
    except ValidationError as err:
        problems = "; ".join(_explain(problem, path, kind) for problem in err.errors())
        raise ClaimError(f"error applying config: strict decoding error: {problems}") from err


def _explain(problem: Any, path: str, kind: str) -> str:
    """Return one sentence about a validator's error, with the field's path and what to write."""
    name = ".".join(str(part) for part in problem["loc"])
    fields = list(_KINDS[kind].fields)
    if problem["type"] == "extra_forbidden":
        otherwise = f"; {kind} has only {', '.join(fields)}"
        return f'unknown field "{path}.{name}"' + _suggestion(name, fields, otherwise=otherwise)
    if problem["type"] == "missing":
        return f'required field "{path}.{name}" is missing'
    return f'field "{path}.{name}" is {_show(problem["input"])}: {problem["msg"].lower()}'


def _suggestion(word: str, known: Any, *, otherwise: str) -> str:
    """Return the nearest known name as ", did you mean ...?", or `otherwise` if none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f', did you mean "{near[0]}"?' if near else otherwise


def _show(value: object) -> str:
    """Return a value for a message, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
