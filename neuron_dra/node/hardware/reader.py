"""Reads the hardware through a helper process, with a deadline for each reading.

A helper that misses its deadline is killed and replaced. The file that hangs is then found by a reading with a deadline
for each file, left out of later readings, and probed from time to time.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, cast

from neuron_dra.node.hardware import helper, sysfs
from neuron_dra.node.hardware.helper import Groups
from neuron_dra.node.hardware.sysfs import FileReading

log = logging.getLogger(__name__)

LEFT_BEHIND: Final = 3  # killed helpers that the kernel still holds; at this many, no new one is started
KILL_S: Final = 2.0  # how long to wait for a killed process to exit
KILL_POLL_S: Final = 0.02
ANSWER_BYTES: Final = 16 * 1024 * 1024


class Overdue(Exception):
    """A reading missed its deadline. `path` is the file that hangs, empty if unknown."""

    def __init__(self, path: str = "") -> None:
        super().__init__(path)
        self.path = path


class Reader:
    """Reads the files of `layout` below `root`, and the device files in the folder `dev`, in a helper process.

    Use it from one task; only `probe` may run concurrently.
    """

    def __init__(self, root: Path, layout: Sequence[Groups] = sysfs.LAYOUT, dev: str = "") -> None:
        self._root = root
        self._layout = layout
        self._dev = dev or str(root / "dev")
        self._helper: _Helper | None = None
        self._left: list[subprocess.Popen[bytes]] = []  # killed, but not known to have exited

    async def read(self, deadline_s: float, leave_out: Collection[str] = ()) -> FileReading:
        """Return the contents of all files except the units in `leave_out`. Raises Overdue, OSError."""
        return await self._ask(helper.request(careful=False, leave_out=leave_out), deadline_s)

    async def search(self, deadline_s: float, leave_out: Collection[str] = ()) -> FileReading:
        """Read as `read` does, with a deadline for each file. Raises OSError, Overdue with the file that hangs."""
        return await self._ask(helper.request(careful=True, leave_out=leave_out), deadline_s)

    async def probe(self, unit: str, deadline_s: float) -> None:
        """Try to read one unit, in a separate helper process. Raises Overdue, OSError."""
        probe_helper = await self._start()
        try:
            await probe_helper.answer(helper.request(careful=False, only=unit), deadline_s)
        finally:
            await self._end(probe_helper)

    async def _ask(self, request: bytes, deadline_s: float) -> FileReading:
        if self._helper is None:
            self._helper = await self._start()
        try:
            return await self._helper.answer(request, deadline_s)
        except BaseException:  # cancelled too: the next request must not read the rest of this reply
            await self.close()
            raise

    async def _start(self) -> _Helper:
        self._left = [process for process in self._left if process.poll() is None]
        if len(self._left) >= LEFT_BEHIND:
            raise OSError(f"{len(self._left)} helper processes hang in the kernel; none is started until one exits")
        return await _Helper.start(self._root, self._layout, self._dev)

    async def close(self) -> None:
        """Kill the helper; do not wait for long if the kernel holds it."""
        former_helper, self._helper = self._helper, None
        if former_helper is not None:
            await self._end(former_helper)

    async def _end(self, ended_helper: _Helper) -> None:
        self._left.append(ended_helper.process)
        ended_helper.kill()
        await self._gone(ended_helper.process)

    async def _gone(self, process: subprocess.Popen[bytes]) -> None:
        """Wait up to KILL_S seconds for a killed process to exit."""
        deadline = asyncio.get_running_loop().time() + KILL_S
        while process.poll() is None and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(KILL_POLL_S)
        self._left = [left_process for left_process in self._left if left_process.poll() is None]

    async def abandon(self) -> None:
        """Kill all helpers when this process ends; those that the kernel holds exit when it releases them."""
        await self.close()
        for process in list(self._left):
            await self._gone(process)
        for process in self._left:
            process.returncode = -9


class _Helper:
    """One helper process."""

    def __init__(self, process: subprocess.Popen[bytes], stream: asyncio.StreamReader, transport: asyncio.Transport):
        self.process = process
        self._stream = stream
        self._transport = transport

    @classmethod
    async def start(cls, root: Path, layout: Sequence[Groups], dev: str) -> _Helper:
        """Start a helper. Raises OSError."""
        parts = [helper.to_argument(groups) for groups in layout]
        # It inherits no open files: a helper that hangs must not hold our locks.
        process = subprocess.Popen(  # noqa: ASYNC220 - as quick as starting a thread for it
            [sys.executable, "-I", "-S", helper.__file__, str(root).rstrip("/"), dev, *parts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            close_fds=True,
            env={},
        )
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader(ANSWER_BYTES)
        try:
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), process.stdout)
        except BaseException:  # cancelled
            process.kill()
            process.wait()  # it has read no file yet, so it cannot hang
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            raise
        return cls(process, stream, cast(asyncio.Transport, transport))

    async def answer(self, request: bytes, deadline_s: float) -> FileReading:
        """Send a request and return the answer. Raises Overdue, and OSError if the helper ends."""
        assert self.process.stdin is not None  # noqa: S101 - it was made with a pipe
        os.write(self.process.stdin.fileno(), request)
        path = ""
        try:
            while True:
                async with asyncio.timeout(deadline_s):
                    kind, _, rest = (await self._stream.readline()).partition(b" ")
                    if kind == b"=":
                        return FileReading(*marshal.loads(await self._stream.readexactly(int(rest))))
                if kind != b">":
                    raise OSError(f"the helper process ended ({self.process.poll()})")
                path = rest.decode().rstrip("\n")
        except TimeoutError:
            raise Overdue(path) from None
        except (asyncio.IncompleteReadError, ValueError, EOFError, TypeError) as err:
            raise OSError(f"malformed reply from the helper process: {err!r}") from err

    def kill(self) -> None:
        """Kill the helper; it exits only when the kernel ends its read."""
        self._transport.close()
        assert self.process.stdin is not None  # noqa: S101 - it was made with a pipe
        self.process.stdin.close()
        self.process.kill()
