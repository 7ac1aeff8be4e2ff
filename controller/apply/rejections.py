"""Where each rejected write of a plan is shown, so that whoever must act finds it. No I/O.

| write | shown |
|---|---|
| a workload's finalizer, added or removed | its condition, reason FinalizerRejected |
| its ResourceClaimTemplate, created or deleted | its condition, reason TemplateRejected |
| its status | an Event on the workload; its reason is NameTooLong for one that only our CRD rejects |
| an eviction | the workload's condition, reason EvictionBlocked (`Applier.blocked_evictions`) |
| the status of a NeuronUltraServer | the condition ReservationNotStored of its workloads, and an Event on the object |
| other writes of a NeuronUltraServer | an Event on the object |
| labels of a Node | an Event on the Node |

What goes on beside the plans has its own Events: ReservationRejected and ReleaseRejected on jobs and their workloads,
PodsNotWoken and ServiceRejected on workloads, QueueRejected on workloads with a queue, EvictionRejected on pods,
WriteRejected on qualifications and LeaseRejected on the Lease. The status of a qualification says why no test can
begin, and a metric counts lost Events. `tests/story/test_every_rejection.py` has all writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.errors import ApiError
from neuron_dra.kube.events import reference
from neuron_dra.planner.decisions.actions import (
    Action,
    CreateTemplate,
    CreateUltraServer,
    DeleteTemplate,
    DeleteUltraServer,
    Evict,
    LabelNode,
    SetFinalizers,
    SetUltraServerFinalizers,
    UpdateTopology,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.observed.model import API_VERSION, WORKLOAD_KIND, condition

_CONDITIONS: Final[dict[type[Action], tuple[Reason, str]]] = {
    SetFinalizers: (Reason.FINALIZER_REJECTED, "the write of this workload's finalizer"),
    CreateTemplate: (Reason.TEMPLATE_REJECTED, "the creation of its ResourceClaimTemplate"),
    DeleteTemplate: (Reason.TEMPLATE_REJECTED, "the deletion of its ResourceClaimTemplate"),
}
"""The writes whose rejection a condition of their workload says: its reason, and what was rejected."""
_EVENTS: Final[dict[type[Action], str]] = {
    WriteWorkloadStatus: "the write of this workload's status",
    WriteUltraServerStatus: "the write of the status",
    CreateUltraServer: "the creation of this NeuronUltraServer",
    UpdateTopology: "the write of spec.topology",
    DeleteUltraServer: "the deletion",
    SetUltraServerFinalizers: "the write of the finalizers",
    LabelNode: "the write of the UltraServer labels",
}
"""The writes whose rejection is an Event."""
ELSEWHERE: Final = frozenset({Evict})
"""Those that `Applier` shows itself."""


def described(action: Action) -> str:
    """Return what was to be written, as the subject of a sentence."""
    reason_and_subject = _CONDITIONS.get(type(action))
    return reason_and_subject[1] if reason_and_subject is not None else _EVENTS[type(action)]


def event_about(action: Action) -> dict[str, str] | None:
    """Return the object that gets an Event when this write is rejected; None if it is shown otherwise."""
    match action:
        case WriteWorkloadStatus(namespace=namespace, name=name, uid=uid):
            return reference(API_VERSION, WORKLOAD_KIND, namespace, name, uid)
        case CreateUltraServer(body=body):
            return reference(API_VERSION, "NeuronUltraServer", NAMESPACE, str(body["metadata"]["name"]), "")
        case LabelNode(name=name, uid=uid):
            return reference("v1", "Node", "", name, uid)
        case UpdateTopology(name=name) | SetUltraServerFinalizers(name=name) | WriteUltraServerStatus(name=name):
            return reference(API_VERSION, "NeuronUltraServer", NAMESPACE, name, "")
        case DeleteUltraServer(name=name, uid=uid):
            return reference(API_VERSION, "NeuronUltraServer", NAMESPACE, name, uid)
    return None


def event_text(action: Action, err: ApiError) -> tuple[str, str]:
    """Return reason and message of that Event."""
    rejected = f"{described(action)} was rejected: {err}"
    if isinstance(action, WriteWorkloadStatus):
        ready = condition(action.status, "Ready")
        if ready.get("reason") == Reason.NAME_TOO_LONG:
            # It was stored under AWS's CRD. Ours rejects every write of it, so no condition can say this.
            return str(Reason.NAME_TOO_LONG), f"{ready.get('message')}; {rejected}"
    return "WriteRejected", rejected


class Rejections:
    """The last rejection of a write of each workload; `told` has reason and text by UID, for its condition."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, type[Action]], tuple[str, str]] = {}

    @property
    def told(self) -> dict[str, tuple[str, str]]:
        """Reason and text by UID of the workload."""
        return {uid: reason_and_text for (uid, _), reason_and_text in self._found.items()}

    def note(self, action: Action, err: ApiError) -> None:
        """Note that a write was rejected."""
        reason_and_subject = _CONDITIONS.get(type(action))
        if reason_and_subject is not None:
            reason, what = reason_and_subject
            for uid in action.owners:
                self._found[uid, type(action)] = str(reason), f"{what} was rejected: {err}"

    def made(self, action: Action) -> None:
        """Note that a write was made."""
        for uid in action.owners:
            self._found.pop((uid, type(action)), None)

    def keep(self, actions: Sequence[Action]) -> None:
        """Forget the rejections of writes that are not planned any more."""
        if self._found:
            planned = {(uid, type(action)) for action in actions for uid in action.owners}
            self._found = {key: rejection for key, rejection in self._found.items() if key in planned}
