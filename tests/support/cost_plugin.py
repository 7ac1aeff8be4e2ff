"""What each test costs: its CPU time in milliseconds, children included, and whether it started another process.

pytest writes both to junit, from which `python -m hack.slow_tests` derives what `make quick` leaves out.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Generator
from typing import Final

import pytest

from hack.slow_tests import CPU_PROPERTY, PROCESSES_PROPERTY

STARTS_A_PROCESS: Final = {"os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"}
STARTED: Final = pytest.StashKey[tuple[float, int]]()


class TestCosts:
    """A plugin that measures each test of this process."""

    __test__ = False  # not a test class, despite its name

    def __init__(self) -> None:
        self.processes = 0
        sys.addaudithook(self._count_processes)

    def _count_processes(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in STARTS_A_PROCESS:
            self.processes += 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.stash[STARTED] = (_cpu_ms(), self.processes)
        return (yield)

    # junit takes the properties from the report on the teardown, which pytest makes after this hook.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        try:
            return (yield)
        finally:
            cpu_before_ms, processes_before = item.stash[STARTED]
            item.user_properties.append((CPU_PROPERTY, round(_cpu_ms() - cpu_before_ms, 1)))
            if self.processes > processes_before:
                item.user_properties.append((PROCESSES_PROPERTY, self.processes - processes_before))


def _cpu_ms() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (time.process_time() + children.ru_utime + children.ru_stime)
