"""The plugin's waits, periods and deadlines. No flag changes them.

Each part of the plugin gets its own group. Two facts of the kubelet bound many of them: it waits 45 s for a prepare,
and a claim that is rejected delays its pod by 90 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from neuron_dra.core.publication import DEFAULT_LEAVING_TIMING, LeavingTiming
from neuron_dra.core.server_gate import DEFAULT_GATE_TIMING, GateTiming
from neuron_dra.kube.timing import DEFAULT_CLIENT_TIMING, ClientTiming


@dataclass(frozen=True, slots=True)
class HardwareTiming:
    """Of the readings of sysfs."""

    period_s: float = 10.0  # between readings of the hardware
    driver_s: float = 1.0  # the same, while the kernel driver loads or leaves, or is not loaded
    deadline_s: float = 10.0  # for each file, and for a claim that waits for the first reading
    slow_s: float = 60.0  # for a whole reading whose files all answer; after it, health is unknown
    probe_s: float = 30.0  # between attempts to read a file that hangs


@dataclass(frozen=True, slots=True)
class PublishTiming:
    """Of the publishing loop."""

    gather_s: float = 0.2  # collects changes into one write; varied by half, so that nodes do not write at once
    compare_s: float = 720.0  # between full lists and compares, even if the watch reported no change: five an hour
    efa_compare_s: float = 3600.0  # the same, of the slice with EFA interfaces: with the five above, six lists an hour
    retry_s: tuple[float, float] = (0.5, 60.0)  # first and longest wait after a failure
    longest_retry_after_s: float = 60.0  # cap on the API server's Retry-After, as long as the longest wait without one

    # First and longest pause while another program writes this node's slices.
    rival_s: tuple[float, float] = (1.0, 60.0)
    rival_window_s: float = 600.0  # how long a write of another program is remembered
    device_plugin_s: float = 10.0  # between looks for a running Neuron device plugin and its pods
    device_plugin_pods_s: float = 2.0  # limit of the kubelet's list of pods in such a look

    # How long a device plugin that was alive still counts; one that fails is started again after 300 s.
    device_plugin_away_s: float = 360.0

    # Until a new node asks the kubelet for its pods again, if it did not answer; their claims are held.
    list_again_s: float = 10.0

    # First and longest wait while something forbids connected sets; the longest also while they are published.
    sets_check_s: tuple[float, float] = (60.0, 720.0)
    label_retry_s: float = 60.0  # before the label neuron.amazonaws.com/present is tried again
    server: GateTiming = DEFAULT_GATE_TIMING
    leaving: LeavingTiming = DEFAULT_LEAVING_TIMING


@dataclass(frozen=True, slots=True)
class UltraServerTiming:
    """Of the node's NeuronUltraServer, and the reservation in it."""

    # First and longest wait before looking for the CRD again; each wait is longer by the first.
    probe_s: tuple[float, float] = (60.0, 3600.0)

    # The same, if the settings expect the UltraServer controller, or a proxy may have answered.
    expected_probe_s: float = 10.0

    # How long a claim of another workload waits for a change of the reservation before it is rejected.
    rejection_wait_s: float = 10.0
    refresh_s: float = 2.5  # between readings of the NeuronUltraServer in this time
    first_answer_s: float = 10.0  # how long a node without a tag delays its first publish for its NeuronUltraServer
    recheck_s: float = 5.0  # between looks while a tag change waits for the node's claims
    missing_s: float = 600.0  # how long a tag is kept after no object lists its reservation


@dataclass(frozen=True, slots=True)
class PrepareTiming:
    """Of preparing and unpreparing claims, and of the files that belong to them."""

    get_s: float = 8.0  # limit of reading a claim
    fetch_retry_s: tuple[float, float] = (0.25, 4.0)  # first and longest wait after the API server failed

    # No read of a claim starts after this, so that the last one ends within the kubelet's 45 s; so long a claim waits
    # for the kernel driver, too.
    fetch_patience_s: float = 34.0
    longest_retry_after_s: float = 8.0  # cap on the API server's Retry-After: the kubelet waits 45 s in all

    # Between looks for a device to be free: another plugin process on this node may have unprepared the claim.
    look_again_s: float = 1.0

    # Limit of the wait for the lock; well below the kubelet's 45 s: it gets a reason, not a timeout.
    lock_s: float = 15.0
    flush_s: float = 0.1  # from a write of the checkpoint to its flush, which no call waits for
    flush_retry_s: tuple[float, float] = (1.0, 60.0)  # first and longest wait after a flush has failed
    list_s: float = 2.0  # limit of the kubelet's list of pods, in which claims are found that were prepared
    repair_s: float = 5.0  # between checks of the CDI files

    # First and longest wait after a damaged checkpoint could not be rebuilt.
    rebuild_retry_s: tuple[float, float] = (1.0, 30.0)

    # First and longest wait after the status of a claim could not be written.
    status_retry_s: tuple[float, float] = (1.0, 60.0)


@dataclass(frozen=True, slots=True)
class OrphanTiming:
    """Of prepared claims whose object is gone."""

    # Until the first search; random, so that the plugins of many nodes do not look at once.
    report_first_s: tuple[float, float] = (30.0, 90.0)
    report_s: float = 3600.0  # between searches
    look_s: float = 30.0  # between lists of the kubelet, while a claim may be orphaned
    list_s: float = 10.0  # limit of such a list

    # How long the kubelet must not list a claim: it does not list a force-deleted pod while its containers end.
    absent_s: float = 300.0

    # First and longest wait while the API server still has the claim.
    ask_again_s: tuple[float, float] = (300.0, 3600.0)


@dataclass(frozen=True, slots=True)
class KubeletTiming:
    """Of the kubelet's calls and the sockets that it uses."""

    verdict_s: float = 30.0  # without the kubelet's verdict on the registration, a new socket is offered
    rejected_s: float = 10.0  # the same, after the kubelet rejected the registration
    health_timeout_s: int = 60  # without an update for this long, the kubelet reports Unknown
    health_s: float = 20.0  # between updates; less than half of health_timeout_s
    stale_sockets_s: float = 60.0  # between looks for sockets that killed plugins left behind
    supervise_s: float = 1.0  # between looks at the sockets and the publisher lock
    registration_grace_s: float = 1.0  # for calls of the registration when the plugin stops
    call_grace_s: float = 5.0  # for running calls when the plugin stops
    transaction_grace_s: float = 20.0  # for running transactions; together with call_grace_s below the pod's 30 s


@dataclass(frozen=True, slots=True)
class LivenessTiming:
    """Of the gRPC health service."""

    call_s: float = 3.0  # limit of a call to the plugin's own sockets
    watch_s: float = 10.0  # between checks for a client that watches
    holds_s: float = 2.0  # how long a result is reused
    lag_alarm_s: float = 0.5  # an event loop that was blocked for longer is logged


@dataclass(frozen=True, slots=True)
class CounterTiming:
    """Of the counters of devices in the metrics."""

    deadline_s: float = 3.0  # for a reading, and for each file in the search for one that hangs
    pods_s: float = 2.0  # for the kubelet's list of pods
    fresh_s: float = 1.0  # readings are not repeated more often
    probe_s: float = 60.0  # between attempts to read what hangs


@dataclass(frozen=True, slots=True)
class PluginTiming:
    """The plugin's timing."""

    client: ClientTiming = DEFAULT_CLIENT_TIMING
    hardware: HardwareTiming = HardwareTiming()
    publish: PublishTiming = PublishTiming()
    ultraserver: UltraServerTiming = UltraServerTiming()
    prepare: PrepareTiming = PrepareTiming()
    orphans: OrphanTiming = OrphanTiming()
    kubelet: KubeletTiming = KubeletTiming()
    liveness: LivenessTiming = LivenessTiming()
    counters: CounterTiming = CounterTiming()
    port_retry_s: float = 2.0  # between attempts to bind a TCP port that is in use, as by an earlier plugin

    # First and longest wait before a background loop begins again after an error of an unknown kind.
    loop_retry_s: tuple[float, float] = (1.0, 60.0)
    version_retry_s: tuple[float, float] = (1.0, 30.0)  # first and longest wait for the API server's version


DEFAULT_TIMING: Final = PluginTiming()
