"""Nodes that differ in attributes that a claim does not read are equal to its pod (34.4)."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.world import relevance
from neuron_dra.ask.world.blockers import Blockers
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from neuron_dra.simulate import model
from neuron_dra.simulate.scheduler import Placement
from tests.support import cluster_faults as faults
from tests.support import small_clusters as small

DRIVER = "device.attributes['neuron.aws.com']"


def demand(*expressions: str, constraint: str = "") -> model.ClaimDemand:
    exactly: dict[str, Any] = {"deviceClassName": "c", "selectors": [{"cel": {"expression": e}} for e in expressions]}
    rules = [{"matchAttribute": constraint}] if constraint else []
    spec = {"devices": {"requests": [{"name": "n", "exactly": exactly}], "constraints": rules}}
    return model.claim({"metadata": {"name": "x"}, "spec": spec})


@pytest.mark.parametrize(
    ("expressions", "constraint", "names"),
    [
        ((), "", frozenset()),
        ((f"{DRIVER}.topology_x == 1",), "", frozenset({"topology_x"})),
        ((f"has({DRIVER}.topology_x) && {DRIVER}.?y.orValue(1) > 0",), "", frozenset({"topology_x", "y"})),
        (('device.attributes["resource.aws.com"].devicegroup4_id == "a"',), "", frozenset({"devicegroup4_id"})),
        (("device.driver == 'neuron.aws.com'",), "resource.aws.com/devicegroup8_id", frozenset({"devicegroup8_id"})),
        (("device.capacity['neuron.aws.com'].memory.isGreaterThan(quantity('1Gi'))",), "", frozenset({"memory"})),
        ((f"{DRIVER}.exists(k, true)",), "", None),
        ((f"{DRIVER}.size() > 3",), "", None),
        ((f"{DRIVER}['topology_x'] == 1",), "", None),
        ((f"cel.bind(a, {DRIVER}, a.topology_x == 1)",), "", None),
        (("'x' in device.attributes",), "", None),
    ],
)
def test_names_that_an_expression_reads(
    expressions: tuple[str, ...], constraint: str, names: frozenset[str] | None
) -> None:
    assert relevance.names([demand(*expressions, constraint=constraint)], {}) == names


def test_names_of_the_class_count_too() -> None:
    wire = {"metadata": {"name": "c"}, "spec": {"selectors": [{"cel": {"expression": f"has({DRIVER}.deviceId)"}}]}}
    assert relevance.names([demand()], {"c": model.device_class(wire)}) == frozenset({"deviceId"})


def fleet(rng: random.Random, attribute: str) -> list[Obj]:
    """Return nodes with pods on some devices, each with another value of an attribute."""
    names = [f"n{number}" for number in range(6)]
    items = small.base(*names)
    for number, name in enumerate(names):
        for item in faults.all_of(items, "ResourceSlice"):
            if item["spec"]["nodeName"] == name:
                for device in item["spec"]["devices"]:
                    device["attributes"][attribute] = {"string": f"{attribute}-{number % 3}"}
        held = rng.choice((0, 4, 15, 16))
        if held:
            items += small.running(items, f"holds-{name}", held, name)
    return items


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_those_of_single_nodes(seed: int) -> None:
    """A claim that reads the attribute, one that does not, and one of another form: each as on its node alone."""
    rng = random.Random(seed)
    items = fleet(rng, "networkNodeLayer3")
    texts = ("true", f"{DRIVER}.networkNodeLayer3 == 'networkNodeLayer3-1'", f"{DRIVER}.size() > 3")
    wanted = small.template("wanted", rng.choice((1, 4, 16, 17)))
    request = wanted["spec"]["spec"]["devices"]["requests"][0]
    request["exactly"]["selectors"] = [{"cel": {"expression": rng.choice(texts)}}]
    pod, claim = small.created(small.pod("p", "wanted"), wanted)
    built = snapshot.build(copy.deepcopy([*items, wanted, pod, claim]))
    world = World(built, proposes=False)
    found = {each.name: each.obstacles for each in Blockers(world, pod, [claim]).all()}
    alone = {}
    for name in world.nodes:
        others = [("Node", "", other) for other in world.nodes if other != name]
        single = World(built.changed(removed=others), proposes=False)
        for each in Blockers(single, pod, [claim]).all():
            alone[each.name] = each.obstacles
    assert found == alone
    fits = [name for name, obstacles in found.items() if not obstacles]
    assert isinstance(world.place(pod), Placement) == bool(fits)
