"""The virtual fleet's clock."""

from __future__ import annotations

import asyncio

from tests.support.fleet import clock

DUE = 1.0
ALMOST = DUE - 5e-10  # below the resolution of the wall clock


async def wait_until_due() -> int:
    """Wait like programs that compare the time with a deadline; return the number of wake-ups."""
    loop, woken = asyncio.get_running_loop(), 0
    while loop.time() < DUE and woken < 100:
        try:
            async with asyncio.timeout_at(DUE):
                await asyncio.Event().wait()
        except TimeoutError:
            woken += 1
    return woken


def test_equal_timers_do_not_stop_the_clock() -> None:
    async def main() -> list[int]:
        tasks = [asyncio.create_task(wait_until_due()) for _ in range(2)]
        await asyncio.sleep(ALMOST)
        return list(await asyncio.gather(*tasks))

    assert clock.run(clock.VirtualLoop(), main()) == [1, 1]
