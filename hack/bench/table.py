"""The table of `make bench`: figure, measured value, the peer's value in the same run, ratio, bound, goal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One figure; `must` and `goal` are upper bounds of `value`, which is the ratio if there is one."""

    figure: str
    measured: str
    value: float
    must: float | None = None
    goal: float | None = None
    against: str = ""
    ratio: str = ""

    @property
    def verdict(self) -> str:
        """Return which bounds hold, as text."""
        if self.must is None:
            return ""
        if self.value > self.must:
            return "MUST MISSED"
        return "goal reached" if self.goal is not None and self.value <= self.goal else "must holds"


def compared(
    figure: str, ours_ms: float, peer: str, peer_ms: float, must: float | None = None, goal: float | None = None
) -> Row:
    """Return a row of two times in milliseconds and their ratio."""
    ratio = ours_ms / peer_ms
    return Row(figure, f"{ours_ms:.2f} ms", round(ratio, 3), must, goal, f"{peer} {peer_ms:.2f} ms", f"{ratio:.2f}")


def bounded(figure: str, value: float, unit: str, must: float, goal: float | None = None) -> Row:
    """Return a row of one figure with its bounds."""
    return Row(figure, f"{value:.2f} {unit}" if value < 10 else f"{value:.1f} {unit}", value, must, goal)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile of `values` for a share between 0 and 1."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _bound(value: float | None) -> str:
    return "" if value is None else f"<= {value:g}"


def show(rows: Sequence[Row], keep: Path) -> None:
    """Print aligned columns, and write them as JSON and, beside it, as Markdown."""
    head = ("figure", "measured", "against", "ratio", "must", "goal", "")
    table = [head] + [
        (row.figure, row.measured, row.against, row.ratio, _bound(row.must), _bound(row.goal), row.verdict)
        for row in rows
    ]
    print_and_keep(table, [asdict(row) for row in rows], keep)
    keep.with_suffix(".md").write_text(markdown(rows) + "\n")


def markdown(rows: Sequence[Row]) -> str:
    """Return the table in the form of docs/reports/speed.md."""
    lines = ["| figure | measured | same run | ratio | must | goal | |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        bounds = [f"{bound:g}" if bound is not None else "" for bound in (row.must, row.goal)]
        cells = [row.figure, row.measured, row.against, row.ratio, *bounds, row.verdict]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines)


def print_and_keep(table: Sequence[Sequence[str]], content: object, keep: Path) -> None:
    """Print aligned columns, and write the content as JSON."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    keep.parent.mkdir(exist_ok=True)
    keep.write_text(json.dumps(content, indent=1))
