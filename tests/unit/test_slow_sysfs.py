"""Sysfs that is slow, but answers: the health of devices stays known."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

from neuron_dra.emulation import simulated_node
from neuron_dra.node.hardware import helper, sysfs
from neuron_dra.node.hardware.hardware import Hardware
from neuron_dra.node.hardware.reader import Overdue, Reader
from neuron_dra.node.hardware.sysfs import FileReading
from neuron_dra.node.timing import DEFAULT_TIMING
from tests.support.fleet import clock

FILES = 200  # of a reading, about
TIMING = DEFAULT_TIMING.hardware
HOUR_S = 3600.0


class SlowReader(Reader):
    """A reader whose files each take `each_s` seconds to answer."""

    def __init__(self, root: Path, each_s: float) -> None:
        super().__init__(root)
        self.each_s = each_s
        self._root = root

    async def read(self, deadline_s: float, leave_out: Collection[str] = ()) -> FileReading:
        """Read with one deadline for everything."""
        await self._pass(FILES * self.each_s, deadline_s)
        return self._contents()

    async def search(self, deadline_s: float, leave_out: Collection[str] = ()) -> FileReading:
        """Read with a deadline for each file."""
        for _ in range(FILES):
            await self._pass(self.each_s, deadline_s)
        return self._contents()

    async def _pass(self, needed_s: float, deadline_s: float) -> None:
        await asyncio.sleep(min(needed_s, deadline_s))
        if needed_s > deadline_s:
            raise Overdue

    def _contents(self) -> FileReading:
        return sysfs.read(helper.Source(), str(self._root), f"{self._root}/dev")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    simulated_node.write(tmp_path, "trn2.48xlarge")
    return tmp_path


def seconds_in_each_state(reader: SlowReader, host: Path) -> dict[str, float]:
    """Return for how long of an hour a device had each state, after the first reading."""

    async def main() -> dict[str, float]:
        loop = asyncio.get_running_loop()
        hardware = Hardware(str(host), timing=TIMING, reader=reader)
        polling = asyncio.create_task(hardware.poll())
        await hardware.known.wait()
        seconds: Counter[str] = Counter()
        until = loop.time() + HOUR_S
        while loop.time() < until:
            seconds[hardware.health_of("neuron-device-3").status.value] += 1
            await asyncio.sleep(1)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        return dict(seconds)

    return clock.run(clock.VirtualLoop(), main())


@pytest.mark.parametrize("each_s", [0.0, 0.04, 0.06, 0.25])
def test_slow_files_leave_the_health_known(host: Path, each_s: float) -> None:
    assert set(seconds_in_each_state(SlowReader(host, each_s), host)) == {"HEALTHY"}


def test_reading_that_is_minutes_old_counts_no_more(host: Path) -> None:
    """Each reading takes 200 s; its last 140 s and the pause before the next one are divided between the two."""
    found = seconds_in_each_state(SlowReader(host, 1.0), host)
    assert set(found) == {"HEALTHY", "UNKNOWN"}
    assert found["UNKNOWN"] > found["HEALTHY"]
