"""The checkpoint's bytes: damage is detected, and fields of a newer release are kept."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.checkpoint import Checkpoint, device_names, holders
from neuron_dra.core.claims import ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.ultraserver import Phase, Tag
from neuron_dra.errors import CheckpointDamaged, CheckpointOfLaterRelease
from tests.support.slots import HEADER, sealed, sealed_text

_words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _words, lambda inner: st.lists(inner, max_size=2), max_leaves=4
)
_newer = st.dictionaries(st.sampled_from(["tags", "later", "ünknown"]), _json, max_size=2)


@st.composite
def _devices(draw: st.DrawFn) -> PreparedDevice:
    return PreparedDevice(
        request=draw(_words),
        pool=draw(_words),
        device=draw(_words),
        device_ids=tuple(draw(st.lists(st.integers(0, 31), max_size=3))),
        cdi_ids=tuple(draw(st.lists(_words, max_size=2))),
        edits=draw(st.dictionaries(_words, _json, max_size=2)),
        admin_access=draw(st.booleans()),
        share_id=draw(st.none() | st.uuids().map(str)),
        extra=draw(_newer) or None,
    )


@st.composite
def _claims(draw: st.DrawFn) -> PreparedClaim:
    return PreparedClaim(
        ClaimRef(draw(_words), draw(_words), draw(_words)),
        tuple(draw(st.lists(_devices(), max_size=2))),
        prepared_at=draw(_words),
        pod=draw(_words),
        adopted=draw(st.booleans()),
        workload=draw(_words),
        extra=draw(_newer) or None,
    )


_checkpoints = st.builds(
    lambda boot_id, claims, extra: Checkpoint(boot_id, {claim.ref.uid: claim for claim in claims}, extra),
    _words,
    st.lists(_claims(), max_size=3, unique_by=lambda claim: claim.ref.uid),
    _newer,
)


def some() -> Checkpoint:
    claims = [
        PreparedClaim(
            ClaimRef("ml", f"job-{i}", f"uid-{i}"),
            (PreparedDevice("r", "node-a", f"neuron-device-{i}", (i,), (f"id-{i}",), {"env": ["A=é"]}),),
            prepared_at="2026-03-21T11:43:02+00:00",
            pod=f"job-{i}",
        )
        for i in range(2)
    ]
    return Checkpoint("boot-1", {claim.ref.uid: claim for claim in claims}, {"inventoryTaken": True})


@given(_checkpoints)
def test_encode_and_decode_round_trip(checkpoint: Checkpoint) -> None:
    assert checkpoints.decode(checkpoints.encode(checkpoint)) == checkpoint


@given(_checkpoints)
def test_equal_checkpoints_have_equal_bytes(checkpoint: Checkpoint) -> None:
    turned = replace(checkpoint, claims=dict(reversed(list(checkpoint.claims.items()))))
    assert checkpoints.encode(turned) == checkpoints.encode(checkpoint)


@pytest.mark.contract("P20")
def test_flipped_bits_are_detected_or_harmless() -> None:
    whole, raw = some(), checkpoints.encode(some())
    for position in range(len(raw)):
        for bit in range(8):
            damaged = raw[:position] + bytes([raw[position] ^ (1 << bit)]) + raw[position + 1 :]
            with contextlib.suppress(CheckpointDamaged):
                assert checkpoints.decode(damaged) == whole, f"byte {position}, bit {bit}"


@pytest.mark.contract("P20")
def test_truncations_are_detected_or_harmless() -> None:
    whole, raw = some(), checkpoints.encode(some())
    noticed = 0
    for length in range(len(raw)):
        try:
            assert checkpoints.decode(raw[:length]) == whole
        except CheckpointDamaged:
            noticed += 1
    assert noticed == len(raw) - 1  # all except the one without the last newline


@pytest.mark.contract("P20")
def test_contents_behind_the_line_are_ignored() -> None:
    """A shorter checkpoint leaves the end of a longer one in its slot."""
    assert checkpoints.decode(checkpoints.encode(Checkpoint("boot")) + checkpoints.encode(some())) == Checkpoint("boot")


@pytest.mark.contract("P20")
@pytest.mark.parametrize("order", [1, -1])
def test_mixture_of_two_writes_is_neither(order: int) -> None:
    """A write that is stopped at any byte leaves the beginning of one and the end of the other."""
    first, second = (
        checkpoints.encode(replace(checkpoint, sequence=sequence))
        for sequence, checkpoint in ((9, some()), (10, some().without(["uid-0"])))
    )
    written, before = (first, second)[::order]
    noticed = 0
    for length in range(len(written)):
        torn = written[:length] + before[length:]
        try:
            assert torn.startswith((written.rstrip(), before)), (
                f"{length} bytes of sequence {checkpoints.decode(torn).sequence}"
            )
        except CheckpointDamaged:
            noticed += 1
    assert noticed > len(written) - 30  # all but the beginning, which both have, and the end


@pytest.mark.contract("P20")
@pytest.mark.parametrize("length", [0, 1, 10**9 - 1, 10**18, -1])
def test_wrong_length_is_damage(length: int) -> None:
    raw = re.sub(rb'"length":[0-9]+', b'"length":%d' % length, checkpoints.encode(some()))
    with pytest.raises(CheckpointDamaged):
        checkpoints.decode(raw)


@pytest.mark.contract("P20")
def test_newest_whole_slot_counts() -> None:
    older, newer = (checkpoints.encode(Checkpoint(f"boot-{n}", sequence=n)) for n in (9, 10))
    for slots, boot_id in (((older, newer), "boot-10"), ((newer, older), "boot-10"), ((older, newer[:-9]), "boot-9")):
        found = checkpoints.newest(slots)
        assert found is not None
        assert found.boot_id == boot_id
    assert checkpoints.newest((None, None)) is None
    for damaged in ((None, b""), (newer[:-9], b"\0" * 99)):
        with pytest.raises(CheckpointDamaged):
            checkpoints.newest(damaged)


@pytest.mark.contract("P20")
def test_slot_of_a_later_release_is_not_passed_over() -> None:
    later = sealed(body_of(some()), version="v2")
    with pytest.raises(CheckpointOfLaterRelease):
        checkpoints.newest((checkpoints.encode(some()), later))


@pytest.mark.contract("P20")
@given(st.binary(max_size=64))
@example(b"[" * 100_000)
@example(b"[]")
@example(b"null")
@example(b'{"version":"v1"}')
@example(b"\x00" * 4096)
def test_other_bytes_are_damage_and_nothing_worse(raw: bytes) -> None:
    with pytest.raises(CheckpointDamaged):
        checkpoints.decode(raw)


def body_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a checkpoint has behind its header."""
    body: dict[str, Any] = json.loads(checkpoints.encode(checkpoint))
    return {name: value for name, value in body.items() if name not in HEADER}


@pytest.mark.contract("O7")
def test_unknown_fields_survive_a_write() -> None:
    body = body_of(some())
    body["tags"] = {"workloadId": "llm"}
    body["claims"]["uid-0"]["workload"] = "llm"
    body["claims"]["uid-0"]["devices"][0]["network"] = {"data": [1]}
    read = checkpoints.decode(sealed(body))
    written = body_of(read.with_claims({"uid-1": replace(read.claims["uid-1"], pod="other")}))
    written["claims"]["uid-1"]["pod"] = "job-1"
    assert written == body


@pytest.mark.contract("P20")
def test_unknown_version_is_named() -> None:
    with pytest.raises(CheckpointOfLaterRelease, match="format 'v2' is unknown to this release"):
        checkpoints.decode(sealed(body_of(some()), version="v2"))


@pytest.mark.contract("P20")
@pytest.mark.parametrize(
    "change",
    [
        {"bootId": None},
        {"claims": []},
        {"claims": {"uid-0": []}},
        {"claims": {"uid-0": {"namespace": "ml", "name": "job"}}},
        {"claims": {"uid-0": {"namespace": 1, "name": "job", "preparedAt": "", "devices": []}}},
        {"claims": {"uid-0": {"namespace": "ml", "name": "job", "preparedAt": "", "devices": [{"request": "r"}]}}},
        {"claims": {"uid-0": {"namespace": "ml", "name": "job", "preparedAt": "", "devices": 7}}},
    ],
)
def test_wrong_shape_with_valid_checksum_is_damage(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointDamaged):
        checkpoints.decode(sealed({**body_of(some()), **change}))


def test_empty_share_id_is_none() -> None:
    body = body_of(some())
    body["claims"]["uid-0"]["devices"][0]["shareId"] = ""
    assert checkpoints.decode(sealed(body)).claims["uid-0"].devices[0].share_id is None


def test_admin_claims_hold_no_device() -> None:
    device = replace(some().claims["uid-0"].devices[0], admin_access=True)
    checkpoint = Checkpoint("b", {"uid-0": replace(some().claims["uid-0"], devices=(device,))})
    assert holders(checkpoint.claims.values()) == {}
    assert device_names(checkpoint.claims.values()) == {"neuron-device-0"}


def test_add_keeps_other_claims() -> None:
    one, other = some().claims.values()
    added = Checkpoint("boot-1", {one.ref.uid: one}).with_claims({other.ref.uid: other})
    assert added.claims == {one.ref.uid: one, other.ref.uid: other}
    again = replace(one, pod="another")
    assert added.with_claims({one.ref.uid: again}).claims == {one.ref.uid: again, other.ref.uid: other}


def test_holder_of_a_device_is_its_claim() -> None:
    checkpoint = some()
    assert holders(checkpoint.claims.values()) == {0: checkpoint.claims["uid-0"], 1: checkpoint.claims["uid-1"]}
    assert device_names(checkpoint.claims.values()) == {"neuron-device-0", "neuron-device-1"}
    left = checkpoint.without(["uid-0"])
    assert holders(left.claims.values()) == {1: checkpoint.claims["uid-1"]}
    assert device_names(left.claims.values()) == {"neuron-device-1"}


@pytest.mark.contract("P20")
@pytest.mark.parametrize(
    "change", [{"shareId": {}}, {"deviceIds": [-1]}, {"deviceIds": ["0"]}, {"deviceIds": [True]}, {"cdiIds": [None]}]
)
def test_wrong_device_with_valid_checksum_is_damage(change: dict[str, Any]) -> None:
    body = body_of(some())
    body["claims"]["uid-0"]["devices"][0].update(change)
    with pytest.raises(CheckpointDamaged, match="of the wrong type"):
        checkpoints.decode(sealed(body))


@given(_checkpoints, _claims())
def test_add_and_remove_keep_other_claims(checkpoint: Checkpoint, claim: PreparedClaim) -> None:
    without = checkpoint.without([claim.ref.uid])
    assert without.with_claims({claim.ref.uid: claim}).without([claim.ref.uid]) == without


# Reservations by UltraServer workloads

TAG = Tag("ml", "llm", "uid-llm", "a-1", Phase.BOUND)


def test_tag_is_stored_and_removed() -> None:
    tagged = checkpoints.decode(checkpoints.encode(Checkpoint("boot").with_tag(TAG)))
    assert tagged.tag == TAG
    assert checkpoints.decode(checkpoints.encode(tagged.with_tag(None))) == Checkpoint("boot")


def test_tag_stores_its_object() -> None:
    """13.3."""
    remembered = replace(TAG, object_uid="us-1")
    assert checkpoints.decode(checkpoints.encode(Checkpoint("boot").with_tag(remembered))).tag == remembered


def test_older_release_keeps_tags() -> None:
    body = json.loads(checkpoints.encode(Checkpoint("boot").with_tag(TAG)))
    assert set(body) == {*HEADER, "bootId", "claims", "workloadTag"}
    assert (
        checkpoints.decode(checkpoints.encode(Checkpoint("boot", extra={"workloadTag": body["workloadTag"]}))).tag
        == TAG
    )


@pytest.mark.parametrize("texts", [None, 7, [], {}, {**TAG.texts(), "workloadPhase": "bound"}, {"allocationId": "a-1"}])
def test_unreadable_tag_is_none(texts: Any) -> None:
    assert checkpoints.decode(checkpoints.encode(Checkpoint("boot", extra={"workloadTag": texts}))).tag is None


def test_the_format_is_called_v1() -> None:
    assert json.loads(checkpoints.encode(Checkpoint("boot")))["version"] == "v1"


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
            max_leaves=8,
        ),
    )
)
@example({"a": "\x7f"})
@example({"b": "\u2028"})
@example({"z": {"y": 1, "x": 2}, "a": 3})
@example({"c": "\ud800"})
@example({"d": 2**80, "e": '</\\"\b\f\n\r\t\x00'})
def test_any_field_of_a_later_release_survives(body: dict[str, Any]) -> None:
    extra = {name: value for name, value in body.items() if name not in (*HEADER, "bootId", "claims")}
    assert checkpoints.decode(checkpoints.encode(Checkpoint("boot", extra=extra))).extra == extra


@pytest.mark.parametrize("number", ["1.5", "1e3", "-0.0", "NaN", "Infinity"])
def test_a_number_with_a_fraction_is_damage(number: str) -> None:
    with pytest.raises(CheckpointDamaged, match=f"not JSON: {number} is not a whole number"):
        checkpoints.decode(sealed_text('{"bootId":"boot","claims":{},"later":' + number + "}"))
