"""`neuron-dra top`, through the API server, with plugins on simulated nodes (17.6)."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.ask.read import cluster
from neuron_dra.ask.read.timing import InspectTiming
from neuron_dra.ask.top import command, usage
from neuron_dra.core.telemetry import User
from neuron_dra.core.wire import Obj
from neuron_dra.emulation import simulated_load
from neuron_dra.emulation.embedded_api import EmbeddedApi, InjectedFault
from neuron_dra.emulation.kubelet_wire import KubeletDevice
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.kube.client import KubeClient
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from tests.support import forked_command
from tests.support.output_schema import checked
from tests.support.plugin_host import PluginHost
from tests.support.pod_resources import PodResources
from tests.support.timings import quicker
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 100
DRIVER = "neuron.aws.com"
NAMESPACE = "neuron-dra-driver"


@pytest.fixture
def timing() -> PluginTiming:
    return quicker(DEFAULT_TIMING, counters={"fresh_s": 0.0})


@pytest.fixture
async def plugin(host: PluginHost, api: EmbeddedApi, kubeconfig: Path) -> AsyncIterator[Plugin]:
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    api.create(driver_pod("driver-a", "node-a"))
    async with host.running("pod-1", metrics_bind_address="127.0.0.1:0") as running:
        await eventually(lambda: running.http.port)
        api.proxy.ports[NAMESPACE, "driver-a", "8080"] = f"http://127.0.0.1:{running.http.port}"
        yield running


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


@pytest.fixture
def kubeconfig(api: EmbeddedApi, tmp_path: Path) -> Path:
    return api.write_kubeconfig(tmp_path / "kubeconfig")


def driver_pod(name: str, node: str) -> Obj:
    ports = [{"name": "metrics", "containerPort": 8080}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/component": "kubelet-plugin"},
        },
        "spec": {"nodeName": node, "containers": [{"name": "neuron-dra-driver", "image": "none", "ports": ports}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def arguments(kubeconfig: Path, *words: str) -> list[str]:
    return ["top", "--kubeconfig", str(kubeconfig), "--interval", "1", *words]


async def top(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = arguments(kubeconfig, *words)
    return await asyncio.to_thread(forked_command.run, argv, env=os.environ, timeout_s=TIMEOUT_S)


async def top_from_its_start(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in an interpreter of its own, as users do."""
    argv = [sys.executable, "-m", "neuron_dra.cli", *arguments(kubeconfig, *words)]
    return await asyncio.to_thread(
        subprocess.run, argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=ROOT
    )


async def test_busy_pod_is_shown(
    plugin: Plugin, host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, kubeconfig: Path
) -> None:
    await kubelet.registered(DRIVER)
    await kubelet.prepare([api.create(allocated_claim("job", "node-a", [3, 4], pod="job-0"))])
    simulated_load.set_core(host.hardware, 5, 0)
    running = asyncio.create_task(top_from_its_start(kubeconfig, "-o", "json"))
    for step in range(1, 10_000):
        for device_id in (3, 4):
            results = {"success": 10 * step}
            simulated_load.set_core(host.hardware, device_id, 0, busy_us=1000 * step, results=results)
        if running.done():
            break
        await asyncio.sleep(0.05)
    done = await running
    assert (done.returncode, done.stderr) == (0, "")
    job, free = checked(done.stdout)["usage"]
    assert (job["namespace"], job["pod"], job["claim"], job["devices"]) == ("default", "job-0", "job", [3, 4])
    assert job["executionsPerSecond"] > 0
    assert 0 < job["busy"] <= 1
    assert (free["claim"], free["busy"], free["executionsPerSecond"]) == ("", 0, 0)


async def test_node_is_found_by_its_pod(plugin: Plugin, api: EmbeddedApi, host: PluginHost, kubeconfig: Path) -> None:
    simulated_load.set_core(host.hardware, 0, 0)
    pod: dict[str, Any] = {**driver_pod("llm-0", "node-a"), "metadata": {"name": "llm-0", "namespace": "default"}}
    api.create(pod)
    done = await top(kubeconfig, "pod/llm-0", "--by", "core")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "node-a trn2.48xlarge: 0 of 16 devices held"


async def test_node_that_cannot_be_read_is_named(plugin: Plugin, api: EmbeddedApi, kubeconfig: Path) -> None:
    api.create(driver_pod("driver-b", "node-b"))
    done = await top(kubeconfig)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "node-a trn2.48xlarge: 0 of 16 devices held"
    assert "! node-b could not be read: " in done.stdout
    assert "connection refused" in " ".join(done.stdout.split())


async def test_nodes_that_hang_are_named_and_a_few_are_read_at_once(api: EmbeddedApi, kubeconfig: Path) -> None:
    now = most = 0

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await reader.read()  # until the caller gives up
        now -= 1
        writer.close()

    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        plugins = [command.PluginPod(f"node-{number}", NAMESPACE, f"driver-{number}", 8080) for number in range(40)]
        for plugin in plugins:
            api.create(driver_pod(plugin.name, plugin.node))
            api.proxy.ports[NAMESPACE, plugin.name, "8080"] = f"http://127.0.0.1:{port}"
        async with KubeClient(cluster.connection(str(kubeconfig), "")) as client:
            found, failures = await command._read(client, plugins, InspectTiming(fleet_s=2.0))
    assert found == {}
    assert failures == {plugin.node: "not read within 2 s: name fewer nodes" for plugin in plugins}
    assert most == command.AT_ONCE


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["node-x"], "no pod of the driver runs on node node-x; neuron-dra why node/node-x explains it"),
        (["pod/absent"], "pod default/absent: "),
        (["claim/job"], "claim/job: name a node, node/NAME or pod/NAME"),
        (["--driver-namespace", "elsewhere"], "no pod of the driver runs in namespace elsewhere"),
        (["--interval", "0"], "--interval 0: from 1 to 3600 seconds"),
        (["-A", "-n", "ml"], "-A and -n: give one of them"),
        (["-w", "-o", "json"], "--watch: needs the output text or wide"),
    ],
)
async def test_wrong_arguments_are_explained(plugin: Plugin, kubeconfig: Path, words: list[str], why: str) -> None:
    done = await top(kubeconfig, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr


@pytest.mark.parametrize("what", ["list", "proxy", "expired"])
async def test_missing_rights_are_named(plugin: Plugin, api: EmbeddedApi, kubeconfig: Path, what: str) -> None:
    if what == "proxy":
        api.proxy.forbidden = True
    else:
        api.faults.add(InjectedFault(verb="list", resource="pods", status=403 if what == "list" else 401, times=None))
    done = await top(kubeconfig)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "401" if what == "expired" else "bind the Role neuron-dra-top to yourself in neuron-dra-driver"
    ) in done.stderr


class Pods:
    """The pods of a node, as its kubelet lists them: each has one claim."""

    def __init__(self) -> None:
        self.of: dict[str, list[str]] = {}  # names of pods, by claim
        self.devices: dict[str, int] = {}

    @property
    def pods(self) -> list[Obj]:
        return [_pod(pod, claim) for claim, pods in self.of.items() for pod in pods]

    def prepared(self, namespace: str, name: str) -> dict[str, tuple[KubeletDevice, ...]] | None:
        device = f"neuron-device-{self.devices[name]}"
        return {DRIVER: (KubeletDevice(("r",), "node-a", device, ("k8s.neuron.aws.com/claim=x",)),)}


def _pod(pod: str, claim: str) -> Obj:
    containers = [{"name": "main", "resources": {"claims": [{"name": "neurons"}]}}]
    spec = {"containers": containers, "resourceClaims": [{"name": "neurons", "resourceClaimName": claim}]}
    return {"metadata": {"namespace": "default", "name": pod}, "spec": spec}


@pytest.mark.parametrize("seed", [1, 2])
async def test_counters_stay_with_their_pod_while_claims_come_and_go(
    plugin: Plugin, host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, seed: int
) -> None:
    """Some claims are shared by two pods, and some are not in the kubelet's list."""
    rng, pods = random.Random(seed), Pods()
    held: dict[int, Obj] = {}
    busy = [0] * 16
    await kubelet.registered(DRIVER)
    url = f"http://127.0.0.1:{plugin.http.port}/metrics"
    async with PodResources(pods, host.pod_resources):
        for step in range(20):
            device_id = rng.randrange(16)
            if device_id in held:
                gone = held.pop(device_id)
                await kubelet.unprepare([gone])
                pods.of.pop(gone["metadata"]["name"], None)
            else:
                name = f"claim-{step}"
                held[device_id] = api.create(allocated_claim(name, "node-a", [device_id], pod=f"{name}-0"))
                await kubelet.prepare([held[device_id]])
                pods.devices[name] = device_id
                if rng.random() < 0.8:
                    pods.of[name] = [f"{name}-{number}" for number in range(rng.choice((1, 2)))]
            busy[device_id] += rng.randrange(1, 9_000_000)
            simulated_load.set_core(host.hardware, device_id, 0, busy_us=busy[device_id])
            text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=60).read().decode())
            found = usage.sample(text)
            for place, counters in found.places.items():
                if place[1] == usage.WHOLE:
                    continue
                claim = held[place[0]]["metadata"]["name"] if place[0] in held else ""
                first, *others = pods.of.get(claim, [f"{claim}-0"]) if claim else [""]
                names = f"{first} and {len(others)} more" if others else first
                container = "main" if claim in pods.of else ""
                who = User("default" if claim else "", names, container, claim, "")
                assert (counters.who, counters.busy_s) == (who, busy[place[0]] / 1e6)
