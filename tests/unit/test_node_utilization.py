"""(16.8) The utilization that Cluster Autoscaler 1.36 computes for nodes with sets, as in docs/autoscaling.md.

Its rule, from its source: of each counter set, the share of the counter that is used most; then the mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from hack.oracle.connected_slices import partitions_of
from neuron_dra.core.catalogue import all_types
from neuron_dra.core.partitions import Partitioned


def utilization(node: Partitioned, names: Iterable[str]) -> float:
    """Return the utilization while these devices are allocated."""
    used: Counter[tuple[str, str]] = Counter()
    for one in node.partitions:
        if one.device.name in {*names}:
            for each in one.device.to_wire()["consumesCounters"]:
                for counter, amount in each["counters"].items():
                    used[each["counterSet"], counter] += int(amount["value"])
    totals = [each.to_wire() for each in node.counters]
    shares = [
        max(used[each["name"], counter] / int(amount["value"]) for counter, amount in each["counters"].items())
        for each in totals
    ]
    return sum(shares) / len(shares)


@pytest.mark.parametrize("name", [each.name for each in all_types()])
def test_one_device_counts_as_much_as_all(name: str) -> None:
    node = partitions_of(name)
    devices = [one.device.name for one in node.partitions if one.device.name.startswith("neuron-device-")]
    wanted = 1 / 3 if len(devices) == 16 and not name.startswith("trn1") else 1 / 2
    assert utilization(node, devices[:1]) == pytest.approx(wanted)
    assert utilization(node, devices) == pytest.approx(wanted)
