"""31.13 on a real node: a device whose file is gone from the host's /dev is tainted, and returns with its file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hack.bed.deployed import neurons, pod, template
from hack.bed.real_cluster import BedNode, Namespace, eventually
from neuron_dra.core import health, signals
from tests.bed.deployed import devices, stays_pending

DEVICE = 5
FILE, ASIDE = f"/dev/neuron{DEVICE}", f"/dev/moved-neuron{DEVICE}"


@pytest.fixture
def without_file(trn2: BedNode) -> Iterator[BedNode]:
    """A node on which one device's file has been moved away; it is back at the end."""
    trn2.run("mv", FILE, ASIDE)
    yield trn2
    trn2.run("sh", "-c", f"[ -e {FILE} ] || mv {ASIDE} {FILE}")
    eventually("no taint", lambda: taints(trn2) == {}, 120)


def taints(node: BedNode) -> dict[str, list[tuple[str, str]]]:
    """Return key and value of the taints of each device that has any."""
    found = {}
    for device in devices(node.bed, node.name):
        if device.get("taints"):
            found[device["name"]] = [(each["key"], each.get("value", "")) for each in device["taints"]]
    return found


def test_a_device_without_its_file_is_given_to_nobody_until_the_file_is_back(
    without_file: BedNode, namespace: Namespace
) -> None:
    node, place = without_file, namespace
    missing = {f"neuron-device-{DEVICE}": [(health.TAINT_KEY, signals.DEVICE_FILE_MISSING)]}
    eventually("the taint", lambda: taints(node) == missing, 120)
    assert len(devices(node.bed, node.name)) == 16
    place.apply(template("every", 16))
    place.apply(pod("every", "every", node=node.name))
    stays_pending(place, "every")
    node.run("mv", ASIDE, FILE)
    place.wait_ready("every")
    assert neurons(place, "every") == list(range(16))
