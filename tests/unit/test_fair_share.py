"""4.02: a limit of tenants' objects takes turns between namespaces."""

from __future__ import annotations

import pytest

from neuron_dra.planner.decisions.fair_share import FairShare


def chosen(most: int, offered: list[tuple[str, str]]) -> list[str]:
    """Return the keys that are chosen of pairs of key and namespace, in the order in which they were offered."""
    share: FairShare[str] = FairShare(most)
    found: list[str] = []
    for key, namespace in offered:
        is_admitted, replaced = share.admits(key, namespace)
        found = [each for each in found if each not in replaced] + ([key] if is_admitted else [])
    return found


@pytest.mark.parametrize("number", [100, 1000, 10_000])
def test_namespace_with_many_objects_hides_no_other(number: int) -> None:
    offered = [(f"a{each}", "a") for each in range(number)]
    assert chosen(4, [*offered, ("b0", "b"), ("b1", "b"), ("b2", "b")]) == ["a0", "a1", "b0", "b1"]


def test_first_objects_are_chosen_while_there_is_room() -> None:
    """The control."""
    assert chosen(4, [("a0", "a"), ("b0", "b"), ("a1", "a")]) == ["a0", "b0", "a1"]


def test_namespaces_beyond_the_limit_are_left_out() -> None:
    assert chosen(2, [("a", "a"), ("b", "b"), ("c", "c")]) == ["a", "b"]
