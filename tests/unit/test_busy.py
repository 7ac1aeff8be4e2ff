"""Nodes whose kernel driver does not know their place in an UltraServer (4.03)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neuron_dra.core import busy, catalogue, health, publication, topology
from neuron_dra.core.facts import DeviceFacts, NodeFacts, NodeLabels, UltraServerFacts, Unread
from neuron_dra.core.publication import Situation

BUSY = UltraServerFacts(modes=Unread.BUSY, node_id_4=Unread.BUSY)
LONG_S = busy.LIMIT_S + 1


def read(instance_type: str = "trn2u.48xlarge", place: UltraServerFacts = BUSY) -> NodeFacts:
    spec = catalogue.lookup(instance_type)
    assert spec is not None
    links = spec.links or ((),) * spec.device_count
    devices = [DeviceFacts(i, spec.cores_per_device, links[i], reset_state=1) for i in range(spec.device_count)]
    return NodeFacts(instance_type, "2.26.5.0", tuple(devices), place)


def without(facts: NodeFacts, device_id: int) -> NodeFacts:
    return replace(facts, devices=tuple(each for each in facts.devices if each.device_id != device_id))


def invalid(facts: NodeFacts, device_id: int) -> NodeFacts:
    changed = [replace(each, reset_state=2) if each.device_id == device_id else each for each in facts.devices]
    return replace(facts, devices=tuple(changed))


def about_place(facts: NodeFacts, busy_for_s: float = 0.0) -> list[str]:
    """Return the messages of the findings about the node's place."""
    kinds = (busy.BUSY_KIND, busy.EMPTY_KIND)
    findings = topology.build(facts, NodeLabels(), busy_for_s).findings
    return [finding.message for finding in findings if finding.kind in kinds]


@pytest.mark.parametrize(
    ("facts", "busy_for_s", "says"),
    [
        (without(read(), 5), 0.0, "neuron5 is missing"),
        (invalid(read(), 7), 0.0, "neuron7 is invalid"),
        (invalid(invalid(without(read(), 5), 7), 8), 0.0, "neuron5 is missing and neuron7, neuron8 are invalid"),
        (read(), LONG_S, "for more than 14 min"),
        (without(read("trn3.48xlarge"), 5), 0.0, "neuron5 is missing"),
        (read(place=UltraServerFacts(modes=())), 0.0, "does not know that trn2u.48xlarge is a type of UltraServers"),
    ],
)
def test_node_that_never_finds_its_place_is_a_finding(facts: NodeFacts, busy_for_s: float, says: str) -> None:
    [message] = about_place(facts, busy_for_s)
    assert says in message


@pytest.mark.parametrize(
    ("facts", "busy_for_s"),
    [
        (read(), 0.0),
        (read(), busy.LIMIT_S),
        (without(read(place=UltraServerFacts(modes=(4,))), 5), LONG_S),
        (read("trn2.48xlarge", UltraServerFacts(modes=())), LONG_S),
        (without(read("trn2.48xlarge"), 5), LONG_S),
        (read(place=UltraServerFacts()), LONG_S),
    ],
    ids=["election", "last moment", "known", "ordinary type", "ordinary and busy", "unread"],
)
def test_other_nodes_have_no_finding_about_their_place(facts: NodeFacts, busy_for_s: float) -> None:
    assert about_place(facts, busy_for_s) == []


@pytest.mark.parametrize(
    ("instance_type", "place", "closed"),
    [
        ("trn3.48xlarge", BUSY, True),
        ("trn3e.24xlarge", BUSY, True),
        ("trn2u.48xlarge", BUSY, False),
        ("trn3.48xlarge", UltraServerFacts(modes=(3, 4)), False),
        ("trn3.48xlarge", UltraServerFacts(), False),
    ],
)
def test_devices_that_nobody_can_open_are_tainted(instance_type: str, place: UltraServerFacts, closed: bool) -> None:
    spec = catalogue.lookup(instance_type)
    assert busy.is_closed(spec, place) is closed


def taints(situation: Situation) -> list[Any]:
    return [dict(taint) for taint in publication.with_marks(situation, {"name": "neuron-node-0"}).get("taints", ())]


def test_taint_of_a_closed_node_comes_and_goes() -> None:
    reasons = {"neuron-node-0": ("missing", "invalid", "sram_ecc", "hbm_ecc")}
    closed = Situation(current={}, offered=(), is_closed=True)
    assert taints(closed) == [dict(busy.TAINT)]
    assert taints(replace(closed, keeps_taints=False)) == []
    assert taints(replace(closed, is_closed=False)) == []
    sick = taints(replace(closed, reasons=reasons, effect="NoSchedule"))
    assert len(sick) == health.TAINTS
    assert [taint["value"] for taint in sick] == ["ultraserver", "missing", "invalid", "sram_ecc"]
