"""32.3 on a real kubelet and scheduler: links fail while pods hold sets over them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from hack.bed.deployed import neurons, prepared
from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from neuron_dra.core import divided
from tests.bed.deployed import devices, started
from tests.bed.limited import NEURON, ended, is_arc, pod, waits

ALL = 223  # devices of a ring of twelve with its sets and cores
ON_RING = {"nodeSelector": {"kubernetes.io/hostname": "ring"}}


@pytest.fixture
def ring(sets_bed: TestBed) -> Iterator[BedNode]:
    """The ring, with all of its links at the end."""
    made = BedNode(sets_bed, "ring", "inf2.48xlarge")
    eventually("all sets of the ring", lambda: list(taints(made).values()) == [()] * ALL, 120)
    yield made
    made.repair_all()
    eventually("all sets of the ring", lambda: list(taints(made).values()) == [()] * ALL, 120)


def taints(node: BedNode) -> dict[str, tuple[str, ...]]:
    """Return the taints of each published device and set."""
    found = {}
    for device in devices(node.bed, node.name):
        found[device["name"]] = tuple(each["key"] for each in device.get("taints", []))
    return found


def apart_without_0_1() -> set[str]:
    """Return the names of the ring's sets and cores that have devices 0 and 1, but not all, and so fall apart."""
    found = {f"neuron-cores-{number}-0" for number in range(3, 22, 2)}  # even numbers are those of whole devices
    for size in range(2, 12):
        for start in range(12):
            members = [(start + step) % 12 for step in range(size)]
            if (0, 1) in itertools.pairwise(members):
                found.add(f"neuron-set-{size}-{start}")
    return found


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_held_set_stays_and_free_ones_leave_while_a_link_is_down(ring: BedNode, sets_place: Namespace) -> None:
    place, held = sets_place, "neuron-set-3-0"
    assert started(place, pod("holder", {NEURON: 3}, **ON_RING)) == [0, 1, 2]
    before = (prepared(ring), place.restarts("holder"))
    lost = apart_without_0_1() - {held}
    seen: dict[str, tuple[str, ...]] = {}

    def withdrawn() -> bool:
        now = taints(ring)
        seen.update({name: keys for name, keys in now.items() if keys})
        return not lost & now.keys()

    ring.break_("link", "0-1")
    eventually("the sets over the link are withdrawn", withdrawn, 120, interval_s=0.3)
    assert seen == dict.fromkeys({*lost, held}, (divided.TAINT_KEY,))  # first a taint, which no claim tolerates
    left = taints(ring)
    assert left.pop(held) == (divided.TAINT_KEY,)
    assert set(left.values()) == {()}
    assert {"neuron-set-3-1", "neuron-set-12-0"} <= left.keys()  # the ring is a line now
    assert ((prepared(ring), place.restarts("holder")), neurons(place, "holder")) == (before, [0, 1, 2])

    ring.break_("plugin")
    ring.repair("plugin")
    assert is_arc(started(place, pod("beside", {NEURON: 4}, **ON_RING)))  # after a restart, other sets are there
    ended(place, "beside")

    ended(place, "holder")
    eventually("the set that was held is withdrawn", lambda: held not in taints(ring), 120)
    assert started(place, pod("whole", {NEURON: 12}, **ON_RING)) == list(range(12))
    ring.break_("link", "6-7")
    eventually("the taint of the whole", lambda: taints(ring).get("neuron-set-12-0") == (divided.TAINT_KEY,), 120)
    assert neurons(place, "whole") == list(range(12))
    ended(place, "whole")
    eventually("the whole is withdrawn", lambda: "neuron-set-12-0" not in taints(ring), 120)
    place.apply(pod("again", {NEURON: 12}, **ON_RING))
    eventually("a pod with all devices waits", lambda: waits(place, "again"), 60)

    ring.repair("link", "0-1")
    ring.repair("link", "6-7")
    place.wait_ready("again", 180)
    eventually("all sets without a taint", lambda: list(taints(ring).values()) == [()] * ALL, 120)
    ended(place, "again")
