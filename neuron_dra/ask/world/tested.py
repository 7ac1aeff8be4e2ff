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
    return [result for result in server.status.qualifications if _is_of(world, result)]


def _is_of(world: World, result: TestedView) -> bool:
    """Return False if another instance has the name of a node that was tested."""
    for name, uid in zip(result.nodes, result.node_uids, strict=False):
        node = world.snapshot.get("Node", name)
        if node is not None and MetaView.of(node["metadata"]).uid not in ("", uid):
            return False
    return True


def texts(test_results: Iterable[TestedView]) -> list[str]:
    """Return a text for each qualification: what failed, or when the last of its nodes passed."""
    by_name: Mapping[str, list[TestedView]] = defaultdict(list)
    for result in test_results:
        by_name[result.qualification].append(result)
    return [_text(name, same) for name, same in sorted(by_name.items())]


def _text(name: str, same: Sequence[TestedView]) -> str:
    failed = [result for result in same if result.verdict == "Failed"]
    if not failed:
        return f"passed {name} at {min(result.tested_at for result in same)}"
    last = max(failed, key=lambda result: result.tested_at)
    twice = " twice" if last.unqualified else ""
    why = f": {last.message}" if last.message else ""
    return f"failed {name}{twice} at {last.tested_at} on {words.listed(last.nodes)}{why}"


def oldest_pass(test_results: Sequence[TestedView]) -> str:
    """Return when the node passed whose last pass is the oldest; empty if one failed, or none was tested."""
    if any(result.verdict == "Failed" for result in test_results):
        return ""
    return min((result.passed_at for result in test_results), default="")


def rows(test_results: Iterable[TestedView]) -> list[dict[str, object]]:
    """Return the results for `-o json` and `-o yaml`."""
    return [
        {
            "qualification": result.qualification,
            "nodes": [*result.nodes],
            "verdict": result.verdict,
            "testedAt": result.tested_at,
            "passedAt": result.passed_at,
            "unqualified": result.unqualified,
            "message": result.message,
        }
        for result in test_results
    ]
