"""The commands."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from bed import build, layout, lifecycle, network, state
from bed.errors import BedError
from bed.lifecycle import Bed, Wanted


def _pair(text: str) -> tuple[str, str]:
    name, separator, instance_type = text.partition("=")
    if not (name and separator and instance_type):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=INSTANCE_TYPE")
    return name, instance_type


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="testbed", description="A real Kubernetes on this machine with simulated Neuron nodes.")
    commands = parser.add_subparsers(dest="command", required=True)

    sub = commands.add_parser("build", help="build what is not cached")
    sub.add_argument("--kubernetes", choices=build.KUBERNETES, default=build.DEFAULT_KUBERNETES)

    sub = commands.add_parser("up", help="start, add nodes, start again what died")
    sub.add_argument("--kubernetes", choices=build.KUBERNETES, default=None)
    sub.add_argument("--node", metavar="NAME=INSTANCE_TYPE", type=_pair, action="append", default=[])
    sub.add_argument("--ultraserver", metavar="NAME=INSTANCE_TYPE", type=_pair, action="append", default=[],
                     help="four nodes NAME-0 to NAME-3 that are one UltraServer")  # fmt: skip
    sub.add_argument("--driver", choices=("none", "process", "daemonset"), default=None)

    sub = commands.add_parser("exec", help="run a command inside: kubectl, helm, grpcurl, ctr are on the PATH")
    sub.add_argument("--node", help="in this node's mount namespace too")
    sub.add_argument("words", metavar="COMMAND", nargs="+")

    sub = commands.add_parser("down", help="end everything and remove it")
    return parser


def _up(args: argparse.Namespace) -> int:
    started = time.monotonic()
    wanted = Wanted(args.kubernetes, args.node, args.ultraserver, args.driver)
    bed = lifecycle.up(layout.from_environment(), wanted)
    nodes = ", ".join(f"{spec.name} ({spec.instance_type})" for spec in bed.state.nodes.values()) or "none"
    print(f"testbed: Kubernetes {bed.state.kubernetes} up in {time.monotonic() - started:.1f} s; nodes: {nodes}")
    return 0


def _exec(args: argparse.Namespace) -> int:
    bed = Bed(layout.from_environment())
    if args.node:
        node = bed.node(args.node)
        prefix, environment = node.enter(), node.environment()
    else:
        prefix, environment = network.enter(bed.layout), bed.plane.environment()
    words = [*prefix, *args.words]
    os.environ.update(environment)
    sys.stdout.flush()
    os.execvp(words[0], words)


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    try:
        if args.command == "build":
            build.build(layout.from_environment(), args.kubernetes)
            return 0
        if args.command == "up":
            return _up(args)
        if args.command == "exec":
            return _exec(args)
        lifecycle.down(layout.from_environment())
        return 0
    except BedError as err:
        print(f"testbed: {err}", file=sys.stderr)
        return 1
