"""Rules for the source that linters do not have: where files are written, and calls to avoid."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import neuron_dra

ROOT = Path(neuron_dra.__file__).parent
PRODUCTION = sorted(
    path
    for path in ROOT.rglob("*.py")
    if not {"gen", "emulation", "demo"} & set(path.relative_to(ROOT).parts) and path.name != "slices_command.py"
)
WRITES = {"write_text", "write_bytes", "unlink", "rename", "replace_with", "rmtree", "touch", "symlink_to", "fsync"}
ALLOWED = {
    "arguments.py": {"open"},  # the null device, in place of a closed output
    "ask/doctor/bundle.py": {"open"},  # a file for a user
    "ask/migrate/command.py": {"fsync", "unlink"},  # a user's manifests, not files of the node
    "ask/templates/command.py": {"write_text"},  # manifests for a user
    "ask/ui/opening.py": {"open", "rmtree"},  # leads the user's browser to the page
    "node/files.py": WRITES | {"open"},
    "node/endpoints/sockets.py": {"rename"},  # moves another process's socket out of grpc's way, and back
    "node/publish/publisher_lock.py": {"open"},  # a lock file without contents
}


def calls(path: Path) -> Iterator[tuple[str, int, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            owner = getattr(function, "value", None)
            if getattr(owner, "attr", getattr(owner, "id", "")) not in ("files", "_files"):  # the seam itself
                yield name, node.lineno, node


def opens_for_writing(call: ast.Call) -> bool:
    """`os.open` with flags, or `open` with a mode that is not for reading."""
    if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "os":
        return True
    modes = [
        a.value
        for a in [*call.args[1:2], *[k.value for k in call.keywords if k.arg == "mode"]]
        if isinstance(a, ast.Constant)
    ]
    return any(set(str(mode)) & set("wax+") for mode in modes)


@pytest.mark.parametrize("path", PRODUCTION, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_written_through_the_one_seam(path: Path) -> None:
    allowed = ALLOWED.get(str(path.relative_to(ROOT)), set())
    wrong = [
        f"{name} in line {line}"
        for name, line, call in calls(path)
        if name not in allowed and (name in WRITES or (name == "open" and opens_for_writing(call)))
    ]
    assert not wrong, "write with neuron_dra.node.files, where faults are injected"


@pytest.mark.parametrize("path", PRODUCTION, ids=lambda path: str(path.relative_to(ROOT)))
def test_wait_for_is_not_used(path: Path) -> None:
    lines = [line for name, line, _ in calls(path) if name == "wait_for"]
    assert not lines, "asyncio.wait_for of Python 3.11 can lose a cancellation: use asyncio.timeout"


CONTROLLER = sorted((ROOT.parent / "controller").rglob("*.py"))


def owners_compared(path: Path) -> Iterator[int]:
    """Yield the lines that compare the `workload_uid` of a claim, which claims of AWS's templates do not have."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Compare):
            continue
        for side in (node.left, *node.comparators):
            owner = getattr(side, "value", None)
            if getattr(side, "attr", "") == "workload_uid" and getattr(owner, "id", "") in ("use", "claim"):
                yield node.lineno


@pytest.mark.parametrize("path", CONTROLLER, ids=lambda path: str(path.relative_to(ROOT.parent)))
def test_whose_claim_has_one_spelling(path: Path) -> None:
    assert not list(owners_compared(path)), "use ClaimUse.is_of: claims of AWS's templates have no workloadUid"


def minor_versions(path: Path) -> Iterator[int]:
    """Yield the lines with a version of Kubernetes as a literal, such as (1, 36) or "1.37"."""
    for node in ast.walk(ast.parse(path.read_text())):
        text = ast.unparse(node) if isinstance(node, ast.Tuple | ast.Constant) else ""
        if re.fullmatch(r"\(1, 3\d(, \d+)?\)|'v?1\.3\d'", text):
            yield node.lineno  # type: ignore[attr-defined]


ONE_TABLE = ("core/versions.py", "core/releases.py")
"""The versions from which on Kubernetes does something, and the releases with known faults."""


@pytest.mark.parametrize("path", PRODUCTION, ids=lambda path: str(path.relative_to(ROOT)))
def test_versions_of_kubernetes_are_one_table(path: Path) -> None:
    found = list(minor_versions(path))
    assert not found or str(path.relative_to(ROOT)) in ONE_TABLE, "name it in core/versions.py"
