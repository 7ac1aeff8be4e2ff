"""What GitHub reads of this repository: workflows, Dependabot, templates; and the hooks of pre-commit."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.support import fast_yaml
from tests.support.built_tools import ACTIONLINT, needs

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github/workflows"
WORKFLOWS = sorted(path.name for path in FOLDER.iterdir())
CI: dict[str | bool, Any] = fast_yaml.load((FOLDER / "ci.yaml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()


def runs(job: str) -> list[str]:
    return [step["run"] for step in CI["jobs"][job]["steps"] if "run" in step]


def shell(command: str, tree: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a step's command with GitHub's shell, in a folder."""
    words = ["bash", "-e", "-c", command]
    return subprocess.run(words, cwd=tree, env={**os.environ, **more}, capture_output=True, text=True, check=False)


def clone(folder: Path) -> Path:
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{ROOT}", folder], check=True)
    return folder


@needs("actionlint")
@pytest.mark.parametrize("name", WORKFLOWS)
def test_actionlint_finds_nothing(name: str) -> None:
    done = subprocess.run([str(ACTIONLINT), "-shellcheck=", "-no-color", FOLDER / name], cwd=ROOT,
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs("actionlint")
@pytest.mark.parametrize(
    ("old", "new", "finds"),
    [
        ("needs: [ci, ready]", "needs: [ci, redy]", 'job "redy"'),
        ("path: build/release", "folder: build/release", 'input "folder" is not defined'),
    ],
)
def test_actionlint_finds_what_is_wrong(old: str, new: str, finds: str) -> None:
    text = (FOLDER / "release.yaml").read_text().replace(old, new)
    done = subprocess.run([str(ACTIONLINT), "-shellcheck=", "-no-color", "-"], cwd=ROOT, input=text,
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 1
    assert finds in done.stdout


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_have_a_version(name: str) -> None:
    jobs = fast_yaml.load((FOLDER / name).read_text())["jobs"]
    used = [step["uses"] for job in jobs.values() for step in job.get("steps", []) if "uses" in step]
    assert [each for each in used if not re.fullmatch(r"[a-z]+/[a-z-]+@v\d+(\.\d+\.\d+)?", each)] == []


def test_ci_runs_for_pushes_pull_requests_and_releases() -> None:
    assert CI[True] == {"push": {"branches": ["main"]}, "pull_request": None, "workflow_call": None}
    assert CI["permissions"] == {"contents": "read"}


def test_ci_has_a_job_for_each_way_to_run() -> None:
    jobs = CI["jobs"]
    assert {name: runs(name) for name in jobs if name != "macos"} == {
        "check": ["make check", "make gen-check"],
        "test": ["make test-without-cluster COVERAGE=1", 'make coverage >>"$GITHUB_STEP_SUMMARY"'],
        "oldest": ["make test-oldest"],
        "test-bed": ['sudo env "PATH=$PATH" "HOME=$HOME" .ci/run'],
    }
    assert jobs["test"]["strategy"]["matrix"] == {"python": ["3.11", "3.14"]}
    assert jobs["macos"]["runs-on"].startswith("macos-")
    assert [name for name, job in jobs.items() if "if" in job or "continue-on-error" in job] == []


def test_make_targets_of_ci_exist() -> None:
    commands = [shlex.split(command) for job in CI["jobs"] for command in runs(job)]
    targets = {words[1] for words in commands if words[0] == "make"}
    defined = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert len(targets) == 5
    assert targets - defined == set()


@pytest.mark.parametrize("command", [each for each in runs("macos") if each.startswith("neuron-dra")])
def test_command_line_steps_run(command: str) -> None:
    """Here on Linux; docs/release.md says that they were not run on macOS."""
    programs = Path(sys.executable).parent
    done = shell(command, ROOT, PATH=f"{programs}:{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_command_line_is_installed_and_runs(tmp_path: Path) -> None:
    tree = clone(tmp_path / "tree")
    venv.create(tmp_path / "python", with_pip=True)
    path = f"{tmp_path / 'python/bin'}:{os.environ['PATH']}"
    for command in runs("macos"):
        done = shell(command, tree, PATH=path)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert shell("command -v neuron-dra", tree, PATH=path).stdout.startswith(str(tmp_path))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("job", ["check", "test", "oldest"])
def test_steps_run_in_a_clean_clone(job: str, tmp_path: Path) -> None:
    """With few tests: T is the Makefile's variable for them."""
    tree = clone(tmp_path / "tree")
    given = {"CI": "true", "T": "tests/unit/test_semver.py", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    for command in runs(job):
        done = shell(command, tree, **given)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    if job == "test":
        summary = (tmp_path / "summary.md").read_text().replace("\\", "")
        assert re.search(r"^\| neuron_dra/core/semver\.py ", summary, re.MULTILINE)


def test_release_is_refused_until_there_is_a_contact(tmp_path: Path) -> None:
    """The placeholder fails the release's own job, and no other."""
    for name in ("Makefile", "SECURITY.md"):
        shutil.copy(ROOT / name, tmp_path)
    text = (ROOT / "SECURITY.md").read_text()
    (tmp_path / "SECURITY.md").write_text(re.sub(r"\S+@\S+\w", "security@example.com", text))
    refused = shell("make releasable", tmp_path)
    assert refused.returncode != 0
    assert "releasable: SECURITY.md has a placeholder: name a contact for reports" in refused.stderr
    (tmp_path / "SECURITY.md").write_text(re.sub(r"\S+@\S+\w", "security@neuron-dra.test", text))
    assert shell("make releasable", tmp_path).returncode == 0
    assert "releasable" not in "".join(command for job in CI["jobs"] for command in runs(job))


def test_hooks_run_what_make_check_runs() -> None:
    [repository] = fast_yaml.load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    parts = re.search(r"^CHECKS := ([a-z -]+)$", MAKEFILE, re.MULTILINE)
    assert parts is not None
    assert [hook["entry"] for hook in repository["hooks"]] == [f"make {part}" for part in parts[1].split()]
    assert {(hook["language"], hook["pass_filenames"]) for hook in repository["hooks"]} == {("system", False)}


def test_oldest_dependencies_are_those_that_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["cli"]]
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements/oldest.txt").read_text(), re.MULTILINE))
    floors = dict(re.split(r">=", each.partition(",")[0]) for each in declared)
    found = {name: version(locked[name]) for name in floors}
    assert found == {name: version(text) for name, text in floors.items()}


def test_locked_install_takes_only_what_the_lock_names() -> None:
    """pip looks for the newest release of `coverage[toml]`, although the lock has coverage; then it has no hash."""
    locked = [line for line in MAKEFILE.splitlines() if "--require-hashes" in line]
    assert len(locked) > 3
    assert [line for line in locked if "--no-deps" not in line] == []


def test_lock_names_all_that_is_needed() -> None:
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    # With the oldest dependencies, some development tools want newer ones; missing is none.
    assert [line for line in checked.stdout.splitlines() if "not installed" in line] == []


def version(text: str) -> tuple[int, ...]:
    """Return a version to compare: 1.2 is 1.2.0."""
    numbers = [int(part) for part in text.split(".")]
    return (*numbers, *[0] * (3 - len(numbers)))


def test_dependabot_looks_at_what_exists() -> None:
    found = fast_yaml.load((ROOT / ".github/dependabot.yml").read_text())["updates"]
    assert [(each["package-ecosystem"], each["directory"]) for each in found] == [
        ("github-actions", "/"),
        ("pip", "/requirements"),
    ]
    assert len(list((ROOT / "requirements").glob("*.txt"))) > 1


def test_issue_forms_have_what_github_needs() -> None:
    for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yaml")):
        form = fast_yaml.load(path.read_text())
        assert form.keys() >= {"name", "description", "body"}
        inputs = [each for each in form["body"] if each["type"] != "markdown"]
        assert all(each["attributes"]["label"] for each in inputs)
        assert len({each["id"] for each in inputs}) == len(inputs)
