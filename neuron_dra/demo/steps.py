"""The steps of every scene of the demo: apply objects, wait for a condition, delete objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from neuron_dra.demo.cluster import Cluster
from neuron_dra.demo.pod_scheduler import PodScheduler
from neuron_dra.demo.processes import DemoError
from neuron_dra.demo.view import DemoScreen

WORKLOADS: Final = "neuronultraserverworkloads"


class Steps:
    """A scene's access to the cluster; every wait raises DemoError after the timing's `step_s`."""

    def __init__(self, cluster: Cluster, scheduler: PodScheduler, view: DemoScreen) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._scheduler = scheduler
        self._view = view

    def apply(self, objects: Iterable[Obj]) -> list[str]:
        """Apply objects as kubectl does, and return the names of the pods among them."""
        pods = []
        for item in objects:
            self._api.apply(item)
            if item["kind"] == "Pod":
                pods.append(str(item["metadata"]["name"]))
        return pods

    async def running(self, *pods: str) -> None:
        """Return when all of these pods run."""

        def all_run(pod_wires: list[Obj]) -> bool:
            phases = {}
            for wire in pod_wires:
                phases[wire["metadata"]["name"]] = (wire.get("status") or {}).get("phase")
            return all(phases.get(pod) == "Running" for pod in pods)

        await self.until("pods", all_run, f"{', '.join(pods)} to run")

    async def waiting(self, pod: str) -> str:
        """Wait until the scheduler has rejected a pod, and return its message."""
        messages: list[str] = []

        def rejected(pods: list[Obj]) -> bool:
            for wire in pods:
                if wire["metadata"]["name"] != pod:
                    continue
                for condition in (wire.get("status") or {}).get("conditions") or ():
                    if condition["type"] == "PodScheduled" and condition["status"] == "False":
                        messages.append(str(condition["message"]))
            return bool(messages)

        await self.until("pods", rejected, f"{pod} to be rejected by the scheduler")
        return messages[0]

    def why(self, pod: str, node: str) -> list[str]:
        """Return the scheduler's reasons against a pod on one node."""
        waiting = self._scheduler.waiting.get(pod)
        if waiting:
            return [f"{node}: {reason}" for reason in waiting.reasons.get(node, ())]
        return []

    async def event(self, pod: str, reason: str) -> Obj:
        """Wait for an Event of a pod with this reason, and return it."""
        matching_events: list[Obj] = []

        def posted(events: list[Obj]) -> bool:
            matching_events.clear()
            for event in events:
                if event["involvedObject"]["name"] == pod and event["reason"] == reason:
                    matching_events.append(event)
            return bool(matching_events)

        await self.until("events", posted, f"the event {reason} of {pod}")
        return matching_events[0]

    async def leave(self, *pods: str, until_gone: bool = True) -> None:
        """Delete pods, and by default wait until they and their claims are gone."""
        for pod in pods:
            self._api.delete("pods", pod, "default")
        if until_gone:

            def pods_are_gone(live_pods: list[Obj]) -> bool:
                return not {pod["metadata"]["name"] for pod in live_pods} & set(pods)

            def claims_are_gone(claims: list[Obj]) -> bool:
                return not any(owner(claim) in pods for claim in claims)

            await self.until("pods", pods_are_gone, "pods to go")
            await self.until("resourceclaims", claims_are_gone, "claims to go")

    async def until(self, kind: str, condition: Callable[[list[Obj]], Any], what: str) -> None:
        """Wait until `condition` is true of all objects of a kind; `what` describes it in the error message."""
        limit_s = self._cluster.timing.step_s
        try:
            await self._api.until(kind, condition, timeout_s=limit_s)
        except TimeoutError:
            reasons = []
            for node in self._cluster.nodes.values():
                reasons += node.agent.failures
            reasons += [f"{pod} waits: {outcome.message}" for pod, outcome in self._scheduler.waiting.items()]
            for workload in self._api.objects(WORKLOADS):
                reasons.append(f"{workload['metadata']['name']}: {status_text(workload)[1]}")
            why = "see the plugins' logs (neuron-dra demo --keep)"
            if reasons:
                why = reasons[-1]
            raise DemoError(f"waited {limit_s:g} s for {what}: {why}") from None

    def claim_of(self, pod: str, *, missing_ok: bool = False) -> Obj:
        """Return the first claim that a pod owns or names. Raises DemoError if there is none."""
        named_claims = set()
        for wire in self._api.objects("pods", "default"):
            if wire["metadata"]["name"] == pod:
                named_claims = {entry.get("resourceClaimName") for entry in wire["spec"].get("resourceClaims") or ()}
        for wire in self._api.objects("resourceclaims"):
            if owner(wire) == pod or wire["metadata"]["name"] in named_claims:
                return wire
        if missing_ok:
            return {}
        raise DemoError(f"pod {pod} has no claim")


def owner(claim: Obj) -> str:
    """Return the name of the pod that a claim was made for, or an empty string."""
    owner_references = claim["metadata"].get("ownerReferences") or ()
    return next((str(owner_reference["name"]) for owner_reference in owner_references), "")


def values(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a published device, without their types."""
    plain_values = {}
    for name, value in device["attributes"].items():
        plain_values[name] = next(iter(value.values()))
    return plain_values


def published(driver: str, devices: list[Obj]) -> str:
    """Return a description of a slice's devices."""
    if driver != names.DRIVER:
        return f"{len(devices)} EFA"
    attributes = values(devices[0])
    if attributes["resourceType"] == "neuron_node":
        return f"the node, of UltraServer {attributes.get('serverId4', '(not elected yet)')}"
    whole = sum(values(device)["resourceType"] == "neuron_device" for device in devices)
    what = {1: "1 device", 16: "16 devices in a 4 x 4 torus"}.get(whole, f"{whole} devices")
    return what if whole == len(devices) else f"{what}, sets and cores of them"


def status_text(workload: Obj) -> tuple[str, str]:
    """Return the state of a NeuronUltraServerWorkload, and its conditions' messages."""
    status = workload.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    if "Ready" in conditions:
        texts = [f"{status.get('state')}: {conditions['Ready']['message']}"]
    else:
        texts = []
    degraded = conditions.get("Degraded", {})
    if degraded.get("status") == "True":
        texts.insert(0, f"{degraded['reason']}: {degraded['message']}")
    return str(status.get("state")), "; ".join(texts)
