"""One of several plugins on a node publishes: the one registered last, or the remaining one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_dra.node.files import Files
from neuron_dra.node.publish.publisher_lock import ORPHANED_POLLS, PublisherLock

pytestmark = [pytest.mark.contract("S23"), pytest.mark.contract("R14")]


class Turns:
    """Publisher locks in one folder; each has its own open file, as processes have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.made: list[PublisherLock] = []

    def __call__(self, identity: str) -> PublisherLock:
        self.made.append(PublisherLock(self._folder, identity, Files()))
        return self.made[-1]

    @property
    def holders(self) -> int:
        return sum(turn.holding for turn in self.made)


@pytest.fixture
def turns(short_path: Path) -> Iterator[Turns]:
    made = Turns(short_path)
    yield made
    for turn in made.made:
        turn.release()


def test_first_plugin_gets_the_lock_at_once(turns: Turns) -> None:
    first = turns("a")
    first.begin()
    assert first.holding
    assert first.changed.count == 1


def test_second_publisher_waits_for_registration(turns: Turns) -> None:
    first, second = turns("a"), turns("b")
    first.begin()
    second.begin()
    for _ in range(2 * ORPHANED_POLLS):
        first.poll()
        second.poll()
    assert (first.holding, second.holding) == (True, False)


def test_last_registered_plugin_gets_the_lock(turns: Turns) -> None:
    first, second = turns("a"), turns("b")
    first.begin()
    second.begin()
    second.claim()
    assert turns.holders == 1
    for _ in range(3):
        second.poll()
        assert turns.holders <= 1
        first.poll()
        assert turns.holders <= 1
    assert second.holding


def test_older_plugin_takes_over_after_a_pause(turns: Turns) -> None:
    first, second = turns("a"), turns("b")
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


def test_older_plugin_does_not_use_a_short_pause(turns: Turns) -> None:
    first, second = turns("a"), turns("b")
    first.begin()
    second.claim()
    first.poll()  # gives way
    first.poll()
    assert turns.holders == 0
    second.poll()
    assert second.holding


def test_restarted_container_takes_the_lock_again(turns: Turns) -> None:
    turns("pod-1").begin()
    turns.made[0].release()
    again = turns("pod-1")
    again.poll()
    assert again.holding


def test_lost_name_file_is_recreated(turns: Turns, short_path: Path) -> None:
    first = turns("a")
    first.begin()
    (short_path / "publisher").unlink()
    for _ in range(ORPHANED_POLLS + 3):
        first.poll()
    assert first.holding
    assert (short_path / "publisher").read_text() == "a"


def test_partial_name_file_is_removed(turns: Turns, short_path: Path) -> None:
    (short_path / ".publisher.7.tmp").write_text("pod-")
    turns("a").begin()
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
    turn = PublisherLock(short_path, "a", files)
    turn.claim()
    assert (turn.holding, files.writes) == (True, 2)
    turn.release()
