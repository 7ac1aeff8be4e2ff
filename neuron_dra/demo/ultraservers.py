"""The scene about UltraServers: a training job reserves two of them, and later a node of another job fails."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Final

from neuron_dra.core.ultraserver import Phase, decode_allocations
from neuron_dra.core.wire import Obj
from neuron_dra.demo import examples
from neuron_dra.demo.cluster import NodeSpec
from neuron_dra.demo.processes import DemoError
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


class UltraServers(Steps):
    """The scene about UltraServers."""

    async def run(self) -> None:
        """Run the scene."""
        view = self._view
        view.heading(
            "UltraServers: four nodes connected by NeuronLink. A training job reserves them before its pods exist"
        )
        await self.until("neuronultraservers", lambda servers: len(servers) == 2, "two UltraServers to be found")
        moments = [("the controller has found two of four nodes", self._map())]
        objects = examples.load(FILE)
        job, template, pods = objects[0], objects[1], objects[2:]
        took_ms = await self._reserve([job, template], pods)
        moments.append((f"{JOB} reserves 2 groups of 4 nodes", self._map()))
        environment = self._environment()
        refusal = await self._reject_other_pod()
        await self._release(pods)
        moments.append(("it is deleted: pods evicted, nodes free", self._map()))
        await self._reserve([_pairs(job)], pods[:6])
        moments.append(("again, with 3 groups of 2 nodes", self._map()))
        messages, moved_ms, kept = await self._lose(pods)
        moments.append((f"{LOST} is lost: its group moves", self._map(gone=LOST)))
        view.ranks(tuple(SERVERS), moments)
        view.line("Numbers are ranks, a node's place in its job. A dot is a node without a reservation.", "dim")
        view.blank()
        view.line(f"deploy/examples/{FILE} was Allocated in {took_ms:.0f} ms: all")
        view.line("8 nodes were reserved before its first pod could start. The pod on us2-1 gets:")
        view.table(("", ""), [("  env", environment)])
        view.line("Meanwhile another workload's pod stayed Pending:")
        view.line(f"  {refusal}")
        view.blank()
        view.line(f"Then {LOST} failed, and its Node was deleted. The job's status from then on:")
        view.table(("", ""), [(f"  {when:.0f} ms".rjust(9), text) for when, text in messages])
        view.line(
            f"Ranks 2 and 3 run on us2-2 and us2-3 after {moved_ms:.0f} ms; {kept} other pods kept running.",
            "green",
        )

    # Steps

    async def _reserve(self, first: list[Obj], pods: list[Obj]) -> float:
        """Apply a workload and its pods, wait until all pods run, and return the milliseconds to Allocated."""
        started = time.monotonic()
        self.apply([*first, *pods])
        await self._state("Allocated")
        took_ms = 1000 * (time.monotonic() - started)
        await self.running(*(pod["metadata"]["name"] for pod in pods))
        return took_ms

    async def _state(self, state: str) -> None:
        def is_in_state(workloads: list[Obj]) -> bool:
            return any((workload.get("status") or {}).get("state") == state for workload in workloads)

        await self.until(WORKLOADS, is_in_state, f"{JOB} to be {state}")

    async def _reject_other_pod(self) -> str:
        """Apply another workload's pod, which fits no node, and return the scheduler's message."""
        (template, *pods) = examples.load("4-node-inference-us.yaml")
        (name,) = self.apply([template, pods[0]])
        message = await self.waiting(name)
        await self.leave(name)
        return message

    async def _release(self, pods: list[Obj]) -> None:
        self._api.delete(WORKLOADS, JOB, "default")
        await self.until(WORKLOADS, lambda workloads: not workloads, f"{JOB} to be released")
        names = {pod["metadata"]["name"] for pod in pods}

        def pods_are_gone(live_pods: list[Obj]) -> bool:
            return not names & {pod["metadata"]["name"] for pod in live_pods}

        await self.until("pods", pods_are_gone, "pods to go")

    async def _lose(self, pods: list[Obj]) -> tuple[list[tuple[float, str]], float, int]:
        """Fail a node, and wait until its group has moved and all pods run.

        Returns the messages of the workload's status, each with the milliseconds since the failure; the milliseconds
        until all pods run again; and how many pods have kept running.
        """
        before = self._uids()
        messages: list[tuple[float, str]] = []
        reported_parts: set[str] = set()
        await self._cluster.nodes[LOST].lose()
        started = time.monotonic()
        self._api.delete("nodes", LOST)

        def whole(workloads: list[Obj]) -> bool:
            state, text = status_text(workloads[0])
            new = [part for part in text.split("; ") if part not in reported_parts]
            if new:
                reported_parts.update(new)
                messages.append((1000 * (time.monotonic() - started), "; ".join(new)))
            return state == "Allocated" and LOST not in self._ranks()

        reported_parts.update(status_text(self._api.objects(WORKLOADS)[0])[1].split("; "))
        await self.until(WORKLOADS, whole, "the group to move")
        messages.append((1000 * (time.monotonic() - started), status_text(self._api.objects(WORKLOADS)[0])[1]))
        remaining_names = {pod["metadata"]["name"] for pod in self._api.objects("pods", "default")}
        again = [pod for pod in pods[:6] if pod["metadata"]["name"] not in remaining_names]
        for number, pod in enumerate(again):  # a Deployment replaces the pods that are gone
            pod["metadata"]["name"] = f"my-training-workload-{len(pods) + number}"
        self.apply(again)
        await self.running(*(pod["metadata"]["name"] for pod in again))
        moved_ms = 1000 * (time.monotonic() - started)
        return messages, moved_ms, len(before & self._uids())

    # What there is

    def _uids(self) -> set[str]:
        return {str(pod["metadata"]["uid"]) for pod in self._api.objects("pods", "default")}

    def _ranks(self) -> dict[str, int]:
        """Return the rank of every reserved node, by name."""
        rank_by_node = {}
        for ultraserver in self._api.objects("neuronultraservers"):
            for allocation in decode_allocations(ultraserver):
                if allocation.phase is not Phase.DRAINING:
                    for node in allocation.nodes:
                        rank_by_node[node] = allocation.rank(node)
        return rank_by_node

    def _map(self, gone: str = "") -> Mapping[str, str]:
        ranks = self._ranks()
        mark_by_node = {}
        for spec in NODES:
            mark_by_node[spec.name] = "x" if spec.name == gone else str(ranks.get(spec.name, "."))
        return mark_by_node

    def _environment(self) -> str:
        """Return the UltraServer variables in the pod on us2-1."""
        for pod in self._api.objects("pods", "default"):
            node, container = self._cluster.container(pod["metadata"]["name"])
            if node == "us2-1":
                texts = []
                for name, value in sorted(container.env.items()):
                    if name in SHOWN:
                        texts.append(f"{name}={value}")
                return " ".join(texts)
        raise DemoError("no pod of the job runs on us2-1")


def _pairs(job: Obj) -> Obj:
    """Return a copy of the workload with three groups of two nodes."""
    paired_job = copy.deepcopy(job)
    paired_job["spec"] |= {"topologySize": 2, "serverCount": 3}
    return paired_job
