"""The workflow that builds, publishes and signs on a tag (18.1)."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from typing import Any

import pytest

from hack.bed import build, layout
from tests.support import fast_yaml
from tests.support.skipping import impossible
from tests.tools.small_release import ROOT

FOLDER = ROOT / ".github/workflows"
WORKFLOW = fast_yaml.load((FOLDER / "release.yaml").read_text())
OWN_JOBS = [name for name, job in WORKFLOW["jobs"].items() if "steps" in job]
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


def test_release_needs_all_tests_and_a_contact() -> None:
    """Nothing is built before the called workflow is green, and nothing published that was not built."""
    jobs = WORKFLOW["jobs"]
    assert jobs["ci"]["uses"] == "./.github/workflows/ci.yaml"
    assert commands("ready") == [["make", "releasable"]]
    assert {name: job["needs"] for name, job in jobs.items() if "needs" in job} == {
        "build": ["ci", "ready"],
        "publish": "build",
    }
    assert [name for name, job in jobs.items() if "if" in job or "continue-on-error" in job] == []


def test_rights_are_the_least() -> None:
    """What the build downloads and runs has no right to write, and no token in the work tree."""
    assert WORKFLOW["permissions"] == {}
    assert {name: job["permissions"] for name, job in WORKFLOW["jobs"].items()} == {
        "ci": {"contents": "read"},
        "ready": {"contents": "read"},
        "build": {"contents": "read"},
        "publish": {"contents": "read", "packages": "write", "id-token": "write", "attestations": "write"},
    }
    for job in OWN_JOBS:
        [checkout] = [step for step in steps(job) if step.get("uses", "").startswith("actions/checkout")]
        assert checkout["with"] == {"persist-credentials": False}


def test_cosign_of_the_workflow_is_the_one_that_is_tried() -> None:
    """Its installer is of version 4 or later: earlier ones cannot install cosign 3."""
    [step] = [each for each in steps("publish") if "cosign-installer" in each.get("uses", "")]
    required = (ROOT / "hack/testbed/go/release/go.mod").read_text()
    assert f"github.com/sigstore/cosign/v3 {step['with']['cosign-release']} " in required
    assert step["uses"].startswith("sigstore/cosign-installer@v4.")


@pytest.mark.long
@pytest.mark.parametrize(("name", "old", "new", "finds"), [
    ("release.yaml", "", "", ""),
    ("ci.yaml", "", "", ""),
    ("release.yaml", '"${REGISTRY,,}"', "${REGISTRY,,}", "SC2086"),  # that of shellcheck
    ("release.yaml", "path: build/release", "folder: build/release", 'input "folder" is not defined'),
])  # fmt: skip
def test_actionlint_and_shellcheck_find_nothing(name: str, old: str, new: str, finds: str) -> None:
    """Also, what they find in a workflow that is wrong."""
    if shutil.which("shellcheck") is None:
        impossible("shellcheck is missing (Debian package shellcheck)")
    here = layout.from_environment()
    module = build.signing(here)
    build.build_modules(here, [module], "releases")
    words = [str(module.bin_dir / "actionlint"), "-shellcheck", "shellcheck", "-no-color", "-"]
    changed = (FOLDER / name).read_text().replace(old, new)
    done = subprocess.run(words, input=changed, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1 if finds else 0, "")
    assert finds in done.stdout
    assert bool(done.stdout) == bool(finds)


def test_commands_do_not_insert_expressions() -> None:
    """A tag's name in `${{ }}` would be run as a part of the script."""
    assert [words for job in OWN_JOBS for words in commands(job) if "${{" in " ".join(words)] == []


def test_python_is_that_of_the_default_base() -> None:
    [python] = [step["with"]["python-version"] for step in steps("build") if "setup-python" in step.get("uses", "")]
    assert f"BASE_IMAGE ?= docker.io/library/python:{python}-slim\n" in MAKEFILE
