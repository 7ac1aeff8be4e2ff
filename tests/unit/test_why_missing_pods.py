"""`why workload` says which pods of an Allocated workload are missing (4.09)."""

from __future__ import annotations

import copy

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.render.findings import Report
from neuron_dra.ask.why import answer
from neuron_dra.ask.world import imagined
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

TEMPLATE = "job-rct"


def cluster(*used: str, waiting: int = 0) -> list[Obj]:
    """A workload with the four nodes of an UltraServer, and pods on some of them."""
    items: list[Obj] = [dict(item) for item in imagined.fleet("1 x ultraserver trn2u.48xlarge", "test")]
    for name in used:
        items += small.running(items, f"pod-{name}", 1, name, namespace="ml")
    slices = [item for item in items if item["kind"] == "ResourceSlice"]
    items = [item for item in items if item["kind"] != "ResourceSlice"] + small.reserved(slices, "job")
    for number in range(waiting):
        pod = small.pod(f"waits-{number}", TEMPLATE, namespace="ml")
        items.append(pod)
    workload = {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": "job", "namespace": "ml"},
        "spec": {
            "instanceType": "trn2u.48xlarge",
            "topologySize": 4,
            "serverCount": 1,
            "resourceClaimTemplate": {"name": TEMPLATE},
        },
        "status": {"state": "Allocated", "conditions": [{"type": "Ready", "status": "True", "reason": "Allocated"}]},
    }
    return [*items, workload]


def why(items: list[Obj]) -> Report:
    world = World(snapshot.build(copy.deepcopy(items)))
    workload = world.snapshot.get("NeuronUltraServerWorkload", "job", "ml")
    assert workload is not None
    return answer.REPORTS["NeuronUltraServerWorkload"](world, workload)


def test_missing_pods_are_counted_with_their_nodes() -> None:
    [finding] = why(cluster("trn2u-0", "trn2u-1")).findings
    assert finding.code == "PodsMissing"
    assert finding.text == "2 of its 4 pods are missing: no pod is on trn2u-2, trn2u-3"
    [(label, to_do)] = finding.facts
    assert (label, to_do[:39]) == ("to do", "create the pods again if they are bare,")


def test_pods_that_wait_are_not_missing() -> None:
    [finding] = why(cluster("trn2u-0", "trn2u-1", "trn2u-2", waiting=1)).findings
    assert finding.text == "1 pod of it wait for a node: no pod is on trn2u-3"
    assert finding.facts == (("to do", "neuron-dra why pod/waits-0 -n ml"),)


def test_workload_whose_pods_did_not_start_yet_is_fine() -> None:
    report = why(cluster())
    assert (report.fine, report.findings) == (True, ())
    assert report.notes == ("no pod uses its 4 nodes yet: pods get them with resourceClaimTemplateName: job-rct",)


def test_workload_with_all_pods_is_fine() -> None:
    report = why(cluster("trn2u-0", "trn2u-1", "trn2u-2", "trn2u-3"))
    assert (report.fine, report.state, report.notes) == (True, "is Allocated", ())
