"""NeuronUltraServer objects: names, allocations of any origin, and the tags of nodes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.core import devices, limits
from neuron_dra.core.ultraserver import (
    GONE,
    TAG_ATTRIBUTES,
    Allocation,
    Fault,
    Phase,
    Reading,
    Tag,
    UnreadAllocation,
    decode_allocations,
    next_tag,
    object_name,
    official_slot,
    read_allocations,
    slot_of,
    tag_on,
    tagged,
    waits_for_claims,
)

NODES = ("node-a", "node-b", "node-c", "node-d")
SLOT = Allocation("ml", "llm", "uid-llm", "a-1", Phase.BOUND, NODES, 4, 1, 8, "node-x", "2026-01-02T03:04:05Z")
OTHER = replace(SLOT, workload_name="other", workload_uid="uid-other", allocation_id="b-1", phase=Phase.PENDING)
TAG = Tag.of(SLOT)


def ultraserver(*entries: Any) -> dict[str, Any]:
    return {"metadata": {"name": "us-id-0"}, "status": {"allocations": list(entries)}}


# Names.


@pytest.mark.parametrize(
    ("ultraserver_id", "name"),
    [
        ("cr-0123456789abcdef0", "us-cr-0123456789abcdef0"),
        ("0a1b2c3d4e5f6071", "us-0a1b2c3d4e5f6071"),
        ("Block/7", "ush-block-7-b3148b92e56b17a1"),
        ("\ud800", "ush-91a681b998555fb4"),
    ],
)
def test_the_objects_name_shows_the_id(ultraserver_id: str, name: str) -> None:
    assert object_name(ultraserver_id) == name


@given(st.text(max_size=80) | st.from_regex(r"(us|ush)?-?[-a-z0-9]{0,80}", fullmatch=True))
def test_every_id_gives_a_valid_name(ultraserver_id: str) -> None:
    name = object_name(ultraserver_id)
    assert len(name) <= 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert name == object_name(ultraserver_id)


@pytest.mark.parametrize("length", [57, 58, 300])
def test_long_id_name_keeps_a_prefix(length: int) -> None:
    name = object_name("cr-" + "a" * length)
    assert len(name) == 63
    assert name.startswith("us-cr-a" if length == 57 else "ush-cr-a")


@given(st.lists(st.text("aA-._ 0é", max_size=70), min_size=2, max_size=2, unique=True))
def test_two_ids_never_share_a_name(ids: list[str]) -> None:
    assert object_name(ids[0]) != object_name(ids[1])


# Allocations.


def test_allocation_round_trips() -> None:
    assert decode_allocations(ultraserver(SLOT.to_wire(), OTHER.to_wire())) == (SLOT, OTHER)
    assert SLOT.to_wire()["workloadRef"] == "ml/llm"
    assert SLOT.to_wire()["leaderNodeName"] == "node-a"


def test_absent_workload_fields_are_none() -> None:
    entry = {k: v for k, v in SLOT.to_wire().items() if k not in ("worldSize", "rank0Node", "allocatedAt", "nodeCount")}
    assert decode_allocations(ultraserver(entry)) == (replace(SLOT, world_size=None, rank0_node=None, allocated_at=""),)


def test_ranks_count_over_all_slots() -> None:
    assert [replace(SLOT, ultraserver_index=2).rank(node) for node in NODES] == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"workloadRef": "llm"}, "workloadRef 'llm' is not namespace/name"),
        ({"workloadRef": None}, "workloadRef None is not namespace/name"),
        ({"workloadUid": None}, "workloadUid is missing"),
        ({"allocationId": ""}, "allocationId is missing"),
        ({"allocationId": "a" * 65}, "not a printable text of at most 64 bytes"),
        ({"workloadUid": "a\nb"}, "not a printable text"),
        ({"phase": "bound"}, "phase 'bound' is not one of Pending, Bound, Draining"),
        ({"phase": ["Bound"]}, "is not one of Pending, Bound, Draining"),
        ({"allocatedNodes": "node-a"}, "allocatedNodes is not a list of node names"),
        ({"allocatedNodes": []}, "allocatedNodes is not a list of node names"),
        ({"allocatedNodes": ["node-a", 1]}, "allocatedNodes is not a list of node names"),
        ({"allocatedNodes": ["node-a"] * 4}, "allocatedNodes lists a node twice"),
        ({"nodeCount": 2}, "nodeCount is 2, but allocatedNodes has 4 nodes"),
        ({"nodeCount": True}, "nodeCount True is not a whole number"),
        ({"ultraserverIndex": -1}, "ultraserverIndex -1 is not a whole number of at least 0"),
        ({"ultraserverIndex": None}, "ultraserverIndex None"),
        ({"worldSize": "8"}, "worldSize '8' is not a whole number"),
    ],
)
def test_invalid_entry_is_omitted_with_a_reason(change: dict[str, Any], why: str) -> None:
    reading = read_allocations(ultraserver({**SLOT.to_wire(), **change}, OTHER.to_wire()))
    assert reading.allocations == (OTHER,)
    (problem,) = reading.problems
    assert problem.startswith("status.allocations[0] is left out: ")
    assert why in problem


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(SLOT.to_wire())), ANYTHING) | ANYTHING)
def test_no_garbage_raises(garbage: Any) -> None:
    merged = {**SLOT.to_wire(), **garbage} if isinstance(garbage, dict) else garbage
    for obj in ({"status": garbage}, ultraserver(garbage), ultraserver(merged), {"status": {"allocations": garbage}}):
        assert len(read_allocations(obj).allocations) <= 1


@pytest.mark.parametrize(
    ("obj", "reading"),
    [
        ({}, GONE),
        ({"metadata": {"uid": "us-1"}}, Reading(object_uid="us-1", written=False)),
        ({"metadata": None, "status": None}, Reading(written=False)),
        ({"status": {}}, Reading(written=False)),
        ({"status": {"allocations": None}}, Reading()),
        ({"metadata": {"uid": "us-1"}, "status": {"allocations": []}}, Reading(object_uid="us-1")),
    ],
)
def test_object_without_allocations_is_valid(obj: dict[str, Any], reading: Reading) -> None:
    assert read_allocations(obj) == reading


def test_aws_entry_without_ids_is_read() -> None:
    """13.3."""
    entry = {k: v for k, v in SLOT.to_wire().items() if k not in ("workloadUid", "allocationId")}
    assert read_allocations(ultraserver(entry, OTHER.to_wire())) == Reading(
        (OTHER,),
        ("status.allocations[0] is left out: workloadUid is missing",),
        (
            UnreadAllocation(
                entry,
                NODES,
                "status.allocations[0] is left out: workloadUid is missing",
                replace(SLOT, workload_uid="", allocation_id=""),
            ),
        ),
    )


def test_unreadable_entry_keeps_named_nodes() -> None:
    """13.3."""
    newer = {**SLOT.to_wire(), "phase": "Suspended"}
    assert [(each.entry, each.nodes, each.official) for each in read_allocations(ultraserver(newer, "?")).unread] == [
        (newer, NODES, None),
        ("?", (), None),
    ]
    assert read_allocations(ultraserver({"allocatedNodes": ["node-a", 1]})).unread[0].nodes == ("node-a",)


# Tags.

LOST = [GONE, Reading(written=False), Reading(object_uid="us-2", written=False), Reading(object_uid="us-2")]
"""The states after a forced deletion: no object, or a recreated one without the reservation."""


@pytest.mark.parametrize("reading", LOST)
def test_bound_tag_survives_its_object(reading: Reading) -> None:
    """13.3."""
    bound, closing = replace(TAG, object_uid="us-1"), replace(TAG, object_uid="us-1", phase=Phase.DRAINING)
    assert next_tag(bound, reading, "node-a", occupied=True) == bound
    assert next_tag(bound, reading, "node-a", occupied=False) == bound
    assert not waits_for_claims(bound, reading, "node-a")
    assert next_tag(closing, reading, "node-a", occupied=True) == closing
    assert next_tag(closing, reading, "node-a", occupied=False) is None


@pytest.mark.parametrize("reading", LOST)
def test_pending_tag_ends_with_its_object(reading: Reading) -> None:
    """13.3."""
    assert next_tag(replace(TAG, phase=Phase.PENDING, object_uid="us-1"), reading, "node-a", occupied=True) is None


def test_tag_ends_when_its_object_drops_it() -> None:
    """13.3."""
    assert next_tag(replace(TAG, object_uid="us-1"), Reading(object_uid="us-1"), "node-a", occupied=True) is None
    assert next_tag(TAG, Reading(object_uid="us-1"), "node-a", occupied=True) is None


def test_restored_reservation_keeps_its_tag() -> None:
    """13.3."""
    reading = Reading((SLOT,), object_uid="us-2")
    assert next_tag(replace(TAG, object_uid="us-1"), reading, "node-a", occupied=True) == Tag.of(SLOT, "us-2")


def test_tag_without_object_ends_with_last_claim() -> None:
    """13.3."""
    assert next_tag(TAG, GONE, "node-a", occupied=True, given_up=True) == TAG
    assert next_tag(TAG, GONE, "node-a", occupied=False, given_up=True) is None
    assert waits_for_claims(TAG, GONE, "node-a", given_up=True)


@pytest.mark.parametrize("occupied", [False, True])
def test_tag_of_a_replaced_node_ends(occupied: bool) -> None:
    """13.3: the object was deleted by force and restored, then the Node was replaced by one with its name."""
    tag = replace(TAG, object_uid="uid-before")
    reading = Reading((replace(SLOT, node_uids=tuple(f"uid-{node}" for node in NODES)),), object_uid="uid-after")
    kept = reading.without_predecessors_of("node-a", "uid-new")
    assert next_tag(tag, replace(kept, replaced=frozenset()), "node-a", occupied=True) == tag
    assert next_tag(tag, kept, "node-a", occupied=occupied) is None


def test_aws_entry_takes_uid_from_the_tag() -> None:
    """13.3."""
    entry = {k: v for k, v in SLOT.to_wire().items() if k not in ("workloadUid", "allocationId")}
    reading = read_allocations(ultraserver({**SLOT.to_wire(), "phase": "?"}, entry))
    nameless = replace(SLOT, workload_uid="", allocation_id="")
    assert official_slot(reading, "node-a", None) == nameless
    assert official_slot(reading, "node-a", Tag.of(OTHER)) == nameless
    assert official_slot(reading, "node-a", TAG) == replace(SLOT, allocation_id="")
    assert official_slot(reading, "node-z", TAG) is None


def test_free_node_is_tagged_at_once() -> None:
    assert next_tag(None, Reading((OTHER,)), "node-a", occupied=True) == Tag.of(OTHER)
    assert next_tag(None, Reading((SLOT,)), "node-z", occupied=False) is None


@pytest.mark.parametrize("before", Phase)
@pytest.mark.parametrize("after", Phase)
def test_phase_of_the_reservation_is_followed(before: Phase, after: Phase) -> None:
    current = Tag.of(replace(SLOT, phase=before))
    wanted = replace(SLOT, phase=after)
    assert next_tag(current, Reading((wanted,)), "node-a", occupied=True) == Tag.of(wanted)


def test_tag_ends_with_its_allocation_id() -> None:
    again = replace(SLOT, allocation_id="a-2", phase=Phase.PENDING)
    assert next_tag(TAG, Reading(), "node-a", occupied=True) is None
    assert next_tag(TAG, Reading((again,)), "node-a", occupied=False) == Tag.of(again)


def test_next_reservation_waits_for_claims() -> None:
    reading = Reading((OTHER,))
    assert next_tag(TAG, reading, "node-a", occupied=True) == replace(TAG, phase=Phase.DRAINING)
    assert next_tag(TAG, reading, "node-a", occupied=False) == Tag.of(OTHER)
    assert waits_for_claims(TAG, reading, "node-a")
    assert not waits_for_claims(None, reading, "node-a")
    assert not waits_for_claims(TAG, Reading((SLOT,)), "node-a")


def test_unreadable_entry_ends_no_tag() -> None:
    assert next_tag(TAG, Reading((), ("nonsense",)), "node-a", occupied=False) == TAG
    assert next_tag(TAG, Reading((OTHER,), ("nonsense",)), "node-a", occupied=False) == TAG


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({"allocationId": "c-1", "allocatedNodes": ["node-y", "node-z"], "nodeCount": 2}, True),
        ({"allocationId": "c-1"}, False),
        ({"allocatedNodes": ["node-y", "node-z"], "nodeCount": 2}, True),
        ({"allocationId": "c-1", "allocatedNodes": None}, False),
        ({"allocationId": "c-1", "allocatedNodes": ["node-y", 7]}, False),
    ],
)
def test_unreadable_entry_keeps_tags_of_its_own_nodes_only(changes: dict[str, Any], ends: bool) -> None:
    """13.3: with such an entry the other nodes of the UltraServer stayed Draining permanently."""
    reading = read_allocations(ultraserver({**SLOT.to_wire(), "phase": "Suspended", **changes}))
    assert (next_tag(TAG, reading, "node-a", occupied=True) is None) == ends
    other = replace(reading, allocations=(OTHER,))
    assert (next_tag(TAG, other, "node-a", occupied=False) == Tag.of(OTHER)) == ends


def test_tag_and_allocation_name_the_workload_alike() -> None:
    assert (TAG.workload, SLOT.workload) == ("ml/llm", "ml/llm")


def test_unreadable_entry_waits_for_no_claims() -> None:
    assert not waits_for_claims(TAG, Reading((OTHER,), ("nonsense",)), "node-a")


def test_tagged_reservation_wins() -> None:
    reading = Reading((OTHER, replace(SLOT, phase=Phase.DRAINING)))
    assert slot_of(reading, "node-a", TAG) == replace(SLOT, phase=Phase.DRAINING)
    assert slot_of(reading, "node-a", None) == OTHER
    assert slot_of(reading, "node-z", TAG) is None


def test_a_tag_survives_its_attributes() -> None:
    device = tagged({"name": "neuron-node-0", "attributes": {"deviceId": {"int": 0}}}, TAG)
    assert device["attributes"] == {
        "allocationId": {"string": "a-1"},
        "deviceId": {"int": 0},
        "workloadId": {"string": "llm"},
        "workloadNamespace": {"string": "ml"},
        "workloadPhase": {"string": "Bound"},
        "workloadUid": {"string": "uid-llm"},
    }
    assert tag_on([{"name": "other"}, device]) == TAG
    assert tagged(device, None) == {"name": "neuron-node-0", "attributes": {"deviceId": {"int": 0}}}
    assert tagged({"name": "bare"}, None) == tagged(tagged({"name": "bare"}, TAG), None) == {"name": "bare"}


@pytest.mark.parametrize("name", TAG_ATTRIBUTES)
def test_incomplete_tag_is_none(name: str) -> None:
    device = tagged({"name": "neuron-node-0"}, TAG)
    del device["attributes"][name]
    assert tag_on([device]) is None


def test_tags_are_documented_and_fit() -> None:
    assert {each.name for each in devices.TAGS} == set(TAG_ATTRIBUTES)
    assert len(TAG_ATTRIBUTES) == limits.WORKLOAD_TAGS
    assert {each.kind for each in devices.TAGS} == {"string"}


def with_uids(*uids: str) -> Allocation:
    return replace(SLOT, node_uids=uids)


def test_allocation_of_a_replaced_node_is_ignored() -> None:
    reading = read_allocations(ultraserver(with_uids("uid-a", "uid-b", "uid-c", "uid-d").to_wire()))
    assert reading.without_predecessors_of("node-b", "uid-b") == reading
    without = reading.without_predecessors_of("node-b", "uid-new")
    assert without.allocations == ()
    assert without.replaced == {each.allocation_id for each in reading.allocations}
    assert reading.without_predecessors_of("node-z", "uid-new") == reading


@pytest.mark.parametrize(
    ("node", "uid", "known", "expected"),
    [
        ("node-b", "uid-b", ("uid-a", "uid-b", "uid-c", "uid-d"), True),
        ("node-b", "uid-a", ("uid-a", "uid-b", "uid-c", "uid-d"), False),
        ("node-b", "", ("uid-a", "uid-b", "uid-c", "uid-d"), True),
        ("node-b", "uid-b", (), True),
    ],
)
def test_other_uid_is_another_node(node: str, uid: str, known: tuple[str, ...], expected: bool) -> None:
    assert replace(SLOT, node_uids=known).is_for(node, uid) is expected


def test_allocation_is_for_its_nodes_only() -> None:
    assert SLOT.is_for("node-a", "uid-a")
    assert not SLOT.is_for("node-z", "uid-a")


@pytest.mark.parametrize("said", [None, "", 5, ["node-a"]])
def test_invalid_rank_0_name_is_omitted(said: Any) -> None:
    (read,) = read_allocations(ultraserver({**SLOT.to_wire(), "rank0Node": said})).allocations
    assert read.rank0_node is None


def test_allocation_without_uids_matches_names() -> None:
    reading = read_allocations(ultraserver(SLOT.to_wire()))
    assert reading.without_predecessors_of("node-b", "any") == Reading((SLOT,))


def test_mismatched_uids_make_entry_unreadable() -> None:
    reading = read_allocations(ultraserver(with_uids("only-one").to_wire()))
    assert reading.allocations == ()
    assert reading.problems == (
        "status.allocations[0] is left out: nodeUids is not a list of 4 UIDs, one for each of allocatedNodes",
    )


def test_faults_round_trip() -> None:
    fault = Fault("node-b", "LinkDown", "2026-03-01T12:00:00Z")
    entry = replace(SLOT, faults=(fault,)).to_wire()
    entry["faults"] += [{"nodeName": "node-c"}, "nonsense"]
    assert decode_allocations(ultraserver(entry)) == (replace(SLOT, faults=(fault,)),)
