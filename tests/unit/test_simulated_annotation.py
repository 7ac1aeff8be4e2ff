"""`simulate` reserves for annotated jobs as the controller does, so that their pods can be placed (35.5)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neuron_dra import cli
from neuron_dra.core.wire import Obj

TRN2U = "trn2u.48xlarge"
FLEET = f"2 x ultraserver {TRN2U}"


def job(pods: int, annotation: str = "topologySize=4", **labels: str) -> Obj:
    """A Job whose pods name a template that does not exist."""
    spec = {
        "nodeSelector": {"node.kubernetes.io/instance-type": TRN2U},
        "containers": [{"name": "c", "resources": {"claims": [{"name": "n"}]}}],
        "resourceClaims": [{"name": "n", "resourceClaimTemplateName": "train-rct"}],
    }
    meta = {"name": "train", "annotations": {"neuron.aws.com/ultraservers": annotation}, "labels": labels}
    template = {"template": {"spec": spec}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {"parallelism": pods, "completions": pods, **template},
    }


def simulated(capsys: pytest.CaptureFixture[str], folder: Path, item: Obj) -> tuple[int, str]:
    file = folder / "job.json"
    file.write_text(json.dumps(item))
    code = cli.main(["simulate", str(file), "--fleet", FLEET])
    return code, " ".join(capsys.readouterr().out.split())


def test_the_pods_of_an_annotated_job_are_placed_on_reserved_nodes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, said = simulated(capsys, tmp_path, job(8))
    assert (code, "8 of 8 pods run" in said) == (0, True)
    assert "NeuronUltraServerWorkload train: 2 groups of 4 nodes reserved" in said
    assert "Job train: its reservation needs the namespace's right and limit, and quota of its queue" in said


def test_a_job_without_enough_nodes_waits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, said = simulated(capsys, tmp_path, job(12))
    assert (code, "0 of 12 pods run" in said) == (1, True)
    assert "needs 3 x 4 trn2u.48xlarge nodes; 2 of 3 groups of 4 are free" in said


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (job(6), "6 pods with the template train-rct: write a multiple of 4"),
        (job(8, "topologySize=3"), "topologySize=3: write one of 1, 2, 4"),
        (
            job(8, **{"kueue.x-k8s.io/queue-name": "team"}),
            "Kueue manages it: replace the label by the annotation neuron.aws.com/queue",
        ),
    ],
    ids=["remainder", "annotation", "queue"],
)
def test_a_job_that_the_controller_refuses_reserves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, item: Obj, words: str
) -> None:
    code, said = simulated(capsys, tmp_path, item)
    assert (code, f"Job train: reserves no nodes: {words}" in said) == (1, True)
