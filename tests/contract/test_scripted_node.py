"""The scripted node: bound pods run with the devices of their claims, or have an Event with the reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.emulation.cdi_runtime import CdiError, CdiRuntime, DeviceNode
from neuron_dra.emulation.embedded_api import Do, EmbeddedApi, InjectedFault
from neuron_dra.emulation.scripted_kubelet import KubeletDevice, ScriptedKubelet
from neuron_dra.emulation.scripted_node import ScriptedNode
from tests.support.small_plugin import SmallPlugin

DRIVER = "neuron.aws.com"
KIND = "k8s.neuron.aws.com/claim"


@dataclass
class Node:
    api: EmbeddedApi
    kubelet: ScriptedKubelet
    agent: ScriptedNode
    plugin: SmallPlugin
    cdi: Path

    def calls(self, method: str) -> int:
        return sum(1 for name, _ in self.plugin.calls if name == f"v1 {method}")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    async with (
        EmbeddedApi() as api,
        SmallPlugin(tmp_path) as plugin,
        ScriptedKubelet(tmp_path / "registry") as kubelet,
        ScriptedNode(kubelet, api_url=api.url, node_name="a", cdi_directories=[cdi], retry_s=0.1) as agent,
    ):
        await kubelet.registered(DRIVER)
        yield Node(api, kubelet, agent, plugin, cdi)


def allocated_claim(
    api: EmbeddedApi, name: str = "job-0", *, requests: tuple[str, ...] = ("neurons",)
) -> dict[str, Any]:
    spec = {"devices": {"requests": [{"name": r, "exactly": {"deviceClassName": DRIVER}} for r in requests]}}
    results = [
        {"request": request, "driver": DRIVER, "pool": "a", "device": f"neuron-device-{index}"}
        for index, request in enumerate(requests)
    ]
    return api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "finalizers": ["resource.kubernetes.io/delete-protection"]},
            "spec": spec,
            "status": {"allocation": {"devices": {"results": results}}},
        }
    )


def pod(
    api: EmbeddedApi, name: str = "p", *, claim: str = "job-0", requests: tuple[str, ...] = ("",)
) -> dict[str, Any]:
    """A pod bound to node a, with one container for each of `requests`."""
    containers = [
        {
            "name": f"c{index}",
            "image": "app",
            "env": [{"name": "HOME", "value": "/root"}],
            "resources": {"claims": [{"name": "devices"} | ({"request": request} if request else {})]},
        }
        for index, request in enumerate(requests)
    ]
    spec = {
        "nodeName": "a",
        "containers": containers,
        "resourceClaims": [{"name": "devices", "resourceClaimName": claim}],
    }
    return api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def write_spec(folder: Path, uid: str, indices: tuple[int, ...] = (0,), **spec: Any) -> Path:
    path = folder / f"k8s.neuron.aws.com-claim_{uid}.json"
    entries = [
        {
            "name": f"{uid}-neuron-device-{index}",
            "containerEdits": {"env": [f"LAST={index}"], "deviceNodes": [{"path": f"/dev/neuron{index}"}]},
        }
        for index in indices
    ]
    body = {"cdiVersion": "0.5.0", "kind": KIND, "devices": entries, "containerEdits": {"env": ["NEURON=1"]}}
    path.write_text(json.dumps({**body, **spec}))
    return path


async def phase_of(node: Node, name: str, phase: str) -> None:
    def reached(pods: list[Any]) -> bool:
        return any(p["metadata"]["name"] == name and p["status"]["phase"] == phase for p in pods)

    await node.api.until("pods", reached)


async def failure_of(node: Node, text: str) -> dict[str, Any]:
    events = await node.api.until("events", lambda found: any(text in event["message"] for event in found))
    return next(event for event in events if text in event["message"])


async def test_bound_pod_gets_its_claims_devices(node: Node) -> None:
    claim = allocated_claim(node.api)
    write_spec(node.cdi, claim["metadata"]["uid"])
    pod(node.api)
    await phase_of(node, "p", "Running")

    container = node.agent.container("p")
    assert container.env == {"HOME": "/root", "NEURON": "1", "LAST": "0"}
    assert container.device_nodes == {"/dev/neuron0": DeviceNode("/dev/neuron0", "/dev/neuron0")}
    conditions = node.api.get("pods", "p")["status"]["conditions"]
    assert {"type": "Ready", "status": "True"}.items() <= conditions[2].items()


async def test_container_gets_devices_of_its_request(node: Node) -> None:
    claim = allocated_claim(node.api, requests=("small", "large"))
    uid = claim["metadata"]["uid"]
    write_spec(node.cdi, uid, (0, 1))
    node.plugin.devices = lambda uid: [
        KubeletDevice((request,), "a", f"neuron-device-{index}", (f"{KIND}={uid}-neuron-device-{index}",))
        for index, request in enumerate(("small", "large"))
    ]
    pod(node.api, requests=("small", "large", ""))
    await phase_of(node, "p", "Running")

    found = {name: sorted(c.device_nodes) for name, c in node.agent.containers["default/p"].items()}
    assert found == {"c0": ["/dev/neuron0"], "c1": ["/dev/neuron1"], "c2": ["/dev/neuron0", "/dev/neuron1"]}


async def test_failed_prepare_posts_an_event_and_retries(node: Node) -> None:
    claim = allocated_claim(node.api)
    uid = claim["metadata"]["uid"]
    write_spec(node.cdi, uid)
    node.plugin.errors[uid] = "logicalNeuronCore is fixed"
    pod(node.api)

    event = await failure_of(node, "logicalNeuronCore is fixed")
    assert event["reason"] == "FailedPrepareDynamicResources"
    assert event["message"] == (
        "Failed to prepare dynamic resources: prepare dynamic resources: "
        "NodePrepareResources failed for ResourceClaim job-0: logicalNeuronCore is fixed"
    )
    assert node.api.get("pods", "p")["status"]["phase"] == "Pending"
    node.plugin.errors.clear()
    await phase_of(node, "p", "Running")


async def test_unreserved_claim_is_not_prepared(node: Node) -> None:
    claim = allocated_claim(node.api)
    node.api.patch("resourceclaims", "job-0", {"status": {"allocation": None}}, "default")
    bound = pod(node.api)
    pod_uid, claim_uid = bound["metadata"]["uid"], claim["metadata"]["uid"]
    await failure_of(node, f"pod p ({pod_uid}) is not allowed to use ResourceClaim job-0 ({claim_uid})")
    assert node.calls("prepare") == 0


async def test_unreadable_claim_posts_an_event(node: Node) -> None:
    allocated_claim(node.api)
    node.api.faults.add(InjectedFault(Do.RESPOND, resource="resourceclaims", verb="get", status=500))
    pod(node.api)
    await failure_of(node, "fetch ResourceClaim job-0: fault on request")


async def test_unregistered_driver_is_named(node: Node) -> None:
    allocated_claim(node.api)
    await node.plugin.stop()
    await node.kubelet.gone(DRIVER)
    pod(node.api)
    await failure_of(node, f"DRA driver {DRIVER} is not registered")


async def test_deleted_pod_is_unprepared_before_removal(node: Node) -> None:
    claim = allocated_claim(node.api)
    uid = claim["metadata"]["uid"]
    write_spec(node.cdi, uid)
    pod(node.api)
    await phase_of(node, "p", "Running")
    node.plugin.errors[uid] = "still in use"

    node.api.delete("pods", "p")
    await failure_of(
        node, "unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim job-0: still in"
    )
    assert node.api.find("pods", "p") is not None
    node.plugin.errors.clear()

    await node.api.until("pods", lambda pods: not pods)
    await node.api.until("resourceclaims", lambda claims: "allocation" not in claims[0].get("status", {}))
    assert node.agent.containers == {}


async def test_finished_pod_is_unprepared_and_deallocated(node: Node) -> None:
    claim = allocated_claim(node.api)
    write_spec(node.cdi, claim["metadata"]["uid"])
    pod(node.api)
    await phase_of(node, "p", "Running")

    await node.agent.finish("p")

    await node.api.until("resourceclaims", lambda claims: "allocation" not in claims[0].get("status", {}))
    assert node.api.get("pods", "p")["status"]["phase"] == "Succeeded"
    for _ in range(200):
        if node.calls("unprepare"):
            break
        await asyncio.sleep(0.01)
    assert node.calls("unprepare") == 1


async def test_shared_claim_is_prepared_once(node: Node) -> None:
    claim = allocated_claim(node.api)
    write_spec(node.cdi, claim["metadata"]["uid"])
    pod(node.api, "p")
    await phase_of(node, "p", "Running")
    pod(node.api, "q")
    await phase_of(node, "q", "Running")
    assert node.calls("prepare") == 1

    node.api.delete("pods", "p")
    await node.api.until("pods", lambda pods: len(pods) == 1)
    assert node.calls("unprepare") == 0

    node.api.delete("pods", "q")
    await node.api.until("pods", lambda pods: not pods)
    assert node.calls("unprepare") == 1


async def test_a_forced_deletion_is_unprepared_too(node: Node) -> None:
    claim = allocated_claim(node.api)
    write_spec(node.cdi, claim["metadata"]["uid"])
    pod(node.api)
    await phase_of(node, "p", "Running")
    node.api.delete("pods", "p", grace_s=0)
    for _ in range(200):
        if node.calls("unprepare"):
            break
        await asyncio.sleep(0.01)
    assert node.calls("unprepare") == 1


async def test_kubelet_restart_keeps_running_pods(node: Node) -> None:
    claim = allocated_claim(node.api)
    write_spec(node.cdi, claim["metadata"]["uid"])
    pod(node.api)
    await phase_of(node, "p", "Running")

    await node.agent.restart_kubelet()
    await node.kubelet.registered(DRIVER)
    pod(node.api, "q")
    await phase_of(node, "q", "Running")

    assert node.calls("prepare") == 2  # for q, because the kubelet has lost the earlier result
    assert "default/p" in node.agent.containers


async def test_reboot_prepares_claims_before_containers(node: Node) -> None:
    claim = allocated_claim(node.api)
    write_spec(node.cdi, claim["metadata"]["uid"])
    pod(node.api)
    await phase_of(node, "p", "Running")

    await node.agent.reboot()
    assert node.agent.containers == {}
    for _ in range(500):
        if node.agent.containers:
            break
        await asyncio.sleep(0.01)

    assert node.calls("prepare") == 2
    assert node.agent.container("p").device_nodes


async def test_pod_waits_for_a_missing_cdi_file(node: Node) -> None:
    claim = allocated_claim(node.api)
    uid = claim["metadata"]["uid"]
    pod(node.api)
    event = await failure_of(node, f"unresolvable CDI devices {KIND}={uid}-neuron-device-0")
    assert event["reason"] == "Failed"
    write_spec(node.cdi, uid)
    await phase_of(node, "p", "Running")


def test_duplicate_device_name_is_unresolvable(tmp_path: Path) -> None:
    write_spec(tmp_path, "u")
    (tmp_path / "other.json").write_text((tmp_path / "k8s.neuron.aws.com-claim_u.json").read_text())
    with pytest.raises(CdiError, match=r"unresolvable CDI devices .*conflicting device"):
        CdiRuntime([tmp_path]).create([f"{KIND}=u-neuron-device-0"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"extra": 1}, 'unknown field "extra" in spec'),
        ({"cdiVersion": "9.9.9"}, "invalid version"),
        ({"cdiVersion": "0.3.0", "annotations": {"a": "b"}}, "must be at least v0.6.0"),
        ({"kind": "neuron"}, "invalid kind"),
        ({"devices": []}, "no devices"),
        ({"devices": [{"name": "x", "containerEdits": {}}]}, "empty device edits"),
        ({"devices": [{"name": "x_", "containerEdits": {"env": ["A=b"]}}]}, "invalid device name"),
        ({"devices": [{"name": "x", "containerEdits": {"env": ["A"]}}]}, "invalid environment variable"),
        ({"devices": [{"name": "x", "containerEdits": {"deviceNodes": [{"hostPath": "/x"}]}}]}, "empty.* device path"),
        ({"devices": [{"name": "x", "containerEdits": {"deviceNodes": [{"path": "/x", "mode": 1}]}}]}, "unknown field"),
    ],
)
def test_invalid_cdi_spec_is_rejected(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    write_spec(tmp_path, "u", **change)
    with pytest.raises(CdiError, match=text):
        CdiRuntime([tmp_path]).specs()


def test_a_device_node_must_exist_on_the_host(tmp_path: Path) -> None:
    write_spec(tmp_path, "u")
    (tmp_path / "host" / "dev").mkdir(parents=True)
    runtime = CdiRuntime([tmp_path], host_root=tmp_path / "host")
    with pytest.raises(CdiError, match='failed to stat CDI host device "/dev/neuron0"'):
        runtime.create([f"{KIND}=u-neuron-device-0"])
    (tmp_path / "host" / "dev" / "neuron0").touch()
    assert runtime.create([f"{KIND}=u-neuron-device-0"]).device_nodes


def test_edits_apply_in_order_of_precedence(tmp_path: Path) -> None:
    write_spec(tmp_path, "u", (0, 1), containerEdits={"env": ["LAST=spec", "NEURON=1"]})
    env = CdiRuntime([tmp_path]).create([f"{KIND}=u-neuron-device-1", f"{KIND}=u-neuron-device-0"]).env
    assert env == {"LAST": "0", "NEURON": "1"}
