"""Which slots are chosen, whatever the plan replaced: the same as by looking at every free slot."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_dra.planner.fleet.placement import KINDS, Slot
from neuron_dra.planner.fleet.places import Overlay, Places, choose, everywhere

LAYERS = st.tuples(*(st.sampled_from((None, "a", "b", "c")) for _ in range(3)))


def by_looking_at_all(
    free: Sequence[Slot], count: int, kind: str | None, near: Sequence[Slot]
) -> tuple[Slot, ...] | None:
    """The specification: sort all slots of one resourceType, and group them by layer."""
    for wanted in (kind,) if kind else KINDS:
        candidates = sorted((slot for slot in free if slot.kind == wanted), key=lambda slot: slot.fit)
        if len(candidates) < count:
            continue
        for depth in (2, 1, 0) if count + len(near) > 1 else ():
            places: dict[str, list[Slot]] = {}
            for slot in candidates:
                name = slot.layers[depth]
                if name is not None:
                    places.setdefault(name, []).append(slot)
            there = {slot.layers[depth] for slot in near}
            enough = [(len(found), name) for name, found in places.items() if len(found) >= count and there <= {name}]
            if enough:
                return tuple(places[min(enough)[1]][:count])
        return tuple(candidates[:count])
    return None


@st.composite
def ultraservers(draw: st.DrawFn, *, names: Sequence[str]) -> dict[str, list[Slot]]:
    """Return the free slots of some UltraServers."""
    found = {}
    for name in draw(st.lists(st.sampled_from(names), unique=True)):
        free, layers, kind = draw(st.integers(1, 4)), draw(LAYERS), draw(st.sampled_from(KINDS))
        found[name] = [
            Slot(name, kind, (f"{name}-{number}",), layers, free, draw(st.integers(1, 2)), number)
            for number in range(draw(st.integers(1, free)))
        ]
    return found


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_choice_is_that_among_all_slots(data: st.DataObject) -> None:
    names = [f"u{number}" for number in range(12)]
    stored = data.draw(ultraservers(names=names))
    places = Places()
    for slot in (each for slots in stored.values() for each in slots):
        places.add(slot)
    for name in data.draw(st.lists(st.sampled_from(names), unique=True, max_size=4)):
        for slot in stored.pop(name, ()):
            places.remove(slot)
    overlay, free = Overlay(places), dict(stored)
    near = tuple(each for slots in data.draw(ultraservers(names=["v0", "v1"])).values() for each in slots)
    for _ in range(data.draw(st.integers(0, 4))):
        changed = data.draw(ultraservers(names=names))
        for name in changed.keys() | set(data.draw(st.lists(st.sampled_from(names), max_size=2))):
            overlay.put(name, stored.get(name, ()), changed.get(name, []))
            free[name] = changed.get(name, [])
        everything = [each for slots in free.values() for each in slots]
        for kind in KINDS:
            in_order = sorted((each for each in everything if each.kind == kind), key=lambda slot: slot.fit)
            assert list(overlay.best(everywhere(kind))) == in_order
            assert overlay.of_a_kind()[kind] == len(in_order)
        count, wanted = data.draw(st.integers(1, 8)), data.draw(st.sampled_from((None, *KINDS)))
        for close in ((), near):
            chosen = choose(overlay, count, kind=wanted, near=close)
            assert chosen == by_looking_at_all(everything, count, wanted, close)
    assert sorted(slot.fit for kind in KINDS for slot in places.best(everywhere(kind))) == sorted(
        slot.fit for slots in stored.values() for slot in slots
    )
