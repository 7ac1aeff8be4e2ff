"""A running plugin: blocking is reported, and prepared claims do not prevent publishing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core import cdi
from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef
from neuron_dra.core.withdrawals import Withdrawals
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import DEFAULT_TIMING
from tests.contract.test_transaction import Disk, claim, decided
from tests.support import slots
from tests.support.plugin_host import PluginHost
from tests.support.waiting import eventually


@pytest.mark.contract("O4")
async def test_blocked_event_loop_is_measured_and_logged(host: PluginHost, caplog: pytest.LogCaptureFixture) -> None:
    def lag(plugin: Plugin) -> float:
        value = plugin.metrics.registry.get_sample_value("neuron_dra_event_loop_lag_seconds")
        return value or 0.0

    async with host.running() as plugin:
        await eventually(lambda: lag(plugin) > 0)  # the supervisor runs
        alarm_s = DEFAULT_TIMING.liveness.lag_alarm_s
        time.sleep(DEFAULT_TIMING.kubelet.supervise_s + alarm_s + 0.1)  # at any time of the supervisor's period
        await eventually(lambda: lag(plugin) > alarm_s)
        logged = [record for record in caplog.records if record.message == "the event loop was blocked"]
        assert logged
        assert logged[0].levelname == "WARNING"


@pytest.mark.contract("N11")
async def test_restart_publishes_despite_prepared_claims(api: EmbeddedApi, host: PluginHost) -> None:
    meta = api.create(allocated_claim("job", "node-a", [3]))["metadata"]
    ref = ClaimRef("default", "job", meta["uid"])
    async with host.running() as plugin:
        await eventually(lambda: len(api.objects("resourceslices")) == 1)
        await plugin.transactions.prepare(ref)
    for item in api.objects("resourceslices"):
        api.delete("resourceslices", item["metadata"]["name"])

    async with host.running() as plugin:
        await eventually(lambda: len(api.objects("resourceslices")) == 1)
        (found,) = api.objects("resourceslices")
        assert [device["name"] for device in found["spec"]["devices"]] == [f"neuron-device-{n}" for n in range(16)]
        assert host.checkpointed == host.specified == {ref.uid}


@pytest.mark.contract("N9")
def test_admin_claim_leaves_no_trace(short_path: Path) -> None:
    disk = Disk(short_path)
    store = disk.store()
    store.open()
    store.adopt({})
    owner = claim(3, "owner")
    answer = store.prepare(owner, decided)
    file = disk.cdi_root / cdi.file_name(owner.ref.uid)

    def state() -> tuple[bytes, checkpoints.Checkpoint]:
        stored = slots.read(disk.folder)
        # An unprepare is recorded for a while, for another plugin that still prepares the claim.
        return file.read_bytes(), stored.with_withdrawals(Withdrawals())

    before = state()
    device = AllocatedDevice("monitor", "a", "neuron-device-3", admin_access=True)
    monitor = Claim(ClaimRef("ops", "monitor", "uid-monitor"), (device,), (), "monitor")
    store.prepare(monitor, decided)
    assert disk.is_clean("owner", "monitor")
    store.unprepare("uid-monitor")
    assert state() == before
    assert disk.is_clean("owner")
    assert store.prepare(owner, decided) == answer
