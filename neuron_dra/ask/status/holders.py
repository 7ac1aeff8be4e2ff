"""Who holds devices across the fleet: by namespace, and by pod. Pure, except for the terminal's width."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuron_dra.ask.render import terminal, words
from neuron_dra.ask.status import stuck
from neuron_dra.ask.world import fleet, unseen
from neuron_dra.ask.world.fleet import DeviceView, NodeView
from neuron_dra.ask.world.world import Holder, World
from neuron_dra.core import labels

SHOWN = 12
"""Pods that are listed with their devices, those with the most first; the others are counted."""


@dataclass(frozen=True, slots=True)
class Row:
    """The devices that one claim has of one node, and the pods that use it."""

    namespace: str
    pods: tuple[str, ...]
    claim: str
    node: str
    devices: tuple[str, ...]
    chips: int
    """The Neuron devices behind these, of which a node that is published as a whole has several."""
    is_whole: bool = False

    @property
    def who(self) -> str:
        """The pods, or the claim that no pod uses."""
        return ", ".join(self.pods) or f"claim {self.claim}"

    @property
    def text(self) -> str:
        """The devices in words."""
        if self.is_whole:
            return "the whole node"
        return words.devices(self.devices)

    @property
    def short(self) -> str:
        """The devices without the word for them: "0-3"."""
        return words.devices(self.devices).removeprefix("devices ").removeprefix("device ")


def rows(nodes: Sequence[NodeView], namespace: str) -> list[Row]:
    """Return who holds devices of the nodes, those with the most first; `namespace` limits it, empty for all."""
    all_rows: list[Row] = []
    for node in nodes:
        devices_by_holder: dict[str, tuple[Holder, list[DeviceView]]] = {}
        for device in node.devices:
            for holder in device.holders:
                if namespace in ("", holder.namespace):
                    devices_by_holder.setdefault(holder.key, (holder, []))[1].append(device)
        for holder, devices in devices_by_holder.values():
            all_rows.append(_row(node, holder, devices))
    return sorted(all_rows, key=lambda row: (-row.chips, row.namespace, words.natural(row.who)))


def _row(node: NodeView, holder: Holder, devices: Sequence[DeviceView]) -> Row:
    whole = node.spec.device_count if node.spec else 1
    chips = 0
    for device in devices:
        chips += whole if device.number is None else 1
    is_whole = any(device.number is None for device in devices)
    published = tuple([device.name for device in devices])
    name = holder.claim["metadata"]["name"]
    return Row(holder.namespace, holder.pods, name, node.name, published, chips, is_whole)


def data(world: World, namespace: str, selected: labels.Test) -> list[dict[str, Any]]:
    """Return the rows for `-o json` and `-o yaml`."""
    row_objects = []
    for row in rows(fleet.nodes(world, selected), namespace):
        row_objects.append(
            {
                "namespace": row.namespace,
                "pods": list(row.pods),
                "claim": row.claim,
                "node": row.node,
                "devices": list(row.devices),
            }
        )
    return row_objects


def table(world: World, namespace: str, selected: labels.Test) -> str:
    """Return the rows as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["namespace", "pod", "node", "devices", "count", "unit"])
    for row in rows(fleet.nodes(world, selected), namespace):
        unit = "node" if row.is_whole else "device"
        writer.writerow([row.namespace, row.who, row.node, row.short, len(row.devices), unit])
    return out.getvalue()


def lines(world: World, namespace: str, selected: labels.Test, *, wide: bool, headers: bool = True) -> list[str]:
    """Return the screen: each namespace with what it holds, then the pods; without `headers` the pods alone."""
    note = unseen.note(world.snapshot)
    out = terminal.wrapped(note, rest="  ") if note else []
    all_rows = rows(fleet.nodes(world, selected), namespace)
    if not all_rows:
        if headers:
            return [*out, "no claim holds Neuron devices"]
        return out
    shown = all_rows if wide or not headers else all_rows[:SHOWN]
    blind = {fault.name for fault in stuck.without_devices(world, namespace)}
    listed = []
    for row in shown:
        is_blind = any(f"{row.namespace}/{pod}" in blind for pod in row.pods)
        mark = " (no container sees them)" if is_blind else ""
        listed.append([f"{row.namespace}/{row.who}", row.node, f"{row.text}{mark}"])
    if not headers:
        return [*out, *terminal.table(listed, hosts=1)]
    by_namespace: dict[str, list[Row]] = defaultdict(list)
    for row in all_rows:
        by_namespace[row.namespace].append(row)
    ordered = sorted(by_namespace.items(), key=lambda name_and_rows: -sum(row.chips for row in name_and_rows[1]))
    summed = []
    for name, rows_of_namespace in ordered:
        pods = {row.who for row in rows_of_namespace}
        summed.append([name, _amount(rows_of_namespace), str(len(pods))])
    out += _headed([["NAMESPACE", "HOLDS", "PODS"], *summed])
    out += ["", *_headed([["POD", "NODE", "HOLDS"], *listed], hosts=1)]
    hidden = len(all_rows) - len(shown)
    return out + ([f"and {hidden} more: -o wide"] if hidden else [])


def _amount(held_rows: Sequence[Row]) -> str:
    """Return how many devices and whole nodes there are, each with its unit."""
    amounts = Counter[str]()
    for row in held_rows:
        amounts["node" if row.is_whole else "device"] += len(row.devices)
    return ", ".join(words.count(number, unit) for unit, number in sorted(amounts.items()))


def _headed(cells: Sequence[Sequence[str]], hosts: int | None = None) -> list[str]:
    head, *other_lines = terminal.table(cells, hosts=hosts)
    return [terminal.colored(head, "bold"), *other_lines]
