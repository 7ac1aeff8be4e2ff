"""What tests found of UltraServers, and which reservations are those of tests. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from neuron_dra.ask.read.views import MetaView, TestedView, UltraServerView
from neuron_dra.ask.render import words
from neuron_dra.ask.world.world import World
from neuron_dra.core.qualification import NAMESPACE
from neuron_dra.core.ultraserver import Tag

IN_A_TEST = "in a test"
NOT_TESTED = "not tested"


def is_test(tag: Tag) -> bool:
    """Return True if a reservation is that of a test, which ends for any workload that would have its nodes."""
    return tag.workload_namespace == NAMESPACE


def results(world: World, server: UltraServerView) -> list[TestedView]:
    """Return what tests found of the very Nodes that an UltraServer has."""
    return [each for each in server.status.qualifications if _is_of(world, each)]


def _is_of(world: World, result: TestedView) -> bool:
    """Return False if another instance has the name of a node that was tested."""
    for name, uid in zip(result.nodes, result.node_uids, strict=False):
        node = world.snapshot.get("Node", name)
        if node is not None and MetaView.of(node["metadata"]).uid not in ("", uid):
            return False
    return True


def texts(found: Iterable[TestedView]) -> list[str]:
    """Return a text for each qualification: what failed, or when the last of its nodes passed."""
    by_name: Mapping[str, list[TestedView]] = defaultdict(list)
    for each in found:
        by_name[each.qualification].append(each)
    return [_text(name, same) for name, same in sorted(by_name.items())]


def _text(name: str, same: Sequence[TestedView]) -> str:
    failed = [each for each in same if each.verdict == "Failed"]
    if not failed:
        return f"passed {name} at {min(each.tested_at for each in same)}"
    last = max(failed, key=lambda each: each.tested_at)
    twice = " twice" if last.unqualified else ""
    why = f": {last.message}" if last.message else ""
    return f"failed {name}{twice} at {last.tested_at} on {words.listed(last.nodes)}{why}"


def oldest_pass(found: Sequence[TestedView]) -> str:
    """Return when the node passed whose last pass is the oldest; empty if one failed, or none was tested."""
    if any(each.verdict == "Failed" for each in found):
        return ""
    return min((each.passed_at for each in found), default="")


def rows(found: Iterable[TestedView]) -> list[dict[str, object]]:
    """Return the results for `-o json` and `-o yaml`."""
    return [
        {
            "qualification": each.qualification,
            "nodes": [*each.nodes],
            "verdict": each.verdict,
            "testedAt": each.tested_at,
            "passedAt": each.passed_at,
            "unqualified": each.unqualified,
            "message": each.message,
        }
        for each in found
    ]
