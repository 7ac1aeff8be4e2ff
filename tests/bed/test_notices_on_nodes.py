"""Programs on real kubelets find out why their pod ends, save their state, and exit. Issue 36, number 4."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest

from hack.bed.images import TEST
from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from neuron_dra.core import names, notice
from neuron_dra.core.capacity_block import ANNOTATION
from neuron_dra.core.wire import Obj
from tests.bed.fleet import TRN3, condition, slots, submit, wait_reason, workload

FOLDER = f"/var/run/cdi/{notice.FOLDER}"
KEPT = "testbed.local/kept"  # a finalizer: an evicted pod can be read until the test ends it
MONITOR = "monitor"

# It trains until it is told to end, or until SIGTERM; what it read is in the pod's status.
TRAINS = """
read_notice() { cat "$NEURON_DRA_NOTICE_FILE" 2>/dev/null || echo none; }
ended() { echo "SIGTERM $(read_notice)" > /dev/termination-log; exit 0; }
trap ended TERM
while [ ! -e "$NEURON_DRA_NOTICE_FILE" ]; do sleep 0.1 & wait $!; done
echo "checkpoint $(read_notice)" > /dev/termination-log
case "$(read_notice)" in *CapacityBlockEnds*) exit 0;; esac
while true; do sleep 0.1 & wait $!; done
"""


def trainer(name: str, template: str, *more: str) -> Obj:
    """A pod of a workload, with a read-only root file system and a user of its own, and perhaps with other claims."""
    templates = {"neuron": template, **{each: each for each in more}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "finalizers": [KEPT]},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "containers": [
                {
                    "name": "main",
                    "image": TEST,
                    "command": ["bash", "-c", TRAINS],
                    "resources": {"claims": [{"name": each} for each in templates]},
                    "securityContext": {"readOnlyRootFilesystem": True, "runAsUser": 1000, "runAsGroup": 1000},
                }
            ],
            "resourceClaims": [{"name": each, "resourceClaimTemplateName": of} for each, of in templates.items()],
        },
    }


def monitor() -> Obj:
    """A template for a claim that watches a reserved node, and holds nothing."""
    exactly = {"deviceClassName": names.WORKLOAD_CLASS, "adminAccess": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": MONITOR},
        "spec": {"spec": {"devices": {"requests": [{"name": "watched", "exactly": exactly}]}}},
    }


def said(place: Namespace, name: str) -> str:
    """Return what a pod's program wrote when it ended; empty before."""
    statuses = place.get("pod", name).get("status", {}).get("containerStatuses") or [{}]
    return str(statuses[0].get("state", {}).get("terminated", {}).get("message") or "").strip()


def read(place: Namespace, name: str, word: str) -> dict[str, Any]:
    """Wait for the end of a pod's program, and return the notice that it read."""
    text = eventually(f"{name} ends", lambda: said(place, name), 120)
    assert text.startswith(f"{word} "), text
    return dict(json.loads(text.removeprefix(f"{word} ")))


@pytest.fixture
def kept(place: Namespace) -> Iterator[Namespace]:
    """A namespace whose pods stay until the test is over, also if they are evicted."""
    yield place
    for item in place.get("pods")["items"]:
        patch = json.dumps({"metadata": {"finalizers": None}})
        place.kubectl("patch", "pod", item["metadata"]["name"], "--type=merge", "--patch", patch)
    place.kubectl("delete", "pods", "--all", "--timeout=120s", timeout_s=130)


@pytest.fixture
def ends(fleet: TestBed) -> Iterator[Any]:
    """Returns a function that lets EC2 take nodes back in so many minutes; afterwards no block ends."""
    annotated: list[str] = []

    def end(minutes: float, *nodes: str) -> str:
        moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=minutes)
        text = (moment + datetime.timedelta(minutes=60)).strftime("%Y-%m-%dT%H:%M:%SZ")
        annotated.extend(nodes)
        fleet.kubectl("annotate", "--overwrite", "node", *nodes, f"{ANNOTATION}={text}")
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    yield end
    if annotated:
        fleet.kubectl("annotate", "node", *dict.fromkeys(annotated), f"{ANNOTATION}-")


def held(fleet: TestBed, name: str) -> list[str]:
    return [node for members in slots(fleet)[name].values() for node in members]


def test_program_saves_its_state_three_minutes_before_the_end(fleet: TestBed, kept: Namespace, ends: Any) -> None:
    submit(kept, workload("ending", 1, 1))
    kept.apply(trainer("ending", "ending"))
    kept.wait_ready("ending")
    [node] = held(fleet, "ending")
    assert "NEURON_DRA_NOTICE_FILE=/neuron-dra/notice.json" in kept.exec("ending", "env").split()
    assert (
        kept.exec("ending", "bash", "-c", "touch /neuron-dra/x 2>&1 || true").strip().endswith("Read-only file system")
    )
    moment = ends(3, node)
    assert read(kept, "ending", "checkpoint") == {"reason": "CapacityBlockEnds", "time": moment}
    assert moment in wait_reason(kept, "ending", "CapacityBlockEnds", "EndsSoon")
    eventually("the pod succeeds", lambda: kept.get("pod", "ending")["status"]["phase"] == "Succeeded", 60)


def test_program_in_a_user_namespace_reads_the_notice(fleet: TestBed, kept: Namespace, ends: Any) -> None:
    submit(kept, workload("mapped", 1, 1))
    wanted = trainer("mapped", "mapped")
    wanted["spec"]["hostUsers"] = False
    kept.apply(wanted)
    kept.wait_ready("mapped")
    assert kept.exec("mapped", "cat", "/proc/self/uid_map").split()[1] != "0"
    moment = ends(3, *held(fleet, "mapped"))
    assert read(kept, "mapped", "checkpoint") == {"reason": "CapacityBlockEnds", "time": moment}


def test_extension_takes_the_file_away(fleet: TestBed, kept: Namespace, ends: Any) -> None:
    submit(kept, workload("extended", 1, 1))
    wanted = trainer("extended", "extended")
    wanted["spec"]["containers"][0]["command"] = ["bash", "-c", "sleep infinity"]
    kept.apply(wanted)
    kept.wait_ready("extended")
    [node] = held(fleet, "extended")

    def file() -> str:
        return kept.exec("extended", "bash", "-c", "cat /neuron-dra/notice.json 2>/dev/null || true").strip()

    for minutes in (3.0, 9.0):
        moment = ends(minutes, node)
        eventually("the notice", lambda moment=moment: moment in file(), 60)
    ends(600, node)
    eventually("no notice", lambda: file() == "", 60)
    assert condition(kept.get("nusw", "extended"), "EndsSoon")[0] == "CapacityBlock"


def test_group_that_moves_is_told_before_sigterm(fleet: TestBed, kept: Namespace) -> None:
    """A cordoned node: its pod reads why it ends; the folder goes with its claim. One container has two claims."""
    fleet.kubectl("label", "namespace", kept.name, "resource.kubernetes.io/admin-access=true")
    kept.apply(monitor())
    made = workload("moving", 1, 1, strategy="MigrateAffected")
    made["spec"]["allocationPolicy"]["onCordon"] = "Migrate"
    submit(kept, made)
    kept.apply(trainer("moving", "moving", MONITOR))
    kept.wait_ready("moving")
    [node] = held(fleet, "moving")
    before = BedNode(fleet, node, TRN3).run("ls", FOLDER).split()
    fleet.kubectl("cordon", node)
    try:
        found = read(kept, "moving", "SIGTERM")
        eventually("the group moved", lambda: held(fleet, "moving") not in ([], [node]), 120)
    finally:
        fleet.kubectl("uncordon", node)
    assert (found["reason"], sorted(found)) == ("Migrating", ["reason", "time"])
    assert len(before) == 1
    eventually("the folder is removed", lambda: not BedNode(fleet, node, TRN3).run("ls", FOLDER).split(), 120)


def test_pods_of_a_deleted_workload_are_told(fleet: TestBed, kept: Namespace) -> None:
    submit(kept, workload("deleted", 1, 1))
    kept.apply(trainer("deleted", "deleted"))
    kept.wait_ready("deleted")
    kept.kubectl("delete", "nusw", "deleted", "--wait=false")
    assert read(kept, "deleted", "SIGTERM")["reason"] == "Releasing"
