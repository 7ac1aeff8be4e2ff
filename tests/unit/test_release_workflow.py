"""The workflow that builds, publishes and signs on a tag (18.1)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()


def steps(job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = WORKFLOW["jobs"][job]["steps"]
    return found


def commands(job: str) -> list[list[str]]:
    return [shlex.split(line) for step in steps(job) if "run" in step for line in step["run"].splitlines()]


def test_workflow_runs_on_version_tags_only() -> None:
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true


def test_commands_are_make_targets_that_exist() -> None:
    assert [words[:2] for words in commands("build")] == [["make", "release"]]
    assert [words[:2] for words in commands("publish")] == [["make", "publish"], ["make", "sign"]]
    for _, target, *settings in [*commands("build"), *commands("publish")]:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
        assert settings[0] == "VERSION=${GITHUB_REF_NAME#v}"
        assert all(re.search(rf"\$\({name}\)", MAKEFILE) for name in (each.partition("=")[0] for each in settings))


def test_rights_are_the_least() -> None:
    """What the build downloads and runs has no right to write, and no token in the work tree."""
    assert WORKFLOW["permissions"] == {}
    assert {name: job["permissions"] for name, job in WORKFLOW["jobs"].items()} == {
        "build": {"contents": "read"},
        "publish": {"contents": "read", "packages": "write", "id-token": "write", "attestations": "write"},
    }
    for job in WORKFLOW["jobs"]:
        [checkout] = [step for step in steps(job) if step.get("uses", "").startswith("actions/checkout")]
        assert checkout["with"] == {"persist-credentials": False}


@pytest.mark.parametrize("job", list(WORKFLOW["jobs"]))
def test_actions_have_a_major_version(job: str) -> None:
    used = [step["uses"] for step in steps(job) if "uses" in step]
    assert [each for each in used if not re.fullmatch(r"[a-z]+/[a-z-]+@v\d+", each)] == []


def test_commands_do_not_insert_expressions() -> None:
    """A tag's name in `${{ }}` would be run as a part of the script."""
    assert [words for job in WORKFLOW["jobs"] for words in commands(job) if "${{" in " ".join(words)] == []


def test_python_is_that_of_the_default_base() -> None:
    [python] = [step["with"]["python-version"] for step in steps("build") if "setup-python" in step.get("uses", "")]
    assert f"BASE_IMAGE ?= docker.io/library/python:{python}-slim\n" in MAKEFILE
