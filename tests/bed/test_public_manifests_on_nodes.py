"""18, acceptance 2: ten of the public manifests run on real kubelets, and their pods have what they request.

`migrate` makes them as the unit test does. They get an image and a command of the test bed's, and lose the amounts that
its nodes do not have.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hack.bed.deployed import IMAGE, is_ready, neurons
from hack.bed.real_cluster import Namespace, TestBed, eventually
from neuron_dra.core import catalogue
from neuron_dra.core.wire import Obj
from tests.bed.deployed import devices, environment
from tests.support import public_manifests as public
from tests.support.public_manifests import AS_IT_IS, CORES, MIGRATED, NEWEST, ROUNDS, Manifest

NODES = {"trn2.48xlarge": "trn2", "trn1.32xlarge": "trn1", "inf2.48xlarge": "inf2", "inf1.6xlarge": "inf1"}
NOT_ON_THE_BED = {"cpu", "memory", "vpc.amazonaws.com/efa"}
ASKED = 10
START_S = 1800

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


def test_ten_public_manifests_run_on_kubelets(other_bed: TestBed, tmp_path: Path) -> None:
    """(18.2)"""
    start(other_bed)
    manifests = {each.id: each for each in public.load()}
    chosen = [[manifests[name] for name in names] for names in ROUNDS]
    assert len({each.id for some in chosen for each in some}) == ASKED
    assert {each.kind for some in chosen for each in some} == {"Pod", "Deployment", "Job", "StatefulSet"}
    assert {each.results[NEWEST] for some in chosen for each in some} == {AS_IT_IS, MIGRATED}
    for some in chosen:
        with contextlib.ExitStack() as stack:
            for manifest in some:  # all first: the taint of one node is what keeps pods without a selector off it
                stack.enter_context(marked(other_bed, manifest))
            places = [stack.enter_context(applied(other_bed, each, tmp_path)) for each in some]
            used: list[tuple[str, int]] = []
            for manifest, place in zip(some, places, strict=True):
                used += devices_of(manifest, place)
            assert len(set(used)) == len(used), f"a device is in two pods: {sorted(used)}"


def start(bed: TestBed) -> None:
    """Start a node of each type with the driver, and with the chart's `scheduler.enabled`."""
    nodes = [word for kind, name in NODES.items() for word in ("--node", f"{name}={kind}")]
    settings = ("--driver", "daemonset", "--set", "scheduler.enabled=true")
    bed.command("up", *nodes, *settings, timeout_s=START_S)
    for kind, name in NODES.items():
        spec = catalogue.lookup(kind)
        assert spec is not None
        count = spec.device_count
        eventually(f"sets of {name}", lambda name=name, count=count: len(devices(bed, name)) > count, 180)


@contextlib.contextmanager
def marked(bed: TestBed, manifest: Manifest) -> Iterator[None]:
    """Give a manifest's node the labels and taints that it is for, until the end of the block."""
    node = NODES[manifest.instance_type]
    with contextlib.ExitStack() as stack:
        for word in manifest.nodes.split()[3:]:
            what = "taint" if ":" in word else "label"
            bed.kubectl(what, "node", node, word)
            stack.callback(bed.kubectl, what, "node", node, f"{word if what == 'taint' else word.partition('=')[0]}-")
        yield


@contextlib.contextmanager
def applied(bed: TestBed, manifest: Manifest, folder: Path) -> Iterator[Namespace]:
    """Apply a manifest in a namespace of its own, which is gone when the block ends."""
    place = Namespace(bed, f"public-{manifest.id.partition('/')[2]}")
    bed.kubectl("create", "namespace", place.name)
    try:
        plain = manifest.results[NEWEST] == AS_IT_IS
        objects = manifest.objects if plain else yaml.safe_load_all(public.migrated(manifest, NEWEST, folder))
        place.apply(yaml.safe_dump_all(map(for_the_bed, objects)))
        yield place
    finally:
        bed.kubectl("delete", "namespace", place.name, timeout_s=300)


def for_the_bed(wanted: Obj) -> Obj:
    """Return an object with the bed's image and a command that waits, without the amounts that no node of it has."""
    if wanted["kind"] == "ResourceClaimTemplate":
        return wanted
    made = copy.deepcopy(wanted)
    spec = made["spec"] if made["kind"] == "Pod" else made["spec"]["template"]["spec"]
    for container in spec["containers"]:
        container |= {"image": IMAGE, "command": ["bash", "-c", "trap 'exit 0' TERM; sleep 9999 & wait"]}
        resources = container["resources"]
        for which in {"limits", "requests"} & resources.keys():
            resources[which] = {name: each for name, each in resources[which].items() if name not in NOT_ON_THE_BED}
    return made


def devices_of(manifest: Manifest, place: Namespace) -> list[tuple[str, int]]:
    """Wait until the pods run, check that each has what it requests, and return their devices with the node's name."""
    found: list[tuple[str, int]] = []
    each = CORES[manifest.instance_type[:4]]
    for pod in running(manifest, place):
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        ids, variables = neurons(place, name), environment(place, name)
        visible = variables.get("NEURON_RT_VISIBLE_CORES", "")
        cores = cores_in(visible) if visible else each * len(ids)
        seen = f"{manifest.id}: {name} on {node} has devices {ids} and {variables}"
        assert (len(ids), cores) == (-(-manifest.cores // each), manifest.cores), seen
        assert node == NODES[manifest.instance_type], seen
        assert connected(ids, manifest.instance_type), seen
        if size := re.search(r"logicalNeuronCore: (\d)", yaml.safe_dump_all(manifest.objects)):
            assert variables["NEURON_LOGICAL_NC_CONFIG"] == size[1], seen
        print(seen)
        found += ((node, i) for i in ids)
    return found


def running(manifest: Manifest, place: Namespace) -> list[Obj]:
    """Wait until all pods of a manifest are ready; the error has the namespace's events."""

    def ready() -> list[Obj]:
        pods: list[Obj] = place.get("pods")["items"]
        return pods if len(pods) == manifest.pods and all(map(is_ready, pods)) else []

    try:
        return eventually(f"{manifest.pods} pods of {manifest.id}", ready, 180)
    except AssertionError as err:
        seen = [each.get("message") for each in place.get("events")["items"]]
        raise AssertionError(f"{err}; events: {seen}") from err


def cores_in(visible: str) -> int:
    """Return how many cores a value of NEURON_RT_VISIBLE_CORES has."""
    first, _, last = visible.partition("-")
    return int(last or first) - int(first) + 1


def connected(ids: list[int], kind: str) -> bool:
    """Return True if the devices are consecutive on the ring, or are a group of the torus."""
    spec = catalogue.lookup(kind)
    assert spec is not None
    if kind.startswith("inf"):
        return any(sorted((first + i) % spec.device_count for i in range(len(ids))) == ids for first in ids)
    return ids[0] % len(ids) == 0 and ids == list(range(ids[0], ids[0] + len(ids)))
