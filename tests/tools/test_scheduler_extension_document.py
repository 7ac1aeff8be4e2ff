"""What the scheduler extension's document shows, and the table that says where this driver differs (32)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import devices, partitions

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/from-the-scheduler-extension.md").read_text()
TABLE = PAGE.partition("## Sentence by sentence")[2].partition("\n## ")[0]


def sets(instance_type: str, size: int) -> list[tuple[int, ...]]:
    """Return the published sets of a size, in the order of their first device."""
    node = healthy_node(instance_type)
    found = partitions.partitioned(node, devices.published(node, driver_version="1.2.3"))
    assert found is not None
    named = (one.device for one in found.partitions if one.device.name.startswith(f"neuron-set-{size}-"))
    return sorted((device.device_ids for device in named), key=lambda ids: ids[0])


@pytest.mark.parametrize("instance_type", ["trn1.32xlarge", "trn1n.32xlarge"])
@pytest.mark.parametrize(("size", "number"), [(4, 4), (8, 2), (16, 1)])
def test_sets_of_trn1_are_those_of_the_figures(instance_type: str, size: int, number: int) -> None:
    """The figures show the rows of the torus, and its pairs of rows."""
    assert sets(instance_type, size) == [tuple(range(n * size, (n + 1) * size)) for n in range(number)]


def test_sets_of_inf2_are_those_of_the_figure() -> None:
    """The figure allows devices 0 and 1, and the last two; it crosses out 0 and 2."""
    pairs = sets("inf2.48xlarge", 2)
    assert {(0, 1), (10, 11)} <= set(pairs)
    assert (0, 2) not in pairs


def test_three_devices_are_never_apart() -> None:
    """The document's example: devices 0, 1, 2, but never 0, 2, 4."""
    assert sets("inf2.48xlarge", 3) == [(n, (n + 1) % 12, (n + 2) % 12) for n in range(12)]


def test_the_table_has_a_verdict_and_a_test_for_each_sentence() -> None:
    rows = [line.strip("|").split(" | ") for line in TABLE.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 25
    assert {re.split(r"\W", row[1].strip())[0] for row in rows} == {"holds", "differs"}
    for row in rows:
        names = re.findall(r"`([\w/]+)\.py::(test_\w+)`", row[-1])
        assert names, row
        for file, name in names:
            text = (ROOT / "tests" / f"{file}.py").read_text()
            assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), (file, name)
