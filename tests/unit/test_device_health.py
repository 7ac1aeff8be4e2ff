"""What the kernel driver says of devices, and what a node publishes of it. Silence is neither good nor bad."""

from __future__ import annotations

import pytest

from neuron_dra.core import devices, topology
from neuron_dra.core.facts import DeviceFacts, NodeFacts, NodeLabels, Unread
from neuron_dra.core.health import devices_healthy, interserver_links_healthy

FINE = {"node_present": True, "reset_state": 1, "unhealthy_components": ()}


def machine(*, count: int = 16, **changes) -> list[DeviceFacts]:
    """Sixteen healthy devices; `changes` are those of device 3."""
    return [DeviceFacts(n, **(FINE | changes if n == 3 else FINE)) for n in range(count)]


@pytest.mark.parametrize(
    ("changes", "healthy", "links"),
    [
        ({}, True, True),
        ({"unhealthy_components": ("link_interserver",)}, True, False),
        ({"unhealthy_components": ("hbm", "link_interserver")}, False, False),
        ({"unhealthy_components": ("link_intraserver",)}, False, True),
        ({"unhealthy_components": Unread.UNKNOWN}, True, None),
        ({"unhealthy_components": Unread.UNKNOWN, "reset_state": Unread.UNKNOWN}, None, None),
        ({"reset_state": 2}, False, True),
        ({"mem_ecc_uncorrected": 1}, False, True),
        ({"node_present": False}, False, True),
    ],
)
def test_a_node_is_as_healthy_as_its_worst_device(changes, healthy, links):
    found = machine(**changes)
    assert (devices_healthy(found, 16), interserver_links_healthy(found)) == (healthy, links)


def test_a_device_that_is_gone_is_a_fault_of_the_node():
    assert devices_healthy(machine(count=15), 16) is False


def test_of_no_device_nothing_is_known():
    assert (devices_healthy([], 0), interserver_links_healthy([])) == (None, None)


@pytest.mark.parametrize("shape", ["node", "devices"])
@pytest.mark.parametrize(
    ("changes", "published"),
    [
        ({"unhealthy_components": ("link_interserver",)}, {"linkInterserver": False, "nodeHealthy": True}),
        ({"unhealthy_components": Unread.UNKNOWN, "reset_state": Unread.UNKNOWN}, {}),
    ],
)
def test_every_device_of_an_ultraserver_node_tells_the_nodes_health(shape, changes, published):
    node = topology.build(NodeFacts("trn3.48xlarge", None, tuple(machine(**changes))), NodeLabels())
    for device in devices.published(node, driver_version="1.0.0", ultraserver_devices=shape):
        told = {n: a.value for n, a in device.attributes.items() if n in ("linkInterserver", "nodeHealthy")}
        assert told == published


def test_nodes_outside_of_ultraservers_do_not_tell_it():
    node = topology.build(NodeFacts("trn2.48xlarge", None, tuple(machine())), NodeLabels())
    for device in devices.published(node, driver_version="1.0.0"):
        assert not {"linkInterserver", "nodeHealthy"} & device.attributes.keys()
