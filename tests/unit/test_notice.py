"""The notice of a workload's pods: what is read of an allocation, what a node tells, and what a container gets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from neuron_dra.core import notice
from neuron_dra.core.claims import ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.notice import UNTOLD, Notice, Told
from neuron_dra.core.ultraserver import Allocation, Phase, Reading, Tag, decode_allocations, told

SLOT = Allocation("ml", "llm", "uid-llm", "alloc-1", Phase.BOUND, ("a", "b"), 2, 0)
ENDS = Notice("CapacityBlockEnds", "2026-12-01T10:30:00Z")


def device(request: str, name: str, **edits: Any) -> PreparedDevice:
    return PreparedDevice(request, "a", name, (0,), (), {"deviceNodes": [], **edits})


def prepared(*devices: PreparedDevice) -> PreparedClaim:
    return PreparedClaim(ClaimRef("ml", "job", "uid-1"), devices, workload="llm")


def test_notice_of_an_allocation_is_read_as_it_was_written() -> None:
    slot = replace(SLOT, notice=ENDS)
    assert decode_allocations({"status": {"allocations": [slot.to_wire()]}}) == (slot,)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "Migrating",
        [],
        {},
        {"reason": "Migrating"},
        {"time": "2026-12-01T10:30:00Z"},
        {"reason": 7, "time": "2026-12-01T10:30:00Z"},
        {"reason": "", "time": "2026-12-01T10:30:00Z"},
        {"reason": "migrating", "time": "2026-12-01T10:30:00Z"},
        {"reason": "A" * 65, "time": "2026-12-01T10:30:00Z"},
        {"reason": 'A", "time": "x', "time": "2026-12-01T10:30:00Z"},
        {"reason": "Migrating\n", "time": "2026-12-01T10:30:00Z"},
        {"reason": "Migrating", "time": "Friday"},
        {"reason": "Migrating", "time": "2026-12-01T10:30:00Z\n"},
        {"reason": "Migrating", "time": "2026-12-01T10:30:00.1234567890Z"},
        {"reason": "Migrating", "time": "٢٠٢٦-12-01T10:30:00Z"},
    ],
)
def test_hostile_notice_is_left_out_and_the_allocation_counts(value: Any) -> None:
    entry = {**SLOT.to_wire(), "notice": value}
    assert decode_allocations({"status": {"allocations": [entry]}}) == (SLOT,)


def test_file_is_one_line_of_json() -> None:
    text = ENDS.encode()
    assert json.loads(text) == {"reason": "CapacityBlockEnds", "time": "2026-12-01T10:30:00Z"}
    assert (text.count(b"\n"), text[-1:], len(text) < 200) == (1, b"\n", True)


LEAVING = replace(SLOT, phase=Phase.DRAINING)
MOVES = Notice("Migrating", "2026-12-01T10:30:00Z")


@pytest.mark.parametrize(
    ("tag", "slots", "found"),
    [
        (None, (SLOT,), None),
        (Tag.of(SLOT), (SLOT,), Told("ml", "llm", None)),
        (Tag.of(SLOT), (replace(SLOT, notice=ENDS),), Told("ml", "llm", ENDS)),
        (Tag.of(LEAVING), (replace(LEAVING, notice=MOVES),), Told("ml", "llm", MOVES)),
        # A controller of an earlier release, or a CRD that drops the field.
        (Tag.of(LEAVING), (LEAVING,), Told("ml", "llm", UNTOLD)),
        # Its entry is gone, and the node closes for the next reservation.
        (Tag.of(LEAVING), (replace(SLOT, allocation_id="alloc-2"),), Told("ml", "llm", UNTOLD)),
        # The object was deleted by force: what was said stays.
        (Tag.of(SLOT), (), None),
    ],
)
def test_node_tells_what_its_tag_and_its_ultraserver_say(
    tag: Tag | None, slots: tuple[Allocation, ...], found: Told | None
) -> None:
    assert told(tag, Reading(slots)) == found


def test_each_request_has_the_mount_once_and_each_device_the_variable() -> None:
    made = notice.added(
        prepared(device("a", "d0", env=["X=1"]), device("a", "d1"), device("b", "d2", mounts=[{"hostPath": "/x"}])),
        "/var/run/cdi/neuron.aws.com-notices",
    )
    mount = {
        "hostPath": "/var/run/cdi/neuron.aws.com-notices/claim_uid-1",
        "containerPath": "/neuron-dra",
        "options": ["ro", "nosuid", "nodev", "noexec", "bind"],
    }
    variable = "NEURON_DRA_NOTICE_FILE=/neuron-dra/notice.json"
    assert [dict(each.edits) for each in made.devices] == [
        {"deviceNodes": [], "env": ["X=1", variable], "mounts": [mount]},
        {"deviceNodes": [], "env": [variable]},
        {"deviceNodes": [], "env": [variable], "mounts": [{"hostPath": "/x"}, mount]},
    ]
    assert notice.has_folder(made)


def test_claim_of_an_earlier_release_has_no_folder() -> None:
    assert not notice.has_folder(prepared(device("a", "d0"), device("b", "d1", mounts=[{"containerPath": "/dev/x"}])))


def test_claims_of_other_workloads_are_not_told() -> None:
    ours = prepared(device("a", "d0"))
    others = (
        replace(ours, workload="other"),
        replace(ours, ref=ClaimRef("dev", "job", "uid-1")),
        replace(ours, workload=""),
    )
    assert [Told("ml", "llm", ENDS).concerns(each) for each in (ours, *others)] == [True, False, False, False]


def test_uid_is_found_in_the_name_of_a_folder() -> None:
    assert notice.claim_uid_of(notice.folder_name("uid-1")) == "uid-1"
