"""18.2. docs/examples.md: every example is listed, runs on the nodes of its row, or names what it needs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from neuron_dra import cli
from tests.support import fast_yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "deploy/examples"
LINE = re.compile(r"^\| [^|]+ \| `(?P<file>[^`]+)` \| `(?P<nodes>[^`]+)` \| (?P<needs>[^|]*)\|$", re.MULTILINE)
LWS, EFA, CONTROLLER = "LeaderWorkerSet", "[EFA interfaces](efa.md)", "the UltraServer controller"
# Of AWS, with torchrun, Open MPI and an SSH server; source: README of aws-neuron/deep-learning-containers.
TRAINING = "public.ecr.aws/neuron/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.27.1-ubuntu24.04"
JOBSET, DNS = "JobSet", "cluster DNS"
MPI = "the MPI operator"
CPU = "a CPU DRA driver with the attribute `resource.kubernetes.io/numaNode`"
KERNEL, REJECTED = "that kernel driver", "rejected when the pod starts"


@dataclass(frozen=True)
class Row:
    """One example of the page."""

    file: str
    nodes: str
    needs: frozenset[str]


PAGE = (ROOT / "docs/examples.md").read_text()
ROWS = [
    Row(found["file"], found["nodes"], frozenset(filter(None, found["needs"].strip().split(", "))))
    for found in LINE.finditer(PAGE)
]
ALONE = {"checkpoint"}
"""The programs of which each process works for itself."""
PROGRAMS = {fast_yaml.load(path.read_text())["metadata"]["name"]: path for path in EXAMPLES.glob("programs/*.yaml")}


def test_every_example_is_listed_once() -> None:
    """(18.2)"""
    files = sorted(
        str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.yaml") if path not in PROGRAMS.values()
    )
    assert sorted(row.file for row in ROWS) == files


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_used_and_listed(name: str) -> None:
    """(18.2)"""
    assert f"`programs/{PROGRAMS[name].name}`" in PAGE
    assert any(name in programs_of((EXAMPLES / row.file).read_text()) for row in ROWS)


def programs_of(text: str) -> set[str]:
    """Return the ConfigMaps that the pods of an example mount."""
    return set(re.findall(r"configMap:\s+name: (\S+)", text))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.file)
def test_examples_name_the_program_that_they_run(row: Row) -> None:
    """(18.2)"""
    text = (EXAMPLES / row.file).read_text()
    for name in programs_of(text):
        applied = f"kubectl apply -f deploy/examples/programs/{PROGRAMS[name].name} -f deploy/examples/{row.file}"
        assert applied in text
        assert f"/programs/{next(iter(fast_yaml.load(PROGRAMS[name].read_text())['data']))}" in text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.file)
def test_jobs_and_servers_do_something(row: Row) -> None:
    """(18.2) Only single pods, which show what they got, wait."""
    text = (EXAMPLES / row.file).read_text()
    assert "sleep infinity" not in text
    assert "sleep" not in text or {item["kind"] for item in fast_yaml.load_all(text)} <= {
        "Pod",
        "ResourceClaim",
        "ResourceClaimTemplate",
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.file)
def test_requirements_are_those_of_the_objects(row: Row) -> None:
    """(18.2)"""
    text = (EXAMPLES / row.file).read_text()
    kinds = {item["kind"] for item in fast_yaml.load_all(text)}
    needs = set()
    if "LeaderWorkerSet" in kinds:
        needs.add(LWS)
    if "NeuronUltraServerWorkload" in kinds:
        needs.add(CONTROLLER)
    if "JobSet" in kinds:
        needs.add(JOBSET)
    if "MPIJob" in kinds:
        needs.add(MPI)
    if programs_of(text) - ALONE:  # their processes find each other by name
        needs.add(DNS)
    if "efa.networking.k8s.aws" in text:
        needs.add(EFA)
    if "dra.cpu" in text:
        needs.add(CPU)
    if "neuronDriverVersion" in text:
        needs.add(KERNEL)
    assert row.needs - {REJECTED} == needs


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.file)
def test_examples_run_on_the_nodes_of_their_row(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    """(18.2) Pods and reservations of workloads are simulated without their controllers."""
    code = cli.main(["simulate", str(EXAMPLES / row.file), "--fleet", row.nodes, "-o", "json"])
    out = capsys.readouterr().out
    simulated = {LWS, DNS, CONTROLLER, JOBSET, MPI}
    if row.nodes.endswith(" efa"):
        simulated.add(EFA)
    assert code == (0 if row.needs <= simulated else 1), out
    assert json.loads(out)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.file)
def test_images_are_public(row: Row) -> None:
    """(18.2) No invented image."""
    images = set(re.findall(r"image: (\S+)", (EXAMPLES / row.file).read_text()))
    library = "public.ecr.aws/docker/library"
    assert images <= {"public.ecr.aws/ubuntu/ubuntu:22.04", f"{library}/python:3.12-slim", TRAINING}
    assert images
