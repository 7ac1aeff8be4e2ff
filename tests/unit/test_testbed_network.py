"""Asking a server inside the test bed's network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack" / "testbed"))

from bed import layout, network

HERE = layout.Layout("some-bed", False, Path("/nowhere"), Path("/nowhere"))


def test_a_question_that_takes_too_long_is_no_answer(monkeypatch):
    def slow(command, **settings):
        raise subprocess.TimeoutExpired(command, settings["timeout"])

    monkeypatch.setattr(subprocess, "run", slow)
    assert network.answers(HERE, "http://127.0.0.1:1/healthz") is False
