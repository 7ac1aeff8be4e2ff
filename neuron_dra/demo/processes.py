"""Programs of this repository as separate processes, as on a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from neuron_dra import settings
from neuron_dra.errors import NeuronDraError
from neuron_dra.setting_table import settings_of

CONTROLLER: Final = "import sys; from controller.main import main; sys.exit(main())"


class DemoError(NeuronDraError):
    """A step of the demo did not happen."""


class Process:
    """One process that writes its output to a log file."""

    def __init__(self, log: Path, words: Sequence[str], flags: Mapping[str, object], stop_s: float) -> None:
        """Prepare the process: `words` are Python's arguments, `flags` the program's flags.

        `stop_s` is the time in seconds after which it is killed if it does not end.
        """
        self._log = log
        self._stop_s = stop_s
        self._command = (sys.executable, *words, *(f"{flag}={value}" for flag, value in flags.items()))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process."""
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=_clean_environment()
            )

    async def ended(self) -> int:
        """Wait for the process and return its exit code. Raises DemoError if it was never started."""
        if self._process is None:
            raise DemoError(f"the process that logs to {self._log.name} was not started")
        return await self._process.wait()

    def last_words(self) -> str:
        """Return the end of the log, for an error message."""
        if self._log.exists():
            lines = self._log.read_text(errors="replace").splitlines()
        else:
            lines = []
        return " | ".join(lines[-3:]) or "its log is empty"

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """End the process with signal `number`, and kill it if that takes longer than `stop_s` seconds."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(number)
        try:
            async with asyncio.timeout(self._stop_s):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def _clean_environment() -> dict[str, str]:
    """Return this process's environment without the variables that would configure a plugin."""
    taken = {setting.variable for setting in settings_of(settings.PluginSettings)}
    return {name: value for name, value in os.environ.items() if name not in taken}
