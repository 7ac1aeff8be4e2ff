"""When the programs of simulated containers end."""

from __future__ import annotations

import pytest

from neuron_dra.emulation.simulated_programs import ProgramEnd, end_of


@pytest.mark.parametrize(
    ("command", "end"),
    [
        (["true"], ProgramEnd(0, 0)),
        (["false"], ProgramEnd(0, 1)),
        (["sleep", "5"], ProgramEnd(5, 0)),
        (["sleep", "1.5m"], ProgramEnd(90, 0)),
        (["sh", "-c", "echo starts; sleep 2; exit 3"], ProgramEnd(2, 3)),
        (["bash", "-c", "sleep 1\nsleep 2"], ProgramEnd(3, 0)),
        (["sleep", "infinity"], None),
        (["sh", "-c", "sleep 1 && false"], None),
        (["sh", "-c", "python train.py"], None),
        (["sh", "-c", "it's"], None),
        ([], None),
    ],
)
def test_plain_commands_end(command: list[str], end: ProgramEnd | None) -> None:
    assert end_of({"spec": {"containers": [{"command": command}]}}) == end


def test_pod_ends_with_its_last_container() -> None:
    containers = [{"command": ["sleep"], "args": ["3"]}, {"command": ["false"]}]
    assert end_of({"spec": {"containers": containers}}) == ProgramEnd(3, 1)
    assert end_of({"spec": {"containers": [*containers, {"name": "server"}]}}) is None
