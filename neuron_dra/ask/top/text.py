"""The tables of `neuron-dra top`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from neuron_dra.ask.render import terminal, words
from neuron_dra.ask.top import usage
from neuron_dra.ask.top.usage import WHOLE, Sample, Usage
from neuron_dra.core.catalogue import GIB

UNKNOWN: Final = "unknown"
NAMED: Final = 4
"""Nodes that could not be read and have a line each; of more, equal reasons are one line."""
_SHORT: Final = 20  # columns of a pod's name when there is little room
_OTHERS: Final = 60  # columns of what is beside it
_NODE: Final = 19  # columns of a node's name without its domain
LEAST: Final = ("POWER", "EXEC/S")
"""Columns of a fleet that a narrow terminal leaves out, the first one first."""


def rows(before: Mapping[str, Sample], after: Mapping[str, Sample], by: str, namespace: str) -> list[Usage]:
    """Return the use by pod, device or core, of one namespace if it is given."""
    split = {"pod": usage.by_user, "device": usage.by_device, "core": usage.by_core}[by]
    usage_rows: list[Usage] = []
    for node, sample in after.items():
        usage_rows += split(node, before.get(node), sample)
    namespace_rows = []
    for row in usage_rows:
        if not namespace or namespace in row.who.namespace.split(","):
            namespace_rows.append(row)
    return namespace_rows


def lines(
    samples: Mapping[str, Sample], usage_rows: Sequence[Usage], failures: Mapping[str, str], *, by: str, wide: bool
) -> list[str]:
    """Return a table for each node, then what could not be read, and what to know about the numbers."""
    text: list[str] = []
    for node, sample in samples.items():
        node_rows = [row for row in usage_rows if row.node == node]
        if not node_rows:
            continue
        if text:
            text.append("")
        text.append(terminal.colored(_title(node, sample, node_rows), "bold"))
        cells = [_cells(row, by, _OTHERS, wide=wide) for row in node_rows]
        text += terminal.table([_heads(by, wide=wide), *cells], indent="  ")
        if wide:
            text += _memory(node_rows)
    if not text:
        text = ["no pod has Neuron devices there"]
    return text + _below(samples, failures, usage_rows)


def fleet(
    samples: Mapping[str, Sample],
    usage_rows: Sequence[Usage],
    failures: Mapping[str, str],
    *,
    by: str,
    wide: bool,
    most: int,
) -> list[str]:
    """Return one table of all nodes: the busiest lines first, those whose use is unknown last, `most` of them."""
    held_rows = [row for row in usage_rows if row.who.claim]
    ranked = sorted(held_rows, key=_busiest_first)
    used = _places(held_rows)
    free = _places([row for row in usage_rows if not row.who.claim]) - used
    of = words.count(len(samples) + len(failures), "node")
    text = [terminal.colored(f"{len(samples)} of {of} read: {len(used)} devices held, {len(free)} free", "bold")]
    other_columns = _OTHERS + _NODE if terminal.is_terminal() else _OTHERS
    rows = [[row.node, *_cells(row, by, other_columns, wide=wide)] for row in ranked[:most]]
    if rows:
        text += _table([["NODE", *_heads(by, wide=wide)], *rows])
    hidden = len(ranked) - len(rows)
    if hidden:
        text.append(f"  and {words.count(hidden, 'more line')}: --most {len(ranked)}, or -o json")
    return text + _below(samples, failures, usage_rows)


def _table(rows: list[list[str]]) -> list[str]:
    """Return the lines of a fleet; a narrow terminal shows fewer columns, and names those that it leaves out."""
    left_out: list[str] = []
    for title in LEAST:
        if terminal.fits(rows, indent="  ", hosts=0):
            break
        place = rows[0].index(title)
        rows = [[*row[:place], *row[place + 1 :]] for row in rows]
        left_out.append(title)
    text = terminal.table(rows, indent="  ", hosts=0)
    if left_out:
        text += terminal.wrapped(f"left out on a narrow terminal: {', '.join(left_out)}", first="  ", rest="  ")
    return text


def _busiest_first(row: Usage) -> tuple[bool, float, str, tuple[int, ...], int]:
    return row.busy is None, -(row.busy or 0), row.node, row.devices, row.core


def _places(usage_rows: Sequence[Usage]) -> set[tuple[str, int]]:
    """Return the devices of these lines, with their nodes."""
    places = set()
    for row in usage_rows:
        for device in row.devices:
            places.add((row.node, device))
    return places


def unread(failures: Mapping[str, str]) -> list[str]:
    """Return a text for each reason why nodes could not be read, with the nodes."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for node, why in failures.items():
        nodes[why].append(node)
    return [f"{words.listed(same, NAMED)}: {why}" for why, same in nodes.items()]


def _below(samples: Mapping[str, Sample], failures: Mapping[str, str], shown: Sequence[Usage]) -> list[str]:
    """Return what could not be read, and what to know about the numbers."""
    text: list[str] = []
    if len(failures) <= NAMED:
        for node, why in failures.items():
            text += terminal.wrapped(f"{node} could not be read: {why}", first="! ", rest="  ")
    else:
        text += terminal.wrapped(f"{len(failures)} nodes could not be read:", first="! ", rest="  ")
        for failure_text in unread(failures):
            text += terminal.wrapped(failure_text, first="  ", rest="    ")
    for note in _notes(samples, shown):
        text += terminal.wrapped(note, first="", rest="")
    return text


def _title(node: str, sample: Sample, node_rows: Sequence[Usage]) -> str:
    devices = {device for device, _ in sample.places}
    held_places = _places([row for row in node_rows if row.who.claim])
    kind = f" {sample.instance_type}" if sample.instance_type else ""
    return f"{node}{kind}: {len(held_places)} of {len(devices)} devices held"


def _heads(by: str, *, wide: bool) -> list[str]:
    first = {"pod": ["POD", "DEVICES"], "device": ["DEVICE", "POD"], "core": ["DEVICE", "CORE", "POD"]}[by]
    more = ["TFLOP/S", "ECC", "CONTAINER", "CLAIM"] if wide else []
    return [*first, "BUSY", "MEMORY", "EXEC/S", "ERRORS/S", "POWER", *more]


def _cells(row: Usage, by: str, others: int, *, wide: bool) -> list[str]:
    """Return the cells of a line; `others` are the columns of the terminal that a pod's name must leave."""
    pod = _pod(row)
    if not wide:
        pod = _cut(pod, others)
    devices = _numbers(row)
    first = {"pod": [pod, devices], "device": [devices, pod], "core": [devices, str(row.core), pod]}[by]
    memory = power = "-"
    unknown = UNKNOWN if row.cores else "-"  # without cores, as with deviceCounters: devices, nothing is counted
    if row.memory is None:
        memory = unknown
    elif row.cores:
        memory = f"{sum(row.memory.values()) / GIB:.1f} GiB"
    if row.core == WHOLE:
        power = _percent(row.power, "-")
    executions, errors = _number(row.executions, unknown), _number(row.errors, unknown)
    cells = [*first, _percent(row.busy, unknown), memory, executions, errors, power]
    if wide:
        flops = unknown if row.flops is None else f"{row.flops / 1e12:.1f}"
        cells += [flops, _number(row.ecc, "-"), row.who.container or "-", row.who.claim or "-"]
    return cells


def _pod(row: Usage) -> str:
    if not row.who.claim:
        return "(free)"
    return f"{row.who.namespace}/{row.who.pod or 'claim ' + row.who.claim}"


def _cut(text: str, others: int) -> str:
    """Return a name that fits on the terminal: cut in its middle, because both ends tell pods apart."""
    most = max(_SHORT, terminal.width() - others)
    if len(text) <= most:
        return text
    end = most // 2
    return f"{text[: most - end - 1]}…{text[-end:]}"


def _percent(share: float | None, unknown: str) -> str:
    if share is None:
        return unknown
    return f"{100 * share:.0f} %"


def _number(value: float | None, unknown: str) -> str:
    if value is None:
        return unknown
    if value >= 10 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}"


def _numbers(row: Usage) -> str:
    return words.ranges(row.devices, between=",", least=2)


def _memory(node_rows: Sequence[Usage]) -> list[str]:
    """Return the memory by category, of each line that has any."""
    text = []
    for row in node_rows:
        largest = sorted((row.memory or {}).items(), key=lambda name_and_size: -name_and_size[1])
        sizes = []
        for name, size in largest:
            if size:
                sizes.append(f"{name.replace('_', ' ')} {size / GIB:.1f} GiB")
        if sizes:
            where = f"device{'s' if len(row.devices) > 1 else ''} {_numbers(row)}"
            if row.core != WHOLE:
                where = f"core {row.core} of {where}"
            text += terminal.wrapped(f"memory of {where}: {', '.join(sizes)}", first="  ", rest="    ")
    return text


def _notes(samples: Mapping[str, Sample], shown: Sequence[Usage]) -> list[str]:
    notes = []
    if any(row.busy is None and row.cores and row.who.claim for row in shown):
        notes.append(
            "unknown: the counters of a device that a pod holds did not move, which does not show that it is idle; or "
            "its pod changed between the readings."
        )
    if shown and not any(row.cores for row in shown):
        notes.append(
            "-: the nodes have no counters of cores. Either draDriver.deviceCounters is not cores, or the nodes are "
            "simulated ones, as in the demo, where no process uses the devices."
        )
    older = sorted({sample.driver_version for sample in samples.values() if not sample.is_live} - {""})
    if older:
        notes.append(
            f"Kernel driver {', '.join(older)} counts the executions and the time of a process when it ends; drivers "
            "from 2.30.2 on count them while it runs."
        )
    for node, sample in samples.items():
        if sample.unread:
            count = f"{sample.unread} of its devices"
            notes.append(f"{node}: {count} are not shown, because a read of their counters hangs")
    return notes
