"""Runs `neuron-dra` in a process of its own that need not import its modules, which takes half a second."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from neuron_dra.cli import main
from tests.support import forks

ROOT: Final = Path(__file__).resolve().parents[2]
STREAMS: Final = ("stdin", "stdout", "stderr")


def run(
    words: Sequence[str], *, stdin: str = "", env: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `neuron-dra` with these arguments and this environment. Raises TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="nd") as name:
        folder = Path(name)
        (folder / "stdin").write_text(stdin)
        process = forks.context().Process(target=_run, args=(list(words), folder, dict(env)))
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(words), timeout_s)
        stdout, stderr = ((folder / stream).read_text() for stream in STREAMS[1:])
        return subprocess.CompletedProcess(list(words), process.exitcode, stdout, stderr)


def _run(words: list[str], folder: Path, env: dict[str, str]) -> None:
    """Run the command. The main function of the process."""
    gc.freeze()
    for number, stream in enumerate(STREAMS):
        opened = os.open(folder / stream, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ.clear()
    os.environ.update(env)
    os.chdir(ROOT)
    sys.argv = ["neuron-dra", *words]
    sys.exit(main())
