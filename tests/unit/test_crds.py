"""The CRDs: equal versions, bounded fields, and printer columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fast_yaml

CRDS = sorted((Path(__file__).resolve().parents[2] / "deploy" / "crds").glob("*.yaml"))
Schema = dict[str, Any]


def load(path: Path) -> dict[str, Any]:
    crd: dict[str, Any] = fast_yaml.load(path.read_text())
    return crd


def fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every field of a schema with its path."""
    yield path, schema
    for name, child in (schema.get("properties") or {}).items():
        yield from fields(child, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")


def all_fields() -> list[tuple[str, Schema]]:
    found = []
    for path in CRDS:
        crd = load(path)
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        found += [(crd["spec"]["names"]["kind"] + field, child) for field, child in fields(schema)]
    return found


def schema_of(kind: str) -> Schema:
    return next(child for name, child in all_fields() if name == kind)


def test_one_file_per_kind() -> None:
    assert [(path.name, load(path)["spec"]["names"]["shortNames"]) for path in CRDS] == [
        ("neuron.aws.com_neuronultraserverqualifications.yaml", ["nusq"]),
        ("neuron.aws.com_neuronultraservers.yaml", ["nus"]),
        ("neuron.aws.com_neuronultraserverworkloads.yaml", ["nusw"]),
    ]


# AWS's charts have the others, in v1.
@pytest.mark.parametrize(
    "path", [path for path in CRDS if "qualification" not in path.stem], ids=lambda path: path.stem
)
def test_v1_is_v1beta1_under_another_name(path: Path) -> None:
    old, new = load(path)["spec"]["versions"]
    assert (old.pop("name"), old.pop("storage"), old.pop("served")) == ("v1beta1", True, True)
    assert (new.pop("name"), new.pop("storage"), new.pop("served")) == ("v1", False, True)
    assert old == new
    assert old["subresources"] == {"status": {}}


def test_every_string_and_every_list_is_bounded() -> None:
    unbounded = [
        name
        for name, field in all_fields()
        if (field["type"] == "string" and not {"maxLength", "enum", "format"} & field.keys())
        or (field["type"] == "array" and "maxItems" not in field)
    ]
    assert unbounded == []


def test_rule_messages_name_the_remedy() -> None:
    silent = [
        (name, rule["rule"])
        for name, field in all_fields()
        for rule in field.get("x-kubernetes-validations", [])
        if not any(word in rule.get("message", "") + rule.get("messageExpression", "") for word in ("write", "delete"))
    ]
    assert silent == []


def test_documented_fields_have_documented_defaults() -> None:
    spec = schema_of("NeuronUltraServerWorkload.spec")
    assert sorted(spec["required"]) == ["instanceType", "serverCount", "topologySize"]
    policy, config = spec["properties"]["allocationPolicy"], spec["properties"]["config"]
    assert (policy["default"], policy["properties"]["failureStrategy"]["default"]) == ({}, "NoOp")
    assert (config["default"], config["properties"]["logicalNeuronCore"]["default"]) == ({}, 2)
    allocation = schema_of("NeuronUltraServer.status.allocations[]")
    assert sorted(allocation["required"]) == [
        "allocatedAt",
        "allocatedNodes",
        "leaderNodeName",
        "nodeCount",
        "phase",
        "ultraserverIndex",
        "workloadRef",
    ]


def test_printer_columns() -> None:
    shown = {
        load(path)["spec"]["names"]["kind"]: [
            column["name"]
            for column in load(path)["spec"]["versions"][0]["additionalPrinterColumns"]
            if not column.get("priority")
        ]
        for path in CRDS
    }
    assert shown == {
        "NeuronUltraServerQualification": [
            *("Ready", "Reason", "Fresh", "Failed", "Unqualified", "Testing", "Age"),
        ],
        "NeuronUltraServer": ["State", "Availability", "Type", "Nodes", "Free", "Sizes", "Age", "Reason"],
        "NeuronUltraServerWorkload": ["State", "Size", "Servers", "Nodes", "Age", "Reason"],
    }
