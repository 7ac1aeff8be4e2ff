"""The opaque parameters that users write, NeuronConfig and UltraServerConfig, decoded strictly.

The models here are the one source for prepare, `validate`, the admission policy and the pages. Every apiVersion that
AWS's documents have used is accepted; all mean the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from neuron_dra.core import names, user_text
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


_Whole = BeforeValidator(_whole)
_ObjectName = Annotated[str, Field(min_length=1, max_length=63)]


class _Configuration(BaseModel):
    """What both kinds have in common; `decode` has checked the apiVersion."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    api_version: str = Field(alias="apiVersion")


class NeuronConfig(_Configuration):
    """How the cores of a device are grouped."""

    kind: Literal["NeuronConfig"]
    logical_neuron_core: Annotated[Literal[1, 2], _Whole] = Field(
        alias="logicalNeuronCore", description="number of physical NeuronCores in a logical one"
    )

    def settings(self) -> NeuronSettings:
        return NeuronSettings(self.logical_neuron_core)


class UltraServerConfig(_Configuration):
    """How the nodes of an UltraServer work together, and for which workload."""

    kind: Literal["UltraServerConfig"]
    ultraserver_mode: Annotated[Literal[1, 2, 4], _Whole] = Field(
        alias="ultraserverMode", description="number of nodes of an UltraServer that work together as a group"
    )
    workload_id: _ObjectName | None = Field(
        None,
        alias="workloadId",
        description="name of the NeuronUltraServerWorkload for which the nodes are reserved",
    )
    workload_uid: _ObjectName | None = Field(None, alias="workloadUid", description="UID of that workload")

    def settings(self) -> UltraServerSettings:
        return UltraServerSettings(self.ultraserver_mode, self.workload_id, self.workload_uid)


KINDS: Final[Mapping[str, type[BaseModel]]] = {
    "NeuronConfig": NeuronConfig,
    "UltraServerConfig": UltraServerConfig,
}
MOST_EXPLAINED: Final = 8
"""Wrong fields that a message names. An entry may have more than a thousand, and the kubelet repeats the message."""
LONGEST_NAME: Final = 32
"""Characters of a field's name in a message. Fields with longer names are only counted, if others are wrong too."""
_EITHER: Final[TypeAdapter[NeuronConfig | UltraServerConfig]] = TypeAdapter(
    Annotated[NeuronConfig | UltraServerConfig, Field(discriminator="kind")]
)


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What users may write in a field: whole numbers, or text of a length in characters."""

    name: str
    required: bool
    text: str
    numbers: tuple[int, ...] = ()
    shortest: int = 0
    longest: int = 0

    @property
    def values(self) -> str:
        """Return the valid values in words."""
        if self.numbers:
            return " or ".join(map(str, self.numbers))
        return f"text of {self.shortest} to {self.longest} characters"


def _own_fields(kind: str) -> list[str]:
    """Return the names of the fields that only this kind has."""
    names_in_objects = []
    for name, field in KINDS[kind].model_fields.items():
        names_in_objects.append(field.alias or name)
    return [name for name in names_in_objects if name not in ("apiVersion", "kind")]


def rules(kind: str) -> list[FieldRule]:
    """Return the rules of a kind's own fields, read from its model."""
    schema = KINDS[kind].model_json_schema()
    field_rules = []
    for name in _own_fields(kind):
        field = schema["properties"][name]
        required = name in schema["required"]
        if "enum" in field:
            rule = FieldRule(name, required, field["description"], numbers=tuple(field["enum"]))
        else:
            [text, _null] = field["anyOf"]
            rule = FieldRule(
                name, required, field["description"], shortest=text["minLength"], longest=text["maxLength"]
            )
        field_rules.append(rule)
    return field_rules


def fault_of(kind: str, field: str, value: object) -> str | None:
    """Return what is wrong with a field's value in words, or None if nothing is."""
    try:
        _EITHER.validate_python({"apiVersion": API_VERSIONS[0], "kind": kind, field: value})
    except ValidationError as err:
        for problem in err.errors(include_url=False):
            if problem["loc"] == (kind, field):
                return _words(problem)
    return None


def decode(parameters: object, path: str) -> NeuronSettings | UltraServerSettings:
    """Return the settings in `parameters`, an entry's `opaque.parameters`; `path` is its place for error messages.

    Raises ClaimError, which names each wrong field by its path, and the nearest valid name for an unknown field.
    """
    if not isinstance(parameters, Mapping):
        raise ClaimError(f"error applying config: {path} is not an object; write a NeuronConfig or UltraServerConfig")
    version = parameters.get("apiVersion")
    if version not in API_VERSIONS:
        raise ClaimError(
            f"error applying config: {path}.apiVersion {user_text.shown(version)} is not known; use {API_VERSIONS[0]!r}"
        )
    try:
        return _EITHER.validate_python(dict(parameters)).settings()
    except ValidationError as err:
        errors = err.errors(include_url=False)
    kind = parameters.get("kind")
    if errors[0]["type"] in ("union_tag_invalid", "union_tag_not_found"):
        raise ClaimError(
            f"error applying config: {path}.kind {user_text.shown(kind)} is not known"
            + _suggestion(str(kind), KINDS, otherwise=f"; use {' or '.join(KINDS)}")
        )
    explained = [problem for problem in errors if user_text.is_plain(_name(problem), LONGEST_NAME)][:MOST_EXPLAINED]
    texts = []
    for problem in explained or errors[:1]:
        texts.append(_explain(problem, path, str(kind)))
    problems = "; ".join(texts)
    more = ""
    if len(errors) > len(texts):
        more = f"; and {len(errors) - len(texts)} more"
    raise ClaimError(f"error applying config: strict decoding error: {problems}{more}")


def _explain(problem: ErrorDetails, path: str, kind: str) -> str:
    """Return one sentence about a problem that pydantic found, with the field's path and what to write."""
    name = user_text.printable(_name(problem), LONGEST_NAME)
    if problem["type"] == "extra_forbidden":
        fields = _own_fields(kind)
        otherwise = f"; {kind} has only {', '.join(fields)}"
        return f'unknown field "{path}.{name}"' + _suggestion(name, fields, otherwise=otherwise)
    if problem["type"] == "missing":
        return f'required field "{path}.{name}" is missing'
    return f'field "{path}.{name}" is {user_text.shown(problem["input"])}: {_words(problem)}'


def _name(problem: ErrorDetails) -> str:
    return ".".join(map(str, problem["loc"][1:]))  # the first part is the kind


def _words(problem: ErrorDetails) -> str:
    return problem["msg"].lower()


def _suggestion(word: str, known_names: Iterable[str], *, otherwise: str) -> str:
    """Return the nearest known name as ", did you mean ...?", or `otherwise` if none is near."""
    near = difflib.get_close_matches(word, list(known_names), n=1, cutoff=0.6)
    if near:
        return f', did you mean "{near[0]}"?'
    return otherwise
