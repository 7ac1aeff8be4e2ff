"""Claims that the kubelet will never unprepare are released once that is certain (14.9)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi, InjectedFault
from neuron_dra.emulation.kubelet_wire import KubeletDevice
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.node import version
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from tests.support import slots
from tests.support.plugin_host import PluginHost
from tests.support.pod_resources import PodResources
from tests.support.timings import quicker
from tests.support.waiting import always, eventually

DRIVER = "neuron.aws.com"


class Running:
    """The pods of a node, each with one claim."""

    def __init__(self) -> None:
        self.pods: list[Obj] = []
        self.claims: dict[tuple[str, str], dict[str, tuple[KubeletDevice, ...]]] = {}

    def prepared(self, namespace: str, name: str) -> Mapping[str, tuple[KubeletDevice, ...]] | None:
        return self.claims.get((namespace, name))

    def run(
        self, pod: str, claim: str, device: str, *, namespace: str = "default", known: bool = True, uid: str = ""
    ) -> None:
        """List a pod with a claim; a kubelet without information lists no claim.

        Its CDI device is named after the UID, as this driver does, or else after the claim.
        """
        container = {"name": "main", "resources": {"claims": [{"name": "neurons"}]}}
        spec = {"containers": [container], "resourceClaims": [{"name": "neurons", "resourceClaimName": claim}]}
        self.pods.append({"metadata": {"namespace": namespace, "name": pod}, "spec": spec})
        if known:
            handed_out = KubeletDevice(("r",), "node-a", device, (f"k8s.neuron.aws.com/claim={uid or claim}-{device}",))
            self.claims[namespace, claim] = {DRIVER: (handed_out,)}


@pytest.fixture
def timing() -> PluginTiming:
    return quicker(DEFAULT_TIMING, orphans={"look_s": 0.05, "absent_s": 0.2, "ask_again_s": (0.1, 0.2)})


@pytest.fixture
def running() -> Running:
    """An unrelated claim is in use, and the kubelet lists it."""
    made = Running()
    made.run("witness", "witness", "neuron-device-0")
    return made


@pytest.fixture
async def pod_resources(host: PluginHost, running: Running) -> AsyncIterator[PodResources]:
    async with PodResources(running, host.pod_resources) as made:
        yield made


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


def publish_theirs(api: EmbeddedApi) -> None:
    """Publish a slice as AWS's driver does, with a generated name."""
    spec = {
        "driver": DRIVER,
        "nodeName": "node-a",
        "pool": {"name": "node-a", "generation": 3, "resourceSliceCount": 1},
        "devices": [{"name": f"neuron-device-{i}"} for i in range(16)],
    }
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    api.create({**kind, "metadata": {"name": "node-a-neuron.aws.com-x7k2p"}, "spec": spec})


def held(plugin: Plugin) -> set[str]:
    return {claim.ref.name for claim in plugin.prepared.claims.values()}


async def holds(plugin: Plugin, *names: str) -> None:
    await eventually(lambda: held(plugin) == set(names), what=f"the node to hold {names}")


@pytest.fixture
async def adopted(host: PluginHost, api: EmbeddedApi) -> AsyncIterator[Plugin]:
    """A plugin with an adopted claim: device 5, of the pod `old`."""
    publish_theirs(api)
    api.create(allocated_claim("old", "node-a", [5]))
    async with host.running("pod-1") as plugin:
        await holds(plugin, "old")
        yield plugin


def rival(api: EmbeddedApi) -> Obj:
    """Return a claim for device 5, allocated once the API server has no other allocation of it."""
    return api.create(allocated_claim("rival", "node-a", [5]))


# The four kinds of claims that were held until a reboot


@pytest.mark.usefixtures("pod_resources")
async def test_orphaned_adopted_claim_is_released(adopted: Plugin, api: EmbeddedApi, kubelet: ScriptedKubelet) -> None:
    """Including a claim of another node that had this name: the kubelet never had it."""
    api.delete("resourceclaims", "old", "default")
    await holds(adopted)
    await kubelet.registered(DRIVER)
    [answer] = (await kubelet.prepare([rival(api)])).values()
    assert not answer.error


@pytest.mark.usefixtures("pod_resources")
async def test_claim_unprepared_by_another_driver_is_released(
    host: PluginHost, api: EmbeddedApi, kubelet: ScriptedKubelet
) -> None:
    """Our driver, AWS's driver, and ours again, without a reboot."""
    ours = api.create(allocated_claim("ours", "node-a", [5]))
    async with host.running("pod-1") as plugin:
        await kubelet.registered(DRIVER)
        await eventually(lambda: plugin.publish_state.result is not None)
        await kubelet.prepare([ours])
    for item in api.objects("resourceslices"):
        api.delete("resourceslices", item["metadata"]["name"])
    publish_theirs(api)
    api.delete("resourceclaims", "ours", "default")
    async with host.running("pod-2") as plugin:
        await holds(plugin)
        assert host.specified == set()


@pytest.mark.usefixtures("pod_resources")
async def test_rebuilt_claim_without_allocation_is_released(
    host: PluginHost, api: EmbeddedApi, kubelet: ScriptedKubelet
) -> None:
    """Until its object is deleted, the claim counts as holding a device."""
    ours = api.create(allocated_claim("ours", "node-a", [5]))
    async with host.running("pod-1") as plugin:
        await kubelet.registered(DRIVER)
        await eventually(lambda: plugin.publish_state.result is not None)
        await kubelet.prepare([ours])
        await kubelet.unprepare([ours])
    slots.tear(slots.newest(host.data))  # the older slot is of before the unprepare
    async with host.running("pod-2") as plugin:
        await holds(plugin, "ours")
        api.delete("resourceclaims", "ours", "default")
        await holds(plugin)


@pytest.mark.usefixtures("pod_resources")
async def test_deallocated_claim_counts_as_gone(adopted: Plugin, api: EmbeddedApi) -> None:
    """A claim that users created survives its pods."""
    api.patch("resourceclaims", "old", {"status": {"reservedFor": None, "allocation": None}}, "default")
    await holds(adopted)


# What keeps it.


async def test_claim_known_to_api_or_kubelet_is_kept(
    adopted: Plugin, api: EmbeddedApi, running: Running, pod_resources: PodResources
) -> None:
    await eventually(lambda: pod_resources.asked > 10)
    assert held(adopted) == {"old"}
    running.run("old", "old", "neuron-device-5")
    api.delete("resourceclaims", "old", "default")
    asked = pod_resources.asked
    await eventually(lambda: pod_resources.asked > asked + 10)
    assert held(adopted) == {"old"}
    running.pods.pop()
    await holds(adopted)


def silent(running: Running, api: PodResources) -> None:
    """A kubelet before 1.34, or with the feature gate off, lists no claim."""
    api.lists_claims = False


def alone(running: Running, api: PodResources) -> None:
    """No other claim is in use, so the list may be empty for lack of information."""
    running.pods.clear()


def failing(running: Running, api: PodResources) -> None:
    api.error = grpc.StatusCode.INTERNAL


def unsure(running: Running, api: PodResources) -> None:
    """The kubelet could not look up the claims of its pod."""
    running.run("old", "old", "neuron-device-5", known=False)


@pytest.mark.parametrize("doubt", [silent, alone, failing, unsure])
async def test_inconclusive_list_releases_nothing(
    adopted: Plugin, api: EmbeddedApi, running: Running, pod_resources: PodResources, doubt: Any
) -> None:
    doubt(running, pod_resources)
    api.delete("resourceclaims", "old", "default")
    asked = pod_resources.asked
    await eventually(lambda: pod_resources.asked > asked + 10)
    assert held(adopted) == {"old"}


async def test_kubelet_before_1_34_is_not_called(
    adopted: Plugin, api: EmbeddedApi, pod_resources: PodResources, caplog: pytest.LogCaptureFixture
) -> None:
    api.patch("nodes", "node-a", {"status": {"nodeInfo": {"kubeletVersion": "v1.33.9-eks-1234"}}})
    await eventually(lambda: version.kubelet(adopted.node.object) == "v1.33.9-eks-1234")
    api.delete("resourceclaims", "old", "default")
    await eventually(lambda: "orphaned claims cannot be found" in caplog.text, what="a look that knows the version")
    asked = pod_resources.asked
    await always(lambda: held(adopted) == {"old"} and pod_resources.asked == asked, 1.0)


async def test_missing_mount_keeps_claims_and_warns_once(
    adopted: Plugin, api: EmbeddedApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.delete("resourceclaims", "old", "default")

    def warnings() -> int:
        # The plugin may log it during the fixture: `caplog.records` has the records of the current phase only.
        records = [*caplog.get_records("setup"), *caplog.get_records("call")]
        return sum("until a reboot" in record.getMessage() for record in records)

    await eventually(lambda: warnings() == 1, what="a warning")
    await always(lambda: (held(adopted), warnings()) == ({"old"}, 1), 1.0)


@pytest.mark.usefixtures("pod_resources")
@pytest.mark.parametrize(
    "strange",
    [
        InjectedFault(status=404, body=b"<html>not here</html>", times=None),
        InjectedFault(status=404, body=b"404 page not found", times=None),
        InjectedFault(status=200, body=b"{}", times=None),
        InjectedFault(status=200, body=b'{"metadata":{"name":"x","namespace":"default","uid":"u"}}', times=None),
        InjectedFault(status=403, times=None),
        InjectedFault(status=503, times=None),
    ],
    ids=lambda fault: f"{fault.status} {(fault.body or b'').decode()[:8]}",
)
async def test_inconclusive_reply_keeps_the_claim(adopted: Plugin, api: EmbeddedApi, strange: InjectedFault) -> None:
    fault = InjectedFault(verb="get", resource="resourceclaims", status=strange.status, body=strange.body, times=None)
    api.faults.add(fault)
    api.delete("resourceclaims", "old", "default")
    await eventually(lambda: fault.hits > 3, what="requests about the claim")
    assert held(adopted) == {"old"}
    api.faults.clear()
    await holds(adopted)


@pytest.mark.usefixtures("pod_resources")
async def test_own_claim_is_never_released_as_orphaned(
    host: PluginHost, api: EmbeddedApi, kubelet: ScriptedKubelet
) -> None:
    """Only unprepare releases it, which the kubelet repeats until it succeeds."""
    async with host.running("pod-1") as plugin:
        await kubelet.registered(DRIVER)
        await eventually(lambda: plugin.publish_state.result is not None)
        ours = api.create(allocated_claim("ours", "node-a", [5]))
        await kubelet.prepare([ours])
        api.delete("resourceclaims", "ours", "default")
        await always(lambda: held(plugin) == {"ours"}, 0.7)


@pytest.mark.usefixtures("pod_resources")
async def test_claim_prepared_again_is_kept(
    adopted: Plugin, api: EmbeddedApi, kubelet: ScriptedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From then on it belongs to this driver."""
    await kubelet.registered(DRIVER)
    await kubelet.prepare([api.get("resourceclaims", "old", "default")])
    api.delete("resourceclaims", "old", "default")
    await always(lambda: held(adopted) == {"old"}, 0.7)


async def test_listed_claim_needs_no_api_request(
    adopted: Plugin, api: EmbeddedApi, running: Running, pod_resources: PodResources
) -> None:
    running.run("old", "old", "neuron-device-5")
    asked = pod_resources.asked
    await eventually(lambda: pod_resources.asked > asked + 2)
    before = len(api.requests("get", "resourceclaims"))
    asked = pod_resources.asked
    await eventually(lambda: pod_resources.asked > asked + 10)
    assert len(api.requests("get", "resourceclaims")) == before
