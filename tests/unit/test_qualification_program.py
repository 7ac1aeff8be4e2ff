"""The shipped test of UltraServers: ranks meet at rank 0, and report figures that a qualification understands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from controller.qualify import all_reduce
from neuron_dra.core.qualification import figures
from tests.support.ports import free_port


@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_agree_and_report_figures(world: int, tmp_path: Path) -> None:
    port = free_port()
    ranks = []
    for rank in reversed(range(world)):  # rank 0 comes last
        arguments = ["--rank", str(rank), "--world", str(world), "--port", str(port), "--rounds", "3"]
        more = ["--rank0", "127.0.0.1", "--message", str(tmp_path / str(rank))]
        command = [sys.executable, "-m", "controller.qualify.all_reduce", *arguments, *more]
        ranks.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for each in ranks:
        _, errors = each.communicate(timeout=60)
        assert (each.returncode, errors) == (0, b"")
    for rank in range(world):
        found = figures((tmp_path / str(rank)).read_text())
        assert found.keys() == {"bandwidth", "p99", "seconds"}
        assert all(value > 0 for value in found.values())


def test_group_of_one_node_has_no_network(tmp_path: Path) -> None:
    assert all_reduce.main(["--world", "1", "--message", str(tmp_path / "m")]) == 0
    assert figures((tmp_path / "m").read_text()).keys() == {"seconds"}
