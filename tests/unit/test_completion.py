"""The completion script, run by bash (17)."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from neuron_dra import cli, completion
from neuron_dra.emulation.embedded_api import EmbeddedApi


def complete(*line: str) -> list[str]:
    """What bash offers for the last word of a command line."""
    words = " ".join(f"'{word}'" for word in line)
    program = f"""
        source <('{sys.executable}' -m neuron_dra.cli completion)
        COMP_WORDS=({words}); COMP_CWORD={len(line) - 1}; _neuron_dra
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (("neuron-dra", "sta"), ["status"]),
        (("neuron-dra", "t"), ["topology", "top", "templates"]),
        (("neuron-dra", "why", "po"), ["pod/"]),
        (("neuron-dra", "templates", "s"), ["show"]),
        (("kubectl-neuron", "simulate", "--fl"), ["--fleet"]),
        (("neuron-dra", "status", "--snap"), ["--snapshot"]),
        (("neuron-dra", "status", "--nothing"), []),
    ],
)
def test_bash_completes_commands_and_flags(line: tuple[str, ...], offered: list[str]) -> None:
    assert complete(*line) == offered


def test_script_has_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion"]) == 0
    text = capsys.readouterr().out
    for name in ("status", "topology", "why", "simulate", "validate", "templates", "migrate", "slices", "plugin"):
        assert f"\n    {name}) words=" in text


CLUSTER = {"Pod": ["llm-0", "llm-1", "web"], "Node": ["node-a", "node-b"], "Meaning": ["Fragmented", "Full"]}


@pytest.mark.parametrize(
    ("line", "offered", "directive"),
    [
        (["sta"], ["status"], completion.NO_FILES),
        (["status", "-o", ""], ["text", "wide", "name", "csv", "json", "yaml"], completion.NO_FILES),
        (["status", "--sort-by", "f"], ["free"], completion.NO_FILES),
        (["status", "--snapshot", ""], [], completion.FILES),
        (["status", "--no-h"], ["--no-headers"], completion.NO_FILES),
        (["why", "po"], ["pod/"], completion.NO_FILES | completion.NO_SPACE),
        (["why", "pod/ll"], ["pod/llm-0", "pod/llm-1"], completion.NO_FILES),
        (["why", "--context", "b", "node/"], ["node/node-a", "node/node-b"], completion.NO_FILES),
        (["topology", "node-b"], ["node-b"], completion.NO_FILES),
        (["nothing", ""], [], completion.NO_FILES),
        (["simulate", ""], [], completion.FILES),
    ],
)
def test_kubectl_is_offered_values_and_names(line: list[str], offered: list[str], directive: int) -> None:
    found = completion.offered(cli._parser(line), line, lambda kind, chosen: CLUSTER[kind])
    assert found == (offered, directive)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (["why", "po/ll"], ["po/llm-0", "po/llm-1"]),
        (["why", "nodes/"], ["nodes/node-a", "nodes/node-b"]),
        (["why", "pod", "l"], ["llm-0", "llm-1"]),
        (["why", "no", ""], ["node-a", "node-b"]),
        (["why", "-n", "ml", "pods", "w"], ["web"]),
        (["top", "pod/w"], ["pod/web"]),
        (["explain", "Fragm"], ["Fragmented"]),
    ],
)
def test_kinds_are_completed_as_kubectl_writes_them(line: list[str], offered: list[str]) -> None:
    found = completion.offered(cli._parser(line), line, lambda kind, chosen: CLUSTER[kind])
    assert found == (offered, completion.NO_FILES)


def test_flags_with_their_value_choose_the_cluster_too() -> None:
    asked: list[dict[str, str]] = []

    def names(kind: str, chosen: Mapping[str, str]) -> list[str]:
        asked.append(dict(chosen))
        return []

    line = ["why", "--namespace=ml", "-n=other", "--context=east", "pod/"]
    completion.offered(cli._parser(line), line, names)
    assert asked == [{"namespace": "other", "context": "east"}]


def test_flags_choose_the_cluster_whose_names_are_offered() -> None:
    asked: list[tuple[str, dict[str, str]]] = []

    def names(kind: str, chosen: Mapping[str, str]) -> list[str]:
        asked.append((kind, dict(chosen)))
        return []

    line = ["why", "-n", "ml", "--context", "east", "pod/"]
    completion.offered(cli._parser(line), line, names)
    assert asked == [("Pod", {"namespace": "ml", "context": "east"})]


async def test_names_are_read_from_the_cluster(
    api: EmbeddedApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("llm-0", "web"):
        spec = {"containers": [{"name": "main", "image": "none"}]}
        api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
        )
    file = api.write_kubeconfig(tmp_path / "kubeconfig")
    assert await asyncio.to_thread(cli.complete_main, ["why", "--kubeconfig", str(file), "pod/l"]) == 0
    assert capsys.readouterr().out == "pod/llm-0\n:4\n"


def test_a_cluster_that_does_not_answer_offers_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.complete_main(["why", "--kubeconfig", str(tmp_path / "absent"), "pod/l"]) == 0
    assert capsys.readouterr().out == ":4\n"
