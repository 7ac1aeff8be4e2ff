"""16.1: what is published with counters, and the steps in which a device leaves: taint, list of claims, removal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_dra.api.objects import device_class, healthy_node
from neuron_dra.core import connected, devices, divided, limits, names, partitions, slices
from neuron_dra.core.claims import ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.divided import DividedOutcome, Division, Leaving
from neuron_dra.core.facts import NodeLabels, UltraServerFacts
from neuron_dra.core.publication import DEFAULT_LEAVING_TIMING, Situation
from neuron_dra.core.topology import Node
from neuron_dra.core.wire import Wire

RING = healthy_node("inf2.48xlarge")
SET = "neuron-set-3-0"
WITHDRAW_S = DEFAULT_LEAVING_TIMING.withdraw_s
LATER = WITHDRAW_S + 1


def division(on: bool = True, node: Node = RING, shape: str = "devices", **more: Any) -> Division:
    published = devices.published(node, driver_version="1.2.3", ultraserver_devices=shape)
    found = partitions.partitioned(node, published, **more)
    assert found is not None
    plain = {device.name for device in published}
    return Division(
        on,
        tuple(one.device for one in found.partitions if on or one.device.name in plain),
        tuple(each.to_wire() for each in found.counters),
        found.position,
        lambda name: partitions.named(node, name),
    )


ON, OFF = division(), division(on=False)


def prepared(device: str, *ids: int) -> PreparedClaim:
    return PreparedClaim(ClaimRef("ml", "job", "uid"), (PreparedDevice("r", "node-a", device, ids, (), {}),))


def situation(current: dict[str, Wire] | None = None, **more: Any) -> Situation:
    return Situation(current=current or {}, offered=(), effect="NoSchedule", **more)


def published(outcome: DividedOutcome) -> dict[str, Wire]:
    return {device["name"]: device for device in outcome.devices}


def tainted(outcome: DividedOutcome) -> set[str]:
    """Return the devices that are being withdrawn."""
    return {
        device["name"]
        for device in outcome.devices
        if divided.TAINT_KEY in [t["key"] for t in device.get("taints", ())]
    }


ALL = published(divided.decide(0.0, situation(), ON, None))
DIVIDED = partitions.partitioned(RING, devices.published(RING, driver_version="1.2.3"))
assert DIVIDED is not None
CORES = {one.device.name: one.cores for one in DIVIDED.partitions}
SINGLES = {name for name in ALL if name.startswith("neuron-device-")}


def test_everything_is_published_small_ones_first_and_nothing_is_listed() -> None:
    outcome = divided.decide(0.0, situation(), ON, None)
    assert (outcome.needs_allocated, outcome.divided, tainted(outcome), outcome.look_at) == (False, True, set(), None)
    assert list(published(outcome))[:2] == ["neuron-cores-1-0", "neuron-cores-1-1"]
    assert list(published(outcome))[-1] == "neuron-set-12-0"
    assert all(device["consumesCounters"] for device in outcome.devices)
    again = divided.decide(9.0, situation(published(outcome)), ON, outcome.leaving)
    assert again.devices == outcome.devices


def test_turned_off_it_taints_then_lists_then_removes() -> None:
    first = divided.decide(0.0, situation(ALL), OFF, None)
    assert first == DividedOutcome(needs_allocated=True)
    first = divided.decide(0.0, situation(ALL), OFF, None, {SET})
    assert (tainted(first), set(published(first))) == (set(ALL) - SINGLES, set(ALL))
    assert first.look_at == WITHDRAW_S
    early = divided.decide(WITHDRAW_S - 1, situation(published(first)), OFF, first.leaving)
    assert (early.needs_allocated, set(published(early))) == (False, set(ALL))
    assert divided.decide(LATER, situation(published(first)), OFF, first.leaving).needs_allocated
    late = divided.decide(LATER, situation(published(first)), OFF, first.leaving, {SET, "neuron-device-7"})
    assert (set(published(late)), tainted(late)) == ({*SINGLES, SET}, {SET})
    assert published(late)[SET]["consumesCounters"] == ALL[SET]["consumesCounters"]


def test_the_last_allocation_that_ends_ends_the_counters() -> None:
    left = {name: ALL[name] for name in (*SINGLES, SET)}
    leaving = Leaving(frozenset({SET}), 0.0, LATER)
    assert divided.decide(LATER, situation(left), OFF, leaving, set()) == DividedOutcome(divided=False)


def test_a_prepared_set_stays_without_a_list_of_claims() -> None:
    held = situation({**ALL}, prepared=(prepared(SET, 0, 1, 2),))
    left = divided.decide(LATER, held, OFF, Leaving(frozenset(set(ALL) - SINGLES - {SET}), 0.0, 0.0), set())
    assert (set(published(left)), tainted(left)) == ({*SINGLES, SET}, {SET})
    later = divided.decide(9999.0, replace(held, current=published(left)), OFF, left.leaving)
    assert (later.needs_allocated, set(published(later))) == (False, {*SINGLES, SET})


def test_allocated_set_returns_after_deletion() -> None:
    """Every restart of the kubelet wipes the slices; the setting may have been turned off meanwhile."""
    assert divided.decide(0.0, situation(), OFF, None).needs_allocated
    back = divided.decide(0.0, situation(), OFF, None, {SET, "neuron-device-9"})
    assert (set(published(back)), tainted(back)) == ({*SINGLES, SET}, {SET})
    assert published(back)[SET]["consumesCounters"] == ALL[SET]["consumesCounters"]


def test_each_withdrawn_device_has_its_own_delay() -> None:
    on = divided.decide(0.0, situation(ALL), ON, None)
    fewer = division(sizes=("connected-2",))
    gone = divided.decide(1000.0, situation(published(on)), fewer, on.leaving)
    assert (gone.needs_allocated, gone.look_at) == (False, 1000.0 + WITHDRAW_S)
    assert set(published(gone)) == set(ALL)


def without(*gone: int) -> Node:
    return replace(RING, devices=tuple(one for one in RING.devices if one.device_id not in gone))


def test_missing_device_withdraws_its_sets() -> None:
    rest = division(node=without(4))
    offered = {device.name for device in rest.offered}
    assert set(ALL) - offered == {name for name in ALL if 4 in _ids(name)}
    before, after = (
        {device["name"]: n for n, chunk in enumerate(slices.layout(list(wires), ON.position)) for device in chunk}
        for wires in (ALL.values(), [device.to_wire() for device in rest.offered])
    )
    assert rest.position == ON.position
    assert all(before[name] == place for name, place in after.items())


def test_unhealthy_device_taints_all_its_sets() -> None:
    sick = {name for name in ALL if 4 in _ids(name)}
    found = divided.decide(0.0, situation(reasons=dict.fromkeys(sick, ("hbm_ecc",))), ON, None)
    assert {device["name"] for device in found.devices if device.get("taints")} == sick
    assert {"neuron-device-4", "neuron-set-3-2", "neuron-set-12-0", "neuron-cores-1-9"} <= sick


def _ids(name: str) -> tuple[int, ...]:
    made = partitions.named(RING, name)
    assert made is not None
    return made.device_ids


def test_what_another_driver_prepared_is_in_no_set() -> None:
    ids = {device.name: device.device_ids for device in ON.offered}
    held = situation(prepared=(prepared("neuron3", 3),), ids=ids)
    found = published(divided.decide(0.0, held, ON, None, set()))
    assert not [name for name in found if 3 in _ids(name)]


ULTRA = healthy_node("trn2u.48xlarge")


def test_both_publishes_the_node_and_its_devices_and_ends_like_sets() -> None:
    """16.1, `draDriver.ultraserverDevices: both`."""
    both = divided.decide(0.0, situation(), division(node=ULTRA, shape="both"), None)
    found = set(published(both))
    assert {"neuron-node-0", "neuron-device-15", "neuron-set-8-8", "neuron-cores-3-1"} <= found
    assert "neuron-set-16-0" not in found  # that is the node
    off = division(on=False, node=ULTRA, shape="node")
    first = divided.decide(0.0, situation(published(both)), off, None, set())
    assert tainted(first) == found - {"neuron-node-0"}
    assert divided.decide(LATER, situation(published(first)), off, first.leaving, set()) == DividedOutcome(
        divided=False
    )


def test_a_whole_node_alone_needs_no_counters() -> None:
    alone = divided.decide(0.0, situation(), division(node=ULTRA, shape="node"), None)
    [device] = alone.devices
    assert (device["name"], device["attributes"]["connectedDevices"], alone.counters) == (
        "neuron-node-0",
        {"int": 16},
        (),
    )
    assert "consumesCounters" not in device


def test_all_attributes_tags_and_marks_fit() -> None:
    """An UltraServer's devices have the most; the API allows 32 attributes and capacities."""
    facts = UltraServerFacts((1, 2, 4), server_id_2="ab", server_id_4="cd", node_id_2=1, node_id_4=2)
    labels = {names.CAPACITY_BLOCK_LABEL: "cr-1", **dict.fromkeys(names.NETWORK_LAYER_LABELS, "nn-1")}
    node = replace(healthy_node("trn2u.48xlarge", ultraserver=facts), labels=NodeLabels.from_labels(labels))
    _, problems = limits.check_devices(division(node=node, shape="both").offered)
    assert problems == []


# The invariant, over any sequence of events: what is allocated together shares no core, and what is allocated is
# published.


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_an_allocated_device_is_never_unpublished(data: st.DataObject) -> None:
    """A random sequence of switching, allocating (published, untainted devices with counters left), ending, and
    wipes."""
    on, now, current, allocated = True, 0.0, dict[str, Wire](), set[str]()
    leaving: Leaving | None = None
    for _ in range(data.draw(st.integers(1, 15))):
        event = data.draw(st.sampled_from(["switch", "wait", "wipe", "restart", "allocate", "allocate", "end"]))
        if event == "switch":
            on = not on
        elif event == "wipe":
            current, leaving = {}, None
        elif event == "restart":
            leaving = None
        elif event == "end" and allocated:
            allocated.discard(data.draw(st.sampled_from(sorted(allocated))))
        elif event == "allocate":
            left = _left(current, allocated)
            free = [name for name, device in current.items() if not device.get("taints") and _fits(left, device)]
            if free:
                allocated.add(data.draw(st.sampled_from(sorted(free))))
        now += data.draw(st.sampled_from([0.2, 5.0, 40.0, 100.0]))
        chosen = ON if on else OFF
        outcome = divided.decide(now, situation(current), chosen, leaving)
        if outcome.needs_allocated:
            outcome = divided.decide(now, situation(current), chosen, leaving, allocated)
        leaving = outcome.leaving
        current = published(outcome) if outcome.divided else {name: ALL[name] for name in SINGLES}
        assert allocated <= set(current)
        cores = Counter(core for name in allocated for core in CORES[name])
        assert max(cores.values(), default=0) <= 1


def _left(current: dict[str, Wire], allocated: set[str]) -> dict[tuple[str, str], int]:
    """What is left of the counters: the scheduler counts the allocated devices that are published."""
    left = {(each["name"], key): int(v["value"]) for each in ON.counters for key, v in each["counters"].items()}
    for name in allocated & set(current):
        for key, value in _consumed(current[name]):
            left[key] -= value
    return left


def _fits(left: dict[tuple[str, str], int], device: Wire) -> bool:
    return min(left.values()) >= 0 and all(left[key] >= value for key, value in _consumed(device))


def _consumed(device: Wire) -> list[tuple[tuple[str, str], int]]:
    return [
        ((used["counterSet"], key), int(value["value"]))
        for used in device.get("consumesCounters", ())
        for key, value in used["counters"].items()
    ]


# Where it works.

EXCLUDING = device_class("neuron.aws.com", f"has(device.driver) && {connected.EXCLUSION}")
OFFICIAL = device_class("neuron.aws.com", "true")


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (connected.why_not_kubelet((1, 36)), ""),
        (connected.why_not_kubelet((1, 35)), "the version of this node's kubelet is 1.35"),
        (connected.why_not_kubelet(None), "is unknown"),
        (connected.why_not_class(EXCLUDING), ""),
        (connected.why_not_class(None), "the DeviceClass neuron.aws.com is missing"),
        (connected.why_not_class(OFFICIAL), "also selects connected sets"),
    ],
)
def test_sets_are_published_only_where_they_work(why: str, text: str) -> None:
    assert text in why
    assert bool(why) == bool(text)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (connected.EXCLUSION.replace("'", '"').replace(" ", "  \n"), True),
        (f"true && {connected.EXCLUSION}", True),
        (f"true || {connected.EXCLUSION}", False),
        (f"(true || x) && {connected.EXCLUSION}", True),
        (f"!({connected.EXCLUSION})", False),
    ],
)
def test_the_exclusion_is_a_condition_of_its_own(expression: str, expected: bool) -> None:
    assert connected.excludes_partitions([expression]) == expected
