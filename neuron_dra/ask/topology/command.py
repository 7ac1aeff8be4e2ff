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

EXAMPLES = """\
examples:
  kubectl neuron topology ip-10-0-1-20.ec2.internal
  kubectl neuron topology cr-0123456789abcdef0
  kubectl neuron topology --fleet
  neuron-dra topology node-1 --snapshot cluster.json -o svg > node-1.svg
  kubectl neuron topology -o html > fleet.html

Exit code 0; 2: it cannot be looked at."""


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
        choices=("text", "wide", "svg", "html"),
        default="text",
        help="wide: the matrix of any number of pods; html: the page of `neuron-dra ui` as one file",
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
    if not args.name:
        if args.output == "html":
            _write_page(args, snapshot, "#fleet")
        elif svg:
            missing_by_id = {}
            for ultraserver_id in groups:
                members = faults.members(world, ultraserver_id)
                missing_by_id[ultraserver_id] = faults.missing(members, servers.get(ultraserver_id))
            sys.stdout.write(fleet_svg.fleet(views, missing_by_id))
        else:
            terminal.write(topology_text.fleet(views))
        return 0
    host = words.host(args.name, [view.name for view in views])
    node = next((view for view in views if view.name == host), None)
    if node is not None and args.output == "html":
        _write_page(args, snapshot, f"#node/{quote(node.name, safe='')}")
        return 0
    if node is not None:
        sys.stdout.write(topology_svg.node(node)) if svg else terminal.write(topology_text.node(world, node, wide=wide))
        return 0
    name = ""
    for ultraserver_id in groups:
        if args.name in (ultraserver_id, object_name(ultraserver_id)):
            name = ultraserver_id
            break
    if not name:
        listed_names = words.listed([*groups, *(view.name for view in views)], 6)
        raise SettingsError(f"{args.name}: not a Neuron node, and not an UltraServer; there are {listed_names}")
    missing = faults.missing(faults.members(world, name), servers.get(name))
    if args.output == "html":
        _write_page(args, snapshot, f"#server/{quote(name, safe='')}")
    elif svg:
        sys.stdout.write(topology_svg.ultraserver(name, groups[name], missing))
    else:
        terminal.write(topology_text.ultraserver(world, name, groups[name], missing, wide=wide))
    return 0


def _write_page(args: argparse.Namespace, snapshot: Snapshot, start: str) -> None:
    """Print the page of a snapshot, which begins with the view of the link `start`."""
    from neuron_dra.ask.ui import files, one_file

    name = Path(args.snapshot).name or "a cluster"
    written = source.taken(args.snapshot)
    sys.stdout.write(one_file.page(snapshot, name, files.read(), start, written))
