"""The limit of inotify instances during a test bed and after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hack.bed import inotify
from hack.bed.state import NodeSpec, State


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "max_user_instances"
    path.write_text("128\n")
    monkeypatch.setattr(inotify, "LIMIT", path)
    return path


def bed(folder: Path, nodes: int) -> State:
    specs = [NodeSpec(f"n-{number}", "trn2.48xlarge", number + 1) for number in range(nodes)]
    return State(folder / "state.json", nodes={spec.name: spec for spec in specs})


def test_inotify_limit_grows_and_is_restored(limit: Path, tmp_path: Path) -> None:
    state = bed(tmp_path, 8)
    inotify.allow(state)
    assert int(limit.read_text()) == 128 + 8 * 24
    state.nodes |= bed(tmp_path, 16).nodes
    inotify.allow(state)
    assert int(limit.read_text()) == 128 + 16 * 24
    inotify.restore(state)
    assert limit.read_text() == "128\n"


def test_sufficient_limit_is_unchanged(limit: Path, tmp_path: Path) -> None:
    limit.write_text("8192\n")
    state = bed(tmp_path, 16)
    inotify.allow(state)
    limit.write_text("4096\n")  # somebody else's
    inotify.restore(state)
    assert limit.read_text() == "4096\n"


def test_unraisable_limit_is_an_error(
    limit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Path, "write_text", refuse)
    inotify.allow(bed(tmp_path, 8))
    assert f"{limit} is 128 and cannot be raised" in capsys.readouterr().out


def refuse(self: Path, data: str, real: Callable[[Path, str], int] = Path.write_text) -> int:
    if self == inotify.LIMIT:
        raise OSError(30, "Read-only file system")
    return real(self, data)
