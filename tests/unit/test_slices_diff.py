"""The writes that update a pool's slices: the cases of Kubernetes' own helper, and invariants.

The families are those of TestControllerSyncPool in kubernetes/dynamic-resource-allocation that apply to a pool of one
node.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.core import slices
from neuron_dra.core.slices import Pool, SlicePlan, desired, diff, dropped_fields, slice_name

POOL = Pool("node-a", "uid-node-a")
Slices = list[dict[str, Any]]


def writes(plan: SlicePlan) -> list[Any]:
    """Return the writes of a plan."""
    return [*plan.delete, *plan.update, *plan.create]


def device(number: int, **more: Any) -> dict[str, Any]:
    return {"name": f"neuron-device-{number}", "attributes": {"deviceId": {"int": number}}, **more}


def devices(count: int, **more: Any) -> Slices:
    return [device(number, **more) for number in range(count)]


def stored(wanted: Sequence[Mapping[str, Any]], generation: int = 1, pool: Pool = POOL) -> Slices:
    """Return the slices as an API server has them after a publish of `wanted`."""
    return [with_meta(item, index) for index, item in enumerate(desired(pool, wanted, generation))]


def with_meta(item: Mapping[str, Any], number: int = 0, version: int = 10) -> dict[str, Any]:
    meta = {"uid": f"uid-{item['metadata']['name']}-{number}", "resourceVersion": str(version)}
    return copy.deepcopy({**item, "metadata": {**item["metadata"], **meta}})


def foreign(name: str, held: Slices, generation: int = 1, count: int = 1) -> dict[str, Any]:
    """A slice of our driver and node that another program created, with another form of name."""
    item = desired(POOL, held, generation)[0]
    item["metadata"]["name"] = name
    item["spec"]["pool"]["resourceSliceCount"] = count
    return with_meta(item)


def applied(current: Slices, plan: SlicePlan) -> Slices:
    """Apply a plan as the API server does: guarded deletes and updates, creates of free names."""
    by_name = {item["metadata"]["name"]: item for item in current}
    for item in plan.delete:
        assert by_name.pop(item["metadata"]["name"])["metadata"]["uid"] == item["metadata"]["uid"]
    for item in plan.update:
        have = by_name[item["metadata"]["name"]]["metadata"]
        assert (item["metadata"]["uid"], item["metadata"]["resourceVersion"]) == (have["uid"], have["resourceVersion"])
        by_name[item["metadata"]["name"]] = with_meta(item, version=int(have["resourceVersion"]) + 1)
        by_name[item["metadata"]["name"]]["metadata"]["uid"] = have["uid"]
    for item in plan.create:
        assert item["metadata"]["name"] not in by_name
        by_name[item["metadata"]["name"]] = with_meta(item, version=20)
    return [by_name[name] for name in sorted(by_name)]


def names(items: Sequence[Mapping[str, Any]]) -> list[str]:
    return [item["metadata"]["name"] for item in items]


def generations(items: Sequence[Mapping[str, Any]]) -> set[int]:
    return {item["spec"]["pool"]["generation"] for item in items}


@pytest.mark.contract("S1")
def test_first_publish_is_generation_1() -> None:
    plan = diff(POOL, [], devices(2))
    assert (plan.delete, plan.update) == ((), ())
    assert plan.create == (
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "name": "node-a-neuron.aws.com-00",
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-node-a", "controller": True}
                ],
            },
            "spec": {
                "driver": "neuron.aws.com",
                "nodeName": "node-a",
                "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
                "devices": devices(2),
            },
        },
    )


@pytest.mark.contract("S2")
def test_unchanged_slices_are_not_written() -> None:
    plan = diff(POOL, stored(devices(130), 7), devices(130))
    assert not writes(plan)
    assert plan.generation == 7


@pytest.mark.contract("S3")
def test_single_change_keeps_the_generation() -> None:
    wanted = devices(70)
    wanted[69] = device(69, capacity={"memory": {"value": "96Gi"}})
    plan = diff(POOL, stored(devices(70), 4), wanted)
    assert names(plan.update) == ["node-a-neuron.aws.com-01"]
    assert (plan.delete, plan.create, generations(plan.update)) == ((), (), {4})


@pytest.mark.contract("S4")
def test_two_changes_raise_the_generation() -> None:
    wanted = devices(130, capacity={"memory": {"value": "96Gi"}})
    wanted[128:] = devices(130)[128:]
    plan = diff(POOL, stored(devices(130), 4), wanted)
    assert len(plan.update) == 3
    assert generations(plan.update) == {5}


@pytest.mark.contract("S4")
@pytest.mark.parametrize(("before", "after"), [(64, 65), (65, 129), (129, 65), (65, 64), (64, 200)])
def test_changed_count_raises_the_generation(before: int, after: int) -> None:
    current = stored(devices(before), 4)
    plan = diff(POOL, current, devices(after))
    left = applied(current, plan)
    assert generations(left) == {5}
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in left} == {len(left)}
    assert len(plan.delete) == max(0, len(current) - len(left))


@pytest.mark.contract("S25")
def test_other_naming_is_replaced_in_one_generation() -> None:
    current = [foreign("node-a-neuron.aws.com-x7k2p", devices(2), 9)]
    plan = diff(POOL, current, devices(2))
    assert names(plan.delete) == ["node-a-neuron.aws.com-x7k2p"]
    assert names(plan.create) == ["node-a-neuron.aws.com-00"]
    assert (plan.update, generations(plan.create)) == ((), {10})


@pytest.mark.contract("S25")
@pytest.mark.parametrize("node", ["node-a", "ip-10-1-1-200.ec2.internal", "n" * 253])
def test_slice_names_identify_own_slices(node: str) -> None:
    assert all(slices.is_ours(slices.slice_name(node, index), node) for index in range(100))
    for name in (
        f"{node}-neuron.aws.com-x7k2p",
        f"{node}-neuron.aws.com-0",
        f"{node}-neuron.aws.com-²²",
        f"{node}x-00",
        "00",
    ):
        assert not slices.is_ours(name, node)


@pytest.mark.contract("S25")
def test_foreign_named_slice_is_deleted() -> None:
    current = [*stored(devices(2), 3), foreign("node-a-neuron.aws.com-x7k2p", devices(2), 3, 2)]
    plan = diff(POOL, current, devices(2))
    assert names(plan.delete) == ["node-a-neuron.aws.com-x7k2p"]
    assert names(plan.update) == ["node-a-neuron.aws.com-00"]
    assert generations(plan.update) == {4}


def test_older_generation_slice_is_recreated() -> None:
    current = stored(devices(70), 4)
    current[1]["spec"]["pool"]["generation"] = 3
    plan = diff(POOL, current, devices(70))
    assert names(plan.delete) == names(plan.create) == ["node-a-neuron.aws.com-01"]
    assert generations(applied(current, plan)) == {5}


def test_missing_generation_is_one() -> None:
    current = stored(devices(2), 0)
    del current[0]["spec"]["pool"]["generation"]
    assert not writes(diff(POOL, current, devices(2)))


def test_pool_with_another_name_is_recreated() -> None:
    current = stored(devices(2), 4)
    current[0]["spec"]["pool"]["name"] = "other"
    plan = diff(POOL, current, devices(2))
    assert names(plan.delete) == names(plan.create) == ["node-a-neuron.aws.com-00"]


@pytest.mark.contract("S6")
def test_lost_slice_raises_the_generation() -> None:
    current = stored(devices(130), 4)
    del current[1]
    plan = diff(POOL, current, devices(130))
    assert names(plan.create) == ["node-a-neuron.aws.com-01"]
    assert generations(applied(current, plan)) == {5}


@pytest.mark.contract("S6")
def test_generation_survives_deletion_of_all() -> None:
    assert diff(POOL, [], devices(2), known_generation=7).generation == 7


@pytest.mark.contract("S8")
@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec["devices"].pop(),
        lambda spec: spec["devices"].reverse(),
        lambda spec: spec.pop("devices"),
        lambda spec: spec["devices"][0]["attributes"].update(x={"int": 1}),
        lambda spec: spec["devices"][0].update(taints=[{"key": "k", "effect": "NoSchedule"}]),
        lambda spec: spec["pool"].update(resourceSliceCount=2),
    ],
)
def test_an_edit_by_hand_is_reverted(change: Any) -> None:
    current = stored(devices(2))
    change(current[0]["spec"])
    plan = diff(POOL, current, devices(2))
    assert names(plan.update) == ["node-a-neuron.aws.com-00"]
    assert plan.update[0]["spec"]["devices"] == devices(2)


@pytest.mark.contract("S24")
def test_recreated_node_owns_its_slices() -> None:
    plan = diff(Pool("node-a", "uid-new"), stored(devices(2)), devices(2))
    assert plan.update[0]["metadata"]["ownerReferences"][0]["uid"] == "uid-new"
    assert (plan.delete, plan.create) == ((), ())


@pytest.mark.contract("S13")
def test_no_device_is_one_slice_without_devices() -> None:
    plan = diff(POOL, [], [])
    assert len(plan.create) == 1
    assert "devices" not in plan.create[0]["spec"]
    assert not writes(diff(POOL, applied([], plan), []))


@pytest.mark.contract("S16")
def test_slices_have_at_most_the_tainted_limit() -> None:
    assert [len(chunk) for chunk in slices.layout(devices(129))] == [64, 64, 1]


@pytest.mark.contract("S12")
def test_server_taint_time_is_kept() -> None:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    current = stored(devices(2, taints=[taint]))
    for held in current[0]["spec"]["devices"]:
        held["taints"] = [{**taint, "timeAdded": "2026-01-01T00:00:00Z"}]
    assert not writes(diff(POOL, current, devices(2, taints=[taint])))
    changed = devices(2, taints=[taint])
    changed[1]["taints"] = [{**taint, "effect": "NoExecute"}]
    update = diff(POOL, current, changed).update[0]["spec"]["devices"]
    assert update[0]["taints"] == [{**taint, "timeAdded": "2026-01-01T00:00:00Z"}]
    assert update[1]["taints"] == [{**taint, "effect": "NoExecute"}]


@pytest.mark.contract("S12")
def test_taint_time_is_kept_per_taint() -> None:
    def time_of(number: int) -> str:
        return f"2026-01-0{number + 1}T00:00:00Z"

    def tainted(**change: str) -> dict[str, str]:
        return {"key": "k", "value": "v", "effect": "NoSchedule", **change}

    before = [device(n, taints=[tainted(), tainted(value="w")]) for n in range(2)]
    current = stored(before)
    for n, held in enumerate(current[0]["spec"]["devices"]):
        held["taints"] = [{**taint, "timeAdded": time_of(n)} for taint in held["taints"]]
    first = device(0, taints=[tainted(key="other"), tainted(value="other"), tainted(value="w")])
    wanted = [first, before[1], device(2)]
    written = diff(POOL, current, wanted).update[0]["spec"]["devices"]
    assert written == [
        device(0, taints=[tainted(key="other"), tainted(value="other"), tainted(value="w", timeAdded=time_of(0))]),
        device(1, taints=[tainted(timeAdded=time_of(1)), tainted(value="w", timeAdded=time_of(1))]),
        device(2),
    ]


def test_the_last_tainted_device_can_be_taken_off() -> None:
    taint = {"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    plan = diff(POOL, stored([device(0, taints=[taint])]), [])
    assert names(plan.update) == ["node-a-neuron.aws.com-00"]
    assert "devices" not in plan.update[0]["spec"]


@pytest.mark.contract("S12")
def test_taint_with_a_time_keeps_it() -> None:
    taint = {"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    current = stored([device(0, taints=[taint])])
    wanted = [device(0, taints=[{**taint, "timeAdded": "2026-02-02T00:00:00Z"}, {"key": "x", "effect": "None"}])]
    assert diff(POOL, current, wanted).update[0]["spec"]["devices"] == wanted


@pytest.mark.contract("S11")
def test_dropped_field_is_named_and_not_resent() -> None:
    sent = devices(2, taints=[{"key": "k", "effect": "NoSchedule"}])
    kept = devices(2)
    assert dropped_fields(sent, kept) == ("devices[0].taints", "devices[1].taints")
    accepted = {slice_name("node-a", 0): (sent, kept)}
    assert not writes(diff(POOL, stored(kept), sent, accepted=accepted))
    assert writes(diff(POOL, stored(kept), sent))
    other = devices(2, taints=[{"key": "other", "effect": "NoSchedule"}])
    assert writes(diff(POOL, stored(kept), other, accepted=accepted))


def test_server_defaults_are_not_dropped_fields() -> None:
    sent = devices(1, taints=[{"key": "k", "effect": "NoSchedule"}])
    kept = devices(1, taints=[{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}])
    assert dropped_fields(sent, kept) == ()
    assert dropped_fields(devices(2), devices(1)) == ("devices",)


def test_slice_without_owner_gets_its_owner() -> None:
    current = stored(devices(2))
    del current[0]["metadata"]["ownerReferences"]
    plan = diff(POOL, current, devices(2))
    assert plan.update[0]["metadata"]["ownerReferences"] == [POOL.owner]


@pytest.mark.parametrize("parts", ["a.", "a-", "ab.", "a-b.", "a--b.", "abc-d."])
def test_slice_names_are_valid(parts: str) -> None:
    for start in range(len(parts)):
        node_name = (parts * 253)[start : start + 253].strip(".-")
        name = slice_name(node_name, 0)
        assert len(name) <= 253
        assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", label) for label in name.split("."))


def test_long_node_names_give_distinct_names() -> None:
    one, other = "a" * 252 + "b", "a" * 252 + "c"
    assert len(slice_name(one, 0)) <= 253
    assert slice_name(one, 0) != slice_name(other, 0)
    assert slice_name("node-a", 3) == "node-a-neuron.aws.com-03"


# Laws.

_counts = st.integers(0, 140)


@st.composite
def _messes(draw: st.DrawFn) -> Slices:
    """Any slices of our driver and node that failures may leave behind."""
    current = stored(devices(draw(_counts)), draw(st.integers(1, 5)))
    current = [item for item in current if draw(st.booleans())]
    for item in current:
        if draw(st.booleans()):
            item["spec"]["pool"]["generation"] = draw(st.integers(0, 6))
    if draw(st.booleans()):
        current.append(foreign("node-a-neuron.aws.com-zz", devices(draw(st.integers(1, 3))), draw(st.integers(0, 9))))
    return current


@given(_messes(), _counts, st.integers(0, 9))
def test_diff_after_writes_is_empty(current: Slices, count: int, known: int) -> None:
    left = applied(current, diff(POOL, current, devices(count), known_generation=known))
    assert not writes(diff(POOL, left, devices(count), known_generation=known))


@given(_messes(), _counts)
def test_the_pool_ends_complete_at_one_generation(current: Slices, count: int) -> None:
    left = applied(current, diff(POOL, current, devices(count)))
    assert len(generations(left)) == 1
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in left} == {len(left)}
    assert [d for item in left for d in item["spec"].get("devices", [])] == devices(count)


@given(_messes(), _counts, st.integers(0, 9))
def test_generation_never_falls(current: Slices, count: int, known: int) -> None:
    plan = diff(POOL, current, devices(count), known_generation=known)
    before = max(generations(current), default=0)
    assert plan.generation >= before
    if current and (plan.delete or plan.create or len(plan.update) > 1):
        assert plan.generation > max(before, known)


@pytest.mark.contract("S31")
@given(_messes(), _counts)
def test_readers_never_see_two_complete_pools(current: Slices, count: int) -> None:
    """Readers use the highest generation only, and only if all its slices are present."""
    plan = diff(POOL, current, devices(count))
    steps = [SlicePlan(delete=(item,)) for item in plan.delete]
    steps += [SlicePlan(update=(item,)) for item in plan.update]
    steps += [SlicePlan(create=(item,)) for item in plan.create]
    seen, wanted = current, [d["name"] for d in devices(count)]
    for step in steps:
        seen = applied(seen, step)
        if writes(plan) and plan.generation in generations(seen):
            newest = [item for item in seen if item["spec"]["pool"]["generation"] == plan.generation]
            if len(newest) == newest[0]["spec"]["pool"]["resourceSliceCount"]:
                assert [d["name"] for item in newest for d in item["spec"].get("devices", [])] == wanted


COUNTERS = [{"name": "devices", "counters": {"device-0": {"value": "2"}}}]


def test_counters_are_in_a_separate_slice() -> None:
    """16.1: the API server rejects slices with both; enabling counters rewrites all slices in one generation."""
    before = stored(devices(65))
    plan = diff(POOL, before, devices(65), counters=COUNTERS)
    assert [item["metadata"]["name"] for item in plan.create] == [slice_name("node-a", 2)]
    assert plan.create[0]["spec"]["sharedCounters"] == COUNTERS
    after = applied(before, plan)
    assert generations(after) == {2}
    assert [len(item["spec"].get("devices", [])) for item in after] == [64, 1, 0]
    assert diff(POOL, after, devices(65), counters=COUNTERS) == SlicePlan(generation=2)


def test_a_changed_counter_is_written() -> None:
    """16.1."""
    plan = diff(POOL, [], devices(1), counters=COUNTERS)
    changed = [{**COUNTERS[0], "counters": {"device-0": {"value": "4"}}}]
    again = diff(POOL, applied([], plan), devices(1), counters=changed)
    assert [item["spec"].get("sharedCounters") for item in again.update] == [changed]
