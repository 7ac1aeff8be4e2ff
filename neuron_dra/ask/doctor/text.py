"""The screen of `doctor`: what is wrong first. Pure, except for the terminal's width."""

from __future__ import annotations

from collections.abc import Sequence

from neuron_dra.ask.doctor.lines import CheckState, Line, printable
from neuron_dra.ask.render import terminal, words


def screen(lines: Sequence[Line]) -> list[str]:
    """Return the screen: what is wrong first, then what is unknown, then what is ok."""
    order = {CheckState.WRONG: 0, CheckState.UNKNOWN: 1, CheckState.OK: 2}
    colors = {CheckState.WRONG: "red", CheckState.UNKNOWN: "yellow", CheckState.OK: ""}
    wide = max((len(line.area) for line in lines), default=0)
    out: list[str] = []
    for line in sorted(lines, key=lambda line: order[line.state]):
        indent = " " * (9 + wide + 2)
        shown = terminal.wrapped(printable(line.text), first=f"{line.state.value:<9}{line.area:<{wide}}  ", rest=indent)
        if line.todo:
            shown += terminal.advice(printable(line.todo), first=f"{indent}to do: ", rest=indent)
        out += [terminal.colored(shown_line, colors[line.state]) for shown_line in shown]
    return [*out, "", summary(lines)]


def summary(lines: Sequence[Line]) -> str:
    """Return the last line of the screen."""
    bad, dark = (sum(line.state is state for line in lines) for state in (CheckState.WRONG, CheckState.UNKNOWN))
    parts = [f"{bad} of {words.count(len(lines), 'check')} found something wrong" if bad else "nothing is wrong"]
    if dark:
        parts.append(f"{dark} of {words.count(len(lines), 'check')} could not be done")
    return ", ".join(parts)
