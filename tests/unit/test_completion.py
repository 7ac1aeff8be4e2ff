"""The completion script, run by bash (17)."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from neuron_dra import cli


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
