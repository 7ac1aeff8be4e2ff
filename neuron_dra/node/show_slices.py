"""`neuron-dra slices`: what a node would publish, without a cluster."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuron_dra import __version__
from neuron_dra.core import devices, limits, slices, topology
from neuron_dra.core.facts import NodeLabels
from neuron_dra.errors import SettingsError
from neuron_dra.node import sysfs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra slices`."""
    parser.add_argument("--host-root", default="/", type=Path, help="folder that holds the host's sys and dev")
    parser.add_argument("--node-name", required=True, help="name of the Node")
    parser.add_argument("--ultraserver-devices", choices=("node", "devices"), default="node")
    parser.add_argument(
        "--labels", default="", metavar="K=V,...", help="labels of the Node, such as its capacity block"
    )
    parser.add_argument("-o", "--output", choices=("yaml", "json", "table"), default="yaml")


def run(args: argparse.Namespace) -> int:
    """Print the slices; findings about the hardware go to standard error."""
    node = topology.build(sysfs.read_node(args.host_root), NodeLabels.from_labels(_labels(args.labels)))
    kept, problems = limits.check_devices(
        devices.published(node, driver_version=__version__, ultraserver_devices=args.ultraserver_devices)
    )
    for text in [*problems, *(finding.message for finding in node.findings)]:
        print(f"neuron-dra: {text}", file=sys.stderr)
    items = [_as_published(item) for item in slice_objects(args.node_name, kept)]
    if args.output == "table":
        _table(items)
    elif args.output == "json":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2))
    else:
        import yaml

        print(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}, sort_keys=False), end="")
    return 0


def slice_objects(node_name: str, kept: Sequence[devices.Device]) -> list[dict[str, Any]]:
    """Return the slices of a node as first published; the owner is left to whoever knows the Node's UID."""
    pool = slices.Pool(node_name, "")
    return slices.desired(pool, [device.to_wire() for device in kept], generation=1)


def _as_published(item: Mapping[str, Any]) -> dict[str, Any]:
    return {**item, "metadata": {"name": item["metadata"]["name"]}}


def _labels(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    if any(not equals for _, equals, _ in pairs):
        raise SettingsError(f"--labels {text}: write key=value, separated by commas")
    return {key: value for key, _, value in pairs}


_COLUMNS = {
    "CORES": "neuronCores",
    "MEMORY": "memory",
    "ROW": "topology_x",
    "COLUMN": "topology_y",
    "EFA": "resource.aws.com/devicegroup1_id",
    "GROUP OF 4": "resource.aws.com/devicegroup4_id",
    "GROUP OF 8": "resource.aws.com/devicegroup8_id",
    "ULTRASERVER": "ultraserverId",
    "NODE": "ultraserverNodeId",
    "MODES": "ultraserverModes",
}


def _table(items: Sequence[Mapping[str, Any]]) -> None:
    """Print one line per device, with the columns that any of them fills."""
    from rich.console import Console
    from rich.table import Table

    devices_ = [device for item in items for device in item["spec"].get("devices") or []]
    values = [_values(device) for device in devices_]
    table = Table("DEVICE", box=None, pad_edge=False)
    shown = [name for name in _COLUMNS.values() if any(name in value for value in values)]
    for title, name in _COLUMNS.items():
        if name in shown:
            table.add_column(title, no_wrap=True)
    for device, value in zip(devices_, values, strict=True):
        table.add_row(device["name"], *(str(value.get(name, "")) for name in shown))
    console = Console()
    for line in sorted({f"{value.get('instanceType', 'unknown type')}" for value in values}):
        console.print(f"{items[0]['spec']['nodeName']}: {line}", highlight=False)
    # A pipe or a file has no width; a table that fits is worth more than one that is cut.
    console.print(table) if console.is_terminal else Console(width=200).print(table)


def _values(device: Mapping[str, Any]) -> dict[str, Any]:
    attributes = {name: next(iter(typed.values())) for name, typed in device.get("attributes", {}).items()}
    return attributes | {name: amount["value"] for name, amount in device.get("capacity", {}).items()}
