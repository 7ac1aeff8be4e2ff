"""32.7 on a real cluster: the pod of the scheduler extension's document, unchanged, where nothing is rewritten."""

from __future__ import annotations

import re

import pytest

from hack.bed.deployed import neurons
from hack.bed.real_cluster import Namespace, TestBed, eventually
from tests.bed.deployed import environment, events
from tests.bed.limited import ended, waits

DOCUMENT = """\
apiVersion: v1
kind: Pod
metadata:
  name: <POD_NAME>
spec:
  restartPolicy: Never
  schedulerName: my-scheduler
  containers:
    - name: <POD_NAME>
      command: ["<COMMAND>"]
      image: <IMAGE_NAME>
      resources:
        limits:
          cpu: "4"
          memory: 4Gi
          aws.amazon.com/neuroncore: 9
        requests:
          cpu: "1"
          memory: 1Gi
"""
COMMAND = '"bash", "-c", "sleep infinity"'
LABEL = re.compile(r"kubectl (label namespace \S+ neuron\.aws\.com/rewrite-limits=true);")


def document(name: str, scheduler: str = "my-scheduler") -> str:
    text = DOCUMENT.replace("<POD_NAME>", name).replace('"<COMMAND>"', COMMAND)
    return text.replace("<IMAGE_NAME>", "testbed.local/quick:1").replace("my-scheduler", scheduler)


@pytest.fixture
def unlabelled(sets_place: Namespace) -> Namespace:
    sets_place.bed.kubectl("label", "namespace", sets_place.name, "neuron.aws.com/rewrite-limits-")
    return sets_place


def event(place: Namespace, name: str, reason: str) -> str:
    [message] = eventually(f"the Event {reason} on {name}", lambda: events(place, name, reason), 120)
    return message


@pytest.mark.long
def test_the_document_s_pod_is_answered_and_runs_after_the_named_command(
    unlabelled: Namespace, sets_bed: TestBed
) -> None:
    place = unlabelled
    place.apply(document("nrt-test-5038"))
    place.apply(document("by-default", "default-scheduler"))
    missing = event(place, "nrt-test-5038", "NeuronSchedulerMissing")
    assert missing.startswith("no scheduler named my-scheduler has handled this pod, or another one, for 30 s.")
    old = event(place, "by-default", "NeuronOldLimits")
    assert old.startswith("no node has aws.amazon.com/neuroncore to allocate")
    assert waits(place, "by-default")

    command = LABEL.search(missing)
    assert command is not None, missing
    assert command[1] in old
    ended(place, "nrt-test-5038", "by-default")
    sets_bed.kubectl(*command[1].split())
    place.apply(document("nrt-test-5038"))
    place.wait_ready("nrt-test-5038")
    assert len(neurons(place, "nrt-test-5038")) == 5
    assert environment(place, "nrt-test-5038")["NEURON_RT_VISIBLE_CORES"] == "0-8"
    assert not events(place, "nrt-test-5038", "NeuronNumberNotServed")
    ended(place, "nrt-test-5038")
