"""The allocator of Kubernetes 1.34 and 1.35: the same devices in more steps, no taints, no partitions (17.4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_dra.core.wire import Obj
from neuron_dra.simulate import allocator, model, permutations, semantics
from neuron_dra.simulate.failures import Failure, FailureKind
from neuron_dra.simulate.pools import PoolInventory
from neuron_dra.simulate.semantics import NEW, OLD, Semantics

NODE = {"metadata": {"name": "a", "labels": {}}}
CLASSES = {"any": model.device_class({"metadata": {"name": "any"}, "spec": {}})}
DRIVER = "neuron.aws.com"
OF_1_35 = semantics.of((1, 35))


def slices(count: int, *, wanted: int = 1, **more: Any) -> Obj:
    devices = [{"name": f"d{number}", "attributes": {"half": {"int": number % 2}}, **more} for number in range(count)]
    pool = {"name": "a", "generation": 1, "resourceSliceCount": wanted}
    return {"metadata": {"name": "s"}, "spec": {"driver": DRIVER, "nodeName": "a", "pool": pool, "devices": devices}}


def claim(*counts: int | str, same: str = "") -> Obj:
    requests = []
    for number, count in enumerate(counts):
        how: Obj = {"allocationMode": "All"} if count == "All" else {"allocationMode": "ExactCount", "count": count}
        requests.append({"name": f"r{number}", "exactly": {"deviceClassName": "any", **how}})
    constraints = [{"matchAttribute": f"{DRIVER}/{same}"}] if same else []
    spec = {"devices": {"requests": requests, "constraints": constraints}}
    return {"metadata": {"name": "c", "namespace": "default"}, "spec": spec}


def allocate(published: Obj, wanted: list[Obj], used: set[int], rules: Semantics) -> allocator.Allocated | Failure:
    in_use = frozenset(model.DeviceId(DRIVER, "a", f"d{number}") for number in used)
    inventory = PoolInventory([published], rules)
    return allocator.allocate(model.node(NODE), [model.claim(each) for each in wanted], inventory, CLASSES, in_use)


@given(
    st.integers(1, 6),
    st.lists(st.lists(st.integers(1, 3) | st.just("All"), min_size=1, max_size=2), min_size=1, max_size=2),
    st.sampled_from(["", "half"]),
    st.sets(st.integers(0, 5)),
)
@settings(max_examples=100, deadline=None)
def test_results_equal_those_of_later_versions(count: int, counts: list[list[Any]], same: str, used: set[int]) -> None:
    wanted = [{**claim(*each, same=same)} for each in counts]
    old, new = (allocate(slices(count), wanted, used, rules) for rules in (OLD, NEW))
    if isinstance(new, allocator.Allocated):
        assert isinstance(old, allocator.Allocated)
        assert old.allocations == new.allocations
        assert old.steps > sum(len(each) for each in counts)
    elif not (isinstance(old, Failure) and old.kind is FailureKind.GAVE_UP):
        assert isinstance(old, Failure)
        assert old.kind is new.kind


def test_sixteen_of_sixteen_with_one_held_takes_too_long() -> None:
    """AWS's xl-trn2.yaml on a busy node (facts: 10 s on the modules of 0.34.4)."""
    old = allocate(slices(16), [claim(16)], {3}, OLD)
    assert isinstance(old, Failure)
    assert old.kind is FailureKind.GAVE_UP
    assert "request all of its devices with allocationMode: All" in old.reasons[0]
    new = allocate(slices(16), [claim(16)], {3}, NEW)
    assert isinstance(new, Failure)
    assert new.kind is FailureKind.NO_SOLUTION


def test_all_devices_take_few_steps() -> None:
    free = allocate(slices(16), [claim("All")], set(), OLD)
    assert isinstance(free, allocator.Allocated)
    assert free.steps == 19
    held = allocate(slices(16), [claim("All")], {3}, OLD)
    assert isinstance(held, Failure)
    assert held.kind is FailureKind.NO_SOLUTION


def test_taints_and_partitions_do_not_exist() -> None:
    taints = [{"key": "k", "effect": "NoSchedule"}]
    assert isinstance(allocate(slices(1, taints=taints), [claim(1)], set(), OLD), allocator.Allocated)
    assert isinstance(allocate(slices(1, taints=taints), [claim(1)], set(), NEW), Failure)
    consumes = [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]
    assert isinstance(allocate(slices(1, consumesCounters=consumes), [claim(1)], set(), OLD), Failure)


def test_devices_of_an_incomplete_pool_are_allocated() -> None:
    assert isinstance(allocate(slices(1, wanted=2), [claim(1)], set(), OLD), allocator.Allocated)
    every = allocate(slices(1, wanted=2), [claim("All")], set(), OLD)
    assert isinstance(every, Failure)
    assert every.kind is FailureKind.POD_ERROR
    later = allocate(slices(1, wanted=2), [claim(1)], set(), OF_1_35)
    assert isinstance(later, Failure)
    assert later.kind is FailureKind.NO_SOLUTION


def twice(number: int) -> Obj:
    """Return a slice in which two devices have the same name, which makes the pool invalid."""
    made = slices(number)
    made["spec"]["devices"][1]["name"] = "d0"
    return made


def test_an_invalid_pool_fails_the_pod_on_1_34_alone() -> None:
    kinds = [allocate(twice(2), [claim(1)], set(), rules) for rules in (OLD, OF_1_35, NEW)]
    assert [each.kind for each in kinds if isinstance(each, Failure)] == [
        FailureKind.POD_ERROR,
        FailureKind.NODE_ERROR,
        FailureKind.NODE_ERROR,
    ]


def test_distinct_attributes_are_rejected() -> None:
    wanted = claim(2)
    wanted["spec"]["devices"]["constraints"] = [{"distinctAttribute": f"{DRIVER}/half"}]
    old = allocate(slices(2), [wanted], set(), OLD)
    assert isinstance(old, Failure)
    assert (old.kind, "unsupported constraint type" in old.reasons[0]) == (FailureKind.POD_ERROR, True)


@pytest.mark.parametrize(
    ("version", "rules"), [((1, 34), OLD), ((1, 35), OF_1_35), ((1, 36), NEW), ((1, 37), NEW), (None, NEW)]
)
def test_semantics_of_a_version(version: tuple[int, int] | None, rules: Semantics) -> None:
    assert semantics.of(version) is rules


def test_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permutations, "MAX_STEPS", 10)
    found = allocate(slices(16), [claim(16)], set(), OLD)
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.GAVE_UP


def test_second_alternative_for_all_devices_has_those_of_the_first() -> None:
    """In 1.34 and 1.35, the results of the first alternative's selectors count for the second one, too."""
    alternatives = [
        {
            "name": f"half-{number}",
            "deviceClassName": "any",
            "allocationMode": "All",
            "selectors": [{"cel": {"expression": f"device.attributes['neuron.aws.com'].half == {number}"}}],
        }
        for number in (0, 1)
    ]
    wanted = claim()
    wanted["spec"]["devices"]["requests"] = [{"name": "r", "firstAvailable": alternatives}]
    old, new = (allocate(slices(4), [wanted], {0}, rules) for rules in (OLD, NEW))
    assert isinstance(old, Failure)
    assert old.kind is FailureKind.NO_SOLUTION
    assert isinstance(new, allocator.Allocated)
    assert [each["device"] for each in new.allocations[0]["devices"]["results"]] == ["d1", "d3"]


def test_selector_of_the_second_alternative_for_all_devices_is_not_evaluated() -> None:
    """One that would fail the pod, found by comparison with the allocator of 1.34."""
    fails = [{"cel": {"expression": "device.attributes['neuron.aws.com'].missing == 0"}}]
    every = {"deviceClassName": "any", "allocationMode": "All"}
    wanted = claim()
    alternatives = [{"name": "one", **every}, {"name": "other", **every, "selectors": fails}]
    wanted["spec"]["devices"]["requests"] = [{"name": "r", "firstAvailable": alternatives}]
    found = [allocate(slices(2), [wanted], {0}, rules) for rules in (OLD, NEW)]
    assert [isinstance(each, Failure) and each.kind for each in found] == [
        FailureKind.NO_SOLUTION,
        FailureKind.POD_ERROR,
    ]
