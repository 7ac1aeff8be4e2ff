"""18.5. The health of a NeuronUltraServerWorkload in Argo CD and Flux, computed by their own code."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.bed import build, layout

REPOSITORY = Path(__file__).resolve().parents[2]


KEY = "resource.customizations.health.neuron.aws.com_NeuronUltraServerWorkload"


@pytest.fixture(scope="module")
def program() -> Path:
    here = layout.from_environment()
    module = build.gitops(here)
    build.build_modules(here, [module], "the health checks of Argo CD and Flux")
    return module.bin_dir / "gitops"


def health(program: Path, tmp_path: Path, workload: dict[str, Any]) -> tuple[str, str, str]:
    """Return the status in Argo CD with its message, and that in Flux."""
    script = tmp_path / "health.lua"
    script.write_text(yaml.safe_load((REPOSITORY / "deploy/gitops/argocd-cm.yaml").read_text())["data"][KEY])
    ran = subprocess.run([program, script], input=json.dumps(workload), capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    return found["argo"], found["message"], found["flux"]


def workload(*, generation: int = 2, state: str = "Pending", **conditions: tuple[str, str]) -> dict[str, Any]:
    """Return a workload whose controller has seen generation 2, with conditions as (status, message)."""
    listed = [
        {"type": kind, "status": status, "reason": "Why", "message": message, "observedGeneration": 2}
        for kind, (status, message) in conditions.items()
    ]
    return {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": "a", "namespace": "ml", "generation": generation},
        "spec": {},
        "status": {"observedGeneration": 2, "state": state, "conditions": listed},
    }


NOT_SEEN = "the UltraServer controller has not processed it yet"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            workload(Ready=("True", "reserved"), Progressing=("False", "reserved"), Degraded=("False", "none")),
            ("Healthy", "reserved", "Current"),
        ),
        (
            workload(Ready=("False", "waits"), Progressing=("False", "waits"), Degraded=("False", "none")),
            ("Progressing", "waits", "InProgress"),
        ),
        (
            workload(Ready=("True", "reserved"), Progressing=("False", "reserved"), Degraded=("True", "link down")),
            ("Degraded", "link down", "Current"),
        ),
        (
            workload(state="Failed", Ready=("False", "too big"), Degraded=("False", "none")),
            ("Degraded", "too big", "InProgress"),
        ),
        (workload(generation=3, Ready=("True", "reserved")), ("Progressing", NOT_SEEN, "InProgress")),
        (workload(), ("Progressing", NOT_SEEN, "Current")),
        ({**workload(), "status": {}}, ("Progressing", NOT_SEEN, "Current")),
    ],
)
def test_health_of_a_workload(
    program: Path, tmp_path: Path, given: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    """For Flux, an object without conditions is ready: docs/gitops.md has a check for that, and for faults."""
    assert health(program, tmp_path, given) == expected
