"""16.7: the published order packs nearly as well as full knowledge, and is the order in which the allocator chooses."""

from __future__ import annotations

import pytest

from hack.oracle import packing
from hack.oracle.connected_slices import partitions_of, slices_of
from neuron_dra.api import objects
from neuron_dra.core import slices
from neuron_dra.simulate import allocator, model
from neuron_dra.simulate.failures import Failure
from neuron_dra.simulate.model import DeviceId
from neuron_dra.simulate.pools import PoolInventory
from neuron_dra.simulate.selectors import Selectors

TYPES = ("inf2.48xlarge", "inf1.24xlarge", "trn1.32xlarge")
STEPS = 6000


@pytest.mark.parametrize("instance_type", TYPES)
def test_no_request_waits_beside_a_free_place(instance_type: str) -> None:
    outcome = packing.run(packing.offer(instance_type), packing.in_published_order, steps=STEPS, seed=7)
    assert outcome.wrong == []
    assert 0 < outcome.share(packing.offer(instance_type).big) < 1, "the node was never full, or never used"


def test_no_request_waits_while_a_node_of_the_fleet_has_a_place() -> None:
    offered = packing.offer("inf2.48xlarge")
    outcome = packing.run(offered, packing.in_published_order, nodes=20, steps=STEPS, seed=7)
    assert outcome.wrong == []
    assert outcome.share(offered.big) < 1


def test_a_driver_that_splits_arcs_is_found_out() -> None:
    """The check itself: a set of two devices that are not linked is a violation."""
    offered = packing.offer("inf2.48xlarge")
    broken = packing.run(offered, lambda *_: 0b11 << 4 | 0b11, steps=200, seed=7)
    assert any(text.startswith("connected-2 got") for text in broken.wrong)


@pytest.mark.parametrize("instance_type", TYPES)
def test_published_order_places_as_many_big_requests_as_full_knowledge(instance_type: str) -> None:
    offered = packing.offer(instance_type)
    published, naive, best = (
        packing.run(offered, choose, steps=STEPS, seed=7).share(offered.big)
        for choose in (packing.in_published_order, packing.in_naive_order, packing.with_full_knowledge)
    )
    assert published >= 0.95 * best
    assert published > naive


@pytest.mark.parametrize("instance_type", TYPES)
def test_the_allocator_takes_the_first_free_place(instance_type: str) -> None:
    found = partitions_of(instance_type)
    inventory = PoolInventory(slices_of(found, slices.Pool("a", "uid")))
    cores = {one.device.name: sum(1 << core for core in one.cores) for one in found.partitions}
    single = {core: one.device.name for one in found.partitions if len(one.cores) == 1 for core in one.cores}
    memo, offered = Selectors(), packing.offer(instance_type)
    expression = "has(device.attributes['neuron.aws.com'].{0}) && device.attributes['neuron.aws.com'].{0} == {1}"
    attribute = {"connected": "connectedDevices", "cores": "cores"}

    def choose(_: packing.Offer, name: str, free: int) -> int | None:
        kind, number = name.split("-")
        class_ = objects.device_class(name, expression.format(attribute[kind], number))
        request = {"name": "r", "exactly": {"deviceClassName": name, "count": 1}}
        claim = model.claim({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}})
        used = frozenset(DeviceId("neuron.aws.com", "a", single[core]) for core in single if not free >> core & 1)
        outcome = allocator.allocate(
            model.node({"metadata": {"name": "a"}}), [claim], inventory, {name: model.device_class(class_)}, used, memo
        )
        if isinstance(outcome, Failure):
            return None
        [result] = outcome.allocations[0]["devices"]["results"]
        return cores[result["device"]]

    by_allocator = packing.run(offered, choose, steps=300, seed=3)
    by_order = packing.run(offered, packing.in_published_order, steps=300, seed=3)
    assert by_allocator == by_order
