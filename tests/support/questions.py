"""Questions to the command line as a person asks them: the first line of the answer, the whole of it, and the code."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from neuron_dra import cli
from neuron_dra.core.wire import Obj

_LABELLED = re.compile(r"  \S+( \S+)* {2,}\S")
"""A fact or a change under a first line: a label, padded, and a text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def first(self) -> str:
        """The first line, as it was before it was wrapped."""
        lines: list[str] = []
        for line in self.out.splitlines():
            if lines and (not line.startswith("  ") or _LABELLED.match(line)):
                break
            lines.append(line.strip())
        return " ".join(lines)

    @property
    def text(self) -> str:
        """Everything that was printed, with single spaces."""
        return " ".join((self.out + self.err).split())


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> Answer:
    """Run a command in this process; the parser ends by itself for a wrong flag."""
    capsys.readouterr()
    try:
        code = cli.main(words)
    except SystemExit as err:
        code = int(str(err.code))
    done = capsys.readouterr()
    return Answer(code, done.out, done.err)


def snapshot(folder: Path, items: Sequence[Obj]) -> str:
    """Write objects as kubectl prints them, and return the file's name."""
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))
    return str(file)
