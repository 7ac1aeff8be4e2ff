"""Runs the controller in a process of its own, which can be suspended, with quick timings."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from typing import Final

from controller import settings as controller_settings
from controller.program import Controller
from neuron_dra.arguments import Parser
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from tests.support import forks
from tests.support.controller_timings import BRIEF_LEASE, NO_PORTS

JOIN_S: Final = 60


class Replica:
    """A replica; its `name` is its identity and the User-Agent of its requests."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._process = forks.context().Process(target=_run, args=(url, name))
        self._process.start()

    def suspend(self) -> None:
        """Stop the process until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process go on."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join(JOIN_S)

    def _signal(self, number: signal.Signals) -> None:
        pid = self._process.pid
        assert pid is not None
        os.kill(pid, number)


@contextlib.contextmanager
def running(url: str, name: str) -> Iterator[Replica]:
    """Run a replica until the end of the block."""
    replica = Replica(url, name)
    try:
        yield replica
    finally:
        replica.end()


def _run(url: str, name: str) -> None:
    """Run the controller. The main function of the process."""
    gc.freeze()
    parser = Parser()
    controller_settings.add_arguments(parser)
    words = ["--kube-api-server", url, "--leader-elect=true", *NO_PORTS]
    loaded = controller_settings.load(parser.parse_args(words), {}, name)
    client = KubeClient(KubeConfig(url), user_agent=name, timing=BRIEF_LEASE.client)
    asyncio.run(Controller(loaded, KubeConfig(url), client=client, timing=BRIEF_LEASE).run())
