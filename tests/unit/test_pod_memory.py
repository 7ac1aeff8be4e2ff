"""4.02: thousands of large pods of one tenant do not end the controller or the limits watcher."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

MIB: Final = 1024 * 1024
AT_MOST_BYTES: Final = 16 * MIB
ORDINARY: Final = (10_000, 10 * 1024)
ANNOTATED: Final = (250, 256 * 1024)
OF_A_CLAIM: Final = (250, 10 * 1024)


def growth_bytes(reader: str, pods: int, size_bytes: int) -> int:
    """Return by how much the largest size of a process grows that reads these pods instead of one."""
    words = [sys.executable, "-m", "tests.support.many_pods", reader, str(pods), str(size_bytes)]
    return int(subprocess.run(words, check=True, capture_output=True, text=True, timeout=300).stdout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("reader", "pods"),
    [
        *((reader, ORDINARY) for reader in ("early_pods", "unscheduled_pods", "limits_watcher")),
        *((reader, OF_A_CLAIM) for reader in ("claim_pods", "reread_claims")),
        *(
            (reader, ANNOTATED)
            for reader in ("early_pods", "unscheduled_pods", "limits_watcher", "claim_pods", "reread_claims")
        ),
    ],
)
def test_readers_of_pods_stay_small(reader: str, pods: tuple[int, int]) -> None:
    assert growth_bytes(reader, *pods) <= AT_MOST_BYTES


def test_process_that_keeps_pods_whole_grows() -> None:
    """The control."""
    assert growth_bytes("whole_pods", *ANNOTATED) > AT_MOST_BYTES
