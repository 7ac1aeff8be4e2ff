"""Generated files are up to date."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden"


@pytest.fixture(scope="module")
def wanted() -> dict[str, str]:
    return dict(runpy.run_path(str(ROOT / "hack/golden.py"))["wanted"]())


@pytest.mark.contract("S21")
def test_golden_files_are_current(wanted):
    files = [*GOLDEN.glob("*/*.yaml"), *GOLDEN.glob("*/connected-sets.txt")]
    kept = {str(path.relative_to(GOLDEN)): path.read_text() for path in files}
    stale = sorted(name for name in kept.keys() | wanted.keys() if kept.get(name) != wanted.get(name))
    assert stale == [], "run `make golden`, and read the difference"


def test_reference_pages_are_current():
    result = subprocess.run(
        [sys.executable, "hack/gen_docs.py", "--check"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_outdated_page_is_named(tmp_path, monkeypatch, capsys):
    module = runpy.run_path(str(ROOT / "hack/gen_docs.py"))
    monkeypatch.setitem(module["main"].__globals__, "DOCS", tmp_path)
    assert module["main"](["--check"]) == 1
    assert "docs/attributes.md is out of date" in capsys.readouterr().out
    assert module["main"]([]) == 0
    capsys.readouterr()
    assert module["main"](["--check"]) == 0
    assert capsys.readouterr().out == ""
