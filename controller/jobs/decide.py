"""What to make, change and release for the jobs that ask for UltraServers. Pure: objects in, writes and Events out.

A job asks with an annotation, and its pods name the ResourceClaimTemplate from which they get their devices. For each
such job there is one NeuronUltraServerWorkload, which makes that template. The workload is marked with the job's kind,
name and UID. An owner reference could not serve as the mark: it is gone when the job is deleted and its pods are kept.

Nothing is decided by who wrote what. A namespace either may reserve for jobs or not; how much, its limit says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from controller.jobs import authority
from controller.jobs.model import Job
from controller.jobs.there import Shared, Subject, There, kind_and_name
from neuron_dra.core.job_wish import ANNOTATION, QUEUE_ANNOTATION, InvalidWish, Wish, wish
from neuron_dra.core.ultraserver import GROUPS_AT_MOST
from neuron_dra.planner.decisions.objects import MANAGED
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet.memo import Decision
from neuron_dra.planner.observed.model import (
    API_VERSION,
    JOBS_QUEUED,
    MADE_FOR,
    QUEUE_LABEL,
    Namespace,
    Template,
    Workload,
    condition,
)
from neuron_dra.planner.plan import isolation

NAME_CHARACTERS: Final = 63
"""The limit of a workload's name, from its CRD."""
SHOWN_CHARACTERS: Final = 80
"""How much of a text of a user's is in a message."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An Event on a job. It is posted again when `key` changes."""

    job: Job
    warning: bool
    reason: str
    message: str
    key: str


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create the workload `body` for a job."""

    job: Job
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChangeWorkload:
    """Change the spec of the job's workload, and its labels, by a merge patch, guarded by its resourceVersion."""

    job: Job
    workload: Workload
    spec: Mapping[str, Any]
    labels: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeleteWorkload:
    """Delete a workload, because of its job as it was seen: None if it is gone, or asks for nothing any more.

    A watch may be silent, and a release evicts pods. So the job is read again before, and must be the same.
    """

    workload: Workload
    why: str
    job: Job | None


Write = CreateWorkload | ChangeWorkload | DeleteWorkload


@dataclass(frozen=True, slots=True)
class JobView:
    """What a decision depends on.

    - `kinds`: the kinds of which all jobs are known.
    - `templates`: every ResourceClaimTemplate by namespace and name.
    - `namespaces`: by name; None if they cannot be read.
    - `default_limit`: the nodes that a namespace without a limit may reserve; None is no limit.
    - `unguarded`: why the policy that guards the label does not hold; empty if it holds.
    - `in_use`: returns True if a claim of the workload is allocated.
    - `queues`: Kueue admits workloads that have a queue.
    - `unkept`: fields of a workload's spec that the API server drops.
    - `unread_jobs`: kind, and namespace/name, of the objects that cannot be read; `unread_workloads`: UIDs of those.
    """

    kinds: Collection[str]
    templates: Mapping[tuple[str, str], Template]
    namespaces: Mapping[str, Namespace] | None
    default_limit: int | None
    unguarded: str
    in_use: Callable[[Workload], bool]
    queues: bool = True
    unkept: Collection[str] = ()
    unread_jobs: Collection[tuple[str, str]] = ()
    unread_workloads: Collection[str] = ()


JobDecision: TypeAlias = Decision[Write, JobEvent]
"""The writes are by namespace/name of the workload."""


def decide_one(view: JobView, there: There, subject: Subject, job: Job | None) -> JobDecision:
    """Decide about a job, or about the workloads of one that is gone or asks for nothing any more: None.

    An error is the job's Event, and nothing is written for it: all others are decided as always.
    """
    decision = JobDecision()
    try:
        if job is not None:
            _JobStep(view, there, decision, job).take()
        elif _is_gone(view, subject):
            for workload in there.own(subject):
                _release(view, decision, workload, "the job is gone or asks for no UltraServers any more", None)
    except Exception as err:
        kind, name = kind_and_name(subject[1])
        text = f"the controller cannot decide about this {kind}: {isolation.named(err)}; {isolation.ADVICE}"
        notes = [] if job is None else [JobEvent(job, True, Reason.INTERNAL_ERROR, text, text)]
        return JobDecision(notes=notes, errors={f"{kind} {subject[0]}/{name}": err})
    return decision


def _is_gone(view: JobView, subject: Subject) -> bool:
    """Return True if a job that is not among those that ask does not exist, or asks for nothing."""
    kind, name = kind_and_name(subject[1])
    return kind in view.kinds and (kind, f"{subject[0]}/{name}") not in view.unread_jobs


def about(write: Write) -> Job | Workload:
    """Return the object that a write is about."""
    return write.job if isinstance(write, CreateWorkload) else write.workload


def taken(decision: JobDecision) -> Iterator[Shared]:
    """Yield the names that a decision takes for a new workload."""
    for write in decision.writes.values():
        if isinstance(write, CreateWorkload):
            yield "name", write.job.namespace, write.job.name
            yield "template", write.job.namespace, write.body["spec"]["resourceClaimTemplate"]["name"]


def _release(view: JobView, decision: JobDecision, workload: Workload, why: str, job: Job | None) -> bool:
    """Release a workload, unless a pod still uses its nodes; return whether it is or was released."""
    if workload.deleting:
        return True
    if view.in_use(workload):
        return False
    decision.writes[workload.ref] = DeleteWorkload(workload, why, job)
    return True


class _JobStep:
    """The decision about one job. Its own workloads are those that are marked with it."""

    def __init__(self, view: JobView, there: There, decision: JobDecision, job: Job) -> None:
        self._view = view
        self._there = there
        self._decision = decision
        self._job = job
        self._own = there.own((job.namespace, job.mark))

    def take(self) -> None:
        """Decide."""
        job = self._job
        if job.over:
            self._release_all(f"the {job.kind} {job.name} {job.over}")
        if job.queue and not job.ended:
            # Kueue suspends it at once, so it is over as well.
            self._warn(
                "ManagedByKueue",
                f"Kueue manages this {job.kind} (queue {job.queue}): it starts no job whose devices can only be on "
                f"nodes that are reserved later; replace the label by the annotation {QUEUE_ANNOTATION}, so that the "
                "reservation is queued",
            )
        if job.over or job.queue:
            return
        if unread := [workload.name for workload in self._own if workload.uid in self._view.unread_workloads]:
            self._warn(
                Reason.INTERNAL_ERROR,
                f"NeuronUltraServerWorkload {unread[0]} cannot be read: what it reserves stays; correct or delete it",
            )
            return
        if job.managed_by:
            self._warn(
                "ManagedElsewhere",
                f"spec.managedBy is {job.managed_by}: its pods may run in another cluster, and nothing is reserved",
            )
            return
        try:
            requested = wish(job.wish)
        except InvalidWish as err:
            self._warn("InvalidUltraServers", f"annotation {ANNOTATION}: {err}")
            return
        template = self._template(requested)
        if template is not None:
            self._reserve(requested, template)

    def _reserve(self, requested: Wish, template: str) -> None:
        """Bring the workload in line with the pods that name this template."""
        pod_sets = [pod_set for pod_set in self._job.pods if template in pod_set.claim_templates]
        number = sum(pod_set.count for pod_set in pod_sets)
        if number == 0:
            self._release_all(f"the {self._job.kind} {self._job.name} has no pods")
            return
        if number % requested.size:
            self._warn(
                "PodsDoNotFillGroups",
                f"{number} pods name ResourceClaimTemplate {template}, which is no multiple of "
                f"topologySize {requested.size}: each pod gets a node, and only whole groups are reserved; change "
                "the number of pods",
            )
            return
        if number // requested.size > GROUPS_AT_MOST:
            self._warn("TooManyGroups", f"{number // requested.size} groups: a workload has at most {GROUPS_AT_MOST}")
            return
        if requested.instance_type:
            instance_types = {requested.instance_type}
        else:
            instance_types = {pod_set.instance_type for pod_set in pod_sets}
        if len(instance_types) != 1 or "" in instance_types:
            self._warn(
                "InstanceTypeUnknown",
                f"write instanceType=TYPE into the annotation {ANNOTATION}, or node.kubernetes.io/instance-type into "
                "the node selector of all pods that name the template",
            )
            return
        spec: dict[str, Any] = {
            "instanceType": instance_types.pop(),
            "topologySize": requested.size,
            "serverCount": number // requested.size,
            "resourceClaimTemplate": {"name": template},
        }
        if requested.strategy:
            spec["allocationPolicy"] = {"failureStrategy": requested.strategy}
        if requested.logical_neuron_core:
            spec["config"] = {"logicalNeuronCore": requested.logical_neuron_core}
        if requested.priority_class:
            spec["priorityClassName"] = requested.priority_class
        self._keep_in_step(spec, template)

    def _template(self, requested: Wish) -> str | None:
        """Return the ResourceClaimTemplate that the reservation has to make; None if that is not certain.

        Pods also name templates of others, such as one for network interfaces, which exist already.
        """
        job = self._job
        named = list(dict.fromkeys(template_name for pod_set in job.pods for template_name in pod_set.claim_templates))
        if requested.template:
            if requested.template in named:
                return requested.template
            self._warn("NoTemplate", f"no pod names the ResourceClaimTemplate {requested.template} of the annotation")
            return None
        own_templates = [workload.template_name for workload in self._own if not workload.deleting]
        own_templates = [template_name for template_name in own_templates if template_name in named]
        candidates = own_templates or [template_name for template_name in named if self._is_free(template_name)]
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            text = f"write template=NAME into the annotation {ANNOTATION}: the pods name {', '.join(candidates[:4])}"
            self._warn("SeveralTemplates", f"{text}, and only one of them is to be made")
        else:
            text = "name a ResourceClaimTemplate that does not exist yet in spec.resourceClaims of the pods"
            self._warn("NoTemplate", f"{text}: the reservation makes it, and each pod with it gets a node")
        return None

    def _is_free(self, template_name: str) -> bool:
        """Return True unless the template exists and no reservation has made it."""
        stored_template = self._view.templates.get((self._job.namespace, template_name))
        return stored_template is None or stored_template.is_a_workloads

    def _keep_in_step(self, spec: dict[str, Any], template: str) -> None:
        matching = [workload for workload in self._own if workload.template_name == template]
        for workload in self._own:
            if workload not in matching[:1]:
                _release(self._view, self._decision, workload, "its job asks for another template", self._job)
        if not matching:
            self._create(spec, template)
        elif not matching[0].deleting:
            self._change(matching[0], spec)

    def _create(self, spec: dict[str, Any], template: str) -> None:
        job = self._job
        maker = self._there.maker(job, template)
        if maker is not None and not maker.for_a_job:
            text = f"NeuronUltraServerWorkload {maker.name}, which was not made for this job, makes the template"
            self._say("WorkloadExists", f"{text} {template}: nothing is reserved beside it")
            return
        if maker is not None:
            self._warn(
                "TemplateNameInUse",
                f"ResourceClaimTemplate {template} is that of another job's reservation, {maker.name}: give each "
                "job a template name of its own, or wait until that reservation has ended",
            )
            return
        if self._there.has_name(job):
            self._warn("WorkloadNameTaken", f"NeuronUltraServerWorkload {job.name} exists and is not this job's")
            return
        if len(job.name) > NAME_CHARACTERS:
            self._warn("NameTooLong", f"a reservation has the job's name: write at most {NAME_CHARACTERS} characters")
            return
        refusal = authority.refusal(self._view, job.namespace) or self._queue_refusal()
        if refusal is not None:
            self._warn(*refusal)
            return
        self._decision.writes[f"{job.namespace}/{job.name}"] = CreateWorkload(job, _workload(job, spec))

    def _queue_refusal(self) -> tuple[str, str] | None:
        """Return reason and message if nothing may be reserved because of the job's queue, or without one."""
        job, namespaces = self._job, self._view.namespaces or {}
        if job.asked_queue and not _QUEUE.fullmatch(job.asked_queue):
            return "InvalidQueue", _INVALID_QUEUE.format(job.asked_queue[:SHOWN_CHARACTERS])
        if job.asked_queue and not self._view.queues:
            text = f"annotation {QUEUE_ANNOTATION}: the controller does not use queues; an administrator turns it on"
            return "QueuesAreOff", f"{text} with ultraserverOperator.queues.enabled"
        namespace = namespaces.get(job.namespace)
        if not job.asked_queue and namespace is not None and namespace.jobs == JOBS_QUEUED:
            text = f"namespace {job.namespace} requires a queue: add the annotation {QUEUE_ANNOTATION}"
            return "QueueRequired", f"{text} with the name of a LocalQueue"
        return None

    def _change(self, workload: Workload, spec: dict[str, Any]) -> None:
        """Change what may change; what may not is reserved anew as soon as no pod uses the nodes."""
        job = self._job
        fixed = (workload.instance_type, workload.size, workload.logical_neuron_core)
        requested = (spec["instanceType"], spec["topologySize"], (spec.get("config") or {}).get("logicalNeuronCore", 2))
        if fixed != requested:
            why = f"the {job.kind} {job.name} asks for other nodes"
            if not _release(self._view, self._decision, workload, why, job):
                self._warn("ReservationDiffers", _DIFFERS.format(ANNOTATION))
            return
        changes: dict[str, Any] = {}
        strategy = (spec.get("allocationPolicy") or {}).get("failureStrategy", "")
        same = {"ReplaceAffected": "MigrateAffected"}.get(strategy, strategy) == workload.strategy
        if strategy and not same:
            changes["allocationPolicy"] = {"failureStrategy": strategy}
        priority = spec.get("priorityClassName", "")
        if priority != workload.priority_class and "spec.priorityClassName" not in self._view.unkept:
            changes["priorityClassName"] = priority or None  # null removes it
        refusal = None
        if spec["serverCount"] != workload.count:
            grows = spec["serverCount"] > workload.count
            refusal = authority.refusal(self._view, job.namespace) if grows else None
            if refusal is None:
                changes["serverCount"] = spec["serverCount"]
        # While nodes are reserved the new queue waits, and the controller says so.
        labels: dict[str, str | None] = {}
        is_valid = not job.asked_queue or _QUEUE.fullmatch(job.asked_queue) is not None
        if is_valid and workload.queue != job.asked_queue:
            labels[QUEUE_LABEL] = job.asked_queue or None
        elif not is_valid and refusal is None:
            # Such a label is rejected, and with it what else changes.
            refusal = "InvalidQueue", _INVALID_QUEUE.format(job.asked_queue[:SHOWN_CHARACTERS])
        if changes or labels:
            self._decision.writes[workload.ref] = ChangeWorkload(job, workload, changes, labels)
        if refusal is not None:
            self._warn(*refusal)
        else:
            self._tell_state(workload)

    def _tell_state(self, workload: Workload) -> None:
        """Tell the job what its reservation waits for, and which fault it has."""
        degraded = condition(workload.status, "Degraded")
        shown = degraded if degraded.get("status") == "True" else condition(workload.status, "Ready")
        reason, message = str(shown.get("reason") or ""), str(shown.get("message") or "")
        if reason:
            text = f"NeuronUltraServerWorkload {workload.name}: {message}"
            warning = shown is degraded or workload.state == "Failed"
            self._decision.notes.append(JobEvent(self._job, warning, reason, text, reason))

    def _release_all(self, why: str) -> None:
        for workload in self._own:
            _release(self._view, self._decision, workload, why, self._job)

    def _warn(self, reason: str, message: str) -> None:
        self._decision.notes.append(JobEvent(self._job, True, reason, message, f"{reason}: {message}"))

    def _say(self, reason: str, message: str) -> None:
        self._decision.notes.append(JobEvent(self._job, False, reason, message, f"{reason}: {message}"))


_QUEUE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_INVALID_QUEUE: Final = (
    f'annotation {QUEUE_ANNOTATION}: "{{}}" is no name of a LocalQueue: write at most {NAME_CHARACTERS} lower-case '
    "letters, digits and '-'"
)
_DIFFERS: Final = (
    "the annotation {} or the pods ask for other nodes than are reserved; those stay reserved until no pod uses them: "
    "suspend or delete the job to change instanceType, topologySize or logicalNeuronCore"
)


def _workload(job: Job, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the workload of a job, owned by it: it goes with the job, and does not hold up its deletion."""
    owner = {"apiVersion": job.api_version, "kind": job.kind, "name": job.name, "uid": job.uid, "controller": True}
    return {
        "apiVersion": API_VERSION,
        "kind": "NeuronUltraServerWorkload",
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "labels": {**MANAGED, **({QUEUE_LABEL: job.asked_queue} if job.asked_queue else {})},
            "annotations": {MADE_FOR: job.mark},
            "ownerReferences": [owner],
        },
        "spec": dict(spec),
    }
