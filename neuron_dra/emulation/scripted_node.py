"""The scripted node's pods: does for pods bound to it what kubelet and container runtime do together.

For each pod with `spec.nodeName` it reads and checks the claims, has the plugins prepare them, resolves the CDI ids per
container and records what each container gets. Failures become Events, as in `kubectl describe pod`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from neuron_dra.emulation import simulated_programs
from neuron_dra.emulation.cdi_runtime import CdiError, CdiRuntime, Container
from neuron_dra.emulation.node_client import (
    UNREACHABLE,
    NodeClient,
    Pod,
    RefusedError,
    now,
)
from neuron_dra.emulation.scripted_kubelet import (
    KubeletClaim,
    KubeletDevice,
    KubeletError,
    ScriptedKubelet,
    first_error,
)

_DRA: Final = "/apis/resource.k8s.io/v1"
_LIMITS: Final = ""
"""Stands for the name in the pod of the claim that the scheduler has created for its limits, which has none."""
_PAUSE_S: Final = 0.05  # pause before pods are listed again after a broken watch


@dataclass(slots=True)
class _CheckpointedClaim:
    """A claim in the kubelet's checkpoint; `prepared` is in memory only."""

    ref: KubeletClaim
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)
    prepared: bool = False
    devices: dict[str, tuple[KubeletDevice, ...]] = field(default_factory=dict)

    def cdi_ids(self, request: str) -> list[str]:
        ids: list[str] = []
        for devices in self.devices.values():
            for device in devices:
                if not request or not device.request_names or request in device.request_names:
                    ids += device.cdi_device_ids
        return ids


@dataclass(slots=True)
class _Worker:
    pod: Pod
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    containers: dict[str, Container] | None = None  # None: not running
    reported: bool = False  # the pod's status has the phase Running
    started_s: float = 0.0  # by the clock of the loop
    gone: bool = False  # the pod object no longer exists

    @property
    def over(self) -> bool:
        finished = (self.pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        return self.gone or finished or bool(self.pod["metadata"].get("deletionTimestamp"))


class ScriptedNode:
    """Runs the pods of one node."""

    def __init__(
        self,
        kubelet: ScriptedKubelet,
        *,
        api_url: str,
        node_name: str,
        cdi_directories: Iterable[Path | str],
        host_root: Path | str | None = None,
        retry_s: float = 1.0,
        ends_programs: bool = False,
    ) -> None:
        """`host_root`: the folder of the host's device nodes. `retry_s`: pause after a failure (kubelets: 90 s).

        `ends_programs`: the plainest programs end, such as `sleep 5` (see simulated_programs), unless they restart.
        """
        self._ends_programs = ends_programs
        self.failures: list[str] = []  # messages of the Events, oldest first
        self.node_name = node_name
        self.retry_s = retry_s
        self._kubelet = kubelet
        self._client = NodeClient(api_url, node_name)
        self._runtime = CdiRuntime(cdi_directories, host_root=host_root)
        self._claims: dict[tuple[str, str], _CheckpointedClaim] = {}  # by namespace and name
        self._workers: dict[str, _Worker] = {}  # by pod UID
        self._follower: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def containers(self) -> dict[str, dict[str, Container]]:
        """What the containers of running pods got: `containers["namespace/pod"]["container"]`."""
        running = []
        for worker in self._workers.values():
            if worker.containers is not None:
                running.append(worker)
        return {_key(worker.pod): worker.containers or {} for worker in running}

    @property
    def pods(self) -> list[Pod]:
        """The pods that have not ended."""
        return [worker.pod for worker in self._workers.values() if not worker.over]

    def prepared(self, namespace: str, name: str) -> Mapping[str, tuple[KubeletDevice, ...]] | None:
        """Return a claim's prepared devices by driver; None for an unknown claim."""
        claim = self._claims.get((namespace, name))
        if claim is None:
            return None
        return claim.devices

    async def start(self) -> None:
        await self._client.open()
        self._follower = asyncio.create_task(self._follow(), name=f"node {self.node_name}: pods")

    async def stop(self) -> None:
        """Stop watching pods; their containers keep running."""
        tasks = [task for task in (self._follower, *(worker.task for worker in self._workers.values())) if task]
        self._follower = None
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self._workers.values():
            worker.task = None
        await self._client.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def restart_kubelet(self) -> None:
        """Restart the kubelet: its checkpoint keeps the claims, plugins prepare them again; containers keep running."""
        await self.stop()
        for claim in self._claims.values():
            claim.prepared = False
        await self._kubelet.restart()
        await self.start()

    async def reboot(self) -> None:
        """Restart the node: all containers end; pods start again after their claims are prepared again."""
        await self.stop()
        for claim in self._claims.values():
            claim.prepared = False
        for worker in self._workers.values():
            worker.containers, worker.reported = None, False
        await self._kubelet.restart()
        await self.start()

    def container(self, pod: str, name: str = "", *, namespace: str = "default") -> Container:
        """Return a container of a running pod; the name may be left out if there is only one. Raises KeyError."""
        containers = self.containers[f"{namespace}/{pod}"]
        if not name and len(containers) != 1:
            raise KeyError(f"{pod} has the containers {', '.join(containers)}: name one")
        return containers[name or next(iter(containers))]

    async def finish(self, pod: str, *, namespace: str = "default", phase: str = "Succeeded") -> None:
        """End the containers of a pod."""
        await self._client.request(
            "PATCH", f"/api/v1/namespaces/{namespace}/pods/{pod}/status", {"status": {"phase": phase}}
        )

    # Following the pods

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(*UNREACHABLE, RefusedError):
                await self._list_and_watch()
            await asyncio.sleep(_PAUSE_S)

    async def _list_and_watch(self) -> None:
        async with contextlib.aclosing(self._client.pods()) as changes:
            async for change, pod_or_pods in changes:
                if change == "ALL":
                    present = {pod["metadata"]["uid"]: pod for pod in pod_or_pods}
                    for uid in [uid for uid in self._workers if uid not in present]:
                        self._gone(uid)
                    for pod in present.values():
                        self._seen(pod)
                elif change == "DELETED":
                    self._gone(pod_or_pods["metadata"]["uid"])
                else:
                    self._seen(pod_or_pods)

    def _seen(self, pod: Pod) -> None:
        worker = self._workers.setdefault(pod["metadata"]["uid"], _Worker(pod))
        worker.pod = pod
        self._wake(worker)

    def _gone(self, uid: str) -> None:
        """Handle a deleted pod object, even one deleted by force: end its containers, unprepare its claims."""
        worker = self._workers.get(uid)
        if worker:
            worker.gone = True
            self._wake(worker)

    def _wake(self, worker: _Worker) -> None:
        worker.changed.set()
        if worker.task is None:
            name = f"node {self.node_name}: pod {_key(worker.pod)}"
            worker.task = asyncio.create_task(self._work(worker), name=name)

    # One pod

    async def _work(self, worker: _Worker) -> None:
        """Move one pod to its desired state after each change, until it has ended."""
        while True:
            worker.changed.clear()
            try:
                if worker.over:
                    await self._terminate(worker)
                    return
                if worker.containers is None:
                    worker.containers = await self._run(worker.pod)
                if not worker.reported:
                    await self._write_running(worker.pod)
                    worker.reported = True
            except (KubeletError, CdiError) as error:
                await self._report(worker, error)
            except (*UNREACHABLE, RefusedError) as error:
                self.failures.append(str(error))
            else:
                await self._until_changed(worker)
                continue
            try:
                async with asyncio.timeout(self.retry_s):
                    await worker.changed.wait()
            except TimeoutError:
                continue

    async def _until_changed(self, worker: _Worker) -> None:
        """Return when a running pod has changed; end it if its program ends before that."""
        end = simulated_programs.end_of(worker.pod) if self._ends_programs else None
        policy = worker.pod["spec"].get("restartPolicy", "Always")
        if end is None or policy == "Always" or (end.code and policy == "OnFailure"):
            await worker.changed.wait()
            return
        loop = asyncio.get_running_loop()
        worker.started_s = worker.started_s or loop.time()
        try:
            async with asyncio.timeout_at(worker.started_s + end.after_s):
                await worker.changed.wait()
        except TimeoutError:
            await self._write_ended(worker.pod, end.code)
            await worker.changed.wait()

    async def _run(self, pod: Pod) -> dict[str, Container]:
        """Prepare the claims of a pod and create its containers."""
        claims = await self._prepare(pod)
        containers = {}
        for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]:
            env = {}
            for variable in container.get("env") or []:
                env[variable["name"]] = variable.get("value", "")
            ids: list[str] = []
            for claim_request in (container.get("resources") or {}).get("claims") or []:
                if claim_request["name"] in claims:
                    ids += claims[claim_request["name"]].cdi_ids(claim_request.get("request", ""))
            for mapping in _of_limits(pod).get("requestMappings") or []:
                if mapping["containerName"] == container["name"]:
                    ids += claims[_LIMITS].cdi_ids(mapping["requestName"])
            containers[container["name"]] = self._runtime.create(ids, env)
        return containers

    async def _prepare(self, pod: Pod) -> dict[str, _CheckpointedClaim]:
        """Prepare a pod's claims; return them by their name in the pod."""
        uid = pod["metadata"]["uid"]
        claims_by_name: dict[str, _CheckpointedClaim] = {}
        for pod_claim in pod["spec"].get("resourceClaims") or []:
            claims_by_name[pod_claim["name"]] = await self._check(pod, pod_claim)
        if name := _of_limits(pod).get("resourceClaimName"):
            claims_by_name[_LIMITS] = await self._check(pod, {"name": _LIMITS, "resourceClaimName": name})
        for claim in claims_by_name.values():
            for driver in claim.drivers:
                if not any(plugin.driver == driver for plugin in self._kubelet.registrations):
                    raise KubeletError(f"DRA driver {driver} is not registered")
        for name, claim in claims_by_name.items():
            key = claim.ref.namespace, claim.ref.name
            checkpointed = self._claims.setdefault(key, claim)
            if checkpointed.ref.uid != claim.ref.uid:
                raise KubeletError(
                    f"old ResourceClaim with same name {claim.ref.name} and different UID {checkpointed.ref.uid} "
                    "still exists (previous pod force-deleted?!)"
                )
            checkpointed.pods.add(uid)
            claims_by_name[name] = checkpointed
        batches: dict[str, list[_CheckpointedClaim]] = {}
        for claim in {claim.ref.uid: claim for claim in claims_by_name.values() if not claim.prepared}.values():
            for driver in claim.drivers:
                batches.setdefault(driver, []).append(claim)
        for driver, batch in batches.items():
            refs = [claim.ref for claim in batch]
            results = await self._kubelet.prepare(refs, driver=driver)
            for claim in batch:
                if not results[claim.ref.uid].error:
                    claim.devices[driver] = results[claim.ref.uid].devices
            errors = {claim_uid: result.error for claim_uid, result in results.items()}
            if error := first_error("NodePrepareResources", refs, errors):
                raise error
        for claim in claims_by_name.values():
            claim.prepared = True
        return claims_by_name

    async def _check(self, pod: Pod, pod_claim: Mapping[str, Any]) -> _CheckpointedClaim:
        """Read one claim of a pod and check that the pod may use it."""
        meta = pod["metadata"]
        name = pod_claim.get("resourceClaimName")
        if not name:
            created = pod.get("status", {}).get("resourceClaimStatuses") or []
            for claim_status in created:
                if claim_status["name"] == pod_claim["name"]:
                    name = claim_status.get("resourceClaimName")
                    break
        if not name:
            raise KubeletError(f'PodResourceClaim "{pod_claim["name"]}": ResourceClaim not created yet')
        try:
            claim = await self._client.request("GET", f"{_DRA}/namespaces/{meta['namespace']}/resourceclaims/{name}")
        except RefusedError as error:
            raise KubeletError(f"fetch ResourceClaim {name}: {error}") from error
        owners = {owner["uid"] for owner in claim["metadata"].get("ownerReferences") or []}
        if not pod_claim.get("resourceClaimName") and meta["uid"] not in owners:
            place = meta["namespace"]
            text = f"ResourceClaim {place}/{name} was not created for Pod {place}/{meta['name']} (pod is not owner)"
            raise KubeletError(text)
        status = claim.get("status") or {}
        if meta["uid"] not in {consumer["uid"] for consumer in status.get("reservedFor") or []}:
            pod_text = f"{meta['name']} ({meta['uid']})"
            claim_text = f"{name} ({claim['metadata']['uid']})"
            raise KubeletError(f"pod {pod_text} is not allowed to use ResourceClaim {claim_text}")
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
        return _CheckpointedClaim(KubeletClaim.of(claim), tuple(dict.fromkeys(result["driver"] for result in results)))

    async def _terminate(self, worker: _Worker) -> None:
        """End the containers, unprepare claims that no other pod uses, and remove the pod object."""
        pod = worker.pod
        uid = pod["metadata"]["uid"]
        worker.containers = None
        claims_of_pod = {key: claim for key, claim in self._claims.items() if uid in claim.pods}
        last = {key: claim for key, claim in claims_of_pod.items() if claim.pods == {uid}}
        batches: dict[str, list[KubeletClaim]] = {}
        for claim in last.values():
            for driver in claim.drivers:
                batches.setdefault(driver, []).append(claim.ref)
        for driver, refs in batches.items():
            errors = await self._kubelet.unprepare(refs, driver=driver)
            if error := first_error("NodeUnprepareResources", refs, errors):
                raise error
        for key, claim in claims_of_pod.items():
            claim.pods.discard(uid)
            if key in last:
                del self._claims[key]
        if pod["metadata"].get("deletionTimestamp") and not worker.gone:
            path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            try:
                await self._client.request("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
            except RefusedError as error:
                if error.status not in (404, 409):
                    raise
        self._workers.pop(uid, None)

    # The API server

    async def _write_running(self, pod: Pod) -> None:
        meta, started = pod["metadata"], now()
        types = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        containers = []
        for container in pod["spec"]["containers"]:
            containers.append(
                {
                    "name": container["name"],
                    "image": container.get("image", ""),
                    "imageID": "",
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": started}},
                }
            )
        status = {
            "phase": "Running",
            "startTime": started,
            "conditions": [{"type": name, "status": "True", "lastTransitionTime": started} for name in types],
            "containerStatuses": containers,
        }
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        await self._client.request("PATCH", path, {"metadata": {"uid": meta["uid"]}, "status": status})

    async def _write_ended(self, pod: Pod, code: int) -> None:
        meta, ended = pod["metadata"], now()
        state = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": ended}
        status = pod.get("status") or {}
        containers = []
        for container in status.get("containerStatuses") or []:
            containers.append({**container, "ready": False, "started": False, "state": {"terminated": state}})
        conditions = []
        for condition in status.get("conditions") or []:
            is_over = condition["type"] in ("Ready", "ContainersReady")
            over = {"status": "False", "reason": "PodFailed" if code else "PodCompleted", "lastTransitionTime": ended}
            conditions.append({**condition, **over} if is_over else condition)
        body = {"phase": "Failed" if code else "Succeeded", "conditions": conditions, "containerStatuses": containers}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        try:
            await self._client.request("PATCH", path, {"metadata": {"uid": meta["uid"]}, "status": body})
        except (*UNREACHABLE, RefusedError) as error:
            self.failures.append(str(error))

    async def _report(self, worker: _Worker, error: Exception) -> None:
        if isinstance(error, CdiError):
            reason, message = "Failed", f"Error: CDI device injection failed: {error}"
        elif worker.over:
            reason = "FailedKillPod"
            message = f"error killing pod: unprepare dynamic resources: {error}"
        else:
            reason = "FailedPrepareDynamicResources"
            message = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
        self.failures.append(message)
        if not worker.gone:
            await self._client.report(worker.pod, reason, message)


def _of_limits(pod: Pod) -> Mapping[str, Any]:
    """Return what the scheduler has written about the claim for the pod's limits."""
    return (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}


def _key(pod: Pod) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
