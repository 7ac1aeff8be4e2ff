"""SIGTERM ends a program that starts; for process 1 of a container the kernel ignores it without a handler (4.04)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from neuron_dra.emulation.embedded_api import EmbeddedApi
from tests.support.plugin_host import PluginHost
from tests.support.waiting import eventually


def handles_sigterm(pid: int) -> bool:
    """Return whether a process has a handler, from the mask of caught signals that the kernel shows."""
    status = Path(f"/proc/{pid}/status").read_text()
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows which signals a process handles on Linux alone")
async def test_sigterm_ends_a_plugin_that_starts(api: EmbeddedApi, host: PluginHost) -> None:
    process = await host.start_process("pod-1")
    await eventually(lambda: handles_sigterm(process.pid), what="the first handler")
    os.kill(process.pid, signal.SIGTERM)
    assert await process.ended() == 0
    assert (list(host.registry.iterdir()), "slices published" in process.log) == ([], False)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows which signals a process handles on Linux alone")
@pytest.mark.parametrize(
    ("module", "word", "handled"),
    [
        ("neuron_dra.cli", "plugin", True),
        ("neuron_dra.cli", "status", False),
        ("controller.main", "run", True),
        ("controller.main", "watch-limits", True),
        ("controller.main", "plan", False),
    ],
)
async def test_programs_of_pods_handle_sigterm_before_their_imports(module: str, word: str, handled: bool) -> None:
    """A command for people ends at the signal in any case."""
    program = (
        "import sys\n"
        f"sys.argv = ['x', {word!r}]\n"
        "sys.modules['argparse'] = None\n"  # the first import after the handler fails
        f"try: import {module}\n"
        "except ImportError: pass\n"
        "import signal\n"
        "print(callable(signal.getsignal(signal.SIGTERM)))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output.decode().strip() == str(handled)
