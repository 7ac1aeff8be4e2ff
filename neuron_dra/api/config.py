"""The opaque parameters users write: NeuronConfig and UltraServerConfig, decoded strictly.

Accepted apiVersions are every one that AWS's documents ever showed (neuron.md 4.4); all mean the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

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
    """Refuse what Python takes for a number and JSON does not mean as one: `true == 1`, `1.0 == 1`."""
    if type(value) is not int:
        raise PydanticCustomError("whole_number", "input should be a whole number")
    return value


Whole = BeforeValidator(_whole)
ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=63)]


class _Parameters(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    apiVersion: str  # noqa: N815 - the name on the wire
    kind: str


class NeuronConfig(_Parameters):
    """How many physical NeuronCores make a logical one."""

    logicalNeuronCore: Annotated[Literal[1, 2], Whole]  # noqa: N815

    def settings(self) -> NeuronSettings:
        """Return the core's form."""
        return NeuronSettings(self.logicalNeuronCore)


class UltraServerConfig(_Parameters):
    """How many nodes of an UltraServer work together, and for which workload."""

    ultraserverMode: Annotated[Literal[1, 2, 4], Whole]  # noqa: N815
    workloadId: ObjectName | None = Field(default=None)  # noqa: N815
    workloadUid: ObjectName | None = Field(default=None)  # noqa: N815

    def settings(self) -> UltraServerSettings:
        """Return the core's form."""
        return UltraServerSettings(self.ultraserverMode, self.workloadId, self.workloadUid)


_KINDS: dict[str, type[NeuronConfig] | type[UltraServerConfig]] = {
    "NeuronConfig": NeuronConfig,
    "UltraServerConfig": UltraServerConfig,
}


def decode(parameters: object, path: str) -> NeuronSettings | UltraServerSettings:
    """Return the settings in `parameters`, an entry's `opaque.parameters` found at `path`.

    Raises ClaimError naming each wrong field by its path, and the nearest valid name for an unknown one.
    """
    if not isinstance(parameters, Mapping):
        raise ClaimError(f"error applying config: {path} is not an object; write a NeuronConfig or UltraServerConfig")
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version not in API_VERSIONS:
        raise ClaimError(
            f"error applying config: {path}.apiVersion {_show(version)} is not known; use {API_VERSIONS[0]!r}"
        )
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise ClaimError(
            f"error applying config: {path}.kind {_show(kind)} is not known"
            + _suggestion(str(kind), _KINDS, otherwise=f"; use {' or '.join(_KINDS)}")
        )
    try:
        return model.model_validate(dict(parameters)).settings()
    except ValidationError as err:
        problems = "; ".join(_explain(problem, path, model) for problem in err.errors())
        raise ClaimError(f"error applying config: strict decoding error: {problems}") from err


def _explain(problem: Any, path: str, model: type[_Parameters]) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    fields = [field for field in model.model_fields if field not in ("apiVersion", "kind")]
    if problem["type"] == "extra_forbidden":
        otherwise = f"; {model.__name__} has only {', '.join(fields)}"
        return f'unknown field "{path}.{name}"' + _suggestion(name, fields, otherwise=otherwise)
    if problem["type"] == "missing":
        return f'required field "{path}.{name}" is missing'
    return f'field "{path}.{name}" is {_show(problem["input"])}: {problem["msg"].lower()}'


def _suggestion(word: str, known: Any, *, otherwise: str) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f', did you mean "{near[0]}"?' if near else otherwise


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
