"""Faults and states of the test bed that alerts are about: each lasts until the end of its block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from fleet import TRN3, end_workloads, submit, workload
from real_cluster import BedNode, Namespace, TestBed, eventually

from neuron_dra.core.wire import Obj

Fault = Callable[[TestBed, Namespace], contextlib.AbstractContextManager[None]]


def on(bed: TestBed, name: str) -> BedNode:
    return BedNode(bed, name, TRN3)


@contextlib.contextmanager
def broken(bed: TestBed, node: str, what: str, which: str = "") -> Iterator[None]:
    """Break a part of a node with the test bed's own command."""
    one = on(bed, node)
    one.break_(what, which)
    try:
        yield
    finally:
        one.repair(what, which)


def unhealthy_device(bed: TestBed, place: Namespace) -> contextlib.AbstractContextManager[None]:
    return broken(bed, "u2-0", "ecc", "3")


@contextlib.contextmanager
def cordoned_node(bed: TestBed, place: Namespace) -> Iterator[None]:
    bed.kubectl("cordon", "u2-3")
    try:
        yield
    finally:
        bed.kubectl("uncordon", "u2-3")


@contextlib.contextmanager
def reserved(place: Namespace, made: Obj, state: str) -> Iterator[str]:
    """A workload in a state; yields its first node, if it has one."""
    found = submit(place, made, state)
    try:
        groups = found["status"].get("groups") or [{"nodes": [""]}]
        yield groups[0]["nodes"][0]
    finally:
        end_workloads(place)


@contextlib.contextmanager
def degraded_workload(bed: TestBed, place: Namespace) -> Iterator[None]:
    with reserved(place, workload("degraded", 4, 1), "Allocated") as node, broken(bed, node, "ecc", "3"):
        yield


def all_slices(bed: TestBed) -> None:
    """Wait until every node publishes, after a test that kept some from it."""
    eventually("slices of all nodes", lambda: len({*publishers(bed)}) == 8, 120)


def publishers(bed: TestBed) -> list[str]:
    items = bed.get("resourceslices")["items"]
    return [item["spec"]["nodeName"] for item in items if item["spec"].get("devices")]
