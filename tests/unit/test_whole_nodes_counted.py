"""Nodes of UltraServers, which are published as one device, count as nodes in each answer (4.08)."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dra.ask.world import imagined, placing
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from neuron_dra.simulate.scheduler import Placement
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.questions import ask, snapshot

WHOLE = "device.attributes['neuron.aws.com'].resourceType == 'neuron_node'"


def cluster(nodes: int, wanted: int = 1) -> list[Obj]:
    """Nodes that pods hold as a whole, and a pod that waits for some."""
    template = small.template("whole", 1, cel=WHOLE)
    asked = small.template("asked", wanted, cel=WHOLE)
    items = [*small.base(), *imagined.fleet(f"{nodes} x trn2u.48xlarge", "test"), template, asked]
    world = World(small.cluster(items))
    for number in range(nodes):
        made = small.created(small.pod(f"train-{number}", "whole"), template)
        world = world.after(made)
        outcome = world.place(made[0])
        assert isinstance(outcome, Placement)
        placed = placing.placed_objects(world, made[0], outcome)
        world = world.after(placed)
        items += map(dict, placed)
    return [*items, *small.created(reported.waits(small.pod("p", "asked")), asked)]


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        (1, "node trn2u-0 is in use as a whole: default/train-0 holds 1"),
        (2, "2 nodes are in use as a whole: default/train-0 holds 1, default/train-1 holds 1"),
    ],
)
def test_nodes_in_use_count_as_nodes(nodes: int, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, cluster(nodes)))
    assert answer.first == f"pod default/p waits for a node: {text}"


def test_claim_for_two_whole_nodes_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, cluster(1, wanted=2)))
    assert "wants 2 nodes as a whole, and a claim has devices of one node" in answer.first


def test_leftover_claim_holds_a_node(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    items = [item for item in cluster(1) if (item["kind"], item["metadata"]["name"]) != ("Pod", "train-0")]
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, items))
    assert "holds node trn2u-0" in answer.first
