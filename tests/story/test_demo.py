"""The whole demo: real plugins as processes, scripted kubelets, and its output."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from neuron_dra.demo import cluster, main, processes
from neuron_dra.demo.timing import DemoTiming
from neuron_dra.demo.view import WIDTH, DemoScreen, ranges

PATIENT = DemoTiming(whole_s=1000.0, start_s=300.0, step_s=300.0)
"""Limits that a busy machine keeps."""

RANKS = {
    "the controller has found two": "........",
    "my-training-job reserves 2 groups of 4 nodes": "01234567",
    "it is deleted": "........",
    "again, with 3 groups of 2 nodes": "012345..",
    "us1-2 is lost": "01x.4523",
}


def test_demo_runs_to_the_lost_node() -> None:
    out = io.StringIO()
    view = DemoScreen(Console(file=out, width=WIDTH, highlight=False))
    assert main.run(keep=False, view=view, timing=PATIENT) == 0
    text = out.getvalue()
    lines = text.splitlines()
    assert len(lines) <= 90
    assert max(map(len, lines)) <= WIDTH
    assert not any(line.endswith(" ") for line in lines)
    pods = {words[1]: words[2:] for line in lines if len(words := line.split()) > 3 and words[0].endswith(".yaml")}
    assert pods["pod0"] == ["trn2-a", "0-3"]
    assert pods["row-1"] == ["trn2-a", "4-7"]
    assert pods["driver-2-26"] == ["trn2-b", "0-7"]
    assert pods["neuron-inference-worker"] == ["trn2-b", "8-11", "+", "4", "EFA"]
    assert pods["shared-efa-first"] == ["trn2-b", "2", "EFA", "the", "same", "claim"]
    assert pods["vllm-0"] == ["us1-0", "0-15", "mode", "1,", "node", "0"]
    assert pods["lnc-1"] == ["trn2-a", "0-15", "LNC", "1"]
    assert "/dev/neuron0 /dev/neuron1 /dev/neuron2 /dev/neuron3" in text
    assert "0/11 nodes are available: 11 cannot allocate all claims." in text
    assert "request neurons wants 17 devices: 16 match" in text
    joined = " ".join(text.split())
    assert "error applying config: LNC value is not configurable for instance type trn1.2xlarge" in joined
    assert "2  2  2  2              4  4  4  4" in text
    assert "pod4   Running" in text
    ranks = {caption: next(line for line in lines if caption in line).split()[-8:] for caption in RANKS}
    assert ranks == {caption: list(cells) for caption, cells in RANKS.items()}
    assert "NEURON_DRA_RANK0_NODE=us1-0 NEURON_DRA_WORLD_SIZE=8 NEURON_GLOBAL_TOPOID=5" in text
    assert "NodeGone: nodes are gone: us1-2" in text
    assert "4 other pods kept running" in text


def test_numbers_are_formatted_for_readers() -> None:
    assert ranges([]) == ""
    assert ranges([3]) == "3"
    assert ranges([4, 5]) == "4 5"
    assert ranges([15, 0, 1, 2, 3, 9]) == "0-3 9 15"


async def test_failing_plugin_ends_the_demo_with_its_log(tmp_path: Path) -> None:
    nodes = (cluster.NodeSpec("broken", "trn1.2xlarge"),)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/p").mkdir()
    (tmp_path / "broken/p/neuron.aws.com").write_text("a file where the plugin needs a folder")
    with pytest.raises(processes.DemoError, match="the plugin of broken ended with code"):
        async with cluster.Cluster(nodes, tmp_path) as made:
            await made.ready(PATIENT.start_s)
