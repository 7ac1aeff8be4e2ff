"""Devices of every instance type in the scheduler: no selector fails, and groups are as documented."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.observed import model
from neuron_dra.simulate import allocator, failures, scheduler, selectors
from tests.support import fast_yaml

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = sorted((ROOT / "tests/golden").glob("*/*.yaml"))
MANIFESTS = sorted(
    (*(ROOT / "deploy/examples").rglob("*.yaml"), *(ROOT / "deploy/manifests").rglob("*deviceclasses.yaml"))
)
TAGS = ("workloadId", "workloadNamespace", "workloadUid", "allocationId", "workloadPhase")


@cache
def documents(path: Path) -> list[Obj]:
    return [item for item in fast_yaml.load_all(path.read_text()) if item]


def devices(path: Path) -> list[Obj]:
    return [device for item in documents(path)[0]["items"] for device in item["spec"]["devices"]]


def expressions(value: Any) -> Iterator[str]:
    """Yield every CEL selector in a manifest."""
    if isinstance(value, dict):
        if isinstance(value.get("cel"), dict):
            yield value["cel"]["expression"]
        for item in value.values():
            yield from expressions(item)
    elif isinstance(value, list):
        for item in value:
            yield from expressions(item)


def generated() -> Iterator[str]:
    """The selectors of the templates that the controller makes."""
    then = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    workload = model.Workload(
        "ml", "job", "uid-1", "1", 1, then, False, (), "trn2u.48xlarge", 4, 2, "NoOp", 2, "job-rct", {}
    )
    for kind in ("neuron_node", "neuron_device"):
        yield from expressions(objects.claim_template(workload, kind, names.DRIVER))


SHIPPED = sorted(
    {text for path in MANIFESTS for item in documents(path) for text in expressions(item)} | set(generated())
)
OURS = [text for text in SHIPPED if "dra.net" not in text]


def tagged(device: Obj) -> Obj:
    attributes: Obj = device["attributes"]
    return attributes | {tag: {"string": "x"} for tag in TAGS} | {"unhealthy": {"string": "hbm_ecc"}}


@pytest.mark.contract("A1")
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_shipped_selectors_fail_on_no_device(path: Path) -> None:
    assert len(OURS) > 8
    for device in devices(path):
        for attributes in (device["attributes"], tagged(device)):
            values = {name: quantity["value"] for name, quantity in device["capacity"].items()}
            subject = selectors.device_value(names.DRIVER, attributes, values)
            for text in OURS:
                selectors.compile_selector(text).matches(subject)  # raises if the scheduler would fail the pod


@pytest.mark.contract("A1")
def test_selector_with_absent_attribute_fails() -> None:
    subject = selectors.device_value(names.DRIVER, devices(PUBLISHED[0])[0]["attributes"], {})
    with pytest.raises(failures.EvaluationError, match="no such key: nope"):
        selectors.compile_selector(f"device.attributes['{names.DRIVER}'].nope == 1").matches(subject)


def wanted(count: int, attribute: str) -> Obj:
    exactly = {"deviceClassName": names.DRIVER, "count": count}
    spec = {
        "devices": {"requests": [{"name": "r", "exactly": exactly}], "constraints": [{"matchAttribute": attribute}]}
    }
    return {"metadata": {"name": "c", "namespace": "ml"}, "spec": spec}


def allocated_in_turn(path: Path, count: int, attribute: str) -> list[list[int]]:
    """Allocate claims for `count` devices with the same `attribute` until none fits; return their device numbers."""
    (listed,) = documents(path)
    published = listed["items"]
    node = published[0]["spec"]["nodeName"]
    classes = documents(ROOT / "deploy/manifests/20-deviceclasses.yaml")
    held: list[Obj] = []
    groups: list[list[int]] = []
    while True:
        outcome = scheduler.schedule(
            {"metadata": {"name": "p"}, "spec": {}},
            [wanted(count, attribute)],
            [{"metadata": {"name": node}}],
            published,
            classes,
            allocator.devices_in_use(held),
        )
        if isinstance(outcome, scheduler.Unschedulable):
            return groups
        allocation = json.loads(json.dumps(outcome.allocations["c"]))
        held.append({"status": {"allocation": allocation}})
        groups.append([int(item["device"].rpartition("-")[2]) for item in allocation["devices"]["results"]])


def blocks(count: int, size: int) -> list[list[int]]:
    return [list(range(start, start + size)) for start in range(0, count, size)]


@pytest.mark.contract("A2")
@pytest.mark.parametrize("size", [1, 4, 8, 16])
@pytest.mark.parametrize("instance_type", ["trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge"])
def test_device_group_claims_fill_groups_in_order(instance_type: str, size: int) -> None:
    path = ROOT / f"tests/golden/{instance_type}/slices.yaml"
    attribute = f"resource.aws.com/devicegroup{size}_id"
    assert allocated_in_turn(path, size, attribute) == blocks(16, size)


@pytest.mark.contract("A2")
@pytest.mark.parametrize(
    ("attribute", "count", "groups"),
    [
        ("neuron.aws.com/topology_x", 4, blocks(16, 4)),
        ("neuron.aws.com/topology_y", 4, [[column, column + 4, column + 8, column + 12] for column in range(4)]),
        ("neuron.aws.com/topology4_id", 4, blocks(16, 4)),
        ("neuron.aws.com/topology8_id", 8, blocks(16, 8)),
        ("neuron.aws.com/instanceType", 16, blocks(16, 16)),
    ],
)
def test_torus_row_and_column_claims_are_allocated(attribute: str, count: int, groups: list[list[int]]) -> None:
    assert allocated_in_turn(ROOT / "tests/golden/trn2.48xlarge/slices.yaml", count, attribute) == groups


@pytest.mark.contract("A2")
def test_claims_get_devices_of_one_group() -> None:
    path = ROOT / "tests/golden/trn2.48xlarge/slices.yaml"
    assert allocated_in_turn(path, 3, "resource.aws.com/devicegroup4_id") == [
        [0, 1, 2],
        [4, 5, 6],
        [8, 9, 10],
        [12, 13, 14],
    ]
    assert allocated_in_turn(path, 5, "resource.aws.com/devicegroup4_id") == []
