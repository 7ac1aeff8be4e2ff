"""Rules for the source that linters do not have: where files are written, and calls to avoid."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_ON_NODES = {"gen", "emulation", "demo"}
WRITES = {"write_text", "write_bytes", "unlink", "rename", "replace_with", "rmtree", "touch", "symlink_to", "fsync"}
MAY_WRITE = {
    "neuron_dra/arguments.py": {"open"},  # the null device, in place of a closed output
    "neuron_dra/ask/doctor/bundle.py": {"open"},  # a file for a user
    "neuron_dra/ask/migrate/command.py": {"fsync", "unlink"},  # a user's manifests, not files of the node
    "neuron_dra/ask/templates/command.py": {"write_text"},  # manifests for a user
    "neuron_dra/ask/ui/opening.py": {"open", "rmtree"},  # leads the user's browser to the page
    "neuron_dra/node/efa/interfaces.py": {"open"},  # for reading: a file object takes twice as long in a prepare
    "neuron_dra/node/files.py": {"fsync", "open", "rename", "unlink"},  # the seam
    "neuron_dra/node/endpoints/sockets.py": {"rename"},  # moves another process's socket out of grpc's way, and back
    "neuron_dra/node/publish/publisher_lock.py": {"open"},  # a lock file without contents
}
# The versions from which on Kubernetes does something, and the releases with known faults.
MAY_NAME_VERSIONS = {f"neuron_dra/core/{name}.py" for name in ("versions", "releases", "upgrades")}

Nodes = list[ast.AST]
Rule = Callable[[Nodes], Iterator[tuple[int, str]]]
"""Yields the line and the name of each place to which a rule applies."""


def parse(source: str) -> Nodes:
    return list(ast.walk(ast.parse(source)))


@pytest.fixture(scope="module")
def node_programs() -> dict[str, Nodes]:
    """Return the syntax of neuron_dra, by file, without what never runs on a customer's node."""
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "neuron_dra").rglob("*.py"))]
    return {
        str(path): parse((ROOT / path).read_text())
        for path in paths
        if NOT_ON_NODES.isdisjoint(path.parts) and path.name != "slices_command.py"
    }


@pytest.fixture(scope="module")
def controller() -> dict[str, Nodes]:
    """Return the syntax of the controller and of its planner, by file."""
    folders = (ROOT / "controller", ROOT / "neuron_dra/planner")
    paths = [path.relative_to(ROOT) for folder in folders for path in sorted(folder.rglob("*.py"))]
    return {str(path): parse((ROOT / path).read_text()) for path in paths}


def places(rule: Rule, nodes_by_file: Mapping[str, Nodes]) -> Iterator[tuple[str, int, str]]:
    """Yield the file, line and name of each place to which the rule applies."""
    for file, nodes in nodes_by_file.items():
        for line, name in rule(nodes):
            yield file, line, name


def calls(nodes: Nodes) -> Iterator[tuple[str, ast.Call]]:
    """Yield calls and the names of their functions, except calls of the seam, such as `files.unlink`."""
    for node in nodes:
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            owner = getattr(function, "value", None)
            if getattr(owner, "attr", getattr(owner, "id", "")) not in ("files", "_files"):
                yield name, node


def opens_for_writing(call: ast.Call) -> bool:
    """`os.open` with flags, or `open` with a mode that is not for reading."""
    if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "os":
        return True
    modes = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    return any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in modes)


def writes(nodes: Nodes) -> Iterator[tuple[int, str]]:
    for name, call in calls(nodes):
        if name in WRITES or (name == "open" and opens_for_writing(call)):
            yield call.lineno, name


def waits_that_lose_a_cancellation(nodes: Nodes) -> Iterator[tuple[int, str]]:
    for name, call in calls(nodes):
        if name == "wait_for":
            yield call.lineno, name


def owners_compared(nodes: Nodes) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if not isinstance(node, ast.Compare):
            continue
        for side in (node.left, *node.comparators):
            owner = getattr(side, "value", None)
            if getattr(side, "attr", "") == "workload_uid" and getattr(owner, "id", "") in ("use", "claim"):
                yield node.lineno, ast.unparse(side)


def minor_versions(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Yield literals such as (1, 36) or "1.37"."""
    for node in nodes:
        if isinstance(node, ast.Tuple | ast.Constant):
            text = ast.unparse(node)
            if re.fullmatch(r"\(1, 3\d(, \d+)?\)|'v?1\.3\d'", text):
                yield node.lineno, text


def raised_for_a_group(nodes: Nodes) -> Iterator[tuple[int, str]]:
    for star in (node for node in nodes if isinstance(node, ast.TryStar)):
        for statement in (node for handler in star.handlers for node in ast.walk(handler)):
            if isinstance(statement, ast.Raise):
                yield statement.lineno, ast.unparse(statement)


def test_files_are_written_through_the_one_seam(node_programs: dict[str, Nodes]) -> None:
    written = list(places(writes, node_programs))
    wrong = [f"{file}:{line}: {name}" for file, line, name in written if name not in MAY_WRITE.get(file, ())]
    assert not wrong, "\n".join(["write with neuron_dra.node.files, where tests inject faults", *wrong])
    names_by_file: dict[str, set[str]] = {}
    for file, _, name in written:
        names_by_file.setdefault(file, set()).add(name)
    assert names_by_file == MAY_WRITE, "remove from MAY_WRITE what no longer writes"


def test_wait_for_is_not_used(node_programs: dict[str, Nodes]) -> None:
    wrong = [f"{file}:{line}: {name}" for file, line, name in places(waits_that_lose_a_cancellation, node_programs)]
    assert not wrong, "\n".join(
        ["asyncio.wait_for of Python 3.11 can lose a cancellation: use asyncio.timeout", *wrong]
    )


def test_handlers_of_groups_raise_nothing(node_programs: dict[str, Nodes], controller: dict[str, Nodes]) -> None:
    """Python 3.11.3 and earlier puts what `except*` raises into another group, which no caller expects."""
    nodes_by_file = {**node_programs, **controller}
    handlers = {file for file, nodes in nodes_by_file.items() if any(isinstance(node, ast.TryStar) for node in nodes)}
    assert "controller/observe/caches.py" in handlers
    wrong = [f"{file}:{line}: {text}" for file, line, text in places(raised_for_a_group, nodes_by_file)]
    assert not wrong, "\n".join(["raise it after the `try` statement", *wrong])


def test_whose_claim_has_one_spelling(controller: dict[str, Nodes]) -> None:
    functions = (node for nodes in controller.values() for node in nodes if isinstance(node, ast.FunctionDef))
    assert "is_of" in {function.name for function in functions}
    wrong = [f"{file}:{line}: {name} is compared" for file, line, name in places(owners_compared, controller)]
    assert not wrong, "\n".join(["use ClaimUse.is_of: claims of AWS's templates have no workloadUid", *wrong])


def test_versions_of_kubernetes_are_one_table(node_programs: dict[str, Nodes]) -> None:
    versions = list(places(minor_versions, node_programs))
    wrong = [f"{file}:{line}: {text}" for file, line, text in versions if file not in MAY_NAME_VERSIONS]
    assert not wrong, "\n".join(["name the version in neuron_dra/core/versions.py, and use that name", *wrong])
    assert {file for file, _, _ in versions} == MAY_NAME_VERSIONS


def test_every_pattern_of_mutmut_names_modules() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    patterns = settings["only_mutate"]
    assert "neuron_dra/planner/plan/*.py" in patterns
    assert [pattern for pattern in patterns if not [*ROOT.glob(pattern)]] == []


@pytest.mark.parametrize(
    ("rule", "source", "expected"),
    [
        (writes, "path.write_text('')", [(1, "write_text")]),
        (writes, "\nwith open(path, mode='wb'): pass", [(2, "open")]),
        (writes, "os.open(path, os.O_RDONLY)", [(1, "open")]),
        (writes, "self._files.unlink(path); open(path, 'rb'); path.read_text()", []),
        (waits_that_lose_a_cancellation, "async def f():\n    await asyncio.wait_for(g(), 1)", [(2, "wait_for")]),
        (
            raised_for_a_group,
            "try: pass\nexcept* E:\n    if x: raise F\nraise G",
            [(3, "raise F")],
        ),
        (raised_for_a_group, "try: pass\nexcept E: raise", []),
        (owners_compared, "if uid != use.workload_uid: pass", [(1, "use.workload_uid")]),
        (owners_compared, "use.is_of(workload)", []),
        (minor_versions, "if version >= (1, 36): pass", [(1, "(1, 36)")]),
        (minor_versions, "a = 'v1.37'\nb = (1, 35, 2)", [(1, "'v1.37'"), (2, "(1, 35, 2)")]),
        (minor_versions, "a = (1, 4); b = '1.3'", []),
    ],
)
def test_rule_finds_its_violations(rule: Rule, source: str, expected: list[tuple[int, str]]) -> None:
    assert sorted(rule(parse(source))) == expected
