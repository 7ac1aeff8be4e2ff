"""Screens of 80 and 160 columns for 1, 8, 100 and 400 nodes with names as EC2 gives them (34, acceptance 5)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from neuron_dra import cli
from neuron_dra.ask.render import terminal
from neuron_dra.ask.top import text as top_text
from neuron_dra.ask.top.usage import Counters, Sample
from neuron_dra.core.telemetry import User
from neuron_dra.core.wire import Obj
from tests.support import cluster_faults as faults
from tests.support import shown_fleet
from tests.support import small_clusters as small
from tests.support.screens import Terminal, shown

SIZES = {1: (0, 1), 8: (1, 4), 100: (10, 60), 400: (50, 200)}
ROWS = 24
JOB = {"kind": "Job", "name": "eval", "uid": "eval", "controller": True}


def fleet(size: int) -> list[Obj]:
    items = shown_fleet.mixed(*SIZES[size])
    for number in range(2):
        pod = small.pod(f"eval-{number}", "seventeen", namespace="ml")
        pod["metadata"]["ownerReferences"] = [JOB]
        items.append(pod)
    waits = shown_fleet.workload("waits", "ml", "Pending", ready=False, message="no UltraServer is free")
    return shown_fleet.with_ec2_names([*items, waits])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("fleets")
    return {size: shown_fleet.written(folder, fleet(size), f"{size}.json") for size in SIZES}


def node_of(file: Path) -> str:
    """Return the name of a node with pods, or of any."""
    items = json.loads(file.read_text())["items"]
    used = [pod["spec"]["nodeName"] for pod in faults.all_of(items, "Pod") if "nodeName" in pod["spec"]]
    return str(next(iter(used), faults.all_of(items, "Node")[-1]["metadata"]["name"]))


QUESTIONS = {
    "status": ("status",),
    "status wide": ("status", "-o", "wide"),
    "holders": ("status", "holders"),
    "holders wide": ("status", "holders", "-o", "wide"),
    "topology": ("topology",),
    "doctor": ("doctor",),
    "uninstall": ("uninstall-check",),
    "why pods": ("why", "pods", "-A"),
    "why nodes": ("why", "nodes"),
    "why nus": ("why", "nus"),
    "why job": ("why", "job/eval", "-n", "ml"),
    "why workload": ("why", "workload/waits", "-n", "ml"),
}
MANY = {"status", "holders", "topology", "doctor"}
"""What is looked at for 400 nodes too; the others read no more than for 100."""


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("question", QUESTIONS)
def test_no_line_is_wider_than_the_terminal(
    question: str, size: int, columns: int, files: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if size == 400 and question not in MANY:
        return
    lines = shown(monkeypatch, columns, *QUESTIONS[question], "--snapshot", str(files[size]))
    assert [line for line in lines if len(line) > columns] == []


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("size", [8, 100])
def test_pictures_and_nodes_fit(
    size: int, columns: int, files: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = files[size]
    name = node_of(file)
    for words in (("topology", name), ("topology", "trn2u-ultraserver-0"), ("why", f"node/{name}")):
        lines = shown(monkeypatch, columns, *words, "--snapshot", str(file))
        assert [line for line in lines if len(line) > columns] == [], words


@pytest.mark.parametrize("columns", [80, 160])
def test_simulated_pods_fit(
    columns: int, files: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [small.pod(f"pretrain-llama-70b-worker-{number}-x7k2p", "whole", namespace="ml") for number in range(100)]
    manifest = tmp_path / "pods.json"
    manifest.write_text(json.dumps({"kind": "List", "items": pods}))
    lines = shown(monkeypatch, columns, "simulate", str(manifest), "--snapshot", str(files[100]))
    assert [line for line in lines if len(line) > columns] == []
    assert any("of 100 pods run" in line for line in lines[:ROWS]), lines


@pytest.mark.parametrize("columns", [80, 160])
def test_first_screen_of_a_fleet_has_every_kind_of_fault_what_is_free_and_what_waits(
    columns: int, files: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = "\n".join(shown(monkeypatch, columns, "status", "--snapshot", str(files[400]))[:ROWS])
    wanted = [
        "vertical links down",
        "unhealthy",
        "not Ready",
        "13 UltraServers, 20 pairs and 24 other nodes are free",
        "WAITING",
    ]
    assert [each for each in wanted if each not in screen] == [], screen


def test_wide_terminals_have_one_table_of_types_and_nodes_side_by_side(
    files: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = shown(monkeypatch, 80, "status", "--snapshot", str(files[100]))
    wide = shown(monkeypatch, 160, "status", "--snapshot", str(files[100]))
    assert [sum(line.startswith("TYPE ") for line in lines) for lines in (narrow, wide)] == [2, 1]
    narrow = shown(monkeypatch, 80, "topology", "--snapshot", str(files[100]))
    wide = shown(monkeypatch, 160, "topology", "--snapshot", str(files[100]))
    assert len(wide) < 0.75 * len(narrow)


@pytest.mark.parametrize("columns", [80, 160])
def test_commands_are_in_one_piece(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there to be copied."""
    items = [*fleet(8), *(small.node(f"ip-10-9-{n}-7.us-east-2.compute.internal", "trn2.48xlarge") for n in range(2))]
    file = shown_fleet.written(tmp_path, items)
    lines = [line.strip() for line in shown(monkeypatch, columns, "doctor", "--snapshot", str(file))]
    wanted = "neuron-dra doctor node/ip-10-9-0-7.us-east-2.compute.internal"
    assert [line.removeprefix("to do: ") for line in lines if wanted in line] == [wanted], lines


def test_a_node_may_be_named_without_its_domain(files: dict[int, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """As narrow tables show it."""
    name = node_of(files[8])
    for words in (("why", "node/{}"), ("topology", "{}"), ("doctor", "node/{}")):
        answers = []
        for each in (name, name.partition(".")[0]):
            cli.main([*(word.format(each) for word in words), "--snapshot", str(files[8])])
            answers.append(capsys.readouterr().out)
        assert answers[0] == answers[1] != ""


@pytest.mark.parametrize("columns", [80, 160])
def test_published_devices_fit(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all devices share is one line where there is little room."""
    cli.main(["fake-node", "--root", str(tmp_path), "--instance-type", "trn2.48xlarge"])
    lines = shown(monkeypatch, columns, "slices", "--host-root", str(tmp_path), "--node-name", "n", "-o", "table")
    assert [line for line in lines if len(line) > columns] == []
    assert ("all: TYPE trn2.48xlarge, CORES 8, MEMORY 96Gi" in lines) is (columns == 80)
    assert sum(line.startswith("neuron-device-") for line in lines) == 16


@pytest.mark.parametrize("columns", [80, 160])
def test_usage_of_a_fleet_fits(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods of a job differ at the end of their names."""
    before: dict[str, Sample] = {}
    after: dict[str, Sample] = {}
    for number in range(12):
        who = User("ml", f"pretrain-llama-70b-worker-0-{number}-x{number}k2p", "main", f"claim-{number}", "")
        for place, reading in enumerate((before, after)):
            counters = {(device, 0): Counters(who, busy_s=5.0 * place) for device in range(16)}
            name = f"ip-10-12-{number}-140.us-east-2.compute.internal"
            reading[name] = Sample(10.0 * place, "trn2.48xlarge", "2.30.2.0", 0, counters)
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "stdout", Terminal())
        lines = top_text.fleet(after, top_text.rows(before, after, "pod", ""), {}, by="pod", wide=False, most=20)
    assert [line for line in lines if len(line) > columns] == []
    assert len({line.split()[1] for line in lines[2:14]}) == 12
    assert any("left out on a narrow terminal: POWER" in line for line in lines) is (columns == 80)


@pytest.mark.parametrize("names", [["10.0.0.1"], ["a.west", "a.east"]])
def test_names_that_a_domain_tells_apart_stay_whole(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", "40")
        patch.setattr(sys, "stdout", Terminal())
        lines = terminal.table([["NODE", "STATE"], *([name, "word " * 20] for name in names)], hosts=0)
    text = " ".join(lines)
    assert [name for name in names if name not in text] == []
    assert max(map(len, lines)) <= 40
