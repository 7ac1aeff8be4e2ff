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


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its schema, and for users its valid values and its meaning."""

    schema: core_schema.CoreSchema
    values: str
    text: str


def _one_of(*numbers: int, text: str) -> Field:
    """Return a field that must be one of these integers."""
    schema = core_schema.no_info_before_validator_function(_whole, core_schema.literal_schema(list(numbers)))
    return Field(schema, " or ".join(map(str, numbers)), text)


def _object_name(text: str) -> Field:
    """Return a field that has a name of at most 63 characters, or null."""
    schema = core_schema.nullable_schema(core_schema.str_schema(min_length=1, max_length=63))
    return Field(schema, "text of 1 to 63 characters", text)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of configuration: its fields, their valid values, and its conversion to core's settings."""

    fields: Mapping[str, Field]
    required: tuple[str, ...]
    settings: Callable[[Mapping[str, Any]], NeuronSettings | UltraServerSettings]

    def validator(self) -> SchemaValidator:
        """Return the validator for objects of this kind; unknown fields are errors."""
        own = {name: field.schema for name, field in self.fields.items()}
        every = {"apiVersion": core_schema.str_schema(), "kind": core_schema.str_schema(), **own}
        required = ("apiVersion", "kind", *self.required)
        fields = {
            name: core_schema.typed_dict_field(schema, required=name in required) for name, schema in every.items()
        }
        strict = core_schema.CoreConfig(strict=True)
        return SchemaValidator(core_schema.typed_dict_schema(fields, extra_behavior="forbid", config=strict))


KINDS: Final = {
    "NeuronConfig": Kind(
        {"logicalNeuronCore": _one_of(1, 2, text="number of physical NeuronCores in a logical one")},
        ("logicalNeuronCore",),
        lambda given: NeuronSettings(given["logicalNeuronCore"]),
    ),
    "UltraServerConfig": Kind(
        {
            "ultraserverMode": _one_of(1, 2, 4, text="number of nodes of an UltraServer that work together as a group"),
            "workloadId": _object_name("name of the NeuronUltraServerWorkload for which the nodes are reserved"),
            "workloadUid": _object_name("UID of that workload"),
        },
        ("ultraserverMode",),
        lambda given: UltraServerSettings(given["ultraserverMode"], given.get("workloadId"), given.get("workloadUid")),
    ),
}
MOST_EXPLAINED: Final = 8
"""Wrong fields that a message names. An entry may have more than a thousand, and the kubelet repeats the message."""
_VALIDATORS: Final = {name: kind.validator() for name, kind in KINDS.items()}


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
    if not isinstance(kind, str) or kind not in KINDS:
        raise ClaimError(
            f"error applying config: {path}.kind {_show(kind)} is not known"
            + _suggestion(str(kind), KINDS, otherwise=f"; use {' or '.join(KINDS)}")
        )
    try:
        return KINDS[kind].settings(_VALIDATORS[kind].validate_python(dict(parameters)))
    except ValidationError as err:
        found = err.errors()
        problems = "; ".join(_explain(problem, path, kind) for problem in found[:MOST_EXPLAINED])
        more = f"; and {len(found) - MOST_EXPLAINED} more" if len(found) > MOST_EXPLAINED else ""
        raise ClaimError(f"error applying config: strict decoding error: {problems}{more}") from err


def _explain(problem: Any, path: str, kind: str) -> str:
    """Return one sentence about a validator's error, with the field's path and what to write."""
    name = ".".join(str(part) for part in problem["loc"])
    fields = list(KINDS[kind].fields)
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
