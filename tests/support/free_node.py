"""What must hold at the end of every run of a node, whatever happened before.

If no pod and no claim exists in the API, the plugin holds nothing, and it prepares a claim for all devices.
hack/chaos/checks.py has the same invariant for real kubelets.
"""

from __future__ import annotations

from neuron_dra.api.objects import allocated_claim, node_object
from neuron_dra.core import names
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import KubeletClaim, ScriptedKubelet
from neuron_dra.node.timing import DEFAULT_TIMING
from tests.support.plugin_host import PluginHost
from tests.support.timings import quicker
from tests.support.waiting import PATIENCE_S, eventually

_SOON = quicker(DEFAULT_TIMING, ultraserver={"missing_s": 0.0, "first_answer_s": 0.1, "recheck_s": 0.05})
"""A tag goes as soon as no object lists its reservation: a reserved node rejects claims, and holds nothing."""


async def ends_free(host: PluginHost) -> None:
    """Raise AssertionError unless a plugin that starts on this node's disk holds nothing, and can give out everything.

    The API has the Node alone. Pods and claims are gone, so the kubelet unprepares what it has had prepared. In stories
    without a scripted kubelet the test called the plugin, for all claims that are not adopted.
    """
    await host.close()
    host.mend_hardware()
    async with EmbeddedApi(controllers=False) as api, ScriptedKubelet(host.registry) as kubelet:
        api.register_neuron_kinds()
        api.create(node_object(host.node_name))
        host.api_url, host.timing = api.url, _SOON
        async with host.running("last") as plugin:
            await kubelet.registered(names.DRIVER, PATIENCE_S)
            if not kubelet.has_called:
                own = [claim.ref for claim in plugin.prepared.claims.values() if not claim.adopted]
                await kubelet.unprepare([KubeletClaim(ref.namespace, ref.name, ref.uid) for ref in own])
            assert not any((await kubelet.unprepare_all()).values()), (
                "the kubelet cannot unprepare what it had prepared"
            )
            held = {uid: str(claim.ref) for uid, claim in plugin.prepared.claims.items()}
            assert held == {}, f"{host.node_name} holds claims that no pod and no kubelet has: {held}"
            await eventually(lambda: plugin.publish_state.result is not None, what="a publish")
            claim = api.create(allocated_claim("everything", host.node_name, everything(api)))
            [answer] = (await kubelet.prepare([claim])).values()
            assert answer.error == "", f"a claim for all devices of {host.node_name}: {answer.error}"
            assert await kubelet.unprepare_all() == {claim["metadata"]["uid"]: ""}


def everything(api: EmbeddedApi) -> list[str]:
    """Return the names of published devices that together are the whole node."""
    devices = [device["name"] for item in api.objects("resourceslices") for device in item["spec"].get("devices") or []]
    if names.NODE_DEVICE in devices:
        return [names.NODE_DEVICE]
    return [name for name in devices if name.startswith(names.DEVICE_PREFIX)]
