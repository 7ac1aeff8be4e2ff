"""A snapshot of a cluster leaves out the object that it cannot read; one of a file names it as an error."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.read.snapshot import DamagedObject
from neuron_dra.ask.world import unseen
from neuron_dra.errors import SettingsError
from tests.support import small_clusters as small

CASES: list[Any] = [
    ("Node", {"spec": 7}, "spec is 7: it must be an object"),
    ("Node", {"status": {"conditions": ["x"]}}, "status.conditions[0] is 'x': it must be an object"),
]


@pytest.mark.parametrize(("kind", "change", "why"), CASES)
def test_object_of_a_wrong_type_is_left_out(kind: str, change: dict[str, Any], why: str) -> None:
    items = copy.deepcopy([*small.base("a"), *small.base("b")])
    item = next(each for each in items if each["kind"] == kind)
    name = item["metadata"]["name"]
    item.update(change)
    found = snapshot.build(items, {}, [])
    assert [(each.kind, each.key, each.paths) for each in found.damaged] == [(kind, name, ())]
    assert why in found.damaged[0].why
    assert found.get(kind, name) is None
    assert [each["metadata"]["name"] for each in found.all(kind)] == ["b"]
    with pytest.raises(SettingsError):
        snapshot.build(items)


def test_note_names_a_few_objects() -> None:
    damaged = [DamagedObject("ResourceClaim", "ml", f"c{n}", ("spec.a",)) for n in range(5)]
    note = unseen.note(snapshot.build([], {"Pod": "forbidden"}, damaged))
    assert note == (
        "not seen: Pod (forbidden), "
        + "".join(f"ResourceClaim ml/c{n} (values that cannot be decoded: spec.a), " for n in range(3))
        + "2 more objects that cannot be decoded"
    )
