"""The binding and eviction subresources of pods, and the status of the budgets that eviction honors."""

from __future__ import annotations

import math

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import errors
from neuron_dra.emulation.embedded_api.errors import Cause, StatusError
from neuron_dra.emulation.embedded_api.selectors import by_label_selector
from neuron_dra.emulation.embedded_api.store import DeleteOptions, ObjectStore

_RETRY_AFTER_S = 10


def success(code: int) -> Obj:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}


def bind(store: ObjectStore, namespace: str, name: str, binding: Obj) -> Obj:
    """Assign a pod to the node named by `binding.target`, as a scheduler requests."""
    pods = store.registry.named("pods")
    pod = store.get(pods, namespace, name)
    node = (binding.get("target") or {}).get("name")
    if not node:
        raise errors.unprocessable("", "Binding", name, [errors.required("target.name")])
    present = (pod.get("spec") or {}).get("nodeName")
    if present:
        raise errors.conflict("", "pods/binding", name, f'pod {name} is already assigned to node "{present}"')
    if pod["metadata"].get("deletionTimestamp"):
        raise errors.conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    uid = (binding.get("metadata") or {}).get("uid")
    if uid and uid != pod["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {pod['metadata']['uid']}"
        raise errors.conflict("", "pods/binding", name, why)
    store.bind(pod, node)
    return success(201)


def evict(store: ObjectStore, namespace: str, name: str, eviction: Obj, *, dry_run: bool = False) -> Obj:
    """Delete a pod if its budget allows it; otherwise raise ApiError 429, whose cause names the budget."""
    pods = store.registry.named("pods")
    pod = store.get(pods, namespace, name)
    options = DeleteOptions.from_wire(eviction.get("deleteOptions") or {})
    running = (pod.get("status") or {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    if running:
        budgets = store.registry.named("poddisruptionbudgets")
        matching = []
        for budget in store.list(budgets, namespace):
            if by_label_selector(budget["spec"].get("selector"))(pod):
                matching.append(budget)
        if len(matching) > 1:
            text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise StatusError(500, "InternalError", text)
        if matching:
            _spend(store, matching[0], name, dry_run=dry_run)
    store.delete(pods, namespace, name, options, dry_run=dry_run)
    return success(201)


def _spend(store: ObjectStore, budget: Obj, pod_name: str, *, dry_run: bool) -> None:
    status, meta = budget.get("status") or {}, budget["metadata"]
    if status.get("observedGeneration", 0) < meta["generation"]:
        text = f"The disruption budget {meta['name']} is still being processed by the server."
        raise _too_many("Cannot evict pod as it would violate the pod's disruption budget.", text)
    if status["disruptionsAllowed"] <= 0:
        text = (
            f"The disruption budget {meta['name']} needs {status['desiredHealthy']} healthy pods and has "
            f"{status['currentHealthy']} currently"
        )
        raise _too_many("Cannot evict pod as it would violate the pod's disruption budget.", text)
    disrupted = {**(status.get("disruptedPods") or {}), pod_name: store.timestamp()}
    spent = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1, "disruptedPods": disrupted}
    resource = store.registry.named("poddisruptionbudgets")
    changed = {**budget, "status": spent}
    store.update(resource, meta["namespace"], meta["name"], changed, subresource="status", dry_run=dry_run)


def _too_many(message: str, cause: str) -> StatusError:
    return StatusError(
        429, "TooManyRequests", message, causes=[Cause("DisruptionBudget", cause)], retry_after=_RETRY_AFTER_S
    )


def budget_status(budget: Obj, pods: list[Obj]) -> Obj:
    """Return the status that the disruption controller would write, given the pods of the budget's namespace.

    The expected number of pods is the number that matches now; the real controller reads it from their owners.
    """
    spec, old = budget["spec"], budget.get("status") or {}
    matches = by_label_selector(spec.get("selector"))
    chosen = []
    for pod in pods:
        if matches(pod) and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            chosen.append(pod)
    names = {pod["metadata"]["name"] for pod in chosen if not pod["metadata"].get("deletionTimestamp")}
    disrupted = {}
    for name, since in (old.get("disruptedPods") or {}).items():
        if name in names:
            disrupted[name] = since
    healthy = sum(1 for pod in chosen if _healthy(pod) and pod["metadata"]["name"] not in disrupted)
    if spec.get("maxUnavailable") is not None:
        desired = max(0, len(chosen) - _amount(spec["maxUnavailable"], len(chosen)))
    else:
        desired = _amount(spec.get("minAvailable", 1), len(chosen))
    status: Obj = {
        "observedGeneration": budget["metadata"]["generation"],
        "expectedPods": len(chosen),
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptionsAllowed": max(0, healthy - desired) if chosen else 0,
    }
    if disrupted:
        status["disruptedPods"] = disrupted
    return status


def _healthy(pod: Obj) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _amount(value: int | str, of: int) -> int:
    if isinstance(value, str):
        return math.ceil(of * int(value.rstrip("%")) / 100)
    return int(value)
