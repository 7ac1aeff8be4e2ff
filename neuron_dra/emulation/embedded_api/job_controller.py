"""Jobs: creates their pods, and counts those that succeed or fail, as kube-controller-manager does.

Left out: podFailurePolicy, successPolicy, deadlines, and the pauses between attempts.

Source: kubernetes@v1.37.0 pkg/controller/job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import bodies
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource
from neuron_dra.emulation.embedded_api.store import ObjectStore
from neuron_dra.emulation.embedded_api.workload_controllers import (
    ENDED,
    WorkloadController,
    conditions_of,
    is_active,
    is_ready,
)

COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"


class JobController(WorkloadController):
    kind, plural = "Job", "jobs"

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._ended: defaultdict[str, dict[str, tuple[bool, int]]] = defaultdict(dict)
        """By UID of the Job and of a pod that ended: whether it succeeded, and its index. A deleted pod counts too."""

    def sync(self, obj: Obj) -> None:
        """Count the pods that ended, and create those that are missing."""
        true_conditions = {condition["type"] for condition in conditions_of(obj) if condition["status"] == "True"}
        if not true_conditions.isdisjoint(("Complete", "Failed")):
            return
        spec, pods = obj["spec"], self.of(obj)
        ended = self._ended[obj["metadata"]["uid"]]
        for pod in pods:
            phase = (pod.get("status") or {}).get("phase")
            if phase in ENDED:
                ended[pod["metadata"]["uid"]] = phase == "Succeeded", _index(pod)
        active = [pod for pod in pods if is_active(pod)]
        succeeded = [index for is_success, index in ended.values() if is_success]
        failed = len(ended) - len(succeeded)
        if spec.get("suspend"):
            self._end(active)
            self._write(obj, [], succeeded, failed, self._suspended(obj, is_true=True))
        elif failed > int(spec.get("backoffLimit", 6)):
            self._end(active)
            text = "Job has reached the specified backoff limit"
            self._write(obj, [], succeeded, failed, self._finish(obj, "Failed", "BackoffLimitExceeded", text))
        elif self._is_complete(spec, active, succeeded):
            text = "Reached expected number of succeeded pods"
            self._write(obj, [], succeeded, failed, self._finish(obj, "Complete", "CompletionsReached", text))
        else:
            conditions = self._suspended(obj, is_true=False) if conditions_of(obj) else []
            self._write(obj, active, succeeded, failed, conditions)
            self._start(obj, active, succeeded)

    def _end(self, pods: Sequence[Obj]) -> None:
        for pod in pods:
            self.delete(self._pods, pod)

    @staticmethod
    def _is_complete(spec: Obj, active: Sequence[Obj], succeeded: Sequence[int]) -> bool:
        completions = spec.get("completions")
        if completions is None:  # a queue of work: the first success says that it is empty
            return bool(succeeded) and not active
        done = len(set(succeeded)) if spec.get("completionMode") == "Indexed" else len(succeeded)
        return done >= int(completions)

    def _start(self, obj: Obj, active: Sequence[Obj], succeeded: Sequence[int]) -> None:
        """Create the pods that the parallelism allows."""
        spec = obj["spec"]
        parallelism = int(spec.get("parallelism", 1))
        completions = spec.get("completions")
        room = parallelism - len(active)
        if completions is not None:
            room = min(room, int(completions) - len(succeeded) - len(active))
        elif succeeded:
            room = 0
        for pod in active[: max(0, -room)]:
            self.delete(self._pods, pod)
        if spec.get("completionMode") != "Indexed":
            for _ in range(room):
                self.create_pod(obj, spec["template"])
            return
        taken = {*succeeded, *map(_index, active)}
        free = [index for index in range(int(completions or 0)) if index not in taken]
        for index in free[: max(0, parallelism - len(active))]:
            self._create_indexed(obj, index)

    def _create_indexed(self, obj: Obj, index: int) -> None:
        template = bodies.copied(obj["spec"]["template"])
        meta, name = template.get("metadata") or {}, obj["metadata"]["name"]
        variable = {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
        for container in (*template["spec"]["containers"], *(template["spec"].get("initContainers") or ())):
            container["env"] = [*(container.get("env") or ()), variable]
        template["spec"].setdefault("hostname", f"{name}-{index}")
        mark = {COMPLETION_INDEX: str(index)}
        self.create_pod(
            obj,
            template,
            generateName=f"{name}-{index}-",
            labels={**(meta.get("labels") or {}), **mark},
            annotations={**(meta.get("annotations") or {}), **mark},
        )

    def _suspended(self, obj: Obj, *, is_true: bool) -> list[Obj]:
        reason, text = ("JobSuspended", "Job suspended") if is_true else ("JobResumed", "Job resumed")
        return [self.condition(obj, "Suspended", is_true=is_true, reason=reason, message=text)]

    def _finish(self, obj: Obj, kind: str, reason: str, message: str) -> list[Obj]:
        earlier = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[kind]
        return [self.condition(obj, name, is_true=True, reason=reason, message=message) for name in (earlier, kind)]

    def _write(
        self, obj: Obj, active: Sequence[Obj], succeeded: Sequence[int], failed: int, conditions: Sequence[Obj]
    ) -> None:
        before = obj.get("status") or {}
        status: Obj = {"ready": sum(map(is_ready, active)), "terminating": 0}
        if not obj["spec"].get("suspend"):
            status["startTime"] = before.get("startTime") or self._store.timestamp()
        counts = {"active": len(active), "succeeded": len(succeeded), "failed": failed}
        status |= {key: count for key, count in counts.items() if count}
        if obj["spec"].get("completionMode") == "Indexed" and succeeded:
            status["completedIndexes"] = _ranges(sorted(set(succeeded)))
        if any(condition["type"] == "Complete" for condition in conditions):
            status["completionTime"] = self._store.timestamp()
        if conditions:
            status["conditions"] = list(conditions)
        meta = obj["metadata"]
        if status != before:
            changed = {**obj, "status": status}
            self._store.update(self._resource, meta["namespace"], meta["name"], changed, subresource="status")


def complete_job(resource: EmbeddedResource, obj: Obj) -> None:
    """Set the defaults of a new Job, and the selector and labels that tie its pods to it: a mutator of the store."""
    spec, meta = obj.get("spec") or {}, obj["metadata"]
    if resource.plural != "jobs" or "resourceVersion" in meta or "template" not in spec:
        return
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    if "completions" not in spec and spec["parallelism"] == 1:
        spec["completions"] = 1
    labels = {f"{prefix}controller-uid": meta["uid"] for prefix in ("", "batch.kubernetes.io/")}
    labels |= {f"{prefix}job-name": meta["name"] for prefix in ("", "batch.kubernetes.io/")}
    template = spec["template"]["metadata"] = dict(spec["template"].get("metadata") or {})
    template["labels"] = {**(template.get("labels") or {}), **labels}
    spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}})


def _index(pod: Obj) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(COMPLETION_INDEX, -1))


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as a Job shows them: 0-2,4."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
