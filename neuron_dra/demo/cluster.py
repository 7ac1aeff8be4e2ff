"""The demo's cluster: an embedded API server, and for each node its files, a scripted kubelet and the real plugin."""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuron_dra.core import names
from neuron_dra.core.dra_driver import EFA
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.demo import installation
from neuron_dra.demo.processes import CONTROLLER, DemoError, Process
from neuron_dra.demo.timing import DEFAULT_TIMING, DemoTiming
from neuron_dra.emulation import simulated_node
from neuron_dra.emulation.cdi_runtime import Container
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.embedded_api.history import Event
from neuron_dra.emulation.pod_resources import PodResources
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.emulation.scripted_node import ScriptedNode
from neuron_dra.emulation.simulated_efa import EfaTree

METRICS_PORT: Final = "8080"
"""The port of the DaemonSet's pods."""
LONGEST_SOCKET_FOLDER: Final = 40  # bytes; macOS allows 104 for a whole socket path


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node to simulate; `ultraserver_node` is its number in the UltraServer `server_id`."""

    name: str
    instance_type: str
    driver_version: str = simulated_node.DEFAULT_DRIVER_VERSION
    ultraserver_node: int | None = None
    server_id: str | None = None
    efa: bool = False  # the plugin also publishes EFA interfaces
    connected_sets: bool = False  # the plugin also publishes connected sets and cores, which pods get by limits


CONTROLLER_FLAGS: Final = {
    "--leader-elect": "true",
    "--leader-election-namespace": NAMESPACE,
    "--health-probe-bind-address": 0,
    "--metrics-bind-address": 0,
    "--grpc-address": 0,
}


class DemoNode:
    """One node: files that simulate its hardware, a kubelet, and the plugin as a separate process."""

    def __init__(self, spec: NodeSpec, folder: Path, api_url: str, timing: DemoTiming) -> None:
        self.spec = spec
        self._api_url = api_url
        self.host, self._registry = folder / "host", folder / "r"
        self._plugins, self.cdi = folder / "p", folder / "cdi"
        self._kubelet = ScriptedKubelet(self._registry, node_name=spec.name, api_url=api_url)
        self.agent = ScriptedNode(
            self._kubelet,
            api_url=api_url,
            node_name=spec.name,
            cdi_directories=[self.cdi],
            retry_s=0.5,
            ends_programs=True,
        )
        self._pods_socket = folder / "pods.sock"
        self._pods = PodResources(self.agent, self._pods_socket)
        self.metrics = f"127.0.0.1:{_free_port()}"
        words = ("-m", "neuron_dra.cli", "plugin")
        self._plugin = Process(folder / "plugin.log", words, self._flags(), timing.stop_s)
        self._stopped = False

    async def start(self) -> None:
        """Write the hardware's files, start the kubelet and then the plugin."""
        simulated_node.write(
            self.host,
            self.spec.instance_type,
            node_id=self.spec.ultraserver_node,
            server_id=self.spec.server_id,
            driver_version=self.spec.driver_version,
        )
        if self.spec.efa:
            EfaTree.write(self.host, self.spec.instance_type)
        for folder in (self._registry, self._plugins, self.cdi):
            folder.mkdir(parents=True, exist_ok=True)
        await self._kubelet.start()
        await self.agent.start()
        await self._pods.start()
        await self._plugin.start()

    @property
    def socket(self) -> Path:
        """The plugin's socket."""
        return self._plugins / names.DRIVER / "dra.sock"

    def _flags(self) -> dict[str, object]:
        return {
            "--node-name": self.spec.name,
            "--host-root": self.host,
            "--kube-api-server": self._api_url,
            "--kubelet-registrar-directory-path": self._registry,
            "--kubelet-plugins-directory-path": self._plugins,
            "--kubelet-device-plugins-directory-path": self._plugins,
            "--cdi-root": self.cdi,
            "--boot-id-file": self.host / "proc/sys/kernel/random/boot_id",
            "--healthcheck-port": 0,
            "--kubelet-pod-resources-socket": self._pods_socket,
            "--metrics-bind-address": self.metrics,
            "--connected-sets": str(self.spec.connected_sets).lower(),
            "--efa-interfaces": str(self.spec.efa).lower(),
        }

    async def registered(self, timeout_s: float) -> None:
        """Wait until the plugin is registered with the kubelet. Raises DemoError with the end of the plugin's log."""
        registration = asyncio.create_task(self._known(timeout_s), name=f"{self.spec.name}: registration")
        ended = asyncio.create_task(self._plugin.ended(), name=f"{self.spec.name}: end of the plugin")
        done, pending = await asyncio.wait((registration, ended), return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if ended in done:
            raise DemoError(f"the plugin of {self.spec.name} ended with code {ended.result()}: {self.last_words()}")
        if registration.exception() is not None:
            raise DemoError(f"the plugin of {self.spec.name} does not register: {self.last_words()}") from None

    async def _known(self, timeout_s: float) -> None:
        await self._kubelet.registered(names.DRIVER, timeout_s)
        if self.spec.efa:
            await self._kubelet.registered(EFA.name, timeout_s)

    def last_words(self) -> str:
        """Return the end of the plugin's log, for an error message."""
        return self._plugin.last_words()

    async def stop(self) -> None:
        """End the plugin and the kubelet."""
        await self._plugin.stop()
        await self._stop_the_rest()

    async def lose(self) -> None:
        """Fail the node without warning: kill the plugin and stop the kubelet."""
        await self._plugin.stop(signal.SIGKILL)
        await self._stop_the_rest()

    async def _stop_the_rest(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        await self._pods.stop()
        await self.agent.stop()
        await self._kubelet.stop()


class Cluster:
    """The nodes, the UltraServer controller and their API server; on exit it ends all that it has started."""

    def __init__(self, nodes: tuple[NodeSpec, ...], folder: Path, timing: DemoTiming = DEFAULT_TIMING) -> None:
        self.api = EmbeddedApi(workloads=True)
        self.timing = timing
        self._specs = nodes
        self._folder = folder
        self.nodes: dict[str, DemoNode] = {}
        self._controller: Process | None = None

    async def __aenter__(self) -> Cluster:
        await self.api.start()
        self.api.register_neuron_kinds()
        installation.apply(self.api)
        self.api.apply(installation.efa_class())
        for spec in self._specs:
            self.api.apply(installation.node_object(spec.name, spec.instance_type))
            self.nodes[spec.name] = DemoNode(spec, self._folder / spec.name, self.api.url, self.timing)
        self.api.store.listeners.append(self._on_change)
        flags = {"--kube-api-server": self.api.url, **CONTROLLER_FLAGS}
        log, words = self._folder / "controller.log", ("-c", CONTROLLER, "run")
        self._controller = Process(log, words, flags, self.timing.stop_s)
        try:
            await asyncio.gather(*(node.start() for node in self.nodes.values()), self._controller.start())
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    def _on_change(self, event: Event) -> None:
        """Let the API server reach the metrics of a plugin through the pod of the DaemonSet that stands for it."""
        meta = event.obj["metadata"]
        node = self.nodes.get((event.obj.get("spec") or {}).get("nodeName", ""))
        if event.resource.plural == "pods" and meta["namespace"] == NAMESPACE and node is not None:
            self.api.proxy.ports[NAMESPACE, meta["name"], METRICS_PORT] = f"http://{node.metrics}"

    async def _stop(self) -> None:
        running: list[DemoNode | Process] = [
            *self.nodes.values(),
            *([self._controller] if self._controller else []),
        ]
        await asyncio.gather(*(program.stop() for program in running))
        await self.api.stop()

    async def ready(self, timeout_s: float) -> None:
        """Wait until every plugin is registered and has published. Raises DemoError after `timeout_s` seconds."""
        await asyncio.gather(*(node.registered(timeout_s) for node in self.nodes.values()))

        expected = {(names.DRIVER, name) for name in self.nodes}
        expected |= {(EFA.name, name) for name, node in self.nodes.items() if node.spec.efa}

        def all_published(slices: list[Obj]) -> bool:
            return complete_pools(slices) >= expected

        try:
            await self.api.until("resourceslices", all_published, timeout_s=timeout_s)
        except TimeoutError:
            missing = sorted(expected - complete_pools(self.api.objects("resourceslices")))
            texts = [f"{driver} of {node_name}" for driver, node_name in missing]
            last_words = self.nodes[missing[0][1]].last_words() if missing else "published at the last moment"
            raise DemoError(f"nothing published by {', '.join(texts)}: {last_words}") from None

    async def replace(self, name: str, timeout_s: float) -> None:
        """Start a new node with the name of a lost one, as an autoscaling group does."""
        spec = self.nodes[name].spec
        self.nodes[name] = DemoNode(spec, self._folder / f"{name}-new", self.api.url, self.timing)
        self.api.apply(installation.node_object(name, spec.instance_type))
        await self.nodes[name].start()
        await self.ready(timeout_s)

    def container(self, pod: str) -> tuple[str, Container]:
        """Return the node and the only container of a running pod. Raises DemoError if it does not run."""
        for node in self.nodes.values():
            for container in (node.agent.containers.get(f"default/{pod}") or {}).values():
                return node.spec.name, container
        raise DemoError(f"pod {pod} does not run")


def _free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def temporary_folder() -> Path:
    """Create a folder with a short path, because Unix sockets are created in it, and return it."""
    default = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="nd-", dir="/tmp" if len(default) > LONGEST_SOCKET_FOLDER else None))


def complete_pools(slices: Sequence[Obj]) -> set[tuple[str, str]]:
    """Return driver and node of the pools that are complete and have devices.

    A node with connected sets writes several slices, one after the other, and the first ones may have no devices.
    """
    specs_by_pool: dict[tuple[str, str], list[Obj]] = defaultdict(list)
    for resource_slice in slices:
        spec = resource_slice["spec"]
        if spec.get("nodeName"):
            specs_by_pool[spec["driver"], spec["nodeName"]].append(spec)
    complete = set()
    for pool, specs in specs_by_pool.items():
        newest = max(spec["pool"]["generation"] for spec in specs)
        current = [spec for spec in specs if spec["pool"]["generation"] == newest]
        is_whole = len(current) == current[0]["pool"]["resourceSliceCount"]
        if is_whole and any(spec.get("devices") for spec in current):
            complete.add(pool)
    return complete
