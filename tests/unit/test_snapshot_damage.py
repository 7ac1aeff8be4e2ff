"""Snapshots with missing, empty and wrong fields: a clear error or an answer, never another exception (17.6)."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest

from neuron_dra.ask.read import manifests, snapshot
from neuron_dra.ask.render import report_text
from neuron_dra.ask.simulate import simulation
from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.topology import fleet_svg
from neuron_dra.ask.topology import svg as topology_svg
from neuron_dra.ask.topology import text as topology_text
from neuron_dra.ask.validate import rules
from neuron_dra.ask.why import answer
from neuron_dra.ask.world import fleet
from neuron_dra.ask.world.world import World
from neuron_dra.core import shapes
from neuron_dra.core.wire import Obj
from neuron_dra.errors import NeuronDraError, SettingsError
from tests.support import cluster_faults as faults
from tests.support.reported_clusters import event
from tests.unit.test_why_pod import ultraserver_cluster

JUNK: tuple[Any, ...] = (None, "", 0, -1, True, [], {}, "x", [None], [{}], {"a": None}, 1.5, "99999999999999999999")
ROUNDS = 25


def whole() -> list[Obj]:
    items = [*faults.healthy(), *ultraserver_cluster(), event("FailedScheduling", "0/2 nodes are available")]
    faults.device_rule(random.Random(0), items)
    faults.quota(random.Random(0), items)
    return items


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values, of lists only the first entries."""
    entries = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*before, key)
        yield from places(inner, (*before, key))


def damage(rng: random.Random, item: Obj) -> None:
    kept = [("kind",), ("metadata",), ("metadata", "name")]
    found = [place for place in places(item) if place not in kept]
    if not found:
        return
    *way, last = rng.choice(found)
    target: Any = item
    for key in way:
        target = target[key]
    if rng.random() < 0.5:
        del target[last]
    else:
        target[last] = copy.deepcopy(rng.choice(JUNK))


def look(items: list[Obj]) -> None:
    """Run every command's analysis."""
    found = snapshot.build(items)
    world = World(found, proposes=False)
    status_text.lines(world, "", wide=True)
    status_text.data(world, "")
    views = fleet.nodes(world)
    topology_text.fleet(views)
    fleet_svg.fleet(views)
    for view in views[:3]:
        topology_text.node(world, view)
        topology_svg.node(view)
    for name, group in fleet.ultraservers(views).items():
        topology_text.ultraserver(world, name, group)
        topology_svg.ultraserver(name, group)
    for kind, report in answer.REPORTS.items():
        for item in found.all(kind)[:6]:
            report_text.lines(report(World(found), item))
    kinds = ("Pod", "ResourceClaim", "ResourceClaimTemplate")
    pods = manifests.expand([item for item in items if item["kind"] in kinds], "default").pods
    simulation.Simulation(world).run(pods)


@pytest.mark.parametrize("kind", sorted({item["kind"] for item in whole()}))
def test_damaged_objects_give_an_answer_or_a_clear_error(kind: str) -> None:
    start, answers = whole(), 0
    for seed in range(ROUNDS):
        rng = random.Random(f"{kind}-{seed}")
        items = copy.deepcopy(start)
        target = rng.choice([item for item in items if item["kind"] == kind])
        for _ in range(rng.choice([1, 1, 2, 3])):
            damage(rng, target)
        try:
            look(items)
            answers += 1
        except NeuronDraError as err:
            assert isinstance(err, SettingsError), (seed, err)
            assert str(err), seed
    assert answers


def test_damaged_manifests_are_validated_or_named() -> None:
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        items = [item for item in faults.healthy() if item["kind"] in ("Pod", "ResourceClaimTemplate", "DeviceClass")]
        damage(rng, rng.choice(items))
        try:
            rules.Checker(snapshot.build(items), (1, 34)).run()
        except NeuronDraError as err:
            assert isinstance(err, SettingsError), (seed, err)


def test_compiled_shapes_accept_only_what_the_shapes_accept() -> None:
    """(17.3) The compiled check saves time; what it accepts is not looked at again."""
    accepted = 0
    for seed in range(ROUNDS * 12):
        rng = random.Random(seed)
        item = copy.deepcopy(rng.choice(whole()))
        assert snapshot._compiled(item["kind"]).has(item), item["kind"]
        damage(rng, item)
        if snapshot._compiled(item["kind"]).has(item):
            accepted += 1
            assert shapes.wrong(item, snapshot.shape(item["kind"])) == "", seed
            assert snapshot._missing(item, valid=True) == snapshot._missing(item, valid=False), seed
    assert accepted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1}, "a is 1: it must be a string"),
        ({"b": [{"c": 1}, {"c": 1.5}]}, "b[1].c is 1.5: it must be a whole number"),
        ({"b": "text"}, "b is 'text': it must be a list"),
        ({"b": [None]}, "b has an empty entry"),
        ({"d": True}, "d is True: it must be a whole number"),
        ([], "is []: it must be an object"),
        ({"a": None, "other": 7}, ""),
    ],
)
def test_shapes_name_the_field(value: Any, text: str) -> None:
    shape = {"a": str, "b": [{"c": int}], "d": int}
    assert shapes.wrong(value, shape).strip() == text
