"""Who holds devices across the fleet: by namespace, and by pod. Pure, except for the terminal's width."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuron_dra.ask.render import terminal, words
from neuron_dra.ask.world import fleet, unseen
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.world import World
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

    @property
    def who(self) -> str:
        """The pods, or the claim that no pod uses."""
        return ", ".join(self.pods) or f"claim {self.claim}"

    @property
    def short(self) -> str:
        """The devices without the word for them: "0-3"."""
        return words.devices(self.devices).removeprefix("devices ").removeprefix("device ")


def rows(nodes: Sequence[NodeView], namespace: str) -> list[Row]:
    """Return who holds devices of the nodes, those with the most first; `namespace` limits it, empty for all."""
    found: dict[tuple[str, str], Row] = {}
    for node in nodes:
        for device in node.devices:
            for holder in device.holders:
                if namespace in ("", holder.namespace):
                    name = holder.claim["metadata"]["name"]
                    known = found.get((holder.key, node.name))
                    devices = (*(known.devices if known else ()), device.name)
                    found[holder.key, node.name] = Row(holder.namespace, holder.pods, name, node.name, devices)
    return sorted(found.values(), key=lambda row: (-len(row.devices), row.namespace, row.who))


def data(world: World, namespace: str, selected: labels.Test) -> list[dict[str, Any]]:
    """Return the rows for `-o json` and `-o yaml`."""
    found = []
    for row in rows(fleet.nodes(world, selected), namespace):
        found.append(
            {
                "namespace": row.namespace,
                "pods": list(row.pods),
                "claim": row.claim,
                "node": row.node,
                "devices": list(row.devices),
            }
        )
    return found


def table(world: World, namespace: str, selected: labels.Test) -> str:
    """Return the rows as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["namespace", "pod", "node", "devices", "count"])
    for row in rows(fleet.nodes(world, selected), namespace):
        writer.writerow([row.namespace, row.who, row.node, row.short, len(row.devices)])
    return out.getvalue()


def lines(world: World, namespace: str, selected: labels.Test, *, wide: bool, headers: bool = True) -> list[str]:
    """Return the screen: each namespace with what it holds, then the pods; without `headers` the pods alone."""
    note = unseen.note(world.snapshot)
    out = terminal.wrapped(note, rest="  ") if note else []
    found = rows(fleet.nodes(world, selected), namespace)
    if not found:
        if headers:
            return [*out, "no claim holds Neuron devices"]
        return out
    shown = found if wide or not headers else found[:SHOWN]
    listed = [[f"{row.namespace}/{row.who}", row.node, words.devices(row.devices)] for row in shown]
    if not headers:
        return [*out, *terminal.table(listed)]
    by_namespace: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        by_namespace[row.namespace].append(row)
    totals = []
    for name, own in by_namespace.items():
        totals.append((name, sum(len(row.devices) for row in own), len({row.who for row in own})))
    summed = [[name, str(devices), str(pods)] for name, devices, pods in sorted(totals, key=lambda each: -each[1])]
    out += _headed([["NAMESPACE", "DEVICES", "PODS"], *summed])
    out += ["", *_headed([["POD", "NODE", "HOLDS"], *listed])]
    left = len(found) - len(shown)
    return out + ([f"and {left} more: -o wide"] if left else [])


def _headed(cells: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = terminal.table(cells)
    return [terminal.colored(head, "bold"), *rest]
