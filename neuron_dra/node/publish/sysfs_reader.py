"""Readings by the helper process, each with a deadline. A helper that misses it is left behind, and another one takes
its place: what hangs is found file by file and left out, and looked for again from time to time.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final, cast

from neuron_dra.node.publish import sysfs, sysfs_helper
from neuron_dra.node.publish.sysfs_helper import Raw

log = logging.getLogger(__name__)

LEFT_BEHIND: Final = 3  # helpers that do not end although they were killed; no other is started beside so many
KILL_S: Final = 2.0  # until a process that was killed is gone, unless the kernel holds it
KILL_POLL_S: Final = 0.02
ANSWER_BYTES: Final = 16 * 1024 * 1024


class Overdue(Exception):
    """A reading did not end in time. `path` is the file in which it hangs, empty if that is not known."""

    def __init__(self, path: str = "") -> None:
        super().__init__(path)
        self.path = path


class Reader:
    """Reads the files below `root` in a helper process. Use from one task; `probe` may run beside."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._helper: _Helper | None = None
        self._left: list[subprocess.Popen[bytes]] = []

    async def read(self, deadline_s: float, leave_out: Collection[str] = ()) -> Raw:
        """Return what all files but those of the units in `leave_out` say. Raises Overdue, OSError."""
        return await self._ask(sysfs_helper.request(careful=False, leave_out=leave_out), deadline_s)

    async def search(self, deadline_s: float, leave_out: Collection[str] = ()) -> Raw:
        """Read as `read` does, with a deadline for each file: Overdue says which one hangs. Raises Overdue, OSError."""
        return await self._ask(sysfs_helper.request(careful=True, leave_out=leave_out), deadline_s)

    async def probe(self, unit: str, deadline_s: float) -> None:
        """Try to read one unit, in a helper of its own. Raises Overdue, OSError."""
        made = await self._start()
        try:
            await made.answer(sysfs_helper.request(careful=False, only=unit), deadline_s)
        finally:
            await self._end(made)

    async def _ask(self, request: bytes, deadline_s: float) -> Raw:
        if self._helper is None:
            self._helper = await self._start()
        try:
            return await self._helper.answer(request, deadline_s)
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> _Helper:
        self._left = [process for process in self._left if process.poll() is None]
        if len(self._left) >= LEFT_BEHIND:
            raise OSError(f"{len(self._left)} helper processes hang in the kernel; another one would, too")
        return await _Helper.start(self._root)

    async def close(self) -> None:
        """End the helper; one that the kernel holds is left behind."""
        made, self._helper = self._helper, None
        if made is not None:
            await self._end(made)

    async def _end(self, made: _Helper) -> None:
        self._left.append(made.process)
        made.kill()
        await self._gone(made.process)

    async def _gone(self, process: subprocess.Popen[bytes]) -> None:
        """Wait a moment until a process that was killed is gone."""
        until = asyncio.get_running_loop().time() + KILL_S
        while process.poll() is None and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(KILL_POLL_S)
        self._left = [each for each in self._left if each.poll() is None]

    async def abandon(self) -> None:
        """End everything, at the end of this process; the kernel takes care of what it holds."""
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
    async def start(cls, root: Path) -> _Helper:
        """Start one. Raises OSError."""
        layout = [sysfs_helper.to_argument(groups) for groups in sysfs.LAYOUT]
        # No file of ours is left open in it: what holds it must not hold our locks.
        process = subprocess.Popen(  # noqa: ASYNC220 - it takes as long as the start of a thread that would do it
            [sys.executable, "-I", "-S", sysfs_helper.__file__, str(root).rstrip("/"), *layout],
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
            process.wait()  # it has not read anything yet
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            raise
        return cls(process, stream, cast(asyncio.Transport, transport))

    async def answer(self, request: bytes, deadline_s: float) -> Raw:
        """Send a request and return the answer. Raises Overdue, and OSError if the helper ends."""
        assert self.process.stdin is not None  # noqa: S101 - it was made with a pipe
        os.write(self.process.stdin.fileno(), request)
        path = ""
        try:
            while True:
                async with asyncio.timeout(deadline_s):
                    kind, _, rest = (await self._stream.readline()).partition(b" ")
                    if kind == b"=":
                        return cast(Raw, marshal.loads(await self._stream.readexactly(int(rest))))
                if kind != b">":
                    raise OSError(f"the helper process ended ({self.process.poll()})")
                path = rest.decode().rstrip("\n")
        except TimeoutError:
            raise Overdue(path) from None
        except (asyncio.IncompleteReadError, ValueError, EOFError, TypeError) as err:
            raise OSError(f"the helper process answers nonsense: {err!r}") from err

    def kill(self) -> None:
        """Kill it; a read that hangs in the kernel may hold it."""
        self._transport.close()
        assert self.process.stdin is not None  # noqa: S101 - it was made with a pipe
        self.process.stdin.close()
        self.process.kill()
