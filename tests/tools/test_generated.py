"""Generated files are up to date."""

import subprocess
import sys
from pathlib import Path

import pytest

from hack.generate import docs, golden

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wanted() -> dict[str, str]:
    return golden.wanted()


@pytest.mark.contract("S21")
def test_golden_files_are_current(wanted: dict[str, str]) -> None:
    kept = golden.kept()
    stale = sorted(name for name in kept.keys() | wanted.keys() if kept.get(name) != wanted.get(name))
    assert not stale, "\n".join(["run `make golden`, and read the difference", *stale])


def test_reference_pages_are_current() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "hack.generate.docs", "--check"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_outdated_page_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    assert docs.main(["--check"]) == 1
    assert "docs/attributes.md is out of date" in capsys.readouterr().out
    assert docs.main([]) == 0
    capsys.readouterr()
    assert docs.main(["--check"]) == 0
    assert capsys.readouterr().out == ""
