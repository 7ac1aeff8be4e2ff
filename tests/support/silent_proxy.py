"""A TCP proxy in front of a server whose connections can be slow, or die silently: they stay open, but pass no byte."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Final

LOCAL: Final = "127.0.0.1"


class SilentProxy:
    """Passes connections on to a port. `silence()` ends all traffic of those that are open.

    It listens at `listens`, by default on a free port of this machine, and waits `pause_s` before each piece that it
    passes on.
    """

    def __init__(self, port: int, host: str = LOCAL, listens: tuple[str, int] = (LOCAL, 0)) -> None:
        self.pause_s = 0.0
        self._to = (host, port)
        self._listens = listens
        self._silent: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.opened = 0

    async def __aenter__(self) -> SilentProxy:
        self._server = await asyncio.start_server(self._connected, *self._listens)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """The URL of the proxy."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def silence(self) -> None:
        """Swallow what the open connections send from now on, in both directions."""
        self._silent |= set(self._tasks)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        number = self.opened
        task = asyncio.current_task()
        assert task is not None
        self._tasks[number] = task
        server_reader, server_writer = await asyncio.open_connection(*self._to)
        try:
            await asyncio.gather(
                self._pass_on(number, reader, server_writer), self._pass_on(number, server_reader, writer)
            )
        except asyncio.CancelledError:  # at the end of the test; asyncio would log it
            pass
        finally:
            del self._tasks[number]
            for each in (writer, server_writer):
                each.transport.abort()

    async def _pass_on(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)
                if number not in self._silent:
                    writer.write(piece)
                    await writer.drain()
        writer.close()
