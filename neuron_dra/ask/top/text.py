"""The tables of `neuron-dra top`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from neuron_dra.ask.render import terminal, words
from neuron_dra.ask.top import usage
from neuron_dra.ask.top.usage import WHOLE, Sample, Usage
from neuron_dra.core.catalogue import GIB

LIVE: Final = (2, 30, 2)
"""The first kernel driver that counts executions while a process runs; older ones count them when it ends."""
NAMED: Final = 4
"""Nodes that could not be read and have a line each; of more, equal reasons are one line."""
_SHORT: Final = 24  # columns of a pod's name when there is little room


def rows(before: Mapping[str, Sample], after: Mapping[str, Sample], by: str, namespace: str) -> list[Usage]:
    """Return the use by pod, device or core, of one namespace if it is given."""
    split = {"pod": usage.by_user, "device": usage.by_device, "core": usage.by_core}[by]
    found = [row for node, sample in after.items() for row in split(node, before.get(node), sample)]
    return [row for row in found if not namespace or namespace in row.who.namespace.split(",")]


def lines(
    samples: Mapping[str, Sample], found: Sequence[Usage], failures: Mapping[str, str], *, by: str, wide: bool
) -> list[str]:
    """Return a table for each node, then what could not be read, and what to know about the numbers."""
    text: list[str] = []
    for node, sample in samples.items():
        own = [row for row in found if row.node == node]
        if not own:
            continue
        text += [*([""] if text else []), terminal.colored(_title(node, sample, own), "bold")]
        text += terminal.table([_heads(by, wide=wide), *(_cells(row, by, wide=wide) for row in own)], indent="  ")
        if wide:
            text += _memory(own)
    if not text:
        text = ["no pod has Neuron devices there"]
    return text + _below(samples, failures)


def fleet(
    samples: Mapping[str, Sample],
    found: Sequence[Usage],
    failures: Mapping[str, str],
    *,
    by: str,
    wide: bool,
    most: int,
) -> list[str]:
    """Return one table of all nodes: the busiest lines first, those whose use is unknown last, `most` of them."""
    held = [row for row in found if row.who.claim]
    ranked = sorted(held, key=lambda row: (row.busy is None, -(row.busy or 0), row.node, row.devices, row.core))
    free = {(row.node, device) for row in found if not row.who.claim for device in row.devices}
    used = {(row.node, device) for row in held for device in row.devices}
    of = words.count(len(samples) + len(failures), "node")
    text = [terminal.colored(f"{len(samples)} of {of} read: {len(used)} devices held, {len(free - used)} free", "bold")]
    rows = [[row.node, *_cells(row, by, wide=wide)] for row in ranked[:most]]
    text += terminal.table([["NODE", *_heads(by, wide=wide)], *rows], indent="  ") if rows else []
    left = len(ranked) - len(rows)
    text += [f"  and {words.count(left, 'more line')}: --most {len(ranked)}, or -o json"] if left else []
    return text + _below(samples, failures)


def unread(failures: Mapping[str, str]) -> list[str]:
    """Return a text for each reason why nodes could not be read, with the nodes."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for node, why in failures.items():
        nodes[why].append(node)
    return [f"{words.listed(same, NAMED)}: {why}" for why, same in nodes.items()]


def _below(samples: Mapping[str, Sample], failures: Mapping[str, str]) -> list[str]:
    """Return what could not be read, and what to know about the numbers."""
    text: list[str] = []
    for node, why in failures.items() if len(failures) <= NAMED else ():
        text += terminal.wrapped(f"{node} could not be read: {why}", first="! ", rest="  ")
    if len(failures) > NAMED:
        text += terminal.wrapped(f"{len(failures)} nodes could not be read:", first="! ", rest="  ")
        for each in unread(failures):
            text += terminal.wrapped(each, first="  ", rest="    ")
    for note in _notes(samples):
        text += terminal.wrapped(note, first="", rest="")
    return text


def _title(node: str, sample: Sample, own: Sequence[Usage]) -> str:
    devices = {device for device, _ in sample.places}
    held = {device for row in own if row.who.claim for device in row.devices}
    kind = f" {sample.instance_type}" if sample.instance_type else ""
    return f"{node}{kind}: {len(held)} of {len(devices)} devices held"


def _heads(by: str, *, wide: bool) -> list[str]:
    first = {"pod": ["POD", "DEVICES"], "device": ["DEVICE", "POD"], "core": ["DEVICE", "CORE", "POD"]}[by]
    more = ["TFLOP/S", "ECC", "CONTAINER", "CLAIM"] if wide else []
    return [*first, "BUSY", "MEMORY", "EXEC/S", "ERRORS/S", "POWER", *more]


def _cells(row: Usage, by: str, *, wide: bool) -> list[str]:
    pod = _pod(row) if wide else _cut(_pod(row))
    devices = _numbers(row)
    first = {"pod": [pod, devices], "device": [devices, pod], "core": [devices, str(row.core), pod]}[by]
    cells = [
        *first,
        _percent(row.busy),
        f"{sum(row.memory.values()) / GIB:.1f} GiB" if row.cores else "-",
        _number(row.executions),
        _number(row.errors),
        _percent(row.power) if row.core == WHOLE else "-",
    ]
    if wide:
        flops = "-" if row.flops is None else f"{row.flops / 1e12:.1f}"
        cells += [flops, _number(row.ecc), row.who.container or "-", row.who.claim or "-"]
    return cells


def _pod(row: Usage) -> str:
    if not row.who.claim:
        return "(free)"
    return f"{row.who.namespace}/{row.who.pod or 'claim ' + row.who.claim}"


def _cut(text: str) -> str:
    most = max(_SHORT, terminal.width() - 56)
    return text if len(text) <= most else text[: most - 1] + "…"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _numbers(row: Usage) -> str:
    return words.ranges(row.devices, between=",", least=2)


def _memory(own: Sequence[Usage]) -> list[str]:
    """Return the memory by category, of each line that has any."""
    text = []
    for row in own:
        sizes = {name: size for name, size in row.memory.items() if size}
        if sizes:
            listed = ", ".join(
                f"{name.replace('_', ' ')} {size / GIB:.1f} GiB"
                for name, size in sorted(sizes.items(), key=lambda item: -item[1])
            )
            devices = f"device{'s' if len(row.devices) > 1 else ''} {_numbers(row)}"
            where = devices if row.core == WHOLE else f"core {row.core} of {devices}"
            text += terminal.wrapped(f"memory of {where}: {listed}", first="  ", rest="    ")
    return text


def _notes(samples: Mapping[str, Sample]) -> list[str]:
    notes = []
    older = sorted({each.driver_version for each in samples.values() if _is_older(each.driver_version)})
    if older:
        notes.append(
            f"Kernel driver {', '.join(older)} counts the executions and the time of a process when it ends; drivers "
            "from 2.30.2 on count them while it runs."
        )
    for node, each in samples.items():
        if each.unread:
            notes.append(f"{node}: {each.unread} of its devices are not shown, because a read of their counters hangs")
    return notes


def _is_older(text: str) -> bool:
    numbers = [int(part) for part in text.split(".")[:3] if part.isdecimal()]
    return len(numbers) == 3 and tuple(numbers) < LIVE
