"""Answers propose commands under the name that was called: neuron-dra, or kubectl with its plugin (4.08)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from neuron_dra.core import program
from tests.support import small_clusters as small
from tests.support.questions import snapshot


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/local/bin/kubectl-neuron", "kubectl neuron"),
        ("/opt/venv/bin/neuron-dra", "neuron-dra"),
        ("/usr/bin/k8s-neuron-dra-driver", "neuron-dra"),
        ("", "neuron-dra"),
    ],
)
def test_name_follows_the_file_that_was_called(path: str, name: str) -> None:
    assert program.called(path) == name


@pytest.mark.parametrize(("file", "name"), [("kubectl-neuron", "kubectl neuron"), ("neuron-dra", "neuron-dra")])
def test_proposed_commands_have_the_name(file: str, name: str, tmp_path: Path) -> None:
    silent = [item for item in small.base("a") if item["kind"] != "ResourceSlice"]
    items = [*silent, *small.slices("b"), small.template("four", 4), small.pod("p", "four", nodeSelector={"x": "y"})]
    script = str(Path(sys.executable).with_name(file))
    words = ["why", "pod/p", "--snapshot", snapshot(tmp_path, items)]
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)
    assert f"{name} why node/a" in done.stdout, done.stdout + done.stderr
    wrong = subprocess.run([sys.executable, script, "why", "--nothing"], capture_output=True, text=True, check=False)
    assert wrong.stderr.startswith(f"{name} why: ")
