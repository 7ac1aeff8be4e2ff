"""One of several plugins on a node publishes: the one registered last, or the remaining one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_dra.node.files import Files
from neuron_dra.node.publish.publisher_lock import ORPHANED_POLLS, PublisherLock

pytestmark = [pytest.mark.contract("S23"), pytest.mark.contract("R14")]


class Locks:
    """Publisher locks in one folder; each has its own open file, as processes have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.made: list[PublisherLock] = []

    def __call__(self, identity: str) -> PublisherLock:
        self.made.append(PublisherLock(self._folder, identity, Files()))
        return self.made[-1]

    @property
    def holders(self) -> int:
        return sum(lock.holding for lock in self.made)


@pytest.fixture
def locks(short_path: Path) -> Iterator[Locks]:
    made = Locks(short_path)
    yield made
    for lock in made.made:
        lock.release()


def test_first_plugin_gets_the_lock_at_once(locks: Locks) -> None:
    first = locks("a")
    first.begin()
    assert first.holding
    assert first.changed.count == 1


def test_second_publisher_waits_for_registration(locks: Locks) -> None:
    first, second = locks("a"), locks("b")
    first.begin()
    second.begin()
    for _ in range(2 * ORPHANED_POLLS):
        first.poll()
        second.poll()
    assert (first.holding, second.holding) == (True, False)


def test_last_registered_plugin_gets_the_lock(locks: Locks) -> None:
    first, second = locks("a"), locks("b")
    first.begin()
    second.begin()
    second.claim()
    assert locks.holders == 1
    for _ in range(3):
        second.poll()
        assert locks.holders <= 1
        first.poll()
        assert locks.holders <= 1
    assert second.holding


def test_older_plugin_takes_over_after_a_pause(locks: Locks) -> None:
    first, second = locks("a"), locks("b")
    first.begin()
    second.claim()
    first.poll()
    second.poll()
    second.release()  # as the system does when a process dies
    for _ in range(ORPHANED_POLLS):
        first.poll()
        assert not first.holding
    first.poll()
    assert first.holding
    first.poll()
    assert first.holding


def test_older_plugin_does_not_use_a_short_pause(locks: Locks) -> None:
    first, second = locks("a"), locks("b")
    first.begin()
    second.claim()
    first.poll()  # gives way
    first.poll()
    assert locks.holders == 0
    second.poll()
    assert second.holding


def test_restarted_container_takes_the_lock_again(locks: Locks) -> None:
    locks("pod-1").begin()
    locks.made[0].release()
    again = locks("pod-1")
    again.poll()
    assert again.holding


def test_lost_name_file_is_recreated(locks: Locks, short_path: Path) -> None:
    first = locks("a")
    first.begin()
    (short_path / "publisher").unlink()
    for _ in range(ORPHANED_POLLS + 3):
        first.poll()
    assert first.holding
    assert (short_path / "publisher").read_text() == "a"


def test_partial_name_file_is_removed(locks: Locks, short_path: Path) -> None:
    (short_path / ".publisher.7.tmp").write_text("pod-")
    locks("a").begin()
    assert sorted(path.name for path in short_path.iterdir()) == ["publisher", "publisher.lock"]


def test_removed_name_file_is_written_again(short_path: Path) -> None:
    class Swept(Files):
        """Another plugin starts between the first write and its rename."""

        def __init__(self) -> None:
            self.writes = 0

        def write(self, path: Path, data: bytes, mode: int) -> None:
            super().write(path, data, mode)
            self.writes += 1
            if self.writes == 1:
                PublisherLock(short_path, "newcomer", Files()).sweep()

    files = Swept()
    lock = PublisherLock(short_path, "a", files)
    lock.claim()
    assert (lock.holding, files.writes) == (True, 2)
    lock.release()
