"""`neuron-dra status`: the fleet on one screen."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from typing import TYPE_CHECKING

from neuron_dra.ask.read import source
from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from neuron_dra.ask.world.world import World

EXAMPLES = """\
examples:
  kubectl neuron status
  kubectl neuron status --watch
  kubectl neuron status -l topology.kubernetes.io/zone=us-east-2a
  kubectl neuron status holders -o csv
  neuron-dra status --snapshot cluster.json -o wide

Exit code 0; 2: it cannot be looked at."""
SORTED = ("free", "held", "unhealthy")
"""Columns of nodes that --sort-by can name."""
CLEAR = "\x1b[H\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra status`."""
    parser.description = (
        "Show the Neuron nodes by type with free, held and unhealthy devices, the UltraServers, and why pods wait. "
        "Pods of all namespaces; -n shows those of one."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument(
        "about", nargs="?", choices=("fleet", "holders"), default="fleet", help="holders: who holds how many devices"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "wide", "name", "csv", "json", "yaml"),
        default="text",
        help="wide: every node and pod; name: the nodes as node/NAME; csv: of holders",
    )
    parser.add_argument("--no-headers", action="store_true", help="without the titles of tables")
    parser.add_argument(
        "--sort-by",
        choices=("name", *SORTED),
        default="name",
        help="order of the nodes of -o wide and -o name",
    )
    parser.add_argument("-w", "--watch", action="store_true", help="show it again every --interval, until interrupted")
    parser.add_argument("--interval", type=float, default=5.0, metavar="SECONDS", help="of --watch (default 5)")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="pods of all namespaces, the default")
    source.add_selector(parser)
    source.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the status."""
    if args.watch and (args.snapshot or args.output in ("json", "yaml")):
        raise SettingsError("--watch: needs a cluster, and the output text or wide")
    if args.all_namespaces and args.namespace:
        raise SettingsError("-A and -n: give one of them")
    if (args.output == "csv") != (args.about == "holders") and args.output in ("csv", "name"):
        raise SettingsError(f"status {args.about} -o {args.output}: csv is of holders, and name of the fleet")
    if args.interval < 1:
        raise SettingsError(f"--interval {args.interval:g}: at least 1")
    from neuron_dra.ask.world.world import World

    read = source.reader(args)
    while True:
        world = World(read()[0], proposes=False)
        _print(args, world)
        if not args.watch:
            source.keep(world)
            return 0
        sys.stdout.flush()
        del world
        gc.collect()
        time.sleep(args.interval)


def _print(args: argparse.Namespace, world: World) -> None:
    from neuron_dra.ask.render import terminal
    from neuron_dra.ask.status import text as status_text

    if args.about == "holders":
        _show_holders(args, world)
        return
    if args.output in ("json", "yaml"):
        terminal.write_data("Status", status_text.data(world, args.namespace, args.selector), args.output)
        return
    if args.output == "name":
        terminal.write([f"node/{node.name}" for node in status_text.sorted_nodes(world, args.selector, args.sort_by)])
        return
    screen = status_text.Screen(wide=args.output == "wide", headers=not args.no_headers, sort_by=args.sort_by)
    lines = status_text.lines(world, args.namespace, args.selector, screen)
    if args.watch and sys.stdout.isatty():
        sys.stdout.write(CLEAR)
    terminal.write(lines)


def _show_holders(args: argparse.Namespace, world: World) -> None:
    from neuron_dra.ask.render import terminal
    from neuron_dra.ask.status import holders
    from neuron_dra.ask.world import unseen

    if args.output in ("json", "yaml"):
        rows = holders.data(world, args.namespace, args.selector)
        terminal.write_data("Holder", rows, args.output, notSeen=unseen.data(world.snapshot))
    elif args.output == "csv":
        sys.stdout.write(holders.table(world, args.namespace, args.selector))
    else:
        wide, headers = args.output == "wide", not args.no_headers
        terminal.write(holders.lines(world, args.namespace, args.selector, wide=wide, headers=headers))
