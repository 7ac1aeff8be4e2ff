"""docs/reports/mutation.md: the score of a run, and the verdict on each survivor."""

from __future__ import annotations

import datetime
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from mutants import Mutant
from reporting import ROOT

REPORT = ROOT / "docs" / "reports" / "mutation.md"
VERDICTS = ROOT / "hack" / "mutation_verdicts.yaml"
"""By module: verdict, reason and the mutants that they apply to. A survivor that is not listed counts as open."""

Result = Mapping[str, Any]


def write_report(mutants: Sequence[Mutant], results: Mapping[str, Result], command: str, seed: int) -> None:
    """Write the report: `mutants` are all there are."""
    REPORT.write_text(report(mutants, results, verdicts(), command, seed))


def verdicts() -> dict[str, tuple[str, str]]:
    """Return verdict and reason of each reviewed survivor, by the mutant's key."""
    found: dict[str, tuple[str, str]] = {}
    for module, groups in (yaml.safe_load(VERDICTS.read_text()) if VERDICTS.exists() else {}).items():
        for group in groups:
            for mutant in group["mutants"]:
                found[f"{module}:{mutant}"] = group["verdict"], group["why"]
    return found


def report(
    mutants: Sequence[Mutant],
    results: Mapping[str, Result],
    said: Mapping[str, tuple[str, str]],
    command: str,
    seed: int,
) -> str:
    """Return the text of the report."""
    done = [(mutant, results[mutant.key]) for mutant in mutants if mutant.key in results]
    there = Counter(mutant.module for mutant in mutants)
    survivors = [(mutant, result) for mutant, result in done if result["result"] == "survived"]
    later = [pair for pair in survivors if pair[1].get("afterwards")]
    open_ones = [pair for pair in survivors if not pair[1].get("afterwards")]
    commits = sorted({result["commit"] for _, result in done})
    cpu_minutes = sum(result["seconds"] for _, result in done) / 60
    return f"""# Mutation testing

One mutant is one change of one expression or statement. It is killed if a test fails. A mutant that survives is either
an equivalent program, or a change that no test checks. `hack/mutants.py` defines the changes, `hack/mutation.py` how
tests are chosen and run. Texts for people and annotations are not changed.

| | |
| --- | --- |
| command | `{command}` |
| commit of the code and tests | {", ".join(f"`{commit}`" for commit in commits)} |
| date | {datetime.date.today().isoformat()} |
| seed | {seed}, which picks the mutants of modules that are not run whole |
| duration | {cpu_minutes:.0f} min of CPU for the mutants |
| Python | {platform.python_version()} |
| mutants | {len(done):,} of {len(mutants):,} were run |
| of these in code that runs on import | {_on_import(mutant for mutant, _ in done)} of {_on_import(mutants)} |
| score | {_score(done)} |
| score with the tests that were added for survivors | {_score([pair for pair in done if pair not in later], extra=len(later))} |

`timeout` is a mutant that never ends; it counts as killed. The tests of a mutant are those in `tests/unit` that run the
changed line, the fastest first, for some seconds of CPU. Most of the slow random walks and laws are left out, and so are
the suites with servers and processes.

| module | mutants | run | killed | timeout | survived | score | killed afterwards |
| --- | --- | --- | --- | --- | --- | --- | --- |
{_rows(done, there)}
## Survivors killed afterwards

Each fails a test that was added or sharpened for survivors, or that the first run left out as too slow.

{_killed_later(later)}
## Survivors

{_open(open_ones, said)}"""


def _on_import(mutants: Iterable[Mutant]) -> int:
    return sum(not mutant.function for mutant in mutants)


def _count(results: Iterable[Result], what: str) -> int:
    return sum(result["result"] == what for result in results)


def _score(done: Sequence[tuple[Mutant, Result]], extra: int = 0) -> str:
    survived = _count((result for _, result in done), "survived")
    total = len(done) + extra
    return f"{1 - survived / total:.1%}" if total else "-"


def _rows(done: Sequence[tuple[Mutant, Result]], there: Mapping[str, int]) -> str:
    rows = []
    for module in dict.fromkeys(mutant.module for mutant, _ in done):
        mine = [(mutant, result) for mutant, result in done if mutant.module == module]
        results = [result for _, result in mine]
        afterwards = sum(bool(result.get("afterwards")) for result in results)
        figures = [there[module], len(mine), *(_count(results, what) for what in ("killed", "timeout", "survived"))]
        rows.append(f"| {module} | {' | '.join(map(str, figures))} | {_score(mine)} | {afterwards or ''} |\n")
    return "".join(rows)


def _cell(text: str) -> str:
    """Return code for a cell of a table."""
    return f"`` {text} ``".replace("|", "\\|")


def _killed_later(later: Sequence[tuple[Mutant, Result]]) -> str:
    rows = [
        f"| {Path(mutant.module).name}:{mutant.line} | {mutant.function or 'module'} | {_cell(mutant.change)} "
        f"| `{result['afterwards'].partition('::')[2] or result['afterwards']}` |\n"
        for mutant, result in later
    ]
    return "| where | function | change | test |\n| --- | --- | --- | --- |\n" + "".join(rows) if rows else "None.\n"


def _open(pairs: Sequence[tuple[Mutant, Result]], said: Mapping[str, tuple[str, str]]) -> str:
    text = ""
    for module in dict.fromkeys(mutant.module for mutant, _ in pairs):
        text += f"### {module}\n\n| line | function | change | verdict |\n| --- | --- | --- | --- |\n"
        for mutant, result in pairs:
            if mutant.module == module:
                verdict, why = said.get(mutant.key, ("open", result["detail"]))
                text += (
                    f"| {mutant.line} | {mutant.function or 'module'} | {_cell(mutant.change)} "
                    f"| {verdict}{': ' + why if why else ''} |\n"
                )
        text += "\n"
    return text.rstrip() + "\n" if text else "None.\n"
