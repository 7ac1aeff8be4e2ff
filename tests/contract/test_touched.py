"""The changes that a watched copy notes for its reader are bounded by the objects that exist. Issue 4.02."""

from __future__ import annotations

import random

from neuron_dra.api.objects import node_object
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.reflector import Item, Reflector
from neuron_dra.kube.requests import NODES
from tests.contract.test_reflector import running, shows
from tests.support.timings import QUICK_CLIENT

CHURN = 40


async def test_a_reader_that_never_takes_changes_keeps_none_of_former_objects() -> None:
    """A follower, and the limits watcher, kept the name of each object that ever was."""
    async with EmbeddedApi() as api, KubeClient(KubeConfig(api.url), timing=QUICK_CLIENT) as client:
        api.create(node_object("stays"))
        async with running(Reflector(client, NODES)) as nodes:
            for number in range(CHURN):
                api.create(node_object(f"n{number}"))
                api.delete("nodes", f"n{number}")
            api.create(node_object("last"))
            await shows(nodes, "stays", "last")
            assert nodes.take_touched() == {"/stays", "/last"}
            api.delete("nodes", "stays")  # the control: whoever has taken an object is told that it is gone
            await shows(nodes, "last")
            assert nodes.take_touched() == {"/stays"}


def node(name: str, version: int) -> Item:
    return {**node_object(name), "metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


def test_whoever_takes_changes_from_time_to_time_has_the_same_objects() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        nodes = Reflector(KubeClient(KubeConfig("http://unused")), NODES)
        taken: dict[str, Item] = {}
        for version in range(1, 60):
            name = rng.choice("abcd")
            if f"/{name}" in nodes.items and rng.random() < 0.6:
                nodes.forget(nodes.items[f"/{name}"])
            else:
                nodes.put(f"/{name}", node(name, version))
            if rng.random() < 0.2:
                follow(nodes, taken)
        follow(nodes, taken)
        assert taken == nodes.items


def follow(nodes: Reflector, taken: dict[str, Item]) -> None:
    touched = nodes.take_touched()
    assert touched <= taken.keys() | nodes.items.keys()
    for key in touched:
        if key in nodes.items:
            taken[key] = nodes.items[key]
        else:
            del taken[key]
