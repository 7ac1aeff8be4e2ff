"""Names are listed as a person counts: trn2-2 before trn2-10 (4.09)."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dra import cli
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.why import answer
from neuron_dra.ask.world.world import World
from tests.support import shown_fleet
from tests.support import small_clusters as small

NODES = ("trn2-1", "trn2-10", "trn2-2")


def test_why_lists_nodes_in_use_as_a_person_counts() -> None:
    items = [*small.base(*NODES), small.pod("late", "sixteen"), small.template("sixteen", 16)]
    for number, name in enumerate(NODES):
        items += small.running(small.base(name), f"train-{number}", 4, name)
    world = World(snapshot.build(items))
    pod = world.snapshot.objects["Pod", "default", "late"]
    [finding] = answer.REPORTS["Pod"](world, pod).findings
    nodes = [text.partition(":")[0] for label, text in finding.facts if label == "held"]
    assert nodes == ["node trn2-1", "node trn2-2", "node trn2-10"]


def test_why_of_a_type_lists_objects_as_a_person_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = small.base(*NODES)
    for item in items:
        if item["kind"] == "Node":
            item["spec"] = {"unschedulable": True}
    path = shown_fleet.written(tmp_path, items)
    cli.main(["why", "nodes", "-o", "name", "--snapshot", str(path)])
    assert capsys.readouterr().out.split() == ["node/trn2-1", "node/trn2-2", "node/trn2-10"]
