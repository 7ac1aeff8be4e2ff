"""The thread for disk operations: in order, independent of its callers, and no obstacle to the end of the process."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading

import pytest

from neuron_dra.node.prepare.daemon_worker import Worker
from tests.support.waiting import eventually


@pytest.fixture
def worker() -> Worker:
    return Worker("test")


async def test_work_runs_in_one_thread_in_order(worker: Worker) -> None:
    done: list[tuple[int, str]] = []

    def work(number: int) -> int:
        done.append((number, threading.current_thread().name))
        return number * 2

    assert await asyncio.gather(*(worker.do(work, number) for number in range(20))) == [2 * n for n in range(20)]
    assert done == [(number, "test") for number in range(20)]


async def test_errors_reach_the_caller(worker: Worker) -> None:
    def work(number: int) -> int:
        return 10 // number

    results = await asyncio.gather(*(worker.do(work, number) for number in (0, 5)), return_exceptions=True)
    assert [type(results[0]), results[1]] == [ZeroDivisionError, 2]


async def test_work_completes_without_its_caller(worker: Worker) -> None:
    started, go_on, done = threading.Event(), threading.Event(), []

    def work() -> None:
        started.set()
        go_on.wait(60)
        done.append("work")

    waiting = asyncio.ensure_future(worker.do(work))
    assert await asyncio.to_thread(started.wait, 60)
    waiting.cancel()
    go_on.set()
    assert await worker.do(lambda: list(done)) == ["work"]
    assert waiting.cancelled()


async def test_work_runs_in_its_callers_context(worker: Worker) -> None:
    operation: contextvars.ContextVar[str] = contextvars.ContextVar("operation", default="")

    async def ask(name: str) -> str:
        operation.set(name)
        return await worker.do(operation.get)

    assert await asyncio.gather(*(asyncio.ensure_future(ask(name)) for name in "abc")) == ["a", "b", "c"]


async def test_event_loop_runs_while_the_disk_hangs(worker: Worker) -> None:
    hangs = threading.Event()
    waiting = asyncio.ensure_future(worker.do(hangs.wait, 60))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    hangs.set()
    assert await waiting is True


async def test_the_thread_ends_with_its_worker() -> None:
    worker = Worker("short-lived")
    await worker.do(lambda: None)
    assert "short-lived" in {thread.name for thread in threading.enumerate()}
    del worker

    def gone() -> bool:
        gc.collect()
        return "short-lived" not in {thread.name for thread in threading.enumerate()}

    await eventually(gone, what="the thread ended")


def test_thread_survives_a_closed_loop(worker: Worker) -> None:
    go_on = threading.Event()

    async def leave() -> None:
        worker.do(go_on.wait, 5)

    async def ask() -> str:
        return await worker.do(str, "served")

    asyncio.run(leave())
    go_on.set()
    assert asyncio.run(ask()) == "served"


def test_hanging_disk_does_not_block_exit() -> None:
    program = (
        "import asyncio, time\n"
        "from neuron_dra.node.prepare.daemon_worker import Worker\n"
        "worker = Worker('hangs')\n"
        "async def main():\n"
        "    worker.do(time.sleep, 600)\n"
        "    await asyncio.sleep(0.1)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
