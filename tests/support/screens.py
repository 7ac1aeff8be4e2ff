"""A terminal of some width, and what a command shows there."""

from __future__ import annotations

import io
import re
import sys

import pytest

from neuron_dra import cli

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """What a command writes to, as to a terminal."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, columns: int, *words: str) -> list[str]:
    """Return the lines that a command shows on a terminal of this width, without colors."""
    screen = Terminal()
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "stdout", screen)
        cli.main(words)
    return _STYLE.sub("", screen.getvalue()).splitlines()
