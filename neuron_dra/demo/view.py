"""The demo's output: tables and maps of the torus, 100 characters wide, as plain text without a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from neuron_dra.ask.render.words import ranges

WIDTH: Final = 100
GAP: Final = "   "
_COLOURS: Final = ("cyan", "green", "yellow", "magenta", "blue", "red")
_STYLES: Final = {".": "dim", "x": "red"}
__all__ = ["DemoScreen", "ranges"]


class DemoScreen:
    """Writes to one console; each method prints a few lines, none wider than WIDTH."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(width=WIDTH, highlight=False)

    def title(self, text: str, more: str) -> None:
        """Print the first line."""
        self._print(Text.assemble((text, "bold"), f": {more}"))

    def heading(self, text: str) -> None:
        """Print the heading of a scene."""
        self._print(Text())
        self._print(Text(text, "bold"))
        self._print(Text())

    def line(self, text: str, style: str = "") -> None:
        """Print one sentence."""
        self._print(Text(f"  {text}", style))

    def blank(self) -> None:
        """Print an empty line."""
        self._print(Text())

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print columns as wide as their widest cell; the last one is wrapped if it does not fit."""
        widths = []
        for index in range(len(columns)):
            widths.append(max(len(row[index]) for row in (columns, *rows)))
        if any(columns):
            self._row(columns, widths, ["dim"] * len(columns))
        for row in rows:
            self._row(row, widths, ["", "bold"])

    def _row(self, cells: Sequence[str], widths: Sequence[int], styles: Sequence[str]) -> None:
        line, last = Text("  "), len(cells) - 1
        for index, cell in enumerate(cells[:last]):
            line.append(cell.ljust(widths[index]), styles[index] if index < len(styles) else "")
            line.append(GAP)
        margin = len(line)
        for piece in Text(cells[last], styles[last] if last < len(styles) else "").wrap(self._console, WIDTH - margin):
            self._print(line.append_text(piece))
            line = Text(" " * margin)

    def refusal(self, pod: str, state: str, sentences: Sequence[str]) -> None:
        """Print a pod that does not run, and the reasons, wrapped below its name."""
        self._print(Text.assemble("  ", (pod, "bold"), GAP, (state, "yellow")))
        for sentence in sentences:
            for piece in Text(sentence).wrap(self._console, WIDTH - 8):
                self._print(Text("      ").append_text(piece))

    def maps(self, columns: Sequence[tuple[str, Mapping[int, str]]]) -> None:
        """Print 4x4 tori side by side; a device shows the last character of its pod's name, "." if it is free."""
        holders = sorted({pod for _, used in columns for pod in used.values()})
        styles = {pod: _COLOURS[index % len(_COLOURS)] for index, pod in enumerate(holders)}
        width = max(24, *(len(caption) + 3 for caption, _ in columns))
        self._print(Text("  " + "".join(caption.ljust(width) for caption, _ in columns), "dim"))
        for row in range(4):
            line = Text("  ")
            for _, used in columns:
                cell = Text()
                for column in range(4):
                    pod = used.get(4 * row + column)
                    cell.append(f"{pod[-1] if pod else '.'}  ", styles[pod] if pod else "dim")
                cell.pad_right(width - len(cell))
                line.append_text(cell)
            self._print(line)

    def ranks(self, groups: Sequence[str], moments: Sequence[tuple[str, Mapping[str, str]]]) -> None:
        """Print the ranks of the nodes of each group: a line for each moment, a column for each node."""
        margin = max(len(caption) for caption, _ in moments) + 4
        nodes = []
        for group in groups:
            nodes.append(sorted(name for name in moments[0][1] if name.rpartition("-")[0] == group))
        gap = "      "
        heads = (Text(nodes[index][0] + " to " + nodes[index][-1]) for index in range(len(groups)))
        line = Text(" " * margin, "dim")
        for head, group_nodes in zip(heads, nodes, strict=True):
            head.pad_right(max(0, 4 * len(group_nodes) - len(head)))
            line.append_text(head).append(gap)
        self._print(line)
        before: Mapping[str, str] = {}
        for caption, cells in moments:
            line = Text("  " + caption.ljust(margin - 2))
            for group_nodes in nodes:
                for name in group_nodes:
                    style = _STYLES.get(cells[name], "cyan")
                    changed = before and before.get(name) != cells[name]
                    line.append(cells[name].ljust(4), f"bold {style}" if changed else style)
                line.append(" " * max(0, len(f"{group_nodes[0]} to {group_nodes[-1]}") - 4 * len(group_nodes)) + gap)
            self._print(line)
            before = cells

    def _print(self, text: Text) -> None:
        text.rstrip()
        self._console.print(text, soft_wrap=True)
