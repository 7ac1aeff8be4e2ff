"""Unhealthy devices in slices, on an API server that keeps taints and on one that drops them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import generate_latest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core.claims import ClaimRef
from neuron_dra.emulation.embedded_api import EmbeddedApi, InjectedFault
from neuron_dra.errors import ClaimError
from neuron_dra.node.plugin import Plugin
from tests.support.plugin_host import PluginHost
from tests.support.timings import QUICK
from tests.support.waiting import always, eventually

HOLD: dict[str, Any] = {"unhealthy_device_hold_seconds": 0.3}
FOR_EVER: dict[str, Any] = {"unhealthy_device_hold_seconds": 3600}
TAINTS = {"spec.devices[*].taints"}
Break = Callable[[PluginHost], Any]


pytestmark = pytest.mark.usefixtures("quick")


def marks(api: EmbeddedApi) -> dict[str, tuple[str, list[str]]]:
    """Return, by published device, its `unhealthy` attribute and its taints as value:effect."""
    found = [device for item in api.objects("resourceslices") for device in item["spec"].get("devices", [])]
    return {
        device["name"].removeprefix("neuron-"): (
            device["attributes"].get("unhealthy", {}).get("string", ""),
            [f"{taint['value']}:{taint['effect']}" for taint in device.get("taints", [])],
        )
        for device in found
    }


def well(*without: int) -> dict[str, tuple[str, list[str]]]:
    return {f"device-{i}": ("", []) for i in range(16) if i not in without}


def writes(api: EmbeddedApi) -> int:
    """Count the writes of slices, without dry runs."""
    asked = api.requests(resource="resourceslices")
    return len([e for e in asked if e.verb in ("create", "update", "delete") and "dryRun" not in e.query])


async def until(api: EmbeddedApi, expected: dict[str, tuple[str, list[str]]]) -> None:
    await eventually(lambda: marks(api) == expected, what=f"the slice with {expected}")


async def settled(api: EmbeddedApi, plugin: Plugin) -> None:
    await eventually(lambda: plugin.publish_state.result is not None)
    await until(api, well())


def ref(claim: dict[str, Any]) -> ClaimRef:
    return ClaimRef("default", claim["metadata"]["name"], claim["metadata"]["uid"])


def events(api: EmbeddedApi) -> list[tuple[str, str, str, str]]:
    others = ("NeuronPodsNotListed", "KubeletKnownBad")
    found = [e for e in api.objects("events", "default") if e["reason"] not in others]
    return [(e["involvedObject"]["name"], e["type"], e["reason"], e["message"]) for e in found]


# Where taints are kept.


@pytest.mark.contract("T1")
@pytest.mark.contract("S12")
@pytest.mark.parametrize(
    ("break_", "repair", "reason"),
    [
        (lambda h: h.hardware.add_ecc(5), lambda h: h.hardware.add_ecc(5, count=-1), "hbm_ecc"),
        (
            lambda h: h.hardware.set_unhealthy_components(5, "link_efa"),
            lambda h: h.hardware.set_unhealthy_components(5, ""),
            "link_efa",
        ),
        (lambda h: h.hardware.set_reset_state(5, 2), lambda h: h.hardware.set_reset_state(5, 1), "invalid"),
        (
            lambda h: h.hardware.stop_firmware(5, all_ones=True),
            lambda h: h.hardware.start_firmware(5),
            "FirmwareNotResponding",
        ),
        (
            lambda h: h.hardware.remove_device_file(5),
            lambda h: h.hardware.restore_device(5),
            "DeviceFileMissing",
        ),
    ],
)
async def test_taint_and_recovery_are_one_write_each(
    api: EmbeddedApi, host: PluginHost, break_: Break, repair: Break, reason: str
) -> None:
    async with host.running(**HOLD) as plugin:
        await settled(api, plugin)
        before = writes(api)
        break_(host)
        await until(api, well() | {"device-5": (reason, [f"{reason}:NoSchedule"])})
        await always(lambda: writes(api) == before + 1, 0.3)
        repair(host)
        await until(api, well())
        assert writes(api) == before + 2


async def test_missing_device_leaves_and_returns(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running(**HOLD) as plugin:
        await settled(api, plugin)
        host.hardware.remove_device(5)
        await until(api, well(5))
        host.hardware.restore_device(5)
        await always(lambda: marks(api) == well(5), 0.2)
        await until(api, well())


@pytest.mark.contract("T1")
async def test_first_slice_taints_unhealthy_devices(api: EmbeddedApi, host: PluginHost) -> None:
    host.hardware.add_ecc(5)
    async with host.running():
        await until(api, well() | {"device-5": ("hbm_ecc", ["hbm_ecc:NoSchedule"])})
        assert writes(api) == 1


async def test_busy_device_stays_published(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running(**HOLD) as plugin:
        await settled(api, plugin)
        host.hardware.set_unhealthy_components(5, "hbm")
        sick = well() | {"device-5": ("hbm", ["hbm:NoSchedule"])}
        await until(api, sick)
        for number in (5, 6):
            path = host.hardware.folder(number) / "stats/hardware/health_status/unhealthy_components"
            path.chmod(0o644)
            path.write_text("busy\n")
        await always(lambda: marks(api) == sick, 0.6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("HBM\n", "hbm"), ("hbm-0\n", "hbm_0"), ("hbm,link-efa\n", "hbm,link_efa"), ("!\n", "other")],
)
async def test_unknown_component_word_is_a_fault(api: EmbeddedApi, host: PluginHost, text: str, reason: str) -> None:
    """31.3: a device whose component list had one word of another form was healthy."""
    async with host.running(**HOLD) as plugin:
        await settled(api, plugin)
        host.hardware.write_unhealthy_components(5, text)
        taints = [f"{word}:NoSchedule" for word in reason.split(",")]
        await until(api, well() | {"device-5": (reason, taints)})


async def test_restart_does_not_shorten_recovery(api: EmbeddedApi, host: PluginHost) -> None:
    sick = well() | {"device-5": ("link_efa", ["link_efa:NoSchedule"])}
    host.hardware.set_unhealthy_components(5, "link_efa")
    async with host.running():
        await until(api, sick)
    host.hardware.set_unhealthy_components(5, "")
    before = writes(api)
    async with host.running(**FOR_EVER) as plugin:
        await eventually(lambda: plugin.publish_state.result is not None)
        await always(lambda: marks(api) == sick, 0.3)
        assert writes(api) == before
    async with host.running(**HOLD):
        await until(api, well())


@pytest.mark.contract("T2")
@pytest.mark.parametrize(("effect", "taints"), [("NoExecute", ["hbm_ecc:NoExecute"]), ("None", [])])
async def test_the_effect_is_the_settings(api: EmbeddedApi, host: PluginHost, effect: str, taints: list[str]) -> None:
    claim = api.create(allocated_claim("job", "node-a", [5]))
    async with host.running(unhealthy_device_effect=effect) as plugin:
        await settled(api, plugin)
        host.hardware.add_ecc(5)
        await until(api, well() | {"device-5": ("hbm_ecc", taints)})
        if effect == "None":
            assert (await plugin.transactions.prepare(ref(claim))).ref == ref(claim)


# A server that drops taints


@pytest.mark.contract("S11")
async def test_taint_support_is_probed_before_publishing(
    api: EmbeddedApi, host: PluginHost, caplog: pytest.LogCaptureFixture
) -> None:
    api.dropped_fields["resourceslices"] = TAINTS
    host.hardware.add_ecc(5)
    async with host.running():
        await until(api, well(5))
        await always(lambda: writes(api) == 1, 0.3)
    assert caplog.text.count("keeps no taints") == 1


async def test_without_taints_unhealthy_device_is_withdrawn(api: EmbeddedApi, host: PluginHost) -> None:
    api.dropped_fields["resourceslices"] = TAINTS
    async with host.running(**HOLD) as plugin:
        await settled(api, plugin)
        before = writes(api)
        host.hardware.add_ecc(5)
        await until(api, well(5))
        host.hardware.add_ecc(5, count=-1)
        await until(api, well())
        assert writes(api) == before + 2


@pytest.mark.contract("S20")
@pytest.mark.parametrize("prepared", [True, False])
async def test_without_taints_device_in_use_stays(api: EmbeddedApi, host: PluginHost, prepared: bool) -> None:
    api.dropped_fields["resourceslices"] = TAINTS
    async with host.running() as plugin:
        await settled(api, plugin)
        claim = api.create(allocated_claim("job", "node-a", [5]))
        if prepared:
            await plugin.transactions.prepare(ref(claim))
        host.hardware.add_ecc(5)
        host.hardware.add_ecc(6)
        sick = well(6) | {"device-5": ("hbm_ecc", [])}
        await until(api, sick)
        if prepared:
            await plugin.transactions.unprepare(ref(claim))
        await always(lambda: marks(api) == sick, 0.5)
        api.delete("resourceclaims", "job", "default")
        await until(api, well(5, 6))


async def test_rejected_probe_means_no_taints(api: EmbeddedApi, host: PluginHost) -> None:
    host.hardware.add_ecc(5)
    body = b'{"kind": "Status", "reason": "Invalid", "message": "no dry runs here"}'
    api.faults.add(InjectedFault(verb="create", resource="resourceslices", status=422, body=body))
    async with host.running():
        await until(api, well(5))


async def test_busy_server_is_probed_again(api: EmbeddedApi, host: PluginHost) -> None:
    host.hardware.add_ecc(5)
    fault = InjectedFault(verb="create", resource="resourceslices", status=503, times=2)
    api.faults.add(fault)
    async with host.running():
        await until(api, well() | {"device-5": ("hbm_ecc", ["hbm_ecc:NoSchedule"])})
    assert fault.hits == 2


async def test_dropped_taints_withdraw_the_device(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(api, plugin)
        host.hardware.add_ecc(5)
        await until(api, well() | {"device-5": ("hbm_ecc", ["hbm_ecc:NoSchedule"])})
        api.dropped_fields["resourceslices"] = TAINTS
        host.hardware.add_ecc(6)
        await until(api, well(5, 6))


async def test_report_only_withdraws_no_device(api: EmbeddedApi, host: PluginHost) -> None:
    api.dropped_fields["resourceslices"] = TAINTS
    async with host.running(unhealthy_device_effect="None") as plugin:
        await settled(api, plugin)
        host.hardware.add_ecc(5)
        await until(api, well() | {"device-5": ("hbm_ecc", [])})


# Whole nodes.


@pytest.mark.parametrize("taints", [True, False])
@pytest.mark.parametrize(
    ("break_", "reason"),
    [
        (lambda h: h.hardware.add_ecc(5), "hbm_ecc"),
        (lambda h: h.hardware.remove_device(5), "missing"),
        (lambda h: h.hardware.remove_device_file(5), "DeviceFileMissing"),
        (lambda h: h.hardware.set_unhealthy_components(5, "link_interserver"), "link_interserver"),
    ],
)
async def test_node_with_an_unhealthy_device_is_not_allocated(
    api: EmbeddedApi, tmp_path_factory: pytest.TempPathFactory, break_: Break, reason: str, taints: bool
) -> None:
    if not taints:
        api.dropped_fields["resourceslices"] = TAINTS
    host = PluginHost(tmp_path_factory.mktemp("u"), api.url, instance_type="trn2u.48xlarge", timing=QUICK, node_id=0)
    async with host.running(**HOLD):
        await until(api, {"node-0": ("", [])})
        break_(host)
        await until(api, {"node-0": (reason, [f"{reason}:NoSchedule"])} if taints else {})


# Claims.


@pytest.mark.contract("P32")
async def test_claim_for_unhealthy_device_fails_until_recovery(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running(**HOLD) as plugin:
        await settled(api, plugin)
        claim = api.create(allocated_claim("job", "node-a", [4, 5]))
        host.hardware.add_ecc(5)
        await eventually(lambda: marks(api)["device-5"][0] == "hbm_ecc")
        with pytest.raises(ClaimError) as refused:
            await plugin.transactions.prepare(ref(claim))
        assert str(refused.value) == (
            "claim default/job: neuron-device-5 is unhealthy: 1 uncorrectable HBM error; delete the pod so that it "
            "gets another device, or wait until the device is repaired: the kubelet tries again"
        )
        assert (host.checkpointed, host.specified) == (set(), set())
        host.hardware.add_ecc(5, count=-1)
        await until(api, well())
        await plugin.transactions.prepare(ref(claim))
        assert host.checkpointed == {claim["metadata"]["uid"]}


@pytest.mark.contract("P32")
@pytest.mark.parametrize(
    "result",
    [
        {"device": 5, "tolerations": [{"key": "neuron.aws.com/unhealthy", "operator": "Exists"}]},
        {"device": 5, "adminAccess": True},
    ],
)
async def test_tolerating_claim_gets_an_unhealthy_device(
    api: EmbeddedApi, host: PluginHost, result: dict[str, Any]
) -> None:
    host.hardware.add_ecc(5)
    claim = api.create(allocated_claim("job", "node-a", [result]))
    async with host.running() as plugin:
        await eventually(lambda: plugin.publish_state.result is not None)
        (device,) = (await plugin.transactions.prepare(ref(claim))).devices
        assert device.device_ids == (5,)


async def test_claim_for_a_missing_device_always_fails(api: EmbeddedApi, host: PluginHost) -> None:
    tolerations = [{"operator": "Exists"}]
    claim = api.create(allocated_claim("job", "node-a", [{"device": 5, "tolerations": tolerations}]))
    host.hardware.remove_device(5)
    async with host.running() as plugin:
        with pytest.raises(ClaimError, match="neuron-device-5 is allocated, but the node has no such device"):
            await plugin.transactions.prepare(ref(claim))


async def test_prepared_claim_survives_an_unhealthy_device(api: EmbeddedApi, host: PluginHost) -> None:
    claim = api.create(allocated_claim("job", "node-a", [5]))
    async with host.running() as plugin:
        await settled(api, plugin)
        before = await plugin.transactions.prepare(ref(claim))
        host.hardware.add_ecc(5)
        await eventually(lambda: marks(api)["device-5"][0] == "hbm_ecc")
        assert await plugin.transactions.prepare(ref(claim)) == before


# Telling.


async def test_events_and_metrics_name_the_reason(api: EmbeddedApi, host: PluginHost) -> None:
    """14.14: `neuron_device` is the label that `neuron_dra_device_info` has, too."""
    api.dropped_fields["resourceslices"] = TAINTS
    async with host.running(**HOLD) as plugin:
        await settled(api, plugin)
        host.hardware.add_ecc(5)
        await until(api, well(5))
        (sick,) = [state for state in plugin.health.devices if state.status.value == "UNHEALTHY"]
        assert (sick.name, sick.message) == ("neuron-device-5", "1 uncorrectable HBM error")
        samples = generate_latest(plugin.metrics.registry).decode().splitlines()
        assert 'neuron_dra_device_healthy{device="neuron-device-5"} 0.0' in samples
        assert 'neuron_dra_device_fault{device="neuron-device-5",neuron_device="5",reason="hbm_ecc"} 1.0' in samples
        host.hardware.add_ecc(5)  # a higher count is not a new Event
        await eventually(lambda: any("2 uncorrectable" in state.message for state in plugin.health.devices))
        host.hardware.add_ecc(5, count=-2)
        await until(api, well())
        await eventually(lambda: len(events(api)) == 2)
    why = (
        "neuron-device-5 is unhealthy (hbm_ecc): uncorrectable HBM errors; replace "
        "the instance. New claims do not get it; running pods keep it"
    )
    assert sorted(events(api)) == [
        ("node-a", "Normal", "NeuronDeviceHealthy", "neuron-device-5 is healthy again"),
        ("node-a", "Warning", "NeuronDeviceUnhealthy", why),
    ]
