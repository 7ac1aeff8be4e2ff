"""Every `-o json` has the shape of docs/output.schema.json (34, 7)."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable
from pathlib import Path

import jsonschema
import msgspec
import pytest

from neuron_dra import cli
from neuron_dra.ask.read import snapshot as snapshots
from neuron_dra.ask.render import answers, terminal
from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import cluster_faults as faults
from tests.support import fast_yaml, shown_fleet
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.output_schema import SCHEMA, checked
from tests.support.questions import ask, snapshot

INVALID = {"type": "Ready", "status": "False", "reason": "InvalidSpec", "message": "topologySize is 3"}


def job() -> list[Obj]:
    """Return a template and two pods, one of which is too large for any node."""
    return [small.template("four", 4), small.template("many", 17), small.pod("fits", "four"), small.pod("not", "many")]


def wrong() -> list[Obj]:
    """Return a fleet with every kind of fault, held devices, reservations and workloads that wait."""
    items = shown_fleet.mixed(8, 20)
    waits = shown_fleet.workload("waits", "ml", "Pending", ready=False)
    waits["status"]["conditions"] = [INVALID]
    return [*items, waits]


Made = Callable[[], list[Obj]]
CLUSTERS: dict[str, Made] = {
    "healthy": faults.healthy,
    "full": reported.full,
    "fragmented": reported.fragmented,
    "mixed": wrong,
    "empty": lambda: [small.node("web", "m5.large")],
}
QUESTIONS = {
    "status": ("status",),
    "holders": ("status", "holders"),
    "why pods": ("why", "pods", "-A"),
    "why nodes": ("why", "nodes"),
    "why workloads": ("why", "workloads", "-A"),
    "uninstall": ("uninstall-check",),
    "doctor": ("doctor",),
    "upgrade": ("doctor", "--kubernetes", "1.35", "--upgrade-to", "1.37"),
}


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_about_a_cluster(
    question: str, cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = snapshot(tmp_path, CLUSTERS[cluster]())
    found = ask(capsys, *QUESTIONS[question], "--snapshot", file, "-o", "json")
    if found.code == 2:
        assert (found.out, found.err.count("\n")) == ("", 1)  # such as "no Node has these labels"
        return
    data = checked(found.out)
    shown = ask(capsys, *QUESTIONS[question], "--snapshot", file, "-o", "yaml")
    assert fast_yaml.load(shown.out) == data


@pytest.mark.parametrize("about", ["pod/p", "claim/other-neurons-x", "node/a"])
def test_answers_about_one_object(about: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = faults.healthy()
    faults.change_requests(items, count=17)
    file = snapshot(tmp_path, items)
    assert checked(ask(capsys, "why", about, "--snapshot", file, "-o", "json").out)["kind"] == "WhyReport"


@pytest.mark.parametrize(
    "words", [("simulate", "--fleet", "1 x trn2.48xlarge"), ("simulate", "--snapshot"), ("validate",)]
)
def test_answers_about_manifests(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": job()}))
    cluster = snapshot(tmp_path, faults.healthy()) if words[-1] == "--snapshot" else ""
    found = checked(ask(capsys, *words, *([cluster] if cluster else []), "-f", str(file), "-o", "json").out)
    assert found["kind"] == {"simulate": "PodOutcomeList", "validate": "ProblemList"}[words[0]]
    assert found["items"]


@pytest.mark.parametrize("name", ["", "topology_x", "causes"])
def test_meanings(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(ask(capsys, "explain", *filter(None, [name]), "-o", "json").out)["items"]


def test_what_was_not_seen_is_in_the_answer() -> None:
    built = snapshots.build(faults.healthy())
    damaged = [snapshots.DamagedObject("ResourceClaim", "ml", "x", why="spec is 3")]
    seen = dataclasses.replace(built, left_out={"Pod": "forbidden"}, damaged=damaged)
    data = status_text.data(World(seen, proposes=False), "")
    whole = {"apiVersion": terminal.API_VERSION, "kind": "Status", **data}
    assert checked(json.dumps(whole))["notSeen"] == [
        {"kind": "Pod", "reason": "forbidden"},
        {"kind": "ResourceClaim", "name": "ml/x", "reason": "it cannot be decoded: spec is 3"},
    ]


def test_schema_allows_new_fields_and_no_wrong_ones() -> None:
    answer = {"apiVersion": "cli.neuron.aws.com/v1", "kind": "ProblemList", "items": [], "new": 1}
    jsonschema.validate(answer, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**answer, "items": [{}]}, SCHEMA)
    with pytest.raises(msgspec.ValidationError):
        checked(json.dumps(answer))


def test_every_kind_is_on_the_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/output.md").read_text()
    tags = [each.__struct_config__.tag for each in typing.get_args(answers.AnyAnswer)]
    assert [tag for tag in tags if f"`{tag}`" not in page] == []


def test_every_command_with_json_is_asked() -> None:
    """`top` and `inspect` are asked in tests/contract, where a plugin runs; `slices` prints objects of Kubernetes."""
    asked = {words[0] for words in QUESTIONS.values()} | {
        "simulate",
        "validate",
        "explain",
        "top",
        "inspect",
        "topology",
    }
    have: set[str] = set()
    for name, (module, _) in cli.COMMANDS.items():
        path = Path(cli.__file__).parent / f"{module.replace('.', '/')}.py"
        if path.exists() and '"json"' in path.read_text():
            have.add(name)
    assert have - {"slices"} == asked
