"""Pods of the fleet: their owners keep their number, and each node's kubelet prepares, runs and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.core import names
from neuron_dra.core.claims import ClaimRef, PreparedClaim
from neuron_dra.core.wire import Obj
from neuron_dra.errors import ApiError, NeuronDraError
from neuron_dra.kube.client import MERGE_PATCH, KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import PODS, RESOURCE_CLAIMS
from tests.support.fleet.nodes import FleetNode
from tests.support.fleet.view import is_reserved_for, workload_uid

SCHEDULER: Final = "fleet"
PLAIN: Final = "plain-node"  # the documents' template for one whole node, which no workload has
CALL_S: Final = 45.0  # the kubelet's deadline of a call
AGAIN_S: Final = (2.0, 30.0)  # between two tries to start a pod
LATER_S: Final = (30.0, 90.0)  # the same after TRIES
TRIES: Final = 4
OWNER_S: Final = 1.0


class Network:
    """Gives each container that starts addresses that no other has had."""

    def __init__(self, families: Sequence[str]) -> None:
        self.families = families
        self._numbers = itertools.count(2)

    def addresses(self) -> Obj:
        """Return the part of a pod's status with new addresses."""
        number = next(self._numbers)
        of_family = {"IPv4": f"10.88.{number // 256}.{number % 256}", "IPv6": f"fd00:88::{number:x}"}
        found = [of_family[family] for family in self.families]
        return {"podIP": found[0], "podIPs": [{"ip": address} for address in found]}


@dataclass(slots=True)
class Job:
    """Keeps a number of pods running, as a Deployment does. `template` names their ResourceClaimTemplate."""

    name: str
    namespace: str
    template: str
    replicas: int
    made: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    group: str = ""  # the PodGroup of its pods

    def pod(self) -> Obj:
        """Return the next pod to create."""
        self.made += 1
        group = {"schedulingGroup": {"podGroupName": self.group}} if self.group else {}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{self.name}-{self.made}",
                "namespace": self.namespace,
                "labels": {"job": self.name, **self.labels},
            },
            "spec": {
                "schedulerName": SCHEDULER,
                "terminationGracePeriodSeconds": 2,
                "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "neuron"}]}}],
                "resourceClaims": [{"name": "neuron", "resourceClaimTemplateName": self.template}],
                **group,
            },
        }


@dataclass(frozen=True, slots=True)
class Container:
    """A running container: its pod, and the results of its claims."""

    pod: str  # namespace/name
    uid: str
    node: str
    incarnation: int
    claims: tuple[PreparedClaim, ...]
    workload_uid: str | None
    started_at: float

    @property
    def env(self) -> dict[str, str]:
        """The variables of its CDI devices."""
        texts = [text for claim in self.claims for device in claim.devices for text in device.env]
        return dict(text.split("=", 1) for text in texts)

    def has_claims(self, present: Set[str]) -> bool:
        """Return True if all of its claims are among these UIDs, so none was deleted by force."""
        return all(claim.ref.uid in present for claim in self.claims)

    @property
    def rank(self) -> int | None:
        """NEURON_GLOBAL_TOPOID."""
        found = self.env.get("NEURON_GLOBAL_TOPOID")
        return None if found is None else int(found)


class Programs:
    """The programs of pods: those of users run until their pods are deleted."""

    def never_starts(self, pod: Obj, node: str) -> Obj | None:
        """Return the pod's status if its container does not start on a node; None if it does."""
        return None

    async def run(self, pod: Obj, node: str) -> tuple[int, str] | None:
        """Return exit code and termination message of a program that ends by itself; None for one that does not."""
        return None


class Pods:
    """All kubelets, and the owners of pods. `running` are the containers by the UID of their pod."""

    def __init__(
        self,
        client: KubeClient,
        nodes: Mapping[str, FleetNode],
        rng: random.Random,
        report: Callable[[str], None],
        now: Callable[[], datetime.datetime],
        *,
        deletes_orphans: bool = False,
    ) -> None:
        """`now` is the wall clock. `deletes_orphans`: also delete orphaned pods, as a control plane does."""
        self._client = client
        self._nodes = nodes
        self._rng = rng
        self._report = report
        self._now = now
        self._deletes_orphans = deletes_orphans
        self._wake = asyncio.Event()
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._programs: set[asyncio.Task[None]] = set()
        self._held: dict[str, tuple[str, tuple[ClaimRef, ...]]] = {}  # by pod UID: node, and the requested claims
        self.pods = Reflector(client, PODS, on_change=self._wake.set)
        self.claims = Reflector(client, RESOURCE_CLAIMS, on_change=self._wake.set)
        self.jobs: dict[str, Job] = {}
        self._pods_of_jobs: dict[str, list[Obj]] = {}
        self.running: dict[str, Container] = {}
        self.refused: dict[str, str] = {}  # by pod UID: the plugin's last error
        self.on_start: Callable[[Container], None] = lambda container: None
        self.network: Network | None = None  # without it pods have no addresses
        self.programs: Programs = Programs()
        self.volumes_s: Callable[[], float] = lambda: 0.0  # until the volumes of the next pod are attached
        self.attaching: dict[str, Obj] = {}  # by UID: pods whose claims the kubelet does not prepare yet

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pods.run())
            tasks.create_task(self.claims.run())
            await self.pods.synced.wait()
            await self.claims.synced.wait()
            tasks.create_task(self._own())
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._sync()

    def wake(self) -> None:
        """Check again after a node's return or loss."""
        self._wake.set()

    # Owners

    async def _own(self) -> None:
        while True:
            await asyncio.sleep(OWNER_S)
            pods = self._by_job()
            for job in list(self.jobs.values()):
                mine = [pod for pod in pods.get(job.name, ()) if not pod["metadata"].get("deletionTimestamp")]
                try:
                    for _ in range(job.replicas - len(mine)):
                        self.pods.remember(await self._client.create(PODS, job.namespace, job.pod()))
                    for pod in mine[job.replicas :]:
                        await self.delete(pod)
                except ApiError:
                    continue

    def of_job(self, job: Job) -> list[Obj]:
        """The pods of a job, in the order of their names."""
        return self._by_job().get(job.name, [])

    def _by_job(self) -> dict[str, list[Obj]]:
        """The pods of each job, in the order of their names; found again only after a change."""
        if self.pods.take_touched():
            self._pods_of_jobs = {}
            for pod in sorted(self.pods.items.values(), key=lambda pod: str(pod["metadata"]["name"])):
                self._pods_of_jobs.setdefault((pod["metadata"].get("labels") or {}).get("job", ""), []).append(pod)
        return self._pods_of_jobs

    async def delete(self, pod: Obj, *, now: bool = False) -> None:
        """Delete a pod; `now`: by force. One that is gone is no error. Raises ApiError."""
        meta = pod["metadata"]
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": meta["uid"]}}
        path = PODS.path(meta["namespace"], meta["name"])
        with contextlib.suppress(ApiError):
            await self._client.request("DELETE", path, body=body | ({"gracePeriodSeconds": 0} if now else {}))

    # Kubelets

    def node_lost_power(self, node: FleetNode) -> None:
        """Remove the node's containers, with or without their pods."""
        for uid in [uid for uid, each in self.running.items() if each.node == node.name]:
            del self.running[uid]
        for uid in [uid for uid, (name, _) in self._held.items() if name == node.name]:
            self._drop(uid)

    def _drop(self, uid: str) -> None:
        self._held.pop(uid, None)
        for tasks in (self._starting, self._ending):
            task = tasks.pop(uid, None)
            if task is not None:
                task.cancel()

    def _sync(self) -> None:
        present = {}
        for pod in self.pods.items.values():
            meta, node_name = pod["metadata"], pod["spec"].get("nodeName")
            if not node_name:
                if meta.get("deletionTimestamp") and self._deletes_orphans:
                    continue
                continue
            present[meta["uid"]] = pod
            node = self._nodes.get(node_name)
            if node is None:
                continue
            if not node.present:
                if self._deletes_orphans and meta["uid"] not in self._ending:
                    self._spawn(self._ending, meta["uid"], self.delete(pod, now=True))
                continue
            if not node.alive or not node.kubelet_up:
                continue
            if meta.get("deletionTimestamp"):
                self._end(pod, node, gone=False)
            elif _has_ended(pod):
                if meta["uid"] in self._held:
                    self._end(pod, node, gone=True)
            elif meta["uid"] not in self.running and meta["uid"] not in self._starting:
                self._spawn(self._starting, meta["uid"], self._start(pod, node))
        for uid in [uid for uid in self._held if uid not in present]:
            node = self._nodes[self._held[uid][0]]
            if node.alive and node.kubelet_up:
                self._end({"metadata": {"uid": uid}}, node, gone=True)

    def _spawn(self, tasks: dict[str, asyncio.Task[None]], uid: str, work: Any) -> None:
        task = tasks[uid] = asyncio.create_task(work)

        def done(_: asyncio.Task[None]) -> None:
            if tasks.get(uid) is task:
                del tasks[uid]
            self._wake.set()

        task.add_done_callback(done)

    async def _start(self, pod: Obj, node: FleetNode) -> None:
        """Prepare the pod's claims, with retries, and run it."""
        meta, incarnation = pod["metadata"], (node.incarnation, node.boots)
        if not (pod.get("status") or {}).get("startTime"):
            await self._say(pod, {"startTime": self._now().strftime("%Y-%m-%dT%H:%M:%SZ")})
        await self._attach_volumes(pod)
        tries = 0
        while (node.incarnation, node.boots) == incarnation and node.alive:
            if not node.kubelet_up:
                await asyncio.sleep(AGAIN_S[0])
                continue
            claims = await self._claims(pod)
            if claims is not None:
                refs = tuple(ref for ref, _ in claims)
                self._held[meta["uid"]] = (node.name, refs)
                prepared = [await self._call(node, "prepare", ref, meta["uid"]) for ref in refs]
                if (node.incarnation, node.boots) != incarnation:
                    return
                if node.kubelet_up and all(each is not None for each in prepared):
                    await self._started(pod, node, tuple(each for each in prepared if each is not None), claims)
                    return
                tries += 1
            await asyncio.sleep(self._rng.uniform(*(AGAIN_S if tries < TRIES else LATER_S)))

    async def _attach_volumes(self, pod: Obj) -> None:
        volumes_s = self.volumes_s()
        if volumes_s == 0.0:
            return
        uid = pod["metadata"]["uid"]
        self.attaching[uid] = pod
        try:
            await asyncio.sleep(volumes_s)
        finally:
            del self.attaching[uid]

    async def _claims(self, pod: Obj) -> list[tuple[ClaimRef, Obj]] | None:
        """Return the pod's claims, read again and reserved for it; None while one is not."""
        meta = pod["metadata"]
        found = []
        current = self.pods.items.get(f"{meta['namespace']}/{meta['name']}", pod)
        for entry in (current.get("status") or {}).get("resourceClaimStatuses") or ():
            try:
                claim = json.loads(
                    await self._client.get(RESOURCE_CLAIMS, meta["namespace"], entry["resourceClaimName"])
                )
            except ApiError:
                return None
            status = claim.get("status") or {}
            if not is_reserved_for(claim, pod):
                return None
            ours = [r for r in status["allocation"]["devices"]["results"] if r["driver"] == names.DRIVER]
            if ours:
                found.append((ClaimRef(meta["namespace"], claim["metadata"]["name"], claim["metadata"]["uid"]), claim))
        return found or None

    async def _call(self, node: FleetNode, verb: str, ref: ClaimRef, pod_uid: str) -> PreparedClaim | None:
        """Call the node's plugin as the kubelet does; return None without a reply, or for an error."""
        plugin = node.plugin
        if plugin is None:
            return None
        call = getattr(plugin.transactions, verb)
        task = asyncio.ensure_future(call(ref))
        done, _ = await asyncio.wait([task], timeout=CALL_S)
        if not done or task.cancelled() or not node.kubelet_up:
            task.cancel()
            return None
        error = task.exception()
        if isinstance(error, NeuronDraError | OSError):
            if verb == "prepare" and self.refused.get(pod_uid) != str(error):
                self.refused[pod_uid] = str(error)
                self._report(f"{node.name} refuses claim {ref}: {error}")
            return None
        if error is not None:
            raise error
        result = task.result()
        return result if isinstance(result, PreparedClaim) else _NOTHING

    async def _started(
        self, pod: Obj, node: FleetNode, prepared: tuple[PreparedClaim, ...], claims: list[tuple[ClaimRef, Obj]]
    ) -> None:
        meta = pod["metadata"]
        unstarted = self.programs.never_starts(pod, node.name)
        if unstarted is not None:
            await self._say(pod, unstarted)
            await asyncio.sleep(LATER_S[1])
            return
        container = Container(
            f"{meta['namespace']}/{meta['name']}",
            meta["uid"],
            node.name,
            node.incarnation,
            prepared,
            next((uid for _, claim in claims if (uid := workload_uid(claim))), None),
            asyncio.get_running_loop().time(),
        )
        self.running[meta["uid"]] = container
        self.refused.pop(meta["uid"], None)
        self._report(f"container of {container.pod} runs on {node.name}, rank {container.rank}")
        self.on_start(container)
        conditions = [{"type": kind, "status": "True"} for kind in ("PodReadyToStartContainers", "Ready")]
        addresses = self.network.addresses() if self.network is not None else {}
        await self._say(pod, {"phase": "Running", "conditions": conditions, **addresses, **_started_at(self._now())})
        self._programs.add(task := asyncio.create_task(self._run_program(pod, node, container)))
        task.add_done_callback(self._programs.discard)

    async def _run_program(self, pod: Obj, node: FleetNode, container: Container) -> None:
        """Let the program of a container run, and say how it ended."""
        ended = await self.programs.run(pod, node.name)
        uid = pod["metadata"]["uid"]
        if ended is None or self.running.get(uid) is not container or not node.kubelet_up:
            return
        code, message = ended
        del self.running[uid]
        self._report(f"the program of {container.pod} on {node.name} ends with {code}: {message[:60]}")
        state = {"terminated": {"exitCode": code, "message": message, "reason": "Completed" if not code else "Error"}}
        state["terminated"]["startedAt"] = _text(self._now())
        said = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"name": "c", "state": state}]}
        await self._say(pod, said)

    async def _say(self, pod: Obj, status: Obj) -> None:
        """Write a pod's status."""
        meta = pod["metadata"]
        with contextlib.suppress(ApiError):
            await self._client.request(
                "PATCH",
                PODS.path(meta["namespace"], meta["name"], "status"),
                body={"metadata": {"uid": meta["uid"]}, "status": status},
                content_type=MERGE_PATCH,
            )

    def _end(self, pod: Obj, node: FleetNode, *, gone: bool) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self._ending:
            starting = self._starting.get(uid)
            if starting is not None:
                starting.cancel()
            self._spawn(self._ending, uid, self._ended(pod, node, gone=gone))

    async def _ended(self, pod: Obj, node: FleetNode, *, gone: bool) -> None:
        """End the container, unprepare its claims until that succeeds, and remove the pod."""
        uid = pod["metadata"]["uid"]
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        while not node.kubelet_up:
            await asyncio.sleep(AGAIN_S[0])
        if self.running.pop(uid, None) is not None:
            self._report(f"container of pod {uid[:8]} on {node.name} ended")
        _, refs = self._held.get(uid, (node.name, ()))
        for ref in refs:
            while await self._call(node, "unprepare", ref, uid) is None:
                await asyncio.sleep(self._rng.uniform(1.0, 5.0))
        self._held.pop(uid, None)
        self.refused.pop(uid, None)
        if not gone:
            await self.delete(pod, now=True)


def _text(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _started_at(moment: datetime.datetime) -> Obj:
    """Return the part of a pod's status about its container, which runs."""
    return {"containerStatuses": [{"name": "c", "state": {"running": {"startedAt": _text(moment)}}}]}


def _has_ended(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


_NOTHING: Final = PreparedClaim(ClaimRef("", "", ""), ())


def plain_template() -> Obj:
    """The documents' template for a whole UltraServer node."""
    expression = f"device.attributes['{names.DRIVER}'].resourceType == 'neuron_node'"
    request = {
        "deviceClassName": names.DRIVER,
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [{"cel": {"expression": expression}}],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": PLAIN},
        "spec": {"spec": {"devices": {"requests": [{"name": "neuron", "exactly": request}]}}},
    }
