"""EFA interfaces, a plugin process and pods: shared claims, claims of both drivers, kills, a reboot (4.10)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core import names
from neuron_dra.core.dra_driver import EFA
from neuron_dra.emulation.cdi_runtime import Container
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.emulation.scripted_node import ScriptedNode
from neuron_dra.emulation.simulated_efa import EfaTree
from tests.contract.test_efa_driver import FIRST, SECOND, efa_claim, own_slices
from tests.story.plugin_story import START_S, started
from tests.support import slots
from tests.support.plugin_host import PluginHost, PluginProcess
from tests.support.waiting import always, eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")

NEURON: Final = "/dev/neuron3"


@pytest.fixture
def tree(host: PluginHost) -> EfaTree:
    return EfaTree.write(host.root / "host", "trn2.48xlarge")


@pytest.fixture
async def kubelet(host: PluginHost, tree: EfaTree) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as running:
        yield running


@pytest.fixture
async def node(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> AsyncIterator[ScriptedNode]:
    async with ScriptedNode(
        kubelet, api_url=api.url, node_name="node-a", cdi_directories=[host.cdi], host_root="/", retry_s=0.2
    ) as running:
        yield running


async def begun(host: PluginHost, kubelet: ScriptedKubelet, pod_uid: str) -> PluginProcess:
    """Start a plugin, and return when both of its drivers are registered."""
    process = await started(host, kubelet, pod_uid, efa_interfaces=True)
    await kubelet.registered(EFA.name, START_S, endpoint=str(host.settings(pod_uid).efa_dra_socket))
    return process


def pod(api: EmbeddedApi, name: str, claim: dict[str, Any], **spec: Any) -> None:
    """Create a pod of node-a whose container `main` names the claim, and whose container `other` does not.

    The claim is reserved for it after that; until then, the node tries again.
    """
    entry = {"name": "claim", "resourceClaimName": claim["metadata"]["name"]}
    main = {"name": "main", "image": "i", "resources": {"claims": [{"name": "claim"}]}}
    other = {"name": "other", "image": "i"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "node-a", "containers": [main, other], "resourceClaims": [entry], **spec},
    }
    users = api.get("resourceclaims", claim["metadata"]["name"], "default")["status"].get("reservedFor") or []
    created = api.create(body)
    user = {"resource": "pods", "name": name, "uid": created["metadata"]["uid"]}
    api.patch("resourceclaims", claim["metadata"]["name"], {"status": {"reservedFor": [*users, user]}}, "default")


async def running(node: ScriptedNode, name: str) -> dict[str, Container]:
    await eventually(lambda: f"default/{name}" in node.containers, what=f"pod {name} runs")
    return node.containers[f"default/{name}"]


def files(container: Container) -> list[str]:
    return sorted(path for path in container.device_nodes if path.startswith("/dev/"))


async def test_pods_share_a_claim_one_after_another(
    host: PluginHost, tree: EfaTree, kubelet: ScriptedKubelet, node: ScriptedNode, api: EmbeddedApi
) -> None:
    process = await begun(host, kubelet, "pod-1")
    await eventually(lambda: len(own_slices(api)) == 1)
    claim = api.create(efa_claim("shared", FIRST, SECOND))
    both = ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"]
    pod(api, "first", claim)
    containers = await running(node, "first")
    assert (files(containers["main"]), files(containers["other"])) == (both, [])
    await process.kill()
    await begun(host, kubelet, "pod-2")
    pod(api, "second", claim, hostNetwork=True)
    containers = await running(node, "second")
    assert (files(containers["main"]), files(containers["other"])) == (both, [])
    assert [(n.major, n.minor, n.permissions) for n in containers["main"].device_nodes.values()] == [
        (231, 192, "rw"),
        (231, 193, "rw"),
    ]


async def lose_the_interface(kubelet: ScriptedKubelet, tree: EfaTree, api: EmbeddedApi) -> None:
    tree.file(0).unlink()


async def hold_the_device(kubelet: ScriptedKubelet, tree: EfaTree, api: EmbeddedApi) -> None:
    holder = api.create(allocated_claim("holder", "node-a", [3]))
    answer = (await kubelet.prepare([holder], driver=names.DRIVER))[holder["metadata"]["uid"]]
    assert not answer.error


@pytest.mark.parametrize(
    ("harm", "complaint", "remaining"),
    [
        (lose_the_interface, "cannot be used (DeviceFileMissing)", []),
        (hold_the_device, "is held by claim default/holder", ["holder"]),
    ],
    ids=["interface", "device"],
)
async def test_claim_of_both_drivers_starts_or_leaves_nothing(
    host: PluginHost,
    tree: EfaTree,
    kubelet: ScriptedKubelet,
    node: ScriptedNode,
    api: EmbeddedApi,
    harm: Callable[[ScriptedKubelet, EfaTree, EmbeddedApi], Awaitable[None]],
    complaint: str,
    remaining: list[str],
) -> None:
    """The kubelet calls both drivers, in any order. Where one of them fails, the pod does not start."""
    await begun(host, kubelet, "pod-1")
    await harm(kubelet, tree, api)
    claim = api.create(efa_claim("both", FIRST, neuron=3))
    pod(api, "job", claim)
    await eventually(lambda: any(complaint in text for text in node.failures))
    await always(lambda: "default/job" not in node.containers, 0.5)
    api.delete("pods", "job", "default", grace_s=0)
    efa_folder = host.settings("pod-1").efa_folder
    await eventually(
        lambda: (claims_in(host.data), claims_in(efa_folder)) == (remaining, []), what="nothing is left over"
    )
    uid = claim["metadata"]["uid"]
    names_left = [path.name for path in host.cdi.rglob("*") if uid in path.name]
    assert names_left == []


def claims_in(folder: Path) -> list[str]:
    """Return the names of the claims in a checkpoint; none before the first commit, which writes it."""
    with contextlib.suppress(FileNotFoundError):
        return [claim.ref.name for claim in slots.read(folder).claims.values()]
    return []


async def test_kill_between_the_two_prepares_is_recovered(
    host: PluginHost, tree: EfaTree, kubelet: ScriptedKubelet, node: ScriptedNode, api: EmbeddedApi
) -> None:
    process = await begun(host, kubelet, "pod-1")
    claim = api.create(efa_claim("both", FIRST, neuron=3))
    answer = (await kubelet.prepare([claim], driver=names.DRIVER))[claim["metadata"]["uid"]]
    assert not answer.error
    await process.kill()
    await begun(host, kubelet, "pod-2")
    pod(api, "job", claim)
    containers = await running(node, "job")
    assert files(containers["main"]) == ["/dev/infiniband/uverbs0", NEURON]
    assert files(containers["other"]) == []


async def test_reboot_with_other_numbers_prepares_again(
    host: PluginHost, tree: EfaTree, kubelet: ScriptedKubelet, node: ScriptedNode, api: EmbeddedApi
) -> None:
    process = await begun(host, kubelet, "pod-1")
    claim = api.create(efa_claim("job", SECOND))
    pod(api, "job", claim)
    assert files((await running(node, "job"))["main"]) == ["/dev/infiniband/uverbs1"]
    await process.kill()
    host.hardware.set_boot_id()
    tree.renumber(7)
    await node.reboot()
    await begun(host, kubelet, "pod-2")
    assert files((await running(node, "job"))["main"]) == ["/dev/infiniband/uverbs8"]
