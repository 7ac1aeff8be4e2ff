"""The command line of the controller: `neuron-ultraserver-controller run | plan`."""

from __future__ import annotations

from neuron_dra import early_exit

early_exit.on_sigterm("k8s-neuron-ultraserver-operator", "run", "watch-limits")

import argparse
import asyncio
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from controller import settings
from controller.query import plan_command
from controller.timing import DEFAULT_TIMING, DEFAULT_WATCHER_TIMING
from neuron_dra import __version__
from neuron_dra.arguments import Parser, go_style, guarded

if TYPE_CHECKING:
    from neuron_dra.kube.config import KubeConfig
    from neuron_dra.kube.timing import ClientTiming


GO_STYLE = (["run"], ["watch-limits"])


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
    watching = commands.add_parser(
        "watch-limits", help="post Events on pods that wait for a number of devices or cores that no node serves"
    )
    settings.add_arguments(watching, settings.WatcherSettings)
    watching.set_defaults(run=_watch_limits)
    shown = commands.add_parser("plan", help="print what the controller would do in a cluster, read from a file")
    plan_command.add_arguments(shown)
    shown.set_defaults(run=plan_command.run)
    words = list(sys.argv[1:] if arguments is None else arguments)
    return guarded("neuron-ultraserver-controller", parser, go_style(words) if words[:1] in GO_STYLE else words)


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

    loaded = settings.load(parsed, os.environ, socket.gethostname())
    timing = DEFAULT_TIMING
    make = functools.partial(Controller, loaded, timing=timing)
    return _serve("neuron-ultraserver-controller", loaded, timing.client, make)


def _watch_limits(parsed: argparse.Namespace) -> int:
    from controller.limits.watcher import NAME, LimitsWatcher

    loaded = settings.load_as(settings.WatcherSettings, parsed, os.environ, socket.gethostname())
    timing = DEFAULT_WATCHER_TIMING
    make = functools.partial(LimitsWatcher, loaded, timing=timing)
    return _serve(NAME, loaded, timing.client, make)


class Program(Protocol):
    """A program that works until it is stopped."""

    async def run(self) -> None:
        """Work until `stop`."""

    def stop(self) -> None:
        """End `run`."""


def _serve(
    name: str, loaded: settings.WatcherSettings, timing: ClientTiming, make: Callable[[KubeConfig], Program]
) -> int:
    """Run a program until SIGTERM or SIGINT."""
    from neuron_dra import log as logs
    from neuron_dra.kube import config

    logs.configure("json" if loaded.log_format == "json" else "text", loaded.v)
    log = logging.getLogger("controller")
    log.info(f"{name} starts", extra={"version": __version__, "pid": os.getpid()})
    kube = config.from_settings(loaded.kube_api_server, loaded.kubeconfig, os.environ, timing.credentials)

    async def serve() -> None:
        program = make(kube)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, program.stop)
        await program.run()

    asyncio.run(serve())
    log.info(f"{name} ended")
    return 0
