"""`neuron-dra topology [NAME]`: where devices are, how they are linked, and who holds them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from neuron_dra.ask.read import source
from neuron_dra.core import labels, program
from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from neuron_dra.ask.read.snapshot import Snapshot
    from neuron_dra.ask.world.fleet import NodeView
    from neuron_dra.ask.world.world import World

EXAMPLES = """\
examples:
  kubectl neuron topology ip-10-0-1-20.ec2.internal
  kubectl neuron topology cr-0123456789abcdef0
  kubectl neuron topology --fleet
  neuron-dra topology node-1 --snapshot cluster.json -o svg > node-1.svg
  kubectl neuron topology -o html > fleet.html

Exit code 0; 2: it cannot be looked at."""

_OF_A_NODE = f"-o json and -o yaml have the devices of one Node: name it; {program.NAME} status -o json has the fleet"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra topology`."""
    parser.description = (
        "Draw the devices of a node or of an UltraServer with their links, who holds them, and how close the pods are "
        "to each other. Without a name, and with --fleet, a line for each node."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument(
        "name", nargs="?", default="", metavar="NAME", help="a Node, an UltraServer's id, or its object"
    )
    parser.add_argument("--fleet", action="store_true", help="every Neuron node")
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "wide", "svg", "html", "json", "yaml"),
        default="text",
        help="wide: the matrix of any number of pods; html: the page of `neuron-dra ui` as one file; "
        "json, yaml: the devices and EFA interfaces of a Node",
    )
    source.add_selector(parser)
    source.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the picture."""
    if args.fleet and args.name:
        raise SettingsError("--fleet and a name: give one of them")
    snapshot, _ = source.load(args)
    from neuron_dra.ask.render import terminal, words
    from neuron_dra.ask.topology import fleet_svg
    from neuron_dra.ask.topology import svg as topology_svg
    from neuron_dra.ask.topology import text as topology_text
    from neuron_dra.ask.world import faults, fleet, unseen
    from neuron_dra.ask.world.world import World
    from neuron_dra.core.ultraserver import object_name

    world = World(snapshot, proposes=False)
    views = fleet.nodes(world, args.selector)
    groups = fleet.ultraservers(views)
    servers = faults.by_id(world)
    if note := unseen.note(snapshot):
        sys.stderr.write(f"{program.NAME}: {note}\n")
    wide, svg = args.output == "wide", args.output == "svg"
    if not views:
        raise SettingsError(f"no Neuron nodes: {fleet.NONE}")
    if args.output == "html" and args.selector is not labels.EVERY:
        raise SettingsError("-l and -o html: the page has all nodes, and a search")
    is_data = args.output in ("json", "yaml")
    if is_data and not args.name:
        raise SettingsError(_OF_A_NODE)
    if not args.name and args.output == "html":
        _write_page(args, snapshot, "#fleet")
        return 0
    if not args.name and svg:
        missing_by_id = {}
        for ultraserver_id in groups:
            members = faults.members(world, ultraserver_id)
            missing_by_id[ultraserver_id] = faults.missing(members, servers.get(ultraserver_id))
        sys.stdout.write(fleet_svg.fleet(views, missing_by_id))
        return 0
    if not args.name:
        terminal.write(topology_text.fleet(views))
        return 0
    host = words.host(args.name, [view.name for view in views])
    node = next((view for view in views if view.name == host), None)
    if node is not None:
        _write_node(args, world, node)
        return 0
    names = (ultraserver_id for ultraserver_id in groups if args.name in (ultraserver_id, object_name(ultraserver_id)))
    name = next(names, "")
    if not name:
        listed_names = words.listed([*groups, *(view.name for view in views)], 6)
        raise SettingsError(f"{args.name}: not a Neuron node, and not an UltraServer; there are {listed_names}")
    if is_data:
        raise SettingsError(_OF_A_NODE)
    missing = faults.missing(faults.members(world, name), servers.get(name))
    if args.output == "html":
        _write_page(args, snapshot, f"#server/{quote(name, safe='')}")
    elif svg:
        sys.stdout.write(topology_svg.ultraserver(name, groups[name], missing))
    else:
        terminal.write(topology_text.ultraserver(world, name, groups[name], missing, wide=wide))
    return 0


def _write_node(args: argparse.Namespace, world: World, node: NodeView) -> None:
    """Print a node in the form that was chosen."""
    from neuron_dra.ask.render import terminal
    from neuron_dra.ask.topology import data as topology_data
    from neuron_dra.ask.topology import svg as topology_svg
    from neuron_dra.ask.topology import text as topology_text

    if args.output == "html":
        _write_page(args, world.snapshot, f"#node/{quote(node.name, safe='')}")
    elif args.output in ("json", "yaml"):
        terminal.write_data("NodeTopology", topology_data.node(world, node), args.output)
    elif args.output == "svg":
        sys.stdout.write(topology_svg.node(node))
    else:
        terminal.write(topology_text.node(world, node, wide=args.output == "wide"))


def _write_page(args: argparse.Namespace, snapshot: Snapshot, start: str) -> None:
    """Print the page of a snapshot, which begins with the view of the link `start`."""
    from neuron_dra.ask.ui import files, one_file

    name = Path(args.snapshot).name or "a cluster"
    written = source.taken(args.snapshot)
    sys.stdout.write(one_file.page(snapshot, name, files.read(), start, written))
