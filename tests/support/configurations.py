"""Rows of configuration in claims, and what the chart's admission policy reports for each.

The unit test evaluates the rendered policy and compares it with the decoder of prepare; the test on the test bed sends
the same rows to a real API server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuron_dra.core import names
from neuron_dra.core.wire import Obj

V1 = f"{names.DRIVER}/v1"
PATH = "config[{}].opaque.parameters."


def neuron(**fields: Any) -> Obj:
    return {"apiVersion": V1, "kind": "NeuronConfig", **fields}


def ultraserver(**fields: Any) -> Obj:
    return {"apiVersion": V1, "kind": "UltraServerConfig", **fields}


def entry(parameters: Any, driver: str = names.DRIVER) -> Obj:
    return {"requests": ["r"], "opaque": {"driver": driver, "parameters": parameters}}


def spec(*entries: Obj) -> Obj:
    """Return the spec of a claim with one request and this configuration."""
    request = {"name": "r", "exactly": {"deviceClassName": names.DRIVER, "allocationMode": "ExactCount", "count": 1}}
    return {"devices": {"requests": [request], **({"config": list(entries)} if entries else {})}}


def claim(*entries: Obj, name: str = "c") -> Obj:
    api = "resource.k8s.io/v1"
    return {"apiVersion": api, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec(*entries)}


def template(*entries: Obj, name: str = "t") -> Obj:
    return {**claim(*entries, name=name), "kind": "ResourceClaimTemplate", "spec": {"spec": spec(*entries)}}


@dataclass(frozen=True)
class Row:
    """A claim's configuration, and the message; an empty one if it is right."""

    name: str
    entries: tuple[Obj, ...]
    message: str = ""


def _one(name: str, parameters: Obj, message: str = "") -> Row:
    return Row(name, (entry(parameters),), message.format(path=PATH.format(0)))


STRICT = "error applying config: strict decoding error: "
ROWS = (
    Row("no configuration", ()),
    _one("size 1", neuron(logicalNeuronCore=1)),
    _one("size 2 of an old version", {**neuron(logicalNeuronCore=2), "apiVersion": "neuron.aws.com/v1beta1"}),
    _one("version of the first samples", {**neuron(logicalNeuronCore=1), "apiVersion": "neuron.aws.com/v1alphav1"}),
    _one("resource group", {**ultraserver(ultraserverMode=4), "apiVersion": "resource.neuron.aws.com/v1alphav1"}),
    _one("pair", ultraserver(ultraserverMode=2)),
    _one("workload", ultraserver(ultraserverMode=4, workloadId="job", workloadUid="1-2")),
    _one("no workload", ultraserver(ultraserverMode=4, workloadId=None)),
    _one("longest name", ultraserver(ultraserverMode=1, workloadId="x" * 63)),
    Row("another driver", (entry({"logicalNeuronCore": 3}, "gpu.example.com"),)),
    Row("another driver without fields", (entry({}, "gpu.example.com"),)),
    _one(
        "LNC 3",
        neuron(logicalNeuronCore=3),
        STRICT + 'field "{path}logicalNeuronCore" is 3: input should be 1 or 2',
    ),
    _one(
        "LNC as text",
        neuron(logicalNeuronCore="1"),
        STRICT + "field \"{path}logicalNeuronCore\" is '1': input should be a whole number",
    ),
    _one(
        "LNC true",
        neuron(logicalNeuronCore=True),
        STRICT + 'field "{path}logicalNeuronCore" is True: input should be a whole number',
    ),
    _one(
        "LNC null",
        neuron(logicalNeuronCore=None),
        STRICT + 'field "{path}logicalNeuronCore" is None: input should be a whole number',
    ),
    _one(
        "LNC 1.5",
        neuron(logicalNeuronCore=1.5),
        STRICT + 'field "{path}logicalNeuronCore" is 1.5: input should be a whole number',
    ),
    _one("LNC missing", neuron(), STRICT + 'required field "{path}logicalNeuronCore" is missing'),
    _one(
        "misspelt field",
        neuron(logicalNeuronCores=1, logicalNeuronCore=1),
        STRICT + 'unknown field "{path}logicalNeuronCores"; NeuronConfig has only logicalNeuronCore',
    ),
    _one(
        "field of the other kind",
        neuron(logicalNeuronCore=0, ultraserverMode=1),
        STRICT + 'field "{path}logicalNeuronCore" is 0: input should be 1 or 2; '
        'unknown field "{path}ultraserverMode"; NeuronConfig has only logicalNeuronCore',
    ),
    _one(
        "mode 3",
        ultraserver(ultraserverMode=3),
        STRICT + 'field "{path}ultraserverMode" is 3: input should be 1, 2 or 4',
    ),
    _one(
        "empty workload",
        ultraserver(ultraserverMode=4, workloadId=""),
        STRICT + "field \"{path}workloadId\" is '': string should have at least 1 character",
    ),
    _one(
        "long workload",
        ultraserver(ultraserverMode=4, workloadUid="x" * 64),
        STRICT + f'field "{{path}}workloadUid" is \'{"x" * 56}...: string should have at most 63 characters',
    ),
    _one(
        "workload 7",
        ultraserver(ultraserverMode=4, workloadId=7),
        STRICT + 'field "{path}workloadId" is 7: input should be a valid string',
    ),
    _one(
        "unknown kind",
        {**neuron(logicalNeuronCore=1), "kind": "Pod"},
        "error applying config: {path}kind 'Pod' is not known; use NeuronConfig or UltraServerConfig",
    ),
    _one(
        "no kind",
        {"apiVersion": V1, "logicalNeuronCore": 1},
        "error applying config: {path}kind None is not known; use NeuronConfig or UltraServerConfig",
    ),
    _one(
        "unknown version",
        {**neuron(logicalNeuronCore=1), "apiVersion": "neuron.aws.com/v2"},
        "error applying config: {path}apiVersion 'neuron.aws.com/v2' is not known; use 'neuron.aws.com/v1'",
    ),
    _one("empty", {}, "error applying config: {path}apiVersion None is not known; use 'neuron.aws.com/v1'"),
    Row(
        "the second entry, beside another driver's",
        (entry({"x": 1}, "gpu.example.com"), entry(ultraserver(ultraserverMode="4"))),
        f"{STRICT}field \"{PATH.format(1)}ultraserverMode\" is '4': input should be a whole number",
    ),
    Row(
        "the first wrong one of two",
        (entry(neuron(logicalNeuronCore=3)), entry(ultraserver(ultraserverMode=3))),
        f'{STRICT}field "{PATH.format(0)}logicalNeuronCore" is 3: input should be 1 or 2',
    ),
    Row(
        "the last of 32",
        (*(entry(neuron(logicalNeuronCore=1)),) * 31, entry(neuron(logicalNeuronCore=4))),
        f'{STRICT}field "{PATH.format(31)}logicalNeuronCore" is 4: input should be 1 or 2',
    ),
)
