"""The node plugins of a whole fleet in one process: their slices, and their tags for NeuronUltraServers.

Devices, tags and writes come from the plugin's own code; only sysfs, claims and the kubelet are left out.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

from hack.bench import shared
from hack.bench.ultraservers import ultraserver
from neuron_dra.core import slices
from neuron_dra.core.ultraserver import NAMESPACE, next_tag, object_name, read_allocations, tag_on, tagged
from neuron_dra.core.wire import Obj
from neuron_dra.errors import Conflict
from neuron_dra.kube.client import MERGE_PATCH, KubeClient
from neuron_dra.kube.requests import NEURON_ULTRASERVERS, NODES, RESOURCE_SLICES
from neuron_dra.node.publish.slice_publisher import SlicePublisher
from neuron_dra.node.timing import DEFAULT_TIMING

IN_FLIGHT = 32  # 5,000 nodes have 5,000 connections; this process shares two cores with the API server
INSTANCE_TYPE = "trn3.48xlarge"
IMAGES_ON_A_NODE = 40  # they are most of a Node object


class Own:
    """The slices of one node, in place of the plugin's watch of them."""

    def __init__(self, client: KubeClient, name: str) -> None:
        self._client = client
        self._name = name
        self.items: dict[str, Obj] = {}

    def remember(self, item: Obj) -> None:
        self.items["/" + item["metadata"]["name"]] = dict(item)

    def forget(self, item: Obj) -> None:
        self.items.pop("/" + item["metadata"]["name"], None)

    async def relist(self) -> None:
        self.items = {}
        async for page in self._client.list(RESOURCE_SLICES, fieldSelector=f"spec.nodeName={self._name}"):
            for item in page.decoded(dict).objects:
                self.remember(item)


class Node:
    """One node's plugin."""

    def __init__(self, client: KubeClient, node: Obj, published: list[Obj]) -> None:
        self.name: str = node["metadata"]["name"]
        self.body = node
        self.uid = ""
        self._devices: list[Obj] = []
        self._counters: list[Obj] = []
        for item in published:
            self._devices += item["spec"].get("devices", [])
            self._counters += item["spec"].get("sharedCounters", [])
        self._position = {device["name"]: number for number, device in enumerate(self._devices)}
        self._own = Own(client, self.name)
        self._publisher = SlicePublisher(client, self._own)  # type: ignore[arg-type]
        self._lock = asyncio.Lock()

    async def publish(self, ultraserver_object: Obj | None) -> None:
        """Tag the devices for the NeuronUltraServer's allocation, and write the difference."""
        async with self._lock:
            try:
                await self._publish(ultraserver_object)
            except Conflict:  # the slices have been listed again
                await self._publish(ultraserver_object)

    async def _publish(self, ultraserver_object: Obj | None) -> None:
        current = [device for item in self._publisher.current for device in item["spec"].get("devices") or []]
        tag = next_tag(tag_on(current), read_allocations(ultraserver_object or {}), self.name, occupied=False)
        pool = slices.Pool(self.name, self.uid)
        devices = [tagged(device, tag) for device in self._devices]
        await self._publisher.publish(pool, devices, self._counters, self._position)


class Swarm:
    """All nodes, by name, and one watch of all NeuronUltraServers in place of one per node."""

    def __init__(self, client: KubeClient, *, parts: bool = False) -> None:
        self._client = client
        self._parts = parts
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._latest: dict[str, Obj] = {}
        self._waiting: set[str] = set()
        self.nodes: dict[str, Node] = {}
        self.by_object: dict[str, list[str]] = {}

    async def grow(self, ultraservers: int) -> None:
        """Add UltraServers of four nodes until there are enough nodes."""
        numbers = range(len(self.by_object), ultraservers)
        await shared.few_at_a_time(self._slots, (self._join(number) for number in numbers))

    async def _join(self, number: int) -> None:
        block = f"cr-{number:017x}"
        layers = (f"nn-a-{number // 256}", f"nn-b-{number // 32}", f"nn-c-{number // 8}")
        made = ultraserver(block, INSTANCE_TYPE, layers=layers, parts=self._parts)
        members = self.by_object[object_name(block)] = []
        for body in (item for item in made if item["kind"] == "Node"):
            name = body["metadata"]["name"]
            await self._create(body, [item for item in made if item["spec"].get("nodeName") == name])
            members.append(name)

    async def _create(self, body: Obj, published: list[Obj]) -> None:
        body["metadata"].pop("uid")
        body["status"] |= _kubelet_status(0)
        node = Node(self._client, body, published)
        node.uid = (await self._client.create(NODES, "", body))["metadata"]["uid"]
        self.nodes[node.name] = node
        await node.publish(None)

    async def heartbeat(self, name: str, number: int) -> None:
        """Write the Node status that a kubelet writes every five minutes."""
        status = {"status": {**self.nodes[name].body["status"], **_kubelet_status(number)}}
        path = NODES.path("", name, "status")
        await self._client.request("PATCH", path, body=status, content_type=MERGE_PATCH)

    async def publish(self, names: Iterable[str], objects: dict[str, Obj]) -> None:
        """Tag these nodes for these NeuronUltraServers, without the delay of a real plugin."""
        of = {name: key for key, found in self.by_object.items() for name in found}
        await shared.few_at_a_time(self._slots, (self.nodes[name].publish(objects.get(of[name])) for name in names))

    def tagging(self) -> AbstractAsyncContextManager[None]:
        """Respond to every change while the context is open; answers under way are finished."""
        return shared.beside(self._follow(), self._tasks)

    async def _follow(self) -> None:
        version = ""
        async for page in self._client.list(NEURON_ULTRASERVERS, NAMESPACE):
            version = page.version
        while True:
            params = {"resourceVersion": version, "timeoutSeconds": "300"}
            async with self._client.watch(NEURON_ULTRASERVERS, NAMESPACE, params, idle_timeout_s=420) as lines:
                async for line in lines:
                    event = json.loads(line)
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._notify(event["object"])

    def _notify(self, item: Obj) -> None:
        key = item["metadata"]["name"]
        before = self._latest.get(key, {}).get("status", {}).get("allocations")
        self._latest[key] = item
        if (item.get("status") or {}).get("allocations") == before:
            return
        for name in set(self.by_object.get(key, ())) - self._waiting:
            self._waiting.add(name)
            task = asyncio.create_task(self._answer(name, key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, name: str, key: str) -> None:
        await asyncio.sleep(DEFAULT_TIMING.publish.gather_s)
        self._waiting.discard(name)
        async with self._slots:
            await self.nodes[name].publish(self._latest[key])


def _kubelet_status(number: int) -> Obj:
    return {
        "conditions": [
            {
                "type": kind,
                "status": "True" if kind == "Ready" else "False",
                "lastHeartbeatTime": f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "reason": "KubeletSays",
                "message": "as the kubelet says",
            }
            for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
        ],
        "images": [
            {
                "names": [
                    f"registry.example/team/image-{index:02d}@sha256:{uuid.uuid5(uuid.NAMESPACE_DNS, str(index)).hex * 2}",
                    f"registry.example/team/image-{index:02d}:v1.{index}.0",
                ],
                "sizeBytes": 10_000_000 + index,
            }
            for index in range(IMAGES_ON_A_NODE)
        ],
    }
