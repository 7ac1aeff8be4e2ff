"""What holds at the end of every story of a node."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.free_node import ends_free
from tests.support.plugin_host import PluginHost

DISKS = ("short_path", "tmp_path", "host")


@pytest.fixture
def disks(request: pytest.FixtureRequest) -> None:
    """The fixtures of a test that nodes' files belong to: what depends on this one ends before them."""
    for name in DISKS:
        if name in request.fixturenames:
            request.getfixturevalue(name)


@pytest.fixture(autouse=True)
async def every_node_ends_free(request: pytest.FixtureRequest, disks: None) -> AsyncIterator[None]:
    """Every node of a story holds nothing when its pods and claims are gone (4.01)."""
    hosts: list[PluginHost] = []
    PluginHost.made = hosts
    yield
    PluginHost.made = None
    if request.node.get_closest_marker("unchecked_end") is None:
        for host in hosts:
            if host.root.exists():
                await ends_free(host)
