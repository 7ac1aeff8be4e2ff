"""What known-bad releases of Kubernetes do with connected sets, by their own allocators (32.1)."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import yaml

from hack.oracle.allocator import CLASSES
from hack.oracle.connected_slices import partitions_of, slices_of
from hack.oracle.judge import CannotBuild, Oracle, build
from neuron_dra.core import names, releases
from neuron_dra.core.slices import Pool
from neuron_dra.core.wire import Obj

RELEASES = ("1.36.1", "1.36.2", "1.36.3", "1.37")
TAINT = {"key": "neuron.aws.com/unhealthy", "value": "hbm_ecc", "effect": "NoSchedule"}


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def program(release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp(f"oracle-{release}") / "oracle", release)
    except CannotBuild as err:
        pytest.skip(str(err))


def faults(release: str) -> set[int]:
    """Return the numbers of the faults that the table says this release has."""
    parsed = releases.parse(release if release.count(".") == 2 else f"{release}.0")
    assert parsed is not None
    return {bad.issue for bad in releases.with_counters(parsed)}


def asked(instance_type: str, device_class: str, *, sick: int | None = None, mode: str = "ExactCount") -> Obj:
    """Return the question for one claim on a node of this type, of which a device may be unhealthy."""
    found = partitions_of(instance_type)
    items = copy.deepcopy(slices_of(found, Pool("node-a", "uid")))
    ids = {one.device.name: one.device.device_ids for one in found.partitions}
    for item in items:
        for device in item["spec"].get("devices", ()):
            if sick in ids[device["name"]]:
                device["taints"] = [TAINT]
    exactly: Obj = {"deviceClassName": device_class, "allocationMode": mode}
    if mode == "ExactCount":
        exactly["count"] = 1
    claim = {
        "metadata": {"name": "c", "namespace": "default", "uid": "c"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }
    node = {"metadata": {"name": "node-a", "labels": {"kubernetes.io/hostname": "node-a"}}}
    classes = [item for item in yaml.safe_load_all(CLASSES.read_text()) if item]
    return {"slices": items, "classes": classes, "node": node, "claims": [claim], "inUse": []}


def allocated(answer: Obj) -> list[str]:
    found = answer.get("allocations") or [{"devices": {"results": []}}]
    return [each["device"] for each in found[0]["devices"]["results"]]


def test_all_devices_panic_where_the_table_says(program: Path, release: str) -> None:
    question = asked("trn2.48xlarge", names.DRIVER, mode="All")
    panics = 138882 in faults(release)
    with Oracle(program) as oracle:
        if panics:
            with pytest.raises(json.JSONDecodeError):  # the program ended without an answer
                oracle.ask(question)
        else:
            assert len(allocated(oracle.ask(question))) == 16
    assert (oracle._process.returncode != 0) is panics


def test_a_sick_device_blocks_its_neighbours_where_the_table_says(program: Path, release: str) -> None:
    """Devices 4 to 11 are in use and 0 is sick: 1 to 3 are free, and connected."""
    question = asked("inf2.48xlarge", "connected-3.neuron.aws.com", sick=0)
    question["inUse"] = [{"driver": names.DRIVER, "pool": "node-a", "device": "neuron-set-8-4"}]
    with Oracle(program) as oracle:
        found = allocated(oracle.ask(question))
    assert found == ([] if 140436 in faults(release) else ["neuron-set-3-1"])


OTHER = "dra.net"


def beside_another_driver(question: Obj) -> Obj:
    """Return the question with the same pool of another driver, and a claim that first requests a device of that."""
    others = copy.deepcopy(question["slices"])
    for item in others:
        item["metadata"] = {**item["metadata"], "name": f"other-{item['metadata']['name']}"}
        item["spec"]["driver"] = OTHER
    selector = {"cel": {"expression": f"device.driver == '{OTHER}'"}}
    other_class = {"metadata": {"name": OTHER}, "spec": {"selectors": [selector]}}
    exactly = {"deviceClassName": OTHER, "allocationMode": "ExactCount", "count": 1}
    question["claims"][0]["spec"]["devices"]["requests"].insert(0, {"name": "first", "exactly": exactly})
    slices = [*question["slices"], *others]
    return {**question, "slices": slices, "classes": [*question["classes"], other_class]}


def test_a_pool_of_the_same_name_hides_what_is_in_use_where_the_table_says(program: Path, release: str) -> None:
    """Devices 4 to 11 are in use, so no five are free; a driver's counters are taken for those of the other one."""
    question = beside_another_driver(asked("inf2.48xlarge", "connected-5.neuron.aws.com"))
    question["inUse"] = [{"driver": names.DRIVER, "pool": "node-a", "device": "neuron-set-8-4"}]
    with Oracle(program) as oracle:
        found = [name for name in allocated(oracle.ask(question)) if name.startswith("neuron-set-5-")]
    assert bool(found) is (140434 in faults(release))
