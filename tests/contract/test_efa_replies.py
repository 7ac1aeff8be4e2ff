"""Strange replies of the API server, and claims that no decoder reads: EFA claims, and those of both drivers (4.10).

The suites of the Neuron driver are test_strange_replies.py, test_malformed_replies.py and test_poison.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import pytest

from neuron_dra.core import names
from neuron_dra.core.claims import ClaimRef
from neuron_dra.core.dra_driver import EFA
from neuron_dra.emulation.embedded_api import STRANGE, EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.emulation.simulated_efa import EfaTree
from neuron_dra.errors import ClaimError
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.node.efa.admission import EfaClaimReader
from neuron_dra.node.timing import PluginTiming
from tests.contract.test_efa_driver import FIRST, HURRIED, NAME, efa_claim, own_slices, prepare
from tests.contract.test_poison import POISON
from tests.support.plugin_host import PluginHost
from tests.support.timings import QUICK_CLIENT, quicker
from tests.support.waiting import eventually

LONG_S: Final = 60.0
REPLIES: Final = 2
NEURON: Final = f"{names.DEVICE_PREFIX}3"


@pytest.fixture
def timing() -> PluginTiming:
    return quicker(
        HURRIED,
        client={"watch": {"retry_s": (0.01, 0.02), "short_s": 0.01}},
        publish={"retry_s": (0.01, 0.02)},
    )


@pytest.fixture
def tree(host: PluginHost) -> EfaTree:
    return EfaTree.write(host.root / "host", "trn2.48xlarge")


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as running:
        yield running


def is_published(api: EmbeddedApi) -> bool:
    return any(len(item["spec"].get("devices", [])) == 16 for item in own_slices(api))


@pytest.mark.parametrize("verb", ["list", "watch", "create"])
@pytest.mark.parametrize("name", STRANGE)
async def test_interfaces_are_published_after_a_strange_reply(
    verb: str, name: str, host: PluginHost, tree: EfaTree, api: EmbeddedApi
) -> None:
    """`running` raises the error that ends the plugin. Both drivers get the reply."""
    strange = api.faults.add(STRANGE[name].fault(verb=verb, resource="resourceslices", times=4))
    async with host.running(efa_interfaces=True) as plugin:
        await eventually(lambda: strange.hits >= 4, LONG_S, "the replies")
        await eventually(lambda: is_published(api), LONG_S, "the interfaces")
        await eventually(lambda: plugin.publish_state.result, LONG_S, "the devices")


@pytest.mark.parametrize("name", STRANGE)
async def test_interfaces_are_withdrawn_after_strange_replies(
    name: str, host: PluginHost, tree: EfaTree, api: EmbeddedApi
) -> None:
    """A deletion that only seems to be done is repeated at the next comparison."""
    if name == "success":
        pytest.skip("the driver believes it, and compares again after ten minutes")
    async with host.running(efa_interfaces=True):
        await eventually(lambda: is_published(api), LONG_S, "the interfaces")
        api.faults.add(STRANGE[name].fault(verb="delete", resource="resourceslices", times=2))
        tree.set_exclusive(True)
        await eventually(lambda: not own_slices(api), LONG_S, f"{NAME} is gone")


@pytest.mark.parametrize("name", STRANGE)
async def test_claim_of_both_drivers_survives_strange_replies(
    name: str, host: PluginHost, tree: EfaTree, api: EmbeddedApi, kubelet: ScriptedKubelet
) -> None:
    async with host.running(efa_interfaces=True) as plugin:
        for driver in (names.DRIVER, EFA.name):
            await kubelet.registered(driver)
        claim = api.create(efa_claim("job", FIRST, neuron=3))
        uid = claim["metadata"]["uid"]
        api.faults.add(STRANGE[name].fault(verb="get", resource="resourceclaims", times=REPLIES))
        devices = []
        for driver in (EFA.name, names.DRIVER):
            answer = await prepare(kubelet, claim, driver)
            for _ in range(REPLIES):  # an object that may be another claim is an error; the kubelet tries again
                if answer.error:
                    answer = await prepare(kubelet, claim, driver)
            assert not answer.error, answer.error
            devices += [device.device_name for device in answer.devices]
        assert devices == [FIRST, NEURON]
        assert plugin.efa is not None
        assert {uid} == plugin.prepared.claims.keys() == plugin.efa.prepared.claims.keys()
        for driver in (EFA.name, names.DRIVER):
            assert await kubelet.unprepare([claim], driver=driver) == {uid: ""}
        assert plugin.prepared.claims == plugin.efa.prepared.claims == {}


# Claims with values that no decoder reads


@pytest.fixture(params=POISON.values(), ids=list(POISON))
def poison(request: pytest.FixtureRequest) -> msgspec.Raw:
    return msgspec.Raw(request.param)


@pytest.fixture
async def reader(api: EmbeddedApi) -> AsyncIterator[EfaClaimReader]:
    async with KubeClient(KubeConfig(api.url), timing=QUICK_CLIENT) as client:
        yield EfaClaimReader(client, "node-a")


def stored(api: EmbeddedApi, name: str, driver: str, parameters: Any) -> ClaimRef:
    claim = efa_claim(name, FIRST, neuron=3)
    entry = {"source": "FromClaim", "opaque": {"driver": driver, "parameters": parameters}}
    claim["status"]["allocation"]["devices"]["config"] = [entry]
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": "pod", "uid": "pod-uid"}]
    metadata = api.create(claim)["metadata"]
    return ClaimRef("default", name, metadata["uid"])


@pytest.mark.parametrize("driver", [names.DRIVER, "other.example.com"])
async def test_poison_for_another_driver_costs_no_interface(
    driver: str, api: EmbeddedApi, reader: EfaClaimReader, poison: msgspec.Raw
) -> None:
    ref = stored(api, "job", driver, poison)
    assert [device.device for device in (await reader.fetch(ref)).devices] == [FIRST]
    assert [claim.ref.name async for claim in reader.allocated()] == ["job"]


async def test_poison_for_this_driver_is_rejected_with_its_path(
    api: EmbeddedApi, reader: EfaClaimReader, poison: msgspec.Raw
) -> None:
    ref = stored(api, "job", EFA.name, poison)
    with pytest.raises(ClaimError, match=r"config\[0\]\.opaque\.parameters"):
        await reader.fetch(ref)
    assert [claim.ref.name async for claim in reader.allocated()] == ["job"]


async def test_poison_holds_back_no_claim_of_either_driver(
    host: PluginHost, tree: EfaTree, api: EmbeddedApi, kubelet: ScriptedKubelet, poison: msgspec.Raw
) -> None:
    async with host.running(efa_interfaces=True):
        for driver in (names.DRIVER, EFA.name):
            await kubelet.registered(driver)
        ref = stored(api, "poisoned", EFA.name, poison)
        poisoned = api.get("resourceclaims", ref.name, "default")
        assert "opaque.parameters" in (await prepare(kubelet, poisoned)).error
        assert not (await prepare(kubelet, poisoned, names.DRIVER)).error
        assert not (await prepare(kubelet, api.create(efa_claim("next", FIRST)))).error
