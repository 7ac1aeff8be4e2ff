"""The version of the API server, whose allocator places pods: as it was read or given, or what objects prove. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from neuron_dra.ask.read.node_views import KubeletView, SliceView
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.core import versions
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import semantics
from neuron_dra.simulate.semantics import Semantics


def version(snapshot: Snapshot) -> tuple[int, int] | None:
    """Return the API server's version, or the oldest that it can have; None if that may be any.

    A kubelet is at most as new as its API server. API servers before 1.36 store no counters of devices.
    """
    given_version = versions.parse(snapshot.version)
    if given_version is not None:
        return given_version
    oldest_possible = newest_kubelet(snapshot)
    if oldest_possible is not None and oldest_possible >= versions.FIRST_WITH_COUNTERS:
        return oldest_possible
    if any(SliceView.of(raw_slice).spec.has_counters for raw_slice in snapshot.all("ResourceSlice")):
        return versions.FIRST_WITH_COUNTERS
    return None


def newest_kubelet(snapshot: Snapshot) -> tuple[int, int] | None:
    """Return the version of the newest kubelet; None if none is known."""
    kubelet_versions = (versions.parse(kubelet(node)) for node in snapshot.all("Node"))
    return max((parsed for parsed in kubelet_versions if parsed is not None), default=None)


def kubelet(node: Wire) -> str:
    """Return the version of a node's kubelet, such as v1.37.0; empty if it is unknown."""
    return KubeletView.of(node).status.node_info.kubelet_version


def rules(snapshot: Snapshot) -> Semantics:
    """Return the allocator's semantics, the newest ones if the version is unknown, without the cost of the search."""
    allocator_rules = semantics.of(version(snapshot))
    proven = allocator_rules.taints or any(_tainted(snapshot))
    return dataclasses.replace(allocator_rules, permutations=False, taints=proven)


def unknown(snapshot: Snapshot) -> str:
    """Return the note that the version is unknown; empty if it is known, or if it makes no difference."""
    if version(snapshot) is not None:
        return ""
    return (
        "the version of the API server is unknown: simulated as Kubernetes 1.36 and 1.37 allocate; "
        "--kubernetes VERSION chooses another one"
    )


def _tainted(snapshot: Snapshot) -> Iterator[bool]:
    """Yield True for each object that an API server without device taints would not store."""
    for _ in snapshot.all("DeviceTaintRule"):
        yield True
    for raw_slice in snapshot.all("ResourceSlice"):
        for device in SliceView.of(raw_slice).spec.published:
            if device.get("taints"):
                yield True
