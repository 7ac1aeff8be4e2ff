"""`neuron-dra slices`: prints the slices that a node would publish, without a cluster."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuron_dra import __version__
from neuron_dra.api.objects import slice_objects
from neuron_dra.arguments import object_name
from neuron_dra.core import busy, devices, health, limits, names, partitions, topology
from neuron_dra.core.facts import NodeFacts, NodeLabels
from neuron_dra.errors import SettingsError
from neuron_dra.node.hardware import helper, sysfs

GAP = "   "
COLUMNS = {
    "DEVICE": "name",
    "TYPE": "instanceType",
    "CORES": "neuronCores",
    "MEMORY": "memory",
    "DEVICES": "connectedDevices",
    "LOGICAL CORES": "cores",
    "ROW": "topology_x",
    "COLUMN": "topology_y",
    "GROUP4": "resource.aws.com/devicegroup4_id",
    "GROUP8": "resource.aws.com/devicegroup8_id",
    "EFA": "resource.aws.com/devicegroup1_id",
    "ULTRASERVER": "ultraserverId",
    "NODE": "ultraserverNodeId",
    "MODES": "ultraserverModes",
    "LINKS": "links",
    "SICK": health.ATTRIBUTE,
}
"""The table's titles, and the value below each: an attribute, a capacity, or a computed word."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra slices`."""
    parser.description = (
        "Print the ResourceSlices that a node would publish, as a List, with no cluster. What is wrong with the "
        "hardware goes to standard error. Exit code 0; 2: a flag or the folder is wrong."
    )
    parser.add_argument(
        "--node-name", required=True, type=object_name, metavar="NAME", help="name of the Node; required"
    )
    parser.add_argument(
        "--host-root",
        default="/",
        type=Path,
        metavar="DIR",
        help="folder that holds the host's sys and dev (default /)",
    )
    parser.add_argument(
        "--ultraserver-devices",
        choices=("node", "devices", "both"),
        default="node",
        help="what UltraServer nodes publish: one whole-node device, each device, or both, which needs "
        "--connected-sets (default node)",
    )
    parser.add_argument(
        "--connected-sets",
        action="store_true",
        help="show connected sets of devices and core partitions too, with the counters that keep them apart",
    )
    parser.add_argument(
        "--ultraserver-parts",
        action="store_true",
        help="show them beside an UltraServer node's one device too",
    )
    parser.add_argument(
        "--connected-sizes",
        default="",
        metavar="SIZE,...",
        help="the sizes to show, such as connected-4,cores-9, the most important ones first (default: all that fit)",
    )
    parser.add_argument(
        "--labels",
        default="",
        metavar="K=V,...",
        help="labels of the Node, such as topology.k8s.aws/capacity-block-id=cr-1 (default none)",
    )
    parser.add_argument(
        "-o", "--output", choices=("yaml", "json", "table"), default="yaml", help="form of the output (default yaml)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the slices; findings about the hardware go to standard error."""
    if args.ultraserver_devices == "both" and not args.connected_sets:
        raise SettingsError("--ultraserver-devices both needs --connected-sets, whose counters keep the two apart")
    if not args.host_root.is_dir():
        raise SettingsError(f"--host-root {args.host_root} is no folder")
    facts = sysfs.read_node(args.host_root)
    node = topology.build(facts, NodeLabels.from_labels(_labels(args.labels)))
    published = devices.published(node, driver_version=__version__, ultraserver_devices=args.ultraserver_devices)
    valid_devices, problems = limits.check_devices(published)
    if not node.devices and node.spec is None:
        problems.append(f"there are no Neuron devices in {args.host_root / helper.CLASS}: is this a Neuron node?")
    else:
        problems += [finding.message for finding in node.findings]
    for text in problems:
        print(f"neuron-dra: {text}", file=sys.stderr)
    sizes = [size for size in args.connected_sizes.split(",") if size]
    divided = None
    if args.connected_sets:
        divided = partitions.partitioned(node, valid_devices, sizes=sizes, parts=args.ultraserver_parts)
    if args.connected_sets and divided is None:
        print("neuron-dra: the instance type is unknown: no sets of devices are published", file=sys.stderr)
    elif divided is not None and divided.left_out:
        limit = partitions.devices_at_most(node.spec)
        print(
            f"neuron-dra: left out, as a node publishes {limit} devices: {', '.join(divided.left_out)}", file=sys.stderr
        )
    shown = [partition.device for partition in divided.partitions] if divided else valid_devices
    ids_by_name = {device.name: device.device_ids for device in shown}
    resource_slices = [
        _marked(as_published(resource_slice), facts, node, ids_by_name)
        for resource_slice in slice_objects(args.node_name, valid_devices, divided)
    ]
    if args.output == "table":
        _print_table(_rows(resource_slices))
    elif args.output == "json":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": resource_slices}, indent=2))
    else:
        import yaml

        print(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": resource_slices}, sort_keys=False), end="")
    return 0


def as_published(resource_slice: Mapping[str, Any]) -> dict[str, Any]:
    """Return a slice without its owner, whose UID only the cluster has."""
    return {**resource_slice, "metadata": {"name": resource_slice["metadata"]["name"]}}


def _marked(
    resource_slice: dict[str, Any], facts: NodeFacts, node: topology.Node, ids_by_name: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Return a slice with attributes and taints of unhealthy devices, as an API server that keeps taints has it.

    `ids_by_name` are the Neuron devices behind each published one.
    """
    expected = range(node.spec.device_count) if node.spec else ()
    watch = health.observe({}, facts.devices, expected, 0.0, 0.0)
    marked = []
    for device in resource_slice["spec"].get("devices") or []:
        is_whole_node = device["name"] == names.NODE_DEVICE  # a missing device makes a whole node unhealthy
        ids = sorted(watch) if is_whole_node else ids_by_name[device["name"]]
        reasons = health.judged(device["name"], ids, watch).reasons
        marked_device = health.marked(device, reasons, health.EFFECTS[0])
        marked.append(busy.tainted(marked_device) if busy.is_closed(node.spec, node.ultraserver) else marked_device)
    if not marked:
        return resource_slice
    return {**resource_slice, "spec": {**resource_slice["spec"], "devices": marked}}


def _labels(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    if any(not equals for _, equals, _ in pairs):
        raise SettingsError(f"--labels {text}: write key=value, separated by commas")
    return {key: value for key, _, value in pairs}


def _rows(resource_slices: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the header and a row for each device; a column that no device fills is left out."""
    cells: list[list[str]] = []
    for resource_slice in resource_slices:
        for device in resource_slice["spec"].get("devices") or ():
            values = _values(device)
            cells.append([_cell(column, device["name"], values) for column in COLUMNS.values()])
    used = [n for n in range(len(COLUMNS)) if n == 0 or any(row[n] for row in cells)]
    header = list(COLUMNS)
    table = [[header[n] for n in used]]
    for row in cells:
        table.append([row[n] or "-" for n in used])
    return table


def _cell(name: str, device_name: str, values: Mapping[str, Any]) -> str:
    if name == "name":
        return device_name
    if name == "links":
        up = [way for way in ("vertical", "horizontal") if values.get(f"link{way.title()}")]
        return ",".join(up) or ("none" if "linkVertical" in values else "")
    text = str(values.get(name, ""))
    if name == "ultraserverModes":
        text = text.replace("_", ",")
    return text


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns, without truncation: in color on a terminal that is wide enough, plain otherwise.

    On a terminal that is too narrow, what all devices share is one line above the table.
    """
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if columns is not None and len(_line(rows[0], _widths(rows), GAP)) <= columns and _print_in_colour(rows):
        return
    gap = GAP
    if columns is not None and len(_line(rows[0], _widths(rows), GAP)) > columns:
        shared, rows = _shared(rows)
        gap = GAP[1:]
        for line in textwrap.wrap(f"all: {', '.join(shared)}" if shared else "", columns):
            print(line)
    widths = _widths(rows)
    for row in rows:
        print(_line(row, widths, gap).rstrip())


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]


def _line(row: Sequence[str], widths: Sequence[int], gap: str) -> str:
    return gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))


def _shared(rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the titles whose values all devices share, with the value, and the rows without them."""
    head, *device_rows = rows
    shared, kept_columns = [], []
    for column, title in enumerate(head):
        values = {row[column] for row in device_rows}
        if column and len(device_rows) > 1 and len(values) == 1:
            shared.append(f"{title} {values.pop()}")
        else:
            kept_columns.append(column)
    kept_rows = []
    for row in rows:
        kept_rows.append([row[column] for column in kept_columns])
    return shared, kept_rows


def _print_in_colour(rows: Sequence[Sequence[str]]) -> bool:
    """Print with rich; return False where that is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    table = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0))
    for title in rows[0]:
        table.add_column(title, no_wrap=True)
    for row in rows[1:]:
        table.add_row(*row)
    Console().print(table)
    return True


def _values(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes and capacities by name, without their types."""
    values = {name: next(iter(typed.values())) for name, typed in device.get("attributes", {}).items()}
    for name, capacity in device.get("capacity", {}).items():
        values[name] = capacity["value"]
    return values
