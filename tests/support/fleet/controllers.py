"""Replicas of the real controller that die and restart."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable

from controller import settings as controller_settings
from controller.program import Controller
from neuron_dra.arguments import Parser
from neuron_dra.kube.config import KubeConfig
from tests.support.controller_timings import NO_PORTS
from tests.support.fleet.clock import Clock
from tests.support.fleet.network import Deadly, Line

FLAGS = ("--leader-elect", *NO_PORTS)

GRACE_S = 30.0


class Replica:
    """One replica of the controller. Each start is a new process with its own identity."""

    def __init__(
        self,
        name: str,
        connect: Callable[[str], Line],
        clock: Clock,
        report: Callable[[str], None],
        api_url: str = "line:",
        *,
        elected: bool = True,
        claims_for_a_node: int | None = None,
        flags: tuple[str, ...] = (),
    ) -> None:
        """`elected` False: it works without a Lease. `claims_for_a_node`: as for Controller."""
        self.name = name
        self._connect = connect
        self._clock = clock
        self._report = report
        self._url = api_url
        self._claims_for_a_node = claims_for_a_node
        self._flags = (*(FLAGS if elected else FLAGS[1:]), *flags)
        self._task: asyncio.Task[None] | None = None
        self._killing: asyncio.Task[None] | None = None
        self._back_after_s: float | None = None
        self._restart: asyncio.TimerHandle | None = None
        self.ahead_s = 0.0  # of the clock of its machine
        self.controller: Controller | None = None
        self.line: Line | None = None

    @property
    def up(self) -> bool:
        """It runs and reaches the API server."""
        return self.line is not None and self.line.up and not self.line.dead

    @property
    def leads(self) -> bool:
        """True if it acts as the leader."""
        return self.up and self.controller is not None and self.controller.leadership.holds()

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
        if self._task is not None:
            return
        parser = Parser()
        controller_settings.add_arguments(parser)
        loaded = controller_settings.load(
            parser.parse_args([*self._flags, "--kube-api-server", self._url]), {}, self.name
        )
        self.line = self._connect(self.name)
        self.controller = Controller(
            loaded,
            KubeConfig(self._url),
            client=self.line,
            clock=lambda: self._clock.now() + datetime.timedelta(seconds=self.ahead_s),
            claims_for_a_node=self._claims_for_a_node,
        )
        self._task = asyncio.create_task(self.controller.run(), name=self.name)

    async def stop(self) -> None:
        """End it, and do not start it again."""
        self._back_after_s = None
        if self._restart is not None:
            self._restart.cancel()
        await self.kill()

    async def retire(self) -> None:
        """End it, as SIGTERM does: it releases its Lease."""
        self._back_after_s = None
        if self.controller is not None and self._task is not None:
            self.controller.stop()
            await asyncio.wait([self._task], timeout=GRACE_S)
        await self.kill()

    async def kill(self) -> None:
        """End it, as SIGKILL does: the Lease stays held."""
        task, line = self._task, self.line
        self._task = self.line = self.controller = None
        if task is None or line is None:
            return
        line.dead = True
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def arm(self, nth: int, after: bool, back_after_s: float) -> None:
        """Have it die at its `nth` write from now, and start again later."""
        if self.line is None:
            return
        loop = asyncio.get_running_loop()

        def die(where: str) -> None:
            self._report(f"{self.name} is killed {where}")
            self._killing = loop.create_task(self.kill())
            self._killing.add_done_callback(self._again)

        self._back_after_s = back_after_s
        self.line.deadly = Deadly(nth, after, die)

    def _again(self, _: object) -> None:
        if self._back_after_s is not None:
            self._restart = asyncio.get_running_loop().call_later(self._back_after_s, self.start)

    def died(self) -> BaseException | None:
        """Return the exception that ended it, None after a kill."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            return self._task.exception() or RuntimeError("the controller ended")
        return None
