"""The scene about UltraServers: a training job reserves two of them, and later one node of another job is lost."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any, Final

from neuron_dra.core.ultraserver import Phase, decode_allocations
from neuron_dra.demo import examples
from neuron_dra.demo.cluster import NodeSpec
from neuron_dra.demo.steps import WORKLOADS, Steps, status_text

TYPE: Final = "trn2u.48xlarge"
SERVERS: Final = {"us1": "5a7b1c2d3e4f6070", "us2": "6b8c2d3e4f5a7180"}  # prefix of the nodes' names: the hardware's id
NODES: Final = tuple(
    NodeSpec(f"{name}-{number}", TYPE, ultraserver_node=number, server_id=server_id, efa=True)
    for name, server_id in SERVERS.items()
    for number in range(4)
)
FILE: Final = "ultraservers/my-training-job.yaml"
JOB: Final = "my-training-job"
SHOWN: Final = ("NEURON_DRA_RANK0_NODE", "NEURON_DRA_WORLD_SIZE", "NEURON_GLOBAL_TOPOID", "NEURON_RT_ULTRASERVER_MODE")
LOST: Final = "us1-2"

Wire = dict[str, Any]


class UltraServers(Steps):
    """Tells the scene."""

    async def tell(self) -> None:
        """All of it."""
        self._view.heading("UltraServers: four nodes each, wired to each other, that a job reserves as a whole")
        await self.until("neuronultraservers", lambda found: len(found) == 2, "the controller to find two UltraServers")
        moments = [("nothing is reserved", self._map())]
        objects = examples.load(FILE)
        job, template, pods = objects[0], objects[1], objects[2:]
        took_ms = await self._reserve([job, template], pods)
        moments.append((f"{JOB} has 2 groups of 4 nodes", self._map()))
        detail = self._environment("my-training-workload-5")
        refusal = await self._closed()
        await self._release(pods)
        moments.append(("it was deleted: its pods are evicted", self._map()))
        await self._reserve([_pairs(job)], pods[:6])
        moments.append(("another has 3 groups of 2 nodes", self._map()))
        self._view.ranks(tuple(SERVERS), moments)
        self._view.line("Numbers are ranks, a node's place in its job; '.' is a node that nobody reserved.", "dim")
        self._view.blank()
        self._view.line(f"Allocated in {took_ms:.0f} ms: all 8 nodes were closed before the first pod could start.")
        self._view.table(("", "", ""), detail)
        self._view.refusal("a pod of somebody else", "Pending", refusal)

    # Steps

    async def _reserve(self, first: list[Wire], pods: list[Wire]) -> float:
        """Apply a workload and its pods; return the milliseconds to Allocated, when all pods run."""
        started = time.monotonic()
        self.apply([*first, *pods])
        await self._state("Allocated")
        took_ms = 1000 * (time.monotonic() - started)
        await self.running(*(pod["metadata"]["name"] for pod in pods))
        return took_ms

    async def _state(self, wanted: str) -> None:
        await self.until(
            WORKLOADS,
            lambda found: [each for each in found if (each.get("status") or {}).get("state") == wanted],
            f"{JOB} to be {wanted}",
        )

    async def _closed(self) -> list[str]:
        """Somebody else's pod finds no node: return why."""
        (template, *pods) = examples.load("4-node-inference-us.yaml")
        (name,) = self.apply([template, pods[0]])
        message = await self.waiting(name)
        why = self.why(name, "us1-0")
        await self.leave(name)
        return [message, *why]

    async def _release(self, pods: list[Wire]) -> None:
        self._api.delete(WORKLOADS, JOB, "default")
        await self.until(WORKLOADS, lambda found: not found, f"{JOB} to be released")
        names = {pod["metadata"]["name"] for pod in pods}
        await self.until("pods", lambda found: not names & {each["metadata"]["name"] for each in found}, "pods to go")

    async def _lose(self, pods: list[Wire]) -> tuple[int, list[tuple[str, str]], float]:
        """Lose a node; return how many pods stayed, what the status said, and the milliseconds until all is well."""
        before = self._uids()
        said: list[tuple[str, str]] = []
        await self._cluster.nodes[LOST].lose()
        started = time.monotonic()
        self._api.delete("nodes", LOST)

        def whole(found: list[Wire]) -> bool:
            state, text = status_text(found[0])
            if not said or said[-1][1] != text:
                said.append((f"{1000 * (time.monotonic() - started):.0f} ms", text))
            return state == "Allocated" and LOST not in self._ranks()

        await self.until(WORKLOADS, whole, "the pair to move")
        left = {each["metadata"]["name"] for each in self._api.objects("pods")}
        again = [pod for pod in pods[:6] if pod["metadata"]["name"] not in left]
        for number, pod in enumerate(again):  # a Deployment makes new pods in place of those that are gone
            pod["metadata"]["name"] = f"my-training-workload-{len(pods) + number}"
        self.apply(again)
        await self.running(*(pod["metadata"]["name"] for pod in again))
        moved_ms = 1000 * (time.monotonic() - started)
        return len(before & self._uids()), said, moved_ms

    # What there is

    def _uids(self) -> set[str]:
        return {str(each["metadata"]["uid"]) for each in self._api.objects("pods")}

    def _ranks(self) -> dict[str, int]:
        """The rank of every reserved node."""
        return {
            node: allocation.rank(node)
            for item in self._api.objects("neuronultraservers")
            for allocation in decode_allocations(item)
            if allocation.phase is not Phase.DRAINING
            for node in allocation.nodes
        }

    def _map(self, gone: str = "") -> Mapping[str, str]:
        ranks = self._ranks()
        return {spec.name: "x" if spec.name == gone else str(ranks.get(spec.name, ".")) for spec in NODES}

    def _environment(self, pod: str) -> list[tuple[str, str, str]]:
        node, container = self._cluster.container(pod)
        env = " ".join(f"{name}={value}" for name, value in sorted(container.env.items()) if name in SHOWN)
        return [(f"the pod on {node}", "env", env)]


def _pairs(job: Wire) -> Wire:
    """The same workload with three groups of two nodes."""
    made = copy.deepcopy(job)
    made["spec"] |= {"topologySize": 2, "serverCount": 3}
    return made
