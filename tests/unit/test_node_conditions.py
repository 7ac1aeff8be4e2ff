"""Which conditions of a Node mean a fault, and what is shown of them. Issue 36, number 1."""

from __future__ import annotations

import pytest

from neuron_dra.core import node_conditions
from neuron_dra.core.node_conditions import FaultCondition


def test_default_is_that_of_the_two_known_agents() -> None:
    assert (
        FaultCondition("AcceleratedHardwareReady", "False"),
        FaultCondition("NeuronHealth", "True", "NeuronHasError"),
    ) == node_conditions.DEFAULT


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        (" , ", ()),
        ("A=Unknown", (FaultCondition("A", "Unknown"),)),
        ("example.com/Disk=True:Bad, B=False", (FaultCondition("example.com/Disk", "True", "Bad"),
                                                FaultCondition("B", "False"))),
    ],
)  # fmt: skip
def test_list_of_conditions_is_read(text: str, found: tuple[FaultCondition, ...]) -> None:
    assert node_conditions.parse(text) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A", "write Type=Status"),
        ("A=false", "a status of True, False, Unknown"),
        ("A=True:", "write Type=Status"),
        ("A=True:x y", "write Type=Status"),
        ("=True", "write Type=Status"),
        ("A=True,A=False", "each type of condition once"),
        ("Ready=False", "--node-failure-grace"),
        (",".join(f"A{number}=True" for number in range(9)), "at most 8"),
    ],
)
def test_other_texts_are_rejected_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        node_conditions.parse(text)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ({"status": "True", "reason": "NeuronHasNoError"}, []),
        ({"status": "False", "reason": "NeuronHasError_DMA_ERROR"}, []),
        ({"status": "Unknown"}, []),
        ({"status": "True"}, []),
        (
            {"status": "True", "reason": "NeuronHasError_DMA_ERROR", "message": "nd3 nc0"},
            [("NeuronHealth", "NeuronHealth is True, NeuronHasError_DMA_ERROR: nd3 nc0")],
        ),
        (
            {"status": "True", "reason": "NeuronHasError", "message": None},
            [("NeuronHealth", "NeuronHealth is True, NeuronHasError")],
        ),
    ],
)
def test_status_and_reason_decide(condition: dict[str, str], found: list[tuple[str, str]]) -> None:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "NeuronHealth", **condition}]
    assert [*node_conditions.faults(conditions, node_conditions.DEFAULT)] == found


def test_text_of_an_agent_is_short_and_printable() -> None:
    said = {"type": "A", "status": "True", "reason": "R" * 500, "message": "a\x1b[31m\nb\u202e\ud800" + "x" * 100_000}
    [(_, text)] = node_conditions.faults([said], node_conditions.parse("A=True"))
    assert text == f"A is True, {'R' * 63}…: a [31m b {'x' * 150}…"
