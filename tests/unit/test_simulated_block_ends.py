"""`simulate` answers whether a job fits until its nodes' capacity block ends. Issue 36, number 4."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.simulate.reserved import reserve
from neuron_dra.ask.world import imagined
from neuron_dra.core.capacity_block import ANNOTATION
from neuron_dra.core.wire import Obj

NOW = datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.UTC)


def notes(spec: dict[str, Any], *ends: str | None) -> list[str]:
    """Return what is said of a workload on UltraServers whose blocks end so."""
    items: list[Obj] = imagined.fleet(f"{len(ends)} x ultraserver trn2u.48xlarge", "test")
    nodes = sorted((item for item in items if item["kind"] == "Node"), key=lambda item: str(item["metadata"]["name"]))
    for number, node in enumerate(nodes):
        end = ends[number // 4]
        node["metadata"]["annotations"] = {} if end is None else {ANNOTATION: end}
    workload = {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": "train", "namespace": "ml"},
        "spec": {"instanceType": "trn2u.48xlarge", "topologySize": 4, "serverCount": 1, **spec},
    }
    *workload_notes, settings = reserve([workload], snapshot.build(items), NOW).notes
    assert settings == "settings of the UltraServer controller: the defaults"
    return workload_notes


SHORT = (
    "NeuronUltraServerWorkload train: not reserved: needs 1 x 4 trn2u.48xlarge nodes{}; 1 of these groups are free, "
    "and 0 of them in capacity blocks that last so long: EC2 takes instances back up to 60 min before the end of their "
    "block"
)


@pytest.mark.parametrize(
    ("duration", "end", "fits"),
    [
        ("24 h", None, True),
        ("24 h", "Friday", True),  # no time, so it does not count
        ("24 h", "2026-11-27T13:00:00Z", True),
        ("24 h", "2026-11-27T12:59:59Z", False),
        ("36 h", "2026-11-27T13:00:00Z", False),
    ],
)
def test_job_fits_until_its_nodes_are_taken_back(duration: str, end: str | None, fits: bool) -> None:
    """EC2 takes instances back up to an hour before the end of the block."""
    [said] = notes({"expectedDuration": duration.replace(" ", "")}, end)
    assert (said == SHORT.format(f" for {duration} (spec.expectedDuration)")) != fits
    assert ("1 group of 4 nodes reserved" in said) == fits


def test_another_block_that_lasts_is_taken() -> None:
    [said] = notes({"expectedDuration": "24h"}, "2026-11-26T20:00:00Z", "2026-12-24T20:00:00Z")
    assert "1 group of 4 nodes reserved: us1-0, us1-1, us1-2, us1-3" in said or "reserved" in said


def test_job_of_unknown_length_gets_what_is_not_taken_back_yet() -> None:
    [said] = notes({}, "2026-11-26T13:01:00Z")
    assert "1 group of 4 nodes reserved" in said
    [said] = notes({}, "2026-11-26T12:59:00Z")
    assert said == SHORT.format("")


def test_too_few_groups_are_named_before_blocks_that_end() -> None:
    [said] = notes({"serverCount": 3, "expectedDuration": "24h"}, "2026-11-26T20:00:00Z")
    assert "needs 3 x 4 trn2u.48xlarge nodes; 1 of 3 groups of 4 are free: short of 8 nodes" in said
