"""The command line of the controller: `neuron-ultraserver-controller plan`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from controller import plan_command
from neuron_dra import __version__
from neuron_dra.arguments import Parser
from neuron_dra.errors import NeuronDraError, SettingsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `neuron-ultraserver-controller` and return its exit code."""
    parser = Parser(
        prog="neuron-ultraserver-controller",
        description="Finds UltraServers, and reserves them for NeuronUltraServerWorkloads.",
    )
    parser.add_argument("--version", action="version", version=f"neuron-ultraserver-controller {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shown = commands.add_parser("plan", help="print what would be done with a cluster, read from a file")
    plan_command.add_arguments(shown)
    shown.set_defaults(run=plan_command.run)
    return _guarded(parser.parse_args(list(sys.argv[1:] if arguments is None else arguments)))


def _guarded(parsed: argparse.Namespace) -> int:
    try:
        return int(parsed.run(parsed) or 0)
    except NeuronDraError as err:
        print(f"neuron-ultraserver-controller: {err}", file=sys.stderr)
        return 2 if isinstance(err, SettingsError) else 1
    except KeyboardInterrupt:
        return 130
