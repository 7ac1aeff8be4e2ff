"""16, acceptance 5: pods that `neuron-dra migrate` rewrites for Kubernetes 1.34 run on real kubelets.

They run on every version. Below 1.36 the chart's `scheduler.enabled` publishes nothing but plain devices.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hack.bed.deployed import IMAGE, neurons
from hack.bed.real_cluster import Namespace, TestBed, eventually
from neuron_dra.core import catalogue
from neuron_dra.node.publish.connected import EVENT
from tests.bed.deployed import TYPE_LABEL, devices, slices

NEURON = "aws.amazon.com/neuron"
NODES = {"ring": "inf2.48xlarge", "torus": "trn1.32xlarge"}
SERVED = [("ring", 1), ("ring", 12), ("torus", 1), ("torus", 4), ("torus", 8), ("torus", 16)]

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


def test_migrated_pods_get_their_devices(other_bed: TestBed, tmp_path: Path) -> None:
    place = bed_before_connected_sets(other_bed)
    for node, count in SERVED:
        name = f"{node}-{count}"
        place.apply(migrated(tmp_path, name, NODES[node], count))
        place.wait_ready(name)
        found = neurons(place, name)
        assert found == list(range(found[0], found[0] + count)), f"{name} has {found}, which is no group"
        assert found[0] % count == 0, f"{name} has {found}, which are in two groups"
        place.delete("pod", name)
        eventually(f"the claim of {name} to be gone", lambda: not place.get("resourceclaims")["items"], 60)


def bed_before_connected_sets(bed: TestBed) -> Namespace:
    """Start both nodes with the driver; where connected sets cannot work, they are requested and not published."""
    bed.command("up", *(word for name, kind in NODES.items() for word in ("--node", f"{name}={kind}")))
    old = int(bed.parts.state.kubernetes.split(".")[1]) < 36
    settings = ("--set", "scheduler.enabled=true") if old else ()
    bed.command("up", "--driver", "daemonset", *settings, timeout_s=1200)
    for name, kind in NODES.items():
        eventually(f"devices of {name}", lambda name=name: devices(bed, name), 180)
        spec = catalogue.lookup(kind)
        assert spec is not None
        assert len(devices(bed, name)) == spec.device_count
        assert [each for each in slices(bed, name) if "sharedCounters" in each["spec"]] == []
    if old:
        assert all("1.36" in message for message in refusals(bed))
    return Namespace(bed, "default")


def refusals(bed: TestBed) -> list[str]:
    """Return the messages of the Event that each node gets, which say what is missing."""

    def found() -> list[str]:
        events = bed.get("events", "--all-namespaces", f"--field-selector=reason={EVENT}")
        named = {each["involvedObject"]["name"]: each["message"] for each in events["items"]}
        return list(named.values()) if named.keys() == NODES.keys() else []

    return eventually("an Event of each node about connected sets", found, 120)


def migrated(folder: Path, name: str, instance_type: str, count: int) -> str:
    """Return the manifests that `neuron-dra migrate` makes of a pod with a limit of the device plugin."""
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["bash", "-c", "trap 'exit 0' TERM; sleep 9999 & wait"],
        "resources": {"limits": {NEURON: str(count)}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "my-scheduler",
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {TYPE_LABEL: instance_type},
            "containers": [container],
        },
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(pod))
    words = [sys.executable, "-m", "neuron_dra.cli", "migrate", "--kubernetes", "1.34", "-o", "yaml", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout
