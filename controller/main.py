"""The command line of the controller: `neuron-ultraserver-controller run | plan`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence

from controller import settings
from controller.query import plan_command
from neuron_dra import __version__
from neuron_dra.arguments import Parser, go_style, guarded


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `neuron-ultraserver-controller` and return its exit code."""
    parser = Parser(
        prog="neuron-ultraserver-controller",
        description="Discovers UltraServers and reserves them for NeuronUltraServerWorkloads.",
    )
    parser.add_argument("--version", action="version", version=f"neuron-ultraserver-controller {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    running = commands.add_parser("run", help="work on a cluster (runs as a Deployment)")
    settings.add_arguments(running)
    running.set_defaults(run=_run)
    shown = commands.add_parser("plan", help="print what the controller would do in a cluster, read from a file")
    plan_command.add_arguments(shown)
    shown.set_defaults(run=plan_command.run)
    words = list(sys.argv[1:] if arguments is None else arguments)
    return guarded("neuron-ultraserver-controller", parser, go_style(words) if words[:1] == ["run"] else words)


def operator_main(arguments: Sequence[str] | None = None) -> int:
    """Run the controller as `k8s-neuron-ultraserver-operator`, AWS's name, with AWS's flags and spellings."""
    parser = Parser(prog="k8s-neuron-ultraserver-operator", description="The UltraServer controller of neuron-dra.")
    parser.add_argument("--version", action="version", version=f"neuron-ultraserver-controller {__version__}")
    settings.add_arguments(parser)
    parser.set_defaults(run=_run)
    words = list(sys.argv[1:] if arguments is None else arguments)
    return guarded("neuron-ultraserver-controller", parser, go_style(words))


def _run(parsed: argparse.Namespace) -> int:
    from controller.program import Controller
    from neuron_dra import log as logs
    from neuron_dra.kube import config

    loaded = settings.load(parsed, os.environ, socket.gethostname())
    logs.configure("json" if loaded.log_format == "json" else "text", loaded.v)
    log = logging.getLogger("controller")
    log.info("neuron-ultraserver-controller starts", extra={"version": __version__, "pid": os.getpid()})
    kube = config.from_settings(loaded.kube_api_server, loaded.kubeconfig, os.environ)

    async def serve() -> None:
        controller = Controller(loaded, kube)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, controller.stop)
        await controller.run()

    asyncio.run(serve())
    log.info("neuron-ultraserver-controller ended")
    return 0
