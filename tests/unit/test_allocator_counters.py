"""16.1: the simulator's allocator counts shared counters as the scheduler does."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from hack.oracle.connected_slices import partitions_of, slices_of
from neuron_dra.api import objects
from neuron_dra.core import slices
from neuron_dra.core.wire import Obj
from neuron_dra.simulate import allocator, model
from neuron_dra.simulate.failures import Failure, FailureKind
from neuron_dra.simulate.model import DeviceId
from neuron_dra.simulate.pools import PoolInventory
from neuron_dra.simulate.selectors import Selectors

SIZED = "has(device.attributes['neuron.aws.com'].{0}) && device.attributes['neuron.aws.com'].{0} == {1}"
CLASSES = {
    made.name: made
    for made in map(
        model.device_class,
        [
            *objects.DEVICE_CLASSES,
            *(
                objects.device_class(f"connected-{n}", SIZED.format("connectedDevices", n))
                for n in (1, 2, 3, 4, 8, 12, 16)
            ),
            *(objects.device_class(f"cores-{n}", SIZED.format("cores", n)) for n in (1, 3, 9)),
        ],
    )
}
NODE = model.node({"metadata": {"name": "a"}})


def pool(instance_type: str = "inf2.48xlarge", shape: str = "devices") -> tuple[list[Obj], dict[str, frozenset[int]]]:
    """The slices of a node with connected sets, and the cores of each device."""
    found = partitions_of(instance_type, shape)
    return slices_of(found, slices.Pool("a", "uid")), {one.device.name: one.cores for one in found.partitions}


RING, CORES = pool()


def one(class_name: str, **more: Any) -> Obj:
    request = {"name": "r", "exactly": {"deviceClassName": class_name, "count": 1, **more}}
    return {"metadata": {"name": "c", "namespace": "d"}, "spec": {"devices": {"requests": [request]}}}


def ids(*names: str) -> frozenset[DeviceId]:
    return frozenset(DeviceId("neuron.aws.com", "a", name) for name in names)


def allocate(wanted: Obj, used: frozenset[DeviceId] = frozenset(), items: list[Obj] = RING) -> list[str] | Failure:
    outcome = allocator.allocate(NODE, [model.claim(wanted)], PoolInventory(items), CLASSES, used, Selectors())
    if isinstance(outcome, Failure):
        return outcome
    return [entry["device"] for entry in outcome.allocations[0]["devices"]["results"]]


def test_a_set_avoids_the_devices_in_use() -> None:
    used = ids("neuron-device-0", "neuron-device-5", "neuron-device-9")
    assert allocate(one("connected-3"), used) == ["neuron-set-3-1"]
    assert allocate(one("cores-3"), used | ids("neuron-set-3-1")) == ["neuron-cores-3-12"]


def test_message_names_overlapping_devices() -> None:
    outcome = allocate(one("connected-12"), ids("neuron-cores-1-7"))
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.NO_SOLUTION
    assert outcome.reasons == ("request r wants 1 device: 1 of 223 match, 1 overlap devices in use",)


def test_plain_claims_get_single_devices() -> None:
    assert allocate(one("neuron.aws.com", allocationMode="All", count=0)) == [f"neuron-device-{i}" for i in range(12)]


def test_the_whole_node_and_its_devices_exclude_each_other() -> None:
    items, _ = pool("trn2u.48xlarge", "both")
    assert allocate(one("connected-16"), items=items) == ["neuron-node-0"]
    assert isinstance(allocate(one("connected-16"), ids("neuron-cores-1-63"), items), Failure)
    assert isinstance(allocate(one("connected-1"), ids("neuron-node-0"), items), Failure)


@pytest.mark.parametrize("broken", ["set", "counter", "twice"])
def test_a_pool_with_unknown_or_doubled_counters_is_invalid(broken: str) -> None:
    *chunks, counters = RING
    sets = counters["spec"]["sharedCounters"]
    wrong = {"set": sets[:1], "counter": [{**sets[0], "counters": {}}, sets[1]], "twice": [*sets, sets[0]]}[broken]
    outcome = allocate(
        one("connected-2"), items=[*chunks, {**counters, "spec": {**counters["spec"], "sharedCounters": wrong}}]
    )
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.NODE_ERROR


def test_random_use_is_contiguous_and_never_overlaps() -> None:
    """What is placed shares no core, and what waits has no free set of its size."""
    rng = random.Random(16)
    held: list[str] = []
    for _ in range(300):
        if held and rng.random() < 0.5:
            held.remove(rng.choice(held))
            continue
        size = rng.choice(["connected-1", "connected-2", "connected-3", "connected-4", "cores-1", "cores-9"])
        found = allocate(one(size), ids(*held))
        taken = {core for name in held for core in CORES[name]}
        kind, number = size.split("-")
        fitting = [
            name
            for name, cores in CORES.items()
            if (len(cores) == int(number) * (2 if kind == "connected" else 1)) and not cores & taken
        ]
        assert (found == fitting[:1]) if fitting else isinstance(found, Failure)
        held += found if isinstance(found, list) else []
        assert max(Counter(core for name in held for core in CORES[name]).values(), default=0) <= 1


def test_counters_of_a_slice_for_other_nodes_count() -> None:
    """As in the scheduler: a slice of counters needs no devices that this node can use."""
    *chunks, counters = RING
    elsewhere = {key: value for key, value in counters["spec"].items() if key != "nodeName"}
    moved = {**counters, "spec": {**elsewhere, "perDeviceNodeSelection": True}}
    assert allocate(one("connected-2"), items=[*chunks, moved]) == ["neuron-set-2-0"]
