"""status.devices of prepared claims. Issue 18, item 6."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core import claim_status
from neuron_dra.core.claims import AllocatedDevice, ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.embedded_api.faults import STRANGE, Do, InjectedFault
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.node.prepare.claim_status import ClaimStatus
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from tests.support.plugin_host import PluginHost
from tests.support.timings import quicker, with_timing
from tests.support.waiting import eventually

THEIRS = {
    "type": "Ready",
    "status": "True",
    "reason": "Up",
    "message": "",
    "lastTransitionTime": "2026-11-23T10:00:00Z",
}
OTHERS = {"driver": "efa.example.com", "pool": "node-a", "device": "efa-0", "conditions": [THEIRS], "data": {"a": 1}}
ENVIRONMENT = {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}
LNC_1 = {
    "opaque": {
        "driver": "neuron.aws.com",
        "parameters": {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1},
    }
}


HURRIED = quicker(DEFAULT_TIMING, prepare={"status_retry_s": (0.01, 0.05)})


@pytest.fixture
def timing() -> PluginTiming:
    return HURRIED


def claim_of_two_drivers(api: EmbeddedApi, name: str = "both") -> dict[str, Any]:
    """A claim with two Neuron devices and one of another driver, whose entry is in the status."""
    wanted = allocated_claim(name, "node-a", [0, 1], config=[LNC_1])
    result = {"request": "efa", **{key: OTHERS[key] for key in ("driver", "pool", "device")}}
    wanted["status"]["allocation"]["devices"]["results"].append(result)
    wanted["spec"]["devices"]["requests"].append({"name": "efa", "exactly": {"deviceClassName": "efa"}})
    wanted["status"]["devices"] = [OTHERS]
    return api.create(wanted)


def entries(api: EmbeddedApi, name: str = "both") -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = api.get("resourceclaims", name)["status"].get("devices", [])
    return listed


def ours(number: int, at: str) -> dict[str, Any]:
    return {
        "driver": "neuron.aws.com",
        "pool": "node-a",
        "device": f"neuron-device-{number}",
        "conditions": [
            {
                "type": "Prepared",
                "status": "True",
                "reason": "Prepared",
                "message": f"prepared on node node-a: containers of the claim get /dev/neuron{number}",
                "lastTransitionTime": at,
            }
        ],
        "data": {"deviceIds": [number], "environment": ENVIRONMENT},
    }


async def prepared(kubelet: ScriptedKubelet, claim: dict[str, Any]) -> None:
    await kubelet.registered("neuron.aws.com")
    assert (await kubelet.prepare([claim]))[claim["metadata"]["uid"]].error == ""


@pytest.mark.contract("D1")
@pytest.mark.contract("D3")
async def test_prepared_devices_are_in_the_status_beside_others(host: PluginHost, api: EmbeddedApi) -> None:
    claim = claim_of_two_drivers(api)
    async with ScriptedKubelet(host.registry) as kubelet, host.running("pod-1", claim_status=True):
        await prepared(kubelet, claim)
        await eventually(lambda: len(entries(api)) == 3, what="three entries")
    first, *rest = entries(api)
    at = rest[0]["conditions"][0]["lastTransitionTime"]
    assert (first, rest, at[-1]) == (OTHERS, [ours(0, at), ours(1, at)], "Z")


async def test_status_is_not_written_by_default(host: PluginHost, api: EmbeddedApi) -> None:
    claim = claim_of_two_drivers(api)
    async with ScriptedKubelet(host.registry) as kubelet, host.running("pod-1") as plugin:
        await prepared(kubelet, claim)
        assert plugin.prepared.claims
    assert entries(api) == [OTHERS]


async def test_restarted_plugin_writes_what_is_missing_and_nothing_else(host: PluginHost, api: EmbeddedApi) -> None:
    """The setting was turned on after the claim was prepared."""
    claim = claim_of_two_drivers(api)
    async with ScriptedKubelet(host.registry) as kubelet, host.running("pod-1"):
        await prepared(kubelet, claim)
    async with host.running("pod-2", claim_status=True):
        await eventually(lambda: len(entries(api)) == 3, what="three entries")
    before = api.get("resourceclaims", "both")
    other = api.create(allocated_claim("other", "node-a", [2]))
    async with ScriptedKubelet(host.registry) as kubelet, host.running("pod-3", claim_status=True):
        await prepared(kubelet, other)
        await eventually(lambda: entries(api, "other"), what="the entry of the later claim")
    assert api.get("resourceclaims", "both") == before


@pytest.mark.contract("D2")
@pytest.mark.parametrize("status", [403, 409, 422, 429, 503])
async def test_rejected_write_fails_no_prepare(status: int, host: PluginHost, api: EmbeddedApi) -> None:
    """Written later, unless the write is invalid: then it is not repeated."""
    times = None if status == 422 else 7
    fault = api.faults.add(
        InjectedFault(status=status, verb="update", resource="resourceclaims/status", name="both", times=times)
    )
    claim, other = claim_of_two_drivers(api), api.create(allocated_claim("other", "node-a", [2]))
    async with ScriptedKubelet(host.registry) as kubelet, host.running("pod-1", claim_status=True):
        await prepared(kubelet, claim)
        await prepared(kubelet, other)
        await eventually(lambda: entries(api, "other"), what="the entry of the other claim")
        if status == 422:
            await prepared(kubelet, api.create(allocated_claim("third", "node-a", [3])))
            await eventually(lambda: entries(api, "third"), what="the entry of a later claim")
            assert fault.hits == 1
        else:
            await eventually(lambda: len(entries(api)) == 3, what="three entries after the faults")


@with_timing(HURRIED, prepare={"status_retry_s": (3600.0, 3600.0)})
async def test_a_write_that_fails_delays_no_other_claim(host: PluginHost, api: EmbeddedApi) -> None:
    """Also one that fails each time, as while a tenant changes its claim all the time."""
    fault = api.faults.add(
        InjectedFault(status=403, verb="update", resource="resourceclaims/status", name="both", times=None)
    )
    claim, other = claim_of_two_drivers(api), api.create(allocated_claim("other", "node-a", [2]))
    async with ScriptedKubelet(host.registry) as kubelet, host.running("pod-1", claim_status=True):
        await prepared(kubelet, claim)
        await eventually(lambda: fault.hits == 1, what="the write that fails")
        await prepared(kubelet, other)
        await eventually(lambda: entries(api, "other"), what="the entry of the other claim")
    assert fault.hits == 1


@pytest.mark.parametrize("strange", list(STRANGE))
async def test_strange_reply_does_not_end_the_plugin(strange: str, host: PluginHost, api: EmbeddedApi) -> None:
    claim = claim_of_two_drivers(api)
    async with ScriptedKubelet(host.registry) as kubelet, host.running("pod-1"):
        await prepared(kubelet, claim)
    fault = api.faults.add(STRANGE[strange].fault(verb="get", resource="resourceclaims", times=3))
    async with host.running("pod-2", claim_status=True):
        await eventually(
            lambda: fault.hits == 3 and len(entries(api)) == 3, what="three entries after the strange replies"
        )


async def test_claim_of_the_same_name_gets_no_entry(host: PluginHost, api: EmbeddedApi) -> None:
    claim = claim_of_two_drivers(api)
    held = api.faults.add(
        InjectedFault(do=Do.RESPOND, status=503, verb="update", resource="resourceclaims/status", times=None)
    )
    async with ScriptedKubelet(host.registry) as kubelet, host.running("pod-1", claim_status=True):
        await prepared(kubelet, claim)
        await eventually(lambda: held.hits > 0, what="a write")
        api.delete("resourceclaims", "both")
        claim_of_two_drivers(api)
        api.faults.clear()
        other = api.create(allocated_claim("other", "node-a", [2]))
        await prepared(kubelet, other)
        await eventually(lambda: entries(api, "other"), what="the entry of the other claim")
    assert entries(api) == [OTHERS]


PREPARED = PreparedClaim(
    ClaimRef("ml", "a", "uid-a"),
    (PreparedDevice("r", "node-a", "neuron-device-3", (3,), (), {}, admin_access=True, share_id="s"),) * 2,
    prepared_at="2026-11-23T10:00:00+00:00",
)
SHARED = AllocatedDevice("r", "node-a", "neuron-device-3", share_id="s")


@pytest.mark.contract("D4")
@pytest.mark.parametrize(
    "allocated",
    [[], [AllocatedDevice("r", "node-a", "neuron-device-3")], [AllocatedDevice("r", "b", "neuron-device-3")]],
)
def test_device_that_is_no_longer_allocated_gets_no_entry(allocated: list[AllocatedDevice]) -> None:
    assert claim_status.changed(PREPARED, allocated, [OTHERS], "") is None


def test_device_in_two_requests_has_one_entry() -> None:
    made = claim_status.changed(PREPARED, [SHARED, SHARED], [], "")
    assert made is not None
    assert [(each["device"], each["shareID"]) for each in made] == [("neuron-device-3", "s")]
    assert made[0]["conditions"][0]["lastTransitionTime"] == "2026-11-23T10:00:00Z"
    later = [{**each, "conditions": [{**each["conditions"][0], "lastTransitionTime": "later"}]} for each in made]
    assert claim_status.changed(PREPARED, [SHARED], later, "") is None


def errors_of_statuses(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [each for each in caplog.records if each.name == ClaimStatus.__module__]
    return [each.__dict__["error"] for each in records if hasattr(each, "error")]


async def test_status_of_a_claim_that_cannot_be_decoded_is_left_alone(
    api: EmbeddedApi, host: PluginHost, caplog: pytest.LogCaptureFixture
) -> None:
    """A write would replace what its author wrote for another driver."""
    opaque = {"driver": "efa.example.com", "parameters": msgspec.Raw(b'{"a":"\\ud800\xff"}')}
    claim = api.create(allocated_claim("poisoned", "node-a", [0], config=[{"opaque": opaque}]))
    async with ScriptedKubelet(host.registry) as kubelet, host.running("pod-1", claim_status=True):
        await prepared(kubelet, claim)
        await eventually(lambda: errors_of_statuses(caplog))
    errors = errors_of_statuses(caplog)
    assert errors == [
        "claim default/poisoned has opaque values that cannot be decoded, so its status cannot be written"
    ]
    assert api.get("resourceclaims", "poisoned") == claim
