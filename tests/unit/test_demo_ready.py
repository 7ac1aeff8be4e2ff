"""The demo begins when the pool of each node is complete (4.09)."""

from __future__ import annotations

from neuron_dra.core.wire import Obj
from neuron_dra.demo.cluster import complete_pools


def written(node: str, *, count: int, devices: int, generation: int = 1, driver: str = "neuron.aws.com") -> Obj:
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    published = [{"name": f"neuron-device-{number}"} for number in range(devices)]
    return {"spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": published}}


def test_pool_is_complete_with_all_its_slices() -> None:
    """The first of several slices has the counters, and no devices: the demo printed 0 devices."""
    counters, devices = written("a", count=2, devices=0), written("a", count=2, devices=16)
    assert complete_pools([counters]) == set()
    assert complete_pools([devices]) == set()
    assert complete_pools([counters, devices]) == {("neuron.aws.com", "a")}


def test_slices_of_an_older_generation_do_not_count() -> None:
    assert complete_pools([written("a", count=1, devices=16), written("a", count=2, devices=0, generation=2)]) == set()


def test_pool_without_devices_is_not_complete() -> None:
    assert complete_pools([written("a", count=1, devices=0)]) == set()


def test_pools_of_two_drivers_are_told_apart() -> None:
    assert complete_pools([written("a", count=1, devices=16, driver="dra.net")]) == {("dra.net", "a")}
