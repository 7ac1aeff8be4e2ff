"""What a node publishes, and the time of the next check, however often it is woken (14.3)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import devices
from neuron_dra.core.claims import ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.publication import DEFAULT_LEAVING_TIMING, Claimed, Outcome, Situation, decide

TRN2 = devices.published(healthy_node("trn2.48xlarge"), driver_version="0.1.0")
NODE, DEVICES = (
    devices.published(healthy_node("trn2u.48xlarge"), driver_version="0.1.0", ultraserver_devices=shape)
    for shape in ("node", "devices")
)
ALL = {device.name: device.to_wire() for device in TRN2}
THREE = "neuron-device-3"


def names(outcome: Outcome) -> list[str] | None:
    return None if outcome.devices is None else [device["name"] for device in outcome.devices]


def prepared(device: str, *ids: int) -> PreparedClaim:
    held = PreparedDevice("r", "node-a", device, ids, (), {})
    return PreparedClaim(ClaimRef("default", "job", "uid"), (held,))


def situation(**changes: Any) -> Situation:
    made: dict[str, Any] = {
        "current": ALL,
        "offered": TRN2,
        "ids": {device.name: device.device_ids for device in TRN2},
        "effect": "NoSchedule",
        **changes,
    }
    return Situation(**made)


GONE = situation(reasons={THREE: ("missing",)})
WITHOUT = [name for name in ALL if name != THREE]


def test_devices_are_published_in_id_order() -> None:
    assert names(decide(0.0, situation(current={}), None)) == [f"neuron-device-{i}" for i in range(16)]
    assert decide(0.0, situation(), None) == Outcome(tuple(ALL.values()))


def test_withdrawal_checks_allocations_first() -> None:
    assert decide(0.0, GONE, None) == Outcome(needs_allocated=True)
    assert names(decide(0.0, GONE, None, set())) == WITHOUT
    stays = decide(0.0, GONE, None, {THREE})
    assert names(stays) == list(ALL)
    assert (stays.claimed, stays.look_at) == (Claimed(frozenset({THREE}), 5.0, 5.0), 5.0)


def test_allocation_check_is_cached_with_backoff() -> None:
    last = Claimed(frozenset({THREE}), 5.0, 5.0)
    for now in (0.0, 1.0, 4.9):
        again = decide(now, GONE, last)
        assert (again.needs_allocated, again.look_at, names(again)) == (False, 5.0, list(ALL))
    assert decide(5.0, GONE, last) == Outcome(needs_allocated=True)
    waits = []
    now, claimed = 5.0, last
    for _ in range(6):
        outcome = decide(now, GONE, claimed, {THREE})
        assert outcome.claimed is not None
        claimed = outcome.claimed
        waits.append(claimed.until - now)
        now = claimed.until
    assert waits == [10.0, 20.0, 40.0, 60.0, 60.0, 60.0]


def test_allocation_check_is_per_device() -> None:
    last = Claimed(frozenset({THREE}), 5.0, 5.0)
    two = situation(reasons={THREE: ("missing",), "neuron-device-4": ("missing",)})
    assert decide(1.0, two, last) == Outcome(needs_allocated=True)


@given(st.lists(st.floats(0.0, 600.0), max_size=300).map(sorted))
def test_wakeups_do_not_add_checks(wakes: list[float]) -> None:
    last: Claimed | None = None
    asked = []
    for now in wakes:
        outcome = decide(now, GONE, last)
        if outcome.needs_allocated:
            asked.append(now)
            outcome = decide(now, GONE, last, {THREE})
        last = outcome.claimed
        assert outcome.look_at is not None
    assert len(asked) <= 4 + 600 / 60
    assert all(later - earlier >= 5.0 for earlier, later in itertools.pairwise(asked))


def test_prepared_device_stays_without_a_check() -> None:
    held = situation(reasons={THREE: ("missing",)}, prepared=(prepared(THREE, 3),))
    outcome = decide(0.0, held, None)
    assert (names(outcome), outcome.look_at) == (list(ALL), None)
    gone = tuple(device for device in TRN2 if device.name != THREE)
    assert names(decide(0.0, situation(offered=gone, prepared=(prepared(THREE, 3),)), None)) == list(ALL)


def test_device_held_by_another_name_is_withheld() -> None:
    held = situation(current={}, prepared=(prepared("neuron-3", 3),))
    assert names(decide(0.0, held, None)) == WITHOUT


def test_refusal_keeps_only_held_devices() -> None:
    assert decide(0.0, situation(current={}, refused=True), None) == Outcome()
    """14.5: held by a claim, prepared or only allocated."""
    assert decide(0.0, situation(refused=True), None) == Outcome(needs_allocated=True)
    assert names(decide(0.0, situation(refused=True), None, ())) == []
    allocated = decide(0.0, situation(refused=True), None, (THREE, "another-driver's"))
    assert (names(allocated), allocated.look_at) == ([THREE], DEFAULT_LEAVING_TIMING.check_s[0])
    assert names(decide(0.0, situation(refused=True, prepared=(prepared(THREE, 3),)), None, ())) == [THREE]


def test_deleted_slices_return_with_held_devices() -> None:
    """14.5: otherwise a device in use would be missing from the slices and from the pod's status."""
    wiped = situation(current={}, refused=True, prepared=(prepared(THREE, 3),))
    assert names(decide(0.0, wiped, None)) == [THREE]


@pytest.mark.parametrize(
    ("reasons", "keeps_taints", "effect", "leaves"),
    [
        (("hbm_ecc",), False, "NoSchedule", True),
        (("hbm_ecc",), True, "NoSchedule", False),
        (("hbm_ecc",), None, "NoSchedule", False),
        (("hbm_ecc",), False, "None", False),
        (("missing",), True, "None", True),
    ],
)
def test_unhealthy_device_is_withdrawn_without_taints(
    reasons: tuple[str, ...], keeps_taints: bool | None, effect: str, leaves: bool
) -> None:
    sick = situation(reasons={THREE: reasons}, keeps_taints=keeps_taints, effect=effect)
    assert (THREE not in (names(decide(0.0, sick, None, set())) or [])) == leaves


RESHAPED = situation(current={d.name: d.to_wire() for d in NODE}, offered=DEVICES, other=NODE)


def test_layout_change_waits_for_allocated_claims() -> None:
    assert decide(0.0, RESHAPED, None) == Outcome(needs_allocated=True)
    waits = decide(0.0, RESHAPED, None, {"neuron-node-0"})
    assert (names(waits), waits.keeps_shape, waits.look_at) == (["neuron-node-0"], True, 60.0)
    assert decide(30.0, RESHAPED, waits.claimed) == waits
    assert decide(60.0, RESHAPED, waits.claimed) == Outcome(needs_allocated=True)
    done = decide(60.0, RESHAPED, waits.claimed, set())
    assert (len(names(done) or []), done.keeps_shape, done.look_at) == (16, False, None)


def test_layout_change_waits_for_prepared_claims() -> None:
    held = situation(
        current=RESHAPED.current, offered=DEVICES, other=NODE, prepared=(prepared("neuron-node-0", *range(16)),)
    )
    outcome = decide(0.0, held, None)
    assert (names(outcome), outcome.keeps_shape, outcome.look_at) == (["neuron-node-0"], True, 60.0)
