"""One or all is always valid, also on UltraServer nodes, beside the whole node as one device (32.4)."""

from __future__ import annotations

import copy
import datetime
import json
from typing import Any

import pytest

from neuron_dra.api.objects import healthy_node, slice_objects
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.world import imagined
from neuron_dra.ask.world.world import World
from neuron_dra.core import catalogue, devices, names, partitions
from neuron_dra.core.partitions import Partitioned
from neuron_dra.core.wire import Obj
from neuron_dra.planner.decisions.objects import claim_template
from neuron_dra.planner.observed import slices as observed
from neuron_dra.planner.observed.model import Workload
from neuron_dra.simulate.scheduler import Placement
from tests.support import small_clusters as small

WHOLE = [each.name for each in catalogue.all_types() if each.whole_node]
KIND = "device.attributes['neuron.aws.com'].resourceType"


def divided(name: str, **more: Any) -> Partitioned:
    node = healthy_node(name)
    found = partitions.partitioned(node, devices.published(node, driver_version="1.2.3"), parts=True, **more)
    assert found is not None
    return found


def slices(name: str, *, parts: bool) -> list[Obj]:
    node = healthy_node(name)
    published = devices.published(node, driver_version="1.2.3")
    made = slice_objects("a", published, partitions.partitioned(node, published, parts=True) if parts else None)
    found = []
    for index, item in enumerate(copy.deepcopy(made)):
        item["spec"]["pool"]["generation"] = 1
        found.append({**item, "kind": "ResourceSlice", "metadata": {"name": f"s-{index}"}})
    return found


@pytest.mark.parametrize("name", WHOLE)
def test_one_and_all_devices_and_cores_are_published_on_every_type(name: str) -> None:
    found = divided(name)
    spec = healthy_node(name).spec
    assert spec is not None
    sizes = {(len(one.device.device_ids), len(one.cores)) for one in found.partitions}
    each = spec.cores_per_device // spec.lnc_default
    assert {(1, each), (spec.device_count, spec.device_count * each)} <= sizes
    assert (1, 1) in sizes
    assert not any(one.device.name.startswith(names.DEVICE_PREFIX) for one in found.partitions)
    assert len(found.position) <= partitions.DEVICES_AT_MOST


def test_counters_keep_the_node_and_its_parts_apart() -> None:
    found = divided("trn2u.48xlarge")
    by_name = {one.device.name: one for one in found.partitions}
    for one in by_name.values():
        used = {(of.name, name): number for of in one.device.consumes for name, number in of.counters.items()}
        room = {(of.name, name): number for of in found.counters for name, number in of.counters.items()}
        node = {
            (of.name, name): n for of in by_name[names.NODE_DEVICE].device.consumes for name, n in of.counters.items()
        }
        assert any(used[key] + node.get(key, 0) > room[key] for key in used)


def test_chosen_sizes_always_have_single_devices() -> None:
    kinds = {one.device.name.rpartition("-")[0] for one in divided("trn2u.48xlarge", sizes=("connected-8",)).partitions}
    assert kinds == {"neuron-node", "neuron-set-1", "neuron-set-8"}


def world(*extra: Obj) -> World:
    sets = [imagined._set_class(size) for size in ("connected-1", "connected-16", "cores-1")]
    base = [item for item in small.base() if item["kind"] == "DeviceClass"]
    node = small.node("a", "trn2u.48xlarge")
    return World(snapshot.build([*base, *sets, node, *slices("trn2u.48xlarge", parts=True), *extra]), proposes=False)


def given(pod: Obj, *extra: Obj) -> list[str] | None:
    """Return the devices that a pod gets; None if it waits."""
    seen = world(pod, *extra)
    found = seen.snapshot.get("Pod", pod["metadata"]["name"], "default")
    assert found is not None
    outcome = seen.place(found)
    if not isinstance(outcome, Placement):
        return None
    return [each["device"] for one in outcome.allocations.values() for each in one["devices"]["results"]]


@pytest.mark.parametrize("cel", ["", f"has({KIND}) && {KIND} == 'neuron_node'"])
@pytest.mark.parametrize("amount", [{"allocationMode": "All"}, {"allocationMode": "ExactCount", "count": 1}])
def test_aws_claims_get_the_whole_node(cel: str, amount: dict[str, Any]) -> None:
    template = small.template("t", cel=cel)
    exactly = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    del exactly["count"]
    exactly.update(amount)
    assert given(small.pod("p", "t"), template) == [names.NODE_DEVICE]


@pytest.mark.parametrize(
    ("size", "expected"),
    [("connected-1", "neuron-set-1-0"), ("cores-1", "neuron-cores-1-0"), ("connected-16", names.NODE_DEVICE)],
)
def test_limits_get_a_part_or_all(size: str, expected: str) -> None:
    pod = small.pod("p")
    resource = f"deviceclass.resource.kubernetes.io/{size}.neuron.aws.com"
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: 1}}
    assert given(pod) == [expected]


@pytest.mark.parametrize("name", WHOLE)
def test_the_controller_sees_the_same_node(name: str) -> None:
    """So the template that it makes, which depends on what it sees, is the same to the byte."""

    def seen(items: list[Obj]) -> Any:
        found = [observed.published_slice(item) for item in items]
        return observed.published_nodes([each for each in found if each is not None])

    assert seen(slices(name, parts=True)) == seen(slices(name, parts=False))


@pytest.mark.parametrize("name", WHOLE)
def test_the_controllers_template_is_the_same_to_the_byte(name: str) -> None:
    then = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    workload = Workload("ml", "job", "uid-1", "1", 1, then, False, (), name, 4, 2, "NoOp", 2, "job-rct", {})
    written = set()
    for parts in (True, False):
        read = [observed.published_slice(item) for item in slices(name, parts=parts)]
        [node] = observed.published_nodes([each for each in read if each is not None])
        written.add(json.dumps(claim_template(workload, node.kind, names.WORKLOAD_CLASS)))
    [text] = written
    assert '"allocationMode": "ExactCount", "count": 1' in text


def test_what_parts_cost() -> None:
    """Every tag of a workload rewrites each slice of a node."""
    figures = {}
    for parts in (False, True):
        made = slices("trn2u.48xlarge", parts=parts)
        figures[parts] = (len(made), sum(len(json.dumps(each, separators=(",", ":"))) for each in made) // 1024)
    assert figures[False] == (1, 0)
    assert figures[True][0] == 4
    assert figures[True][1] <= 64
