"""The controller as a process and the API server, as the controller's benchmark uses them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from hack.bench import api as bench_api
from hack.bench import shared
from hack.bench.swarm import INSTANCE_TYPE
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.requests import NEURON_ULTRASERVERS, NEURON_WORKLOADS, Resource

PLACE = "bench"
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "131072"}  # as in Dockerfile.controller
PROBES = "127.0.0.1:18081"
NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)


def workload(name: str, count: int, *, size: int = 4, namespace: str = PLACE) -> Obj:
    """Return a workload of `count` groups of `size` nodes: whole UltraServers, if nothing else is said."""
    return {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"instanceType": INSTANCE_TYPE, "topologySize": size, "serverCount": count},
    }


class Controller:
    """`neuron-ultraserver-controller run` as a process."""

    def __init__(self, kubeconfig: Path, log: Path, *options: str) -> None:
        self._command = [
            str(Path(sys.executable).parent / "neuron-ultraserver-controller"),
            "run",
            "--leader-elect",
            f"--leader-election-namespace={NAMESPACE}",
            f"--kubeconfig={kubeconfig}",
            f"--health-probe-bind-address={PROBES}",
            f"--metrics-bind-address={PROBES}",
            *options,
        ]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Controller:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log, env=os.environ | ENVIRONMENT)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    async def ready(self) -> bool:
        """Return True if all watches have listed their objects."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://{PROBES}/readyz") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    def kill(self) -> None:
        """End the process as a power cut would: it cannot give its Lease back."""
        assert self._process is not None
        self._process.kill()

    async def counts(self, histogram: str) -> dict[str, float]:
        """Return the buckets of a histogram whose name ends so, by upper bound as it is printed."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{PROBES}/metrics") as response:
            text = await response.text()
        pattern = re.compile(rf'^\w+{histogram}_bucket\{{le="([^"]+)"\}} (\S+)$', re.MULTILINE)
        return {bound: float(count) for bound, count in pattern.findall(text)}

    def cpu_s(self) -> float:
        """Return the CPU time of all threads so far, in seconds."""
        assert self._process is not None
        return shared.cpu_s(self._process.pid)

    def rss_mib(self, which: str = "VmRSS") -> float:
        """Return the resident memory in MiB; with `VmHWM`, the maximum so far."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split(f"{which}:")[1].split()[0]) / 1024


class Cluster:
    """The API server as the bench uses it."""

    def __init__(self, client: KubeClient, writes: bench_api.Writes) -> None:
        self.client = client
        self.writes = writes
        self._states: dict[str, str] = {}
        self._changed = asyncio.Event()

    async def prepare(self) -> None:
        """Create the namespaces and the custom resources."""
        import yaml

        for name in (PLACE, NAMESPACE):
            await self.client.create(NAMESPACES, "", {"metadata": {"name": name}})
        for path in sorted((bench_api.REPOSITORY / "deploy/crds").glob("*.yaml")):
            await self.client.create(CRDS, "", yaml.safe_load(path.read_text()))
        await self.until("the custom resources are served", self._served)

    async def _served(self) -> bool:
        from neuron_dra.errors import ApiError

        try:
            for resource in (NEURON_ULTRASERVERS, NEURON_WORKLOADS):
                await self.client.request("GET", resource.path(PLACE))
        except ApiError:
            return False
        return True

    async def until(self, what: str, check: Callable[[], Any], timeout_s: float = 300.0) -> None:
        """Poll a condition every 100 ms. Raises TimeoutError."""
        await shared.until(check, timeout_s, 0.1, what)

    def watching(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Follow the states of the workloads of all namespaces, by name, while the context is open."""
        return shared.beside(self._follow())

    async def _follow(self) -> None:
        version = "0"
        while True:
            params = {"resourceVersion": version, "timeoutSeconds": "300"}
            async with self.client.watch(NEURON_WORKLOADS, "", params, idle_timeout_s=420) as lines:
                async for line in lines:
                    event = json.loads(line)
                    meta = event["object"]["metadata"]
                    version = meta["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        state = event["object"].get("status", {}).get("state", "")
                        self._states[meta["name"]] = "gone" if event["type"] == "DELETED" else state
                        self._changed.set()

    async def reaches(self, name: str, *states: str, timeout_s: float = 120.0) -> None:
        """Wait until the watch shows a workload in one of these states. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while self._states.get(name) not in states:
                self._changed.clear()
                await self._changed.wait()
