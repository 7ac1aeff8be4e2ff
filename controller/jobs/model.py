"""A job that asks for UltraServers. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of a job that have one template: how many run at the same time, and what of the template counts here."""

    count: int
    claim_templates: tuple[str, ...]
    instance_type: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job of any kind with the annotation.

    - `wish`: the annotation, valid or not.
    - `over`: why it needs no nodes, such as "is suspended"; empty if it needs some.
    - `ended`: it never needs any again: it is complete, has failed, or is being deleted.
    - `queue`: the Kueue queue that manages the job itself, empty without one.
    - `asked_queue`: the queue from which its reservation gets quota, empty without one.
    - `managed_by`: the program that runs it instead of Kubernetes' own controller, empty without one.
    """

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    wish: str
    over: str = ""
    ended: bool = False
    queue: str = ""
    asked_queue: str = ""
    managed_by: str = ""
    pods: tuple[PodSet, ...] = ()

    @property
    def mark(self) -> str:
        """What the workload that is made for it has in its annotation."""
        return f"{self.kind}/{self.name}/{self.uid}"
