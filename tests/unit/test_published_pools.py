"""16.1: the controller joins a node's slices: devices and connected sets in several, and one of counters."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import devices, partitions, slices
from neuron_dra.core.ultraserver import Phase, Tag, tagged
from neuron_dra.planner.observed.slices import published_nodes, published_slice

NODE = healthy_node("trn2u.48xlarge")
TAG = Tag("ml", "llm", "uid", "allocation", Phase.BOUND)


def pool(shape: str, tag: Tag | None = None) -> list[dict[str, Any]]:
    """The slices of an UltraServer's node with connected sets."""
    published = devices.published(NODE, driver_version="1.2.3", ultraserver_devices=shape)
    found = partitions.partitioned(NODE, published)
    assert found is not None
    return slices.desired(
        slices.Pool("a", "uid-a"),
        [tagged(one.device.to_wire(), tag) for one in found.partitions],
        3,
        counters=[each.to_wire() for each in found.counters],
        position=found.position,
    )


def joined(items: list[dict[str, Any]]) -> Any:
    [node] = published_nodes(one for item in items if (one := published_slice(item)))
    return node


@pytest.mark.parametrize(("shape", "kind"), [("devices", "neuron_device"), ("both", "neuron_node")])
@pytest.mark.parametrize("tag", [None, TAG])
def test_sets_and_counters_do_not_describe_the_node(shape: str, kind: str, tag: Tag | None) -> None:
    for items in (pool(shape, tag), pool(shape, tag)[::-1]):
        node = joined(items)
        assert (node.kind, node.complete, node.tag) == (kind, True, tag)
        assert node.instance_type == "trn2u.48xlarge"


def test_a_missing_slice_is_incomplete_and_an_empty_one_is_not() -> None:
    items = pool("both")
    assert not any(joined(items[:n] + items[n + 1 :]).complete for n in range(len(items)))
    items[0]["spec"].pop("devices")  # all core partitions are withdrawn
    assert joined(items).complete


def test_half_a_tag_is_incomplete() -> None:
    half = [*pool("both", TAG)[:2], *pool("both")[2:]]
    assert not joined(half).complete


def test_unhealthy_device_in_any_slice_is_seen() -> None:
    items = pool("both")
    items[1]["spec"]["devices"][0]["attributes"]["unhealthy"] = {"string": "hbm_ecc"}
    assert joined(items).unhealthy == ("hbm_ecc",)
