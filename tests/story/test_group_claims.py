"""The release of a claim that is reserved for a PodGroup: its pods are found by group and node. Issue 35."""

from __future__ import annotations

from neuron_dra.core.wire import Obj
from tests.story.controller_cluster import Cluster
from tests.story.test_ultraserver_controller import cluster, controlling  # noqa: F401
from tests.support.controller_timings import QUICK
from tests.support.timings import quicker
from tests.support.waiting import eventually

SOON = quicker(QUICK, pods={"suspect_s": 0.1, "longest_s": 0.2})


def claim_of_group(there: Cluster, name: str, group: str, node: str, workload: Obj) -> None:
    """Allocate a claim on a node, and reserve it for a PodGroup instead of a pod."""
    there.pod_with_claim(name, node, workload)
    holder = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": group, "uid": f"uid-{group}"}
    there.api.patch("resourceclaims", name, {"status": {"reservedFor": [holder]}}, "ml")
    there.api.patch("resourceclaims", name, {"metadata": {"ownerReferences": None}}, "ml")
    there.api.delete("pods", name, "ml", grace_s=0)


def pod_of_group(there: Cluster, name: str, group: str, node: str) -> None:
    claims = [{"name": "neuron", "resourceClaimTemplateName": "job"}]
    spec = {
        "nodeName": node,
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": claims,
        "schedulingGroup": {"podGroupName": group},
    }
    there.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ml"}, "spec": spec})
    there.api.patch("pods", name, {"status": {"phase": "Running"}}, "ml")


def pods(there: Cluster) -> set[str]:
    return {each["metadata"]["name"] for each in there.api.objects("pods")}


async def test_pods_of_a_group_are_evicted_and_the_node_is_freed(cluster: Cluster) -> None:  # noqa: F811
    async with controlling(cluster, timing=SOON):
        workload = cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        node, other = cluster.allocations()[0]["allocatedNodes"][:2]
        claim_of_group(cluster, "gang-claim", "gang", node, workload)
        for name in ("gang-0", "gang-1"):
            pod_of_group(cluster, name, "gang", node)
        pod_of_group(cluster, "elsewhere", "gang", other)
        pod_of_group(cluster, "stranger", "another", node)
        cluster.api.delete("neuronultraserverworkloads", "job", "ml")
        await eventually(lambda: pods(cluster) == {"elsewhere", "stranger"}, what="the group's pods there are evicted")
        text = "waiting for pods and claims on the nodes: PodGroup ml/gang (no pod of it is there: delete it)"
        await eventually(lambda: cluster.reason("job") == ("WaitingForPods", text), what="the group is named")
        cluster.api.delete("resourceclaims", "gang-claim", "ml")
        await eventually(lambda: cluster.state("job") == "None", what="the workload is released")
    assert cluster.tags() == set()
