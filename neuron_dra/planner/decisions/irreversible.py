"""What the controller does that nobody can take back, and how it makes sure first. No I/O.

A watch may be silent for two and a half minutes before anybody notices, a proxy may answer 404, and a clock may be
wrong. So each of these actions has evidence besides the caches. A test finds every place that deletes or evicts
something, and requires its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Irreversible:
    """An action that ends something.

    - `place`: the function that sends it.
    - `depends_on`: what it would be wrong without.
    - `confirmed`: how that is confirmed: read again before, or a precondition of the write.
    """

    action: str
    place: str
    depends_on: str
    confirmed: str


TABLE: Final = (
    Irreversible(
        "delete the reservation of a job",
        "controller/jobs/reservations.py send",
        "the job is gone, over, or asks for something else",
        "the job is read again and is as it was decided about; gone means a Status that names the job. The write has "
        "the workload's UID and resourceVersion",
    ),
    Irreversible(
        "lower the serverCount of a job's reservation",
        "controller/jobs/reservations.py send",
        "the job asks for fewer nodes",
        "the job is read again and is as it was decided about; the write has the workload's resourceVersion",
    ),
    Irreversible(
        "delete a ResourceClaimTemplate",
        "controller/apply/requests.py perform",
        "its workload is being deleted, has expired or lost its quota, or needs another template",
        "each of these is stored in the workload or in Kueue's Workload, and stays; the write has the template's UID",
    ),
    Irreversible(
        "delete a NeuronUltraServer",
        "controller/apply/requests.py perform",
        "it has no nodes and no reservations",
        "the write has its UID and resourceVersion; a finalizer keeps one with reservations",
    ),
    Irreversible(
        "evict a pod of a slot that is released",
        "controller/apply/requests.py _evict",
        "the slot is Draining",
        "the nodes show Draining first; a fault has lasted longer than a silent watch; the write has the pod's UID",
    ),
    Irreversible(
        "evict a pod that its node rejects, or whose claim is for an earlier workload",
        "controller/apply/pod_eviction.py evict",
        "the pod has not started, and its claim can never be prepared",
        "the pod, and the earlier claim, are read before; the write has the pod's UID and resourceVersion",
    ),
    Irreversible(
        "say that an unused reservation has expired",
        "controller/apply/requests.py _write_workload_status",
        "no claim was allocated on its nodes for spec.ttlSecondsUnused",
        "the claims on its nodes are read again, and the plan is made again; the time is the API server's",
    ),
    Irreversible(
        "give quota back, or finish Kueue's Workload",
        "controller/queue/queues.py send",
        "no node is reserved for it; the workload is gone",
        "no write of its reservations is wished, sent or without an answer; a list of workloads shows that it is gone; "
        "Kueue's Workload is read again, and the write has its resourceVersion",
    ),
    Irreversible(
        "delete the workload or a pod of a test",
        "controller/qualify/qualifications.py send",
        "the test has ended, is too long, or yields",
        "the write has the UID; the group is tested again",
    ),
    Irreversible(
        "discard the results of tests",
        "controller/qualify/qualifications.py _store",
        "the qualification is gone",
        "the qualification is read again; gone means a Status that names it. The write has the NeuronUltraServer's "
        "resourceVersion",
    ),
)
