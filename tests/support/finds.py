"""A `Rediscovery` of tests that run a part of the plugin: its kubelet lists what the test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuron_dra.core.claims import Claim, PreparedClaim
from neuron_dra.core.evidence import Listing
from neuron_dra.node.prepare.rediscovery import Rediscovery
from neuron_dra.node.prepare.store import Decide
from tests.support.claim_paths import NEURON_PATH, ClaimPath


class ListedBy:
    """A kubelet with this list; it lists no pods until the test replaces it. None if it does not answer."""

    def __init__(self) -> None:
        self.listing: Listing | None = Listing()
        self.asked = 0

    async def __call__(self) -> Listing | None:
        self.asked += 1
        return self.listing


def adopted(claim: Claim) -> PreparedClaim:
    """Return a claim for devices `neuron-device-N`, adopted."""
    return NEURON_PATH.adopted(claim)


def finds(
    claims: Any,
    decide: Decide,
    *,
    node_name: str = "a",
    kubelet: ListedBy | None = None,
    is_offered: Callable[[str], bool] = lambda name: True,
    path: ClaimPath = NEURON_PATH,
) -> Rediscovery:
    """Return one for a node that offers every device, unless the test says otherwise."""
    return Rediscovery(node_name, claims, decide, path.adopted, kubelet or ListedBy(), is_offered, path.driver)
