"""A real registry for images and charts: that of the distribution project, which the test bed builds."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

READY_S = 60
CONFIGURATION = """\
version: 0.1
storage: {filesystem: {rootdirectory: FOLDER}}
http: {addr: ADDRESS}
log: {accesslog: {disabled: true}, level: error}
"""


@contextlib.contextmanager
def running(
    program: Path, folder: Path, address: str, answers: Callable[[str], bool], prefix: Sequence[str] = ()
) -> Iterator[None]:
    """Run the registry, without TLS, until the block ends; `prefix` is a command that runs others in a namespace."""
    text = CONFIGURATION.replace("FOLDER", str(folder / "data")).replace("ADDRESS", address)
    (folder / "config.yml").write_text(text)
    with (folder / "log").open("wb") as log:
        words: list[str | Path] = [*prefix, program, "serve", folder / "config.yml"]
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        until = time.monotonic() + READY_S
        while not answers(f"http://{address}/v2/"):
            assert (process.poll(), time.monotonic() < until) == (None, True), (folder / "log").read_text()
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()
