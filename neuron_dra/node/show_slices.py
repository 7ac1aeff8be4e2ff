"""`neuron-dra slices`: what a node would publish, without a cluster."""

from __future__ import annotations

import argparse
import json
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
    import sys

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


def _table(items: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("DEVICE", "TYPE", "CORES", "MEMORY", "GROUP 4", "GROUP 8", "PLACE", "EFA", box=None, pad_edge=False)
    for item in items:
        for device in item["spec"].get("devices") or []:
            value = _values(device)
            x, y = value.get("topology_x"), value.get("topology_y")
            place = f"row {x} column {y}" if x is not None else value.get("ultraserverModes", "")
            table.add_row(
                device["name"],
                str(value.get("instanceType", "")),
                device.get("capacity", {}).get("neuronCores", {}).get("value", ""),
                device.get("capacity", {}).get("memory", {}).get("value", ""),
                str(value.get("resource.aws.com/devicegroup4_id", "")),
                str(value.get("resource.aws.com/devicegroup8_id", "")),
                str(place),
                str(value.get("resource.aws.com/devicegroup1_id", "")),
            )
    Console().print(table)


def _values(device: Mapping[str, Any]) -> dict[str, Any]:
    return {name: next(iter(typed.values())) for name, typed in device.get("attributes", {}).items()}
