"""`neuron-dra ui`: the fleet as a page in the browser."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import signal
import sys
from typing import TYPE_CHECKING

from neuron_dra.ask.read import source
from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from neuron_dra.ask.ui.session import Session

EXAMPLES = """\
examples:
  kubectl neuron ui
  neuron-dra ui --snapshot cluster.json
  neuron-dra ui --no-browser --port 8400

It ends with Ctrl-C. Exit code 0; 2: it cannot be looked at."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra ui`."""
    parser.description = (
        "Show the fleet as a page in the browser, live: nodes and UltraServers, who holds what, faults, and what "
        "waits and why. The page is served on 127.0.0.1 with the rights of your kubeconfig, and changes nothing."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("--port", type=int, default=0, metavar="PORT", help="on 127.0.0.1 (default: any that is free)")
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address, which has the key to the page, and open nothing"
    )
    source.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the page until it is interrupted."""
    if not 0 <= args.port <= 65535:
        raise SettingsError(f"--port {args.port}: a number from 0 to 65535")
    from neuron_dra.ask.ui import session

    if args.snapshot:
        snapshot, _ = source.load(args)
        gc.enable()
        page_session: Session = session.of_file(snapshot, args.snapshot, source.taken(args.snapshot))
    else:
        from neuron_dra.ask.read import cluster

        kube = cluster.connection(args.kubeconfig, args.context)
        page_session = session.of_cluster(kube, args.namespace or kube.namespace or "default")
    try:
        asyncio.run(_serve(page_session, args))
    except OSError as err:
        raise SettingsError(f"--port {args.port}: {err.strerror or err}") from err
    return 0


async def _serve(page_session: Session, args: argparse.Namespace) -> None:
    from neuron_dra.ask.ui import opening

    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with page_session.served(args.port) as server:
        if args.no_browser:
            target = opening.address(server.host, page_session.token)
            _say(f"open {target}", "the address is the key to the page: give it to no one", "Ctrl-C ends it")
            await ended.wait()
            return
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(opening.redirecting(opening.once(server.host, page_session.ticket)))
            is_open = await asyncio.to_thread(opening.in_browser, file)
            _say("the page is open" if is_open else f"open file://{file} in a browser", "Ctrl-C ends it")
            used = asyncio.create_task(server.used.wait(), name="wait for the page")
            end = asyncio.create_task(ended.wait(), name="wait for the end")
            await asyncio.wait((used, end), return_when=asyncio.FIRST_COMPLETED)
            used.cancel()
            stack.close()  # the page has the token
            await end


def _say(*lines: str) -> None:
    sys.stderr.write("".join(f"neuron-dra: {line}\n" for line in lines))
