"""Files that no API server has printed: names that cannot be written, and values in values without an end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

HALF = "a\ud800b"
"""A name with half of a character, which UTF-8 does not have."""
DEEP = 200_000


def run(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Return what a command prints about a file, run apart: a file may end the interpreter."""
    file = folder / "cluster.json"
    file.write_text(text)
    line = [sys.executable, "-m", "neuron_dra.cli", *words, "--snapshot", str(file)]
    return subprocess.run(line, capture_output=True, timeout=120, check=False)


def listed(items: list[Obj]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@pytest.mark.parametrize("text", ["[" * DEEP + "]" * DEEP, "{a: " * DEEP + "}" * DEEP, "- " * DEEP, "? " * DEEP])
def test_values_that_are_nested_too_deeply_are_an_error(text: str, tmp_path: Path) -> None:
    for content in (text, f'{{"kind": "List", "items": {text}}}', f"kind: List\nitems:\n- {text}"):
        done = run(tmp_path, content, "status")
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"nested too deeply" in done.stderr or b"not YAML" in done.stderr, done.stderr[-300:]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("topology",), rb"a\ud800b"),
        (("topology", "-o", "html"), b'"nodes":{"a?b":'),
        (("status", "-o", "json"), rb'"name": "a\ud800b"'),
    ],
)
def test_a_name_with_half_a_character_is_shown(words: tuple[str, ...], shown: bytes, tmp_path: Path) -> None:
    items = [*small.base(HALF), small.pod(HALF, "none")]
    done = run(tmp_path, listed(items), *words)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr[-600:]
    assert shown in done.stdout
