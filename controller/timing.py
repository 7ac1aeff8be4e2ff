"""The controller's waits, periods and deadlines. No flag changes them.

Each part of the controller gets its own group. The times that a user can change are in `settings`, those of a plan in
its Limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from neuron_dra.kube.timing import DEFAULT_CLIENT_TIMING, ClientTiming


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Of the Lease. The times are those of Kubernetes' own components."""

    duration_s: int = 15  # after which another replica may take a Lease that is not renewed

    # A leader that could not renew for this long stops writing, well before another may take over.
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0  # between renewals, or checks that the Lease is free; varied by up to a fifth
    request_s: float = 5.0  # limit of reading the Lease


@dataclass(frozen=True, slots=True)
class CacheTiming:
    """Of the caches, beside the times of their watches."""

    # Most changes of Nodes are heartbeats, 17 a second with 5,000 nodes, and change nothing.
    heartbeats_s: float = 0.5  # for which changes of Nodes are gathered

    # A report that comes and goes is no recovery.
    well_s: float = 300.0  # how long no agent reports a fault of a node before it is chosen again

    # The ClusterRole may have been upgraded.
    forbidden_s: float = 60.0  # before Namespaces are read again after a 403


@dataclass(frozen=True, slots=True)
class PassTiming:
    """Of the loop that plans and writes."""

    gather_s: float = 0.05  # changes come in bursts: one plan for all in this time
    retry_s: tuple[float, float] = (0.2, 30.0)  # first and longest wait after a pass that failed
    idle_s: float = 1.0  # between checks while another replica leads, or the caches are not complete
    busy_s: float = 5.0  # between passes while another program reverts what every pass writes

    # A leader whose pass makes no progress for this long gives up the Lease; lists of a large fleet take a minute.
    progress_s: float = 120.0

    # If the clock shows this much less than in the last pass, it was set back, and all waits end.
    set_back_s: float = 5.0


@dataclass(frozen=True, slots=True)
class WriteTiming:
    """Of writes that were rejected, had no effect, or can wait."""

    first_s: float = 0.2  # before a write that was rejected, or had no effect, is repeated; then 3 times longer

    # Pods take time to end, and budgets to allow it.
    first_eviction_s: float = 5.0  # the same, for an eviction

    # The longest of these waits; an UltraServer whose writes are rejected is avoided for this long.
    longest_s: float = 90.0
    forgotten_s: float = 600.0  # after which the tries of an object no longer count

    # Readers need no more.
    message_s: float = 5.0  # between writes of a workload's status that only change a message

    # Of thousands of workloads that wait, each change of the free nodes changes every message.
    numbers_s: float = 60.0  # the same, for a workload that waits, if only numbers of the message change
    spread_s: int = 15  # by up to so much longer, which differs by workload
    class_s: float = 60.0  # between reads of a PriorityClass that a workload names
    crd_s: float = 60.0  # between checks that a CRD of another release was replaced
    spec_s: float = 2.0  # how long a new leader waits for the OpenAPI document of the CRDs, and for the PriorityClasses


@dataclass(frozen=True, slots=True)
class OutboxTiming:
    """Of the requests that are sent beside the passes."""

    slow_s: float = 1.0  # after which a request leaves its place to another one

    # First and longest wait before a kind of request is sent again to a namespace where one got no answer, or any
    # request to a server that takes none.
    retry_s: tuple[float, float] = (0.2, 30.0)


@dataclass(frozen=True, slots=True)
class PodTiming:
    """Of the reads of pods, which are not cached."""

    # How long a workload has idle nodes before its unscheduled pods are listed; then 3 times longer.
    idle_s: float = 30.0
    suspect_s: float = 5.0  # before a pod that its node may reject is read again; then 3 times longer
    longest_s: float = 90.0  # the longest of these waits


@dataclass(frozen=True, slots=True)
class RoomTiming:
    """Of the advice which workloads would have to move so that others have room."""

    again_s: float = 60.0  # how often room is looked for, for each of the first workloads that need it


@dataclass(frozen=True, slots=True)
class RendezvousTiming:
    """Of the Services and their EndpointSlices, which follow the pods with rank 0."""

    # Before a pod without an address is read again, or a failed request is repeated; then 3 times longer.
    first_s: float = 0.5
    longest_s: float = 10.0  # the longest of these waits, for a few workloads

    # For when many start at once.
    unsettled_s: float = 0.1  # the longest wait grows to this for each workload without an address
    longest_of_all_s: float = 90.0  # but not beyond this

    # A pod that gets a new sandbox gets a new address. More often after a change, because a Node is Ready again after
    # a reboot before the pod has its new address.
    verify_s: float = 300.0  # how often an address is verified

    # So that a large fleet costs no more than two requests a second.
    workload_s: float = 2.0  # that interval grows to this for each workload
    forbidden_s: float = 60.0  # before Services are tried again after a 403


@dataclass(frozen=True, slots=True)
class JobTiming:
    """Of the reservations for jobs."""

    absent_s: float = 60.0  # before a kind of job that the API server does not have is looked for again
    guard_s: float = 60.0  # between checks that the policy for the namespaces' label is in force
    first_s: float = 1.0  # before a write that was rejected is repeated; then 3 times longer
    longest_s: float = 90.0  # the longest of these waits


@dataclass(frozen=True, slots=True)
class QueueTiming:
    """Of workloads that Kueue admits."""

    absent_s: float = 60.0  # before Kueue is looked for again while the API server does not have it
    patience_s: float = 300.0  # how long an admitted workload waits for nodes before it gives its quota back

    # How long a new leader waits for the list of Kueue's Workloads; then only workloads with a queue wait.
    relist_s: float = 2.0
    first_return_s: float = 60.0  # before it queues again; each time in a row twice as long
    longest_return_s: float = 3600.0  # the longest of these waits
    first_s: float = 1.0  # before a write that was rejected is repeated; then 3 times longer
    longest_s: float = 90.0  # the longest of these waits


@dataclass(frozen=True, slots=True)
class QualifyTiming:
    """Of tests of UltraServers."""

    absent_s: float = 60.0  # before qualifications are looked for again while the API server has none
    survey_s: float = 1.0  # how often the results of a fleet are gone through, at least

    # A survey of a large fleet may cost a millicore.
    survey_group_s: float = 0.006  # that grows to this for each UltraServer
    look_s: float = 1.0  # how often tests in progress are looked at, also if nothing changes
    reserve_s: float = 120.0  # before a test that got no nodes is given up
    start_s: float = 900.0  # before a test whose pods do not start is given up: images are large
    settle_s: float = 90.0  # how long a test goes on after one of its pods has failed: its node may be dead
    again_s: float = 60.0  # before a group is tested again that got no verdict; each time in a row twice as long
    longest_s: float = 3600.0  # the longest of these waits
    status_s: float = 30.0  # between writes of a qualification's status that only change numbers
    first_s: float = 1.0  # before a write that was rejected is repeated; then 3 times longer
    longest_write_s: float = 90.0  # the longest of these waits

    # So 20 tests and 120 results a minute, whatever maxGroups, periods and the number of qualifications are. A test is
    # some 30 writes; 20,000 nodes once a day are 3.5 tests a minute.
    begin_s: float = 3.0  # between the beginnings of tests, after 20 at once
    result_s: float = 0.5  # between writes of results that no test has just found, after 120 at once


@dataclass(frozen=True, slots=True)
class ServiceTiming:
    """Of the gRPC service."""

    retry_s: float = 5.0  # between tries to bind an address that is in use
    health_s: float = 1.0  # how soon a health stream reports a change
    stop_s: float = 2.0  # limit of the calls in progress when the controller ends


@dataclass(frozen=True, slots=True)
class Timing:
    """Of `neuron-ultraserver-controller run`."""

    lease: LeaseTiming = LeaseTiming()
    caches: CacheTiming = CacheTiming()
    passes: PassTiming = PassTiming()
    writes: WriteTiming = WriteTiming()
    outbox: OutboxTiming = OutboxTiming()
    pods: PodTiming = PodTiming()
    room: RoomTiming = RoomTiming()
    rendezvous: RendezvousTiming = RendezvousTiming()
    jobs: JobTiming = JobTiming()
    queues: QueueTiming = QueueTiming()
    qualify: QualifyTiming = QualifyTiming()
    service: ServiceTiming = ServiceTiming()
    client: ClientTiming = DEFAULT_CLIENT_TIMING


@dataclass(frozen=True, slots=True)
class WatcherTiming:
    """Of `neuron-ultraserver-controller watch-limits`."""

    gather_s: float = 1.0  # in which related changes are gathered, such as the pods of one Deployment
    retry_s: float = 30.0  # before Events that were rejected are posted again; those that were posted are not
    old_limits_s: float = 10.0  # after which a pod that waits for the device plugin's resources gets an Event

    # After which a pod gets one whose scheduler has handled neither it nor another one in this time.
    scheduler_s: float = 30.0
    client: ClientTiming = DEFAULT_CLIENT_TIMING


DEFAULT_TIMING: Final = Timing()
DEFAULT_WATCHER_TIMING: Final = WatcherTiming()
