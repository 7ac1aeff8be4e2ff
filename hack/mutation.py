#!/usr/bin/env python3
"""Mutation testing of core/ and of the controller's planning modules: `make mutation` writes docs/reports/mutation.md.

One process imports everything and collects the tests once. For each mutant it forks a child, which replaces one
function's code and runs the tests of the changed line until one fails; fast tests and tests that found mutants here
before run first. For code that runs on import, the child imports the mutant again, with the tests of the modules that
use it.

Results are kept in build/mutation/results.jsonl; a run continues the last one, except with --anew.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import random
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage
from hypothesis import HealthCheck, Phase, settings
from mutants import Mutant, mutants_of
from mutation_children import BROKEN, KILLED, SURVIVED, WORDS, Child, Failures, tried
from mutation_report import verdicts, write_report
from reporting import ROOT, commit_now

FOLDER = ROOT / "build" / "mutation"
RESULTS = FOLDER / "results.jsonl"
COVERED = FOLDER / "covered.json"
WHOLE = (
    "claims",
    "decision",
    "checkpoint",
    "devices",
    "slices",
    "health",
    "reservation",
    "holdings",
    "placement",
    "releasing",
)
"""Of these modules every mutant runs; of the others a share that the seed selects."""
PLANNING = ("plan/planning", "plan/allocation", "plan/queue", "plan/recovery", "plan/releasing", "plan/context", "plan/holdings",
            "plan/placement", "observe/discovery", "observe/projections", "apply/status_throttle")  # fmt: skip
TESTS = ("tests/unit",)
CPU_LIMIT_S = 20.0  # beyond what the tests of a mutant take undisturbed
A_DAY_S = 86_400.0


def modules() -> list[Path]:
    """Return the files under test."""
    core = sorted((ROOT / "neuron_dra/core").glob("*.py"))
    return [*core, *(ROOT / "controller" / f"{name}.py" for name in PLANNING)]


def chosen(seed: int, share: float, only: Sequence[str]) -> list[Mutant]:
    """Return the mutants of this run."""
    found: list[Mutant] = []
    for path in modules():
        if only and path.stem not in only:
            continue
        mutants = mutants_of(str(path.relative_to(ROOT)), path.read_text())
        rng = random.Random(f"{seed} {path.name}")
        picked = [rng.random() < share for _ in mutants]
        found += [mutant for mutant, yes in zip(mutants, picked, strict=True) if yes or path.stem in WHOLE]
    return found


@dataclass
class Covered:
    """The tests that run each line, and their CPU seconds; `failed` are those that fail without a mutant."""

    lines: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @classmethod
    def kept(cls) -> Covered:
        """Return the measurements of an earlier run."""
        return cls(**json.loads(COVERED.read_text())) if COVERED.exists() else cls()

    @property
    def known(self) -> set[str]:
        """The tests that were measured."""
        return {*self.seconds, *self.failed}

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that run a changed line, the fastest first."""
        first, last = mutant.lines
        lines = self.lines.get(mutant.module, {})
        names = {name for line in range(first, last + 1) for name in lines.get(str(line), ())}
        return sorted(names & self.seconds.keys(), key=lambda name: self.seconds[name])

    def tests_of_module(self, module: str) -> list[str]:
        """Return the tests that run any function of a module."""
        names = {name for names in self.lines.get(module, {}).values() for name in names}
        return sorted(names & self.seconds.keys(), key=lambda name: self.seconds[name])


def in_turn(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Run the tests, each with its fixtures, and yield each one that ran."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        yield item


class Runner:
    """Replaces pytest's own loop over the tests."""

    def __init__(self, mutants: Sequence[Mutant], record: Callable[[Mutant, str, float], None], most_s: float) -> None:
        self.mutants = mutants
        self.record = record
        self.most_s = most_s
        self.failures = Failures()
        self.found_here: dict[tuple[str, str], list[str]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config.pluginmanager.register(self.failures)
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        items = {item.nodeid: item for item in session.items}
        covered = Covered.kept()
        new = [item for item in session.items if item.nodeid not in covered.known]
        if new:
            Child(lambda: measure(new, self.failures, covered), A_DAY_S).answer(A_DAY_S)
            covered = Covered.kept()
        functions = live_functions()
        gc.collect()
        gc.freeze()
        for mutant in self.mutants:
            self.one(mutant, items, covered, functions)
        return True

    def one(self, mutant: Mutant, items: dict[str, pytest.Item], covered: Covered, functions: Functions) -> None:
        """Run the tests of one mutant in a child."""
        here = self.found_here.setdefault((mutant.module, mutant.function), [])
        names = [name for name in covered.tests_of(mutant) if name in items]
        names, left_out = within(names, covered.seconds, self.most_s)
        names = [*(name for name in here if name in set(names)), *(name for name in names if name not in set(here))]
        if not names:
            return  # it runs while modules are imported, or never
        allowed = CPU_LIMIT_S + 4 * sum(covered.seconds[name] for name in names)
        work = partial(self.tested, mutant, [items[name] for name in names], functions)
        answer, cpu_s = tried(work, allowed)
        if answer == f"{SURVIVED} " and left_out:
            answer += f"{left_out} tests not run"
        killer = answer.partition(" ")[2]
        if killer in items and killer not in here[:3]:
            self.found_here[mutant.module, mutant.function] = [killer, *here][:8]
        self.record(mutant, answer, cpu_s)

    def tested(self, mutant: Mutant, items: list[pytest.Item], functions: Functions) -> str:
        """Replace the function and run the tests, in the child."""
        exchange(mutant, functions)
        for _ in in_turn(items):
            if self.failures.failed:
                break
        return self.failures.verdict


def within(names: list[str], seconds: dict[str, float], most_s: float) -> tuple[list[str], int]:
    """Remove the slow tests at the end, and return their number."""
    total = 0.0
    for count, name in enumerate(names):
        total += seconds[name]
        if total > most_s:
            return names[:count], len(names) - count
    return names, 0


def measure(items: list[pytest.Item], failures: Failures, covered: Covered) -> str:
    """Run every test alone, in a child, and write the lines that it runs and its duration."""
    coverage = Coverage(data_file=None, config_file=False, include=[str(path) for path in modules()])
    coverage.start()
    coverage.switch_context(items[0].nodeid)
    began = time.process_time()
    for item, following in zip(in_turn(items), [*items[1:], items[0]], strict=True):
        if failures.failed:
            covered.failed.append(item.nodeid)
        else:
            covered.seconds[item.nodeid] = round(time.process_time() - began, 4)
        failures.failed = ""
        coverage.switch_context(following.nodeid)
        began = time.process_time()
    coverage.stop()
    data = coverage.get_data()
    for path in modules():
        lines = covered.lines.setdefault(str(path.relative_to(ROOT)), {})
        for line, names in data.contexts_by_lineno(str(path)).items():
            lines[str(line)] = sorted({*lines.get(str(line), ()), *filter(None, names)})
    COVERED.write_text(json.dumps(asdict(covered)))
    return f"{SURVIVED} "


Functions = dict[tuple[str, str], list[types.FunctionType]]


def live_functions() -> Functions:
    """Return the functions under test that exist in this process, by file and qualified name."""
    files = {str(path) for path in modules()}
    found: Functions = {}
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType) and each.__code__.co_filename in files:
            found.setdefault((each.__code__.co_filename, each.__code__.co_qualname), []).append(each)
    return found


def exchange(mutant: Mutant, functions: Functions) -> None:
    """Replace the code of the live function with the mutant's."""
    path = str(ROOT / mutant.module)
    (code,) = _codes(compile(mutant.source, path, "exec", dont_inherit=True), mutant.function)
    for function in functions[path, mutant.function]:
        function.__code__ = code
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper):
            each.cache_clear()  # it was filled by the original code


def _codes(code: types.CodeType, name: str) -> Iterator[types.CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            if inner.co_qualname == name:
                yield inner
            elif name.startswith(f"{inner.co_qualname}."):
                yield from _codes(inner, name)


class MutantFinder(MetaPathFinder, SourceLoader):
    """Imports one module from the source of a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self._source = mutant.source.encode()
        self._path = str(ROOT / mutant.module)
        self._name = mutant.module.removesuffix(".py").replace("/", ".")

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname == self._name else None

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        return self._source


def run_imported(mutant: Mutant, covered: Covered, most_s: float) -> str:
    """Import a mutant and run the tests of its module, in a child of a process that has not imported this code.

    Tests with the module's name run first: they kill most mutants, and few files are imported for them.
    """
    names = covered.tests_of_module(mutant.module) or sorted(covered.seconds, key=lambda name: covered.seconds[name])
    own = [name for name in covered.seconds if f"_{Path(mutant.module).stem}" in name.partition("::")[0]]
    others, _ = within([name for name in names if name not in {*own}], covered.seconds, most_s)
    sys.meta_path.insert(0, MutantFinder(mutant))
    answer = f"{SURVIVED} "
    for wanted in (own, others):
        if wanted and answer == f"{SURVIVED} ":
            answer = run_selected({*wanted}, covered)
    return answer


def run_selected(wanted: set[str], covered: Covered) -> str:
    """Run these tests until one fails, the fastest files first; fixtures of a file are made once."""
    failures = Failures()
    files: dict[str, float] = {}
    for name in wanted:
        file = name.partition("::")[0]
        files[file] = files.get(file, 0.0) + covered.seconds[name]

    def turn(item: pytest.Item) -> tuple[float, float]:
        return files[item.nodeid.partition("::")[0]], covered.seconds[item.nodeid]

    class Selection:
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            items[:] = sorted((item for item in items if item.nodeid in wanted), key=turn)

    code = pytest.main([*PYTEST, "-x", *sorted(files)], plugins=[failures, Selection()])
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        return f"{BROKEN} no test was collected"
    return failures.verdict if failures.failed or not code else f"{KILLED} pytest ends with {code!r}"


PYTEST = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=60", "-o", "tmp_path_retention_policy=none",
          "-o", "addopts=--strict-markers", "-W", "ignore::pytest.PytestAssertRewriteWarning")  # fmt: skip


def prepare() -> None:
    """Make tests with random inputs deterministic and fast, and import third-party packages."""
    settings.register_profile(
        "mutation", derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )  # fmt: skip
    settings.load_profile("mutation")
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    for name in ("aiohttp", "grpc.aio", "msgspec", "pydantic", "yaml", "cel_expr_python", "kubernetes_asyncio",
                 "jsonschema", "prometheus_client", "rich.table", "grpc_health.v1.health"):  # fmt: skip
        with contextlib.suppress(ImportError):
            __import__(name)


def main(arguments: Sequence[str]) -> int:
    """Run the requested mutants that have no result yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", default=[], help="only this one, such as claims; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=0.4, help="of the mutants, outside of the modules run whole")
    parser.add_argument("--most", type=float, default=12.0, help="CPU seconds of tests for one mutant")
    parser.add_argument(
        "--imported", action=argparse.BooleanOptionalAction, default=True, help="code run on import too"
    )
    parser.add_argument(
        "--survivors", action="store_true", help="run again the survivors without a verdict, nothing else"
    )
    parser.add_argument("--anew", action="store_true", help="discard earlier results")
    parser.add_argument("--report", action="store_true", help="write docs/reports/mutation.md")
    options = parser.parse_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    if options.anew:
        RESULTS.unlink(missing_ok=True)
        COVERED.unlink(missing_ok=True)
    prepare()
    results = Results(RESULTS)
    if options.survivors:
        known = {key for key, one in results.kept.items() if one["result"] == "survived" and not one.get("afterwards")}
        known -= verdicts().keys()
        wanted = [each for each in chosen(options.seed, 1.0, options.module) if each.key in known]
    else:
        mutants = chosen(options.seed, options.share, options.module)
        wanted = [each for each in mutants if each.key not in results.kept]
    random.Random(options.seed).shuffle(wanted)  # so that part of a run is a random sample
    commit = commit_now()
    print(f"{len(wanted)} mutants to run", flush=True)

    def record(mutant: Mutant, answer: str, seconds: float) -> None:
        number, _, detail = answer.partition(" ")
        results.add(mutant, WORDS[int(number)], detail, seconds, commit)

    inside = [each for each in wanted if each.function]
    if inside or not COVERED.exists():
        # In a child, so that this process does not import the code, which other children import changed.
        runner = Runner(inside, record, options.most)
        child = Child(lambda: str(int(pytest.main([*PYTEST, *TESTS], plugins=[runner]))), A_DAY_S, str(FOLDER / "log"))
        print("tests of functions:", child.answer(A_DAY_S), flush=True)
        results = Results(RESULTS)
    if options.imported:
        covered = Covered.kept()
        for mutant in (each for each in wanted if not each.function or each.key not in results.kept):
            record(mutant, *tried(partial(run_imported, mutant, covered, 3.0), 60.0))
    if options.report:
        command = f"make mutation SEED={options.seed} SHARE={options.share}"
        write_report(chosen(options.seed, 1.0, ()), results.kept, command, options.seed)
    return 0


class Results:
    """The result of each mutant, in a file of lines; the last line of a mutant counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kept: dict[str, dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            one = json.loads(line)
            self.kept[one["key"]] = one

    def add(self, mutant: Mutant, result: str, detail: str, seconds: float, commit: str) -> None:
        """Write a result."""
        before = self.kept.get(mutant.key, {})
        if before.get("result") == "survived":  # the score is that of the first run
            one = before if result in ("survived", "broken") else {**before, "afterwards": detail or result}
            self._keep(one)
            return
        one = {"key": mutant.key, "module": mutant.module, "line": mutant.line, "result": result, "detail": detail,
               "seconds": round(seconds, 2), "commit": commit}  # fmt: skip
        self._keep(one)

    def _keep(self, one: dict[str, Any]) -> None:
        self.kept[one["key"]] = one
        with self._path.open("a") as file:
            file.write(json.dumps(one, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
