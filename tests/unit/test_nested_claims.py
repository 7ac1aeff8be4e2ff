"""Claims with as many levels of configuration as the API server accepts. Any tenant can create them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

import pytest

from neuron_dra.api import claims
from neuron_dra.api.objects import allocated_claim
from neuron_dra.arguments import NESTING, Parser, guarded
from neuron_dra.core.claims import AllocatedDevice
from neuron_dra.emulation.embedded_api import EmbeddedApi, InjectedFault
from neuron_dra.errors import ClaimError
from neuron_dra.kube import objects
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import RESOURCE_CLAIMS

LONGEST = 10 * 1024
"""The most bytes that the API server accepts as opaque parameters. It reads JSON of up to 10,000 levels."""
MARK = '"nested"'


def nested() -> str:
    """Return the JSON of an allocated claim with parameters of another driver."""
    depth = (LONGEST - len('{"a":}')) // 2
    entry = {"source": "FromClaim", "opaque": {"driver": "other.example.com", "parameters": "nested"}}
    claim = allocated_claim("deep", "node-a", [0], config=[entry])
    claim["metadata"]["uid"] = "u"
    return json.dumps(claim).replace(MARK, '{"a":' + "[" * depth + "]" * depth + "}")


def page() -> bytes:
    return f'{{"kind": "List", "metadata": {{"resourceVersion": "1"}}, "items": [{nested()}]}}'.encode()


def in_a_program(work: Callable[[], object]) -> None:
    parser = Parser(prog="program")
    parser.set_defaults(run=lambda _: work() and None)
    assert guarded("program", parser, []) == 0


def test_the_limit_is_raised_for_a_command_only() -> None:
    before, during = sys.getrecursionlimit(), []
    in_a_program(lambda: during.append(sys.getrecursionlimit()))
    assert (during, sys.getrecursionlimit()) == ([NESTING], before)


def test_a_list_with_it_can_be_decoded() -> None:
    [claim] = objects.page(page()).decoded(claims.ResourceClaim).objects
    assert claims.allocated_devices(claim) == (
        AllocatedDevice("neuron", "node-a", "neuron-device-0", device_class="neuron.aws.com"),
    )


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later versions of Python count the levels of C code apart")
def test_deeper_ones_are_an_error_of_the_claim() -> None:
    """Not one that ends the plugin."""
    with pytest.raises(ClaimError, match="is not a ResourceClaim"):
        claims.decode_claim(nested().encode())


def test_a_watch_lists_it() -> None:
    """The controller watches the claims of all namespaces."""
    kept: dict[str, object] = {}

    async def watch() -> None:
        async with EmbeddedApi() as api, KubeClient(KubeConfig(api.url)) as client:
            api.faults.add(InjectedFault(verb="list", resource="resourceclaims", status=200, body=page()))
            claims = Reflector(client, RESOURCE_CLAIMS)
            await claims.relist()
            kept.update(claims.items)

    in_a_program(lambda: asyncio.run(watch()))
    assert kept.keys() == {"default/deep"}
