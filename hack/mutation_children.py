"""One forked process per mutant: its result, and its end if it does not return one."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
from collections.abc import Callable

import pytest

WAIT_LIMIT_S = 180.0  # for a child that neither ends nor uses CPU
SURVIVED, KILLED, SLOW, BROKEN = 0, 1, 2, 3
WORDS = {SURVIVED: "survived", KILLED: "killed", SLOW: "timeout", BROKEN: "broken"}


class Child:
    """A forked process that does one thing and returns one line."""

    def __init__(self, work: Callable[[], str], cpu_s: float, output: str = os.devnull) -> None:
        self.cpu_s = 0.0
        self._read, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.setpgid(0, 0)  # a group, to end it with its children; a new session would get its own scheduling weight
            os.close(self._read)
            file = os.open(output, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            for stream in (0, 1, 2):
                os.dup2(file, stream)
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 2))
            try:
                answer = work()
            except BaseException as error:
                answer = f"{BROKEN} {error!r}"
            os.write(write, answer.encode()[:4000])
            os._exit(0)
        os.close(write)

    def answer(self, wait_s: float) -> str:
        """Return the child's line, or the timeout's line if it took too long; all its processes have ended."""
        ready, _, _ = select.select([self._read], [], [], wait_s)
        text = os.read(self._read, 4096).decode() if ready else ""
        os.close(self._read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        _, _, used = os.wait4(self._pid, 0)
        self.cpu_s = used.ru_utime + used.ru_stime
        return text or f"{SLOW} "


def tried(work: Callable[[], str], cpu_s: float) -> tuple[str, float]:
    """Run a mutant in a child; return its line and its CPU seconds.

    A child that timed out without using CPU is tried once more, because the machine may have been busy.
    """
    for _ in range(2):
        child = Child(work, cpu_s)
        answer = child.answer(WAIT_LIMIT_S + 5 * cpu_s)
        if not answer.startswith(str(SLOW)) or child.cpu_s > cpu_s / 2:
            break
    return answer, child.cpu_s


class Failures:
    """A pytest plugin that stops at the first failure and records its name."""

    def __init__(self) -> None:
        self.failed = ""
        self.slow = False

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid
            self.slow = "Timeout" in str(report.longrepr)

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or f"import of {report.nodeid}"

    @property
    def verdict(self) -> str:
        return f"{SURVIVED} " if not self.failed else f"{SLOW if self.slow else KILLED} {self.failed}"
