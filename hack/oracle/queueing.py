"""Try what docs/queues.md says: `make night ONLY=kueue`.

etcd, API server, scheduler, controller manager and Kueue are real; the node and its slices are objects, and no kubelet
runs. Kueue gets the configuration and the queues of docs/queues.md. It needs root, and Go for the first build.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import yaml

from hack.bed import kueue, network
from hack.bed.errors import BedError
from hack.bed.processes import wait_until
from hack.bench import api as bench_api
from hack.oracle.limited import LABEL, NEURON, one, pod, sets
from hack.oracle.quotas import PAUSE_S, WAIT_S, Place, claim, of_class, tried
from hack.oracle.study import Options
from neuron_dra.core.wire import Obj

PAGE: Final = bench_api.REPOSITORY / "docs" / "queues.md"
QUEUE: Final = {"kueue.x-k8s.io/queue-name": "neuron"}
SETS_OF_FOUR: Final = "neuron.aws.com/connected-4"


def of_the_page(*kinds: str) -> list[Obj]:
    """Return the objects of these kinds in docs/queues.md; those for UltraServers have tests of their own."""
    about_pods, _, _ = PAGE.read_text().partition("\n## Kueue for UltraServers\n")
    blocks = re.findall(r"^```yaml\n(.*?)^```", about_pods, re.MULTILINE | re.DOTALL)
    found = [item for block in blocks for item in yaml.safe_load_all(block)]
    return [item for item in found if item["kind"] in kinds]


def job(spec: Obj, **fields: Any) -> Obj:
    """Return a Job in the queue with pods of this spec."""
    meta = {"name": "j", "labels": QUEUE}
    template = {"template": {"spec": {**spec, "restartPolicy": "Never"}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {**template, **fields}}


def limited(limits: Obj, **fields: Any) -> Obj:
    return job(pod(one({"cpu": "100m", **limits}))["spec"], **fields)


def claiming(**source: str) -> Obj:
    """Return a Job whose pod has a claim."""
    container = {"name": "a", "image": "example.com/image", "resources": {"claims": [{"name": "devices"}]}}
    return job({"containers": [container], "resourceClaims": [{"name": "devices", **source}]})


class Queue(Place):
    """A namespace with a LocalQueue; all of them use the one ClusterQueue, which each case leaves empty."""

    def begin(self) -> None:
        """Create the namespace and its LocalQueue."""
        super().begin()
        for item in of_the_page("LocalQueue"):
            self.create({**item, "metadata": {"name": item["metadata"]["name"]}})

    def template(self, item: Obj, *constraints: Obj) -> None:
        """Create the claim's template, of the same name."""
        spec = {**item["spec"], "devices": {**item["spec"]["devices"], "constraints": list(constraints)}}
        self.create({**item, "kind": "ResourceClaimTemplate", "spec": {"spec": spec}})

    def pods(self) -> list[Obj]:
        return list(self.get("pods")["items"])

    def runs(self) -> Obj:
        """Wait until one pod has a node; return it."""
        return wait_until(
            "a pod has a node", lambda: [p for p in self.pods() if p["spec"].get("nodeName")], WAIT_S, PAUSE_S
        )[0]

    def devices(self) -> str:
        """Return the devices of the namespace's allocated claims."""
        claims = [each.get("status", {}).get("allocation") for each in self.get("resourceclaims")["items"]]
        return " ".join(result["device"] for each in claims if each for result in each["devices"]["results"])

    def finish(self) -> None:
        """Report the pods as succeeded, as their kubelet would, and wait until the queue is empty."""
        for each in self.pods():
            words = ("pod", each["metadata"]["name"], "--subresource=status", "--type=merge")
            self.kubectl("patch", *words, "-p", '{"status":{"phase":"Succeeded"}}')
        self.reserves(NEURON, "0")
        self.reserves(SETS_OF_FOUR, "0")

    def reserved(self, resource: str) -> str:
        """Return how much of a resource the queue has reserved."""
        status = self.get("clusterqueues.kueue.x-k8s.io", "neuron").get("status", {})
        listed = [each for flavor in status.get("flavorsReservation") or () for each in flavor["resources"]]
        return next((str(each.get("total", "0")) for each in listed if each["name"] == resource), "0")

    def reserves(self, resource: str, amount: str) -> None:
        wait_until(f"{amount} of {resource} reserved", lambda: self.reserved(resource) == amount, WAIT_S, PAUSE_S)

    def messages(self) -> str:
        """Return what Kueue reports about workloads that have no quota."""
        items = self.get("workloads.kueue.x-k8s.io")["items"]
        conditions = [each for item in items for each in item.get("status", {}).get("conditions", ())]
        return "; ".join(
            each["message"] for each in conditions if each["type"] == "QuotaReserved" and each["status"] == "False"
        )

    def waits(self, text: str) -> None:
        """Wait until Kueue reports that the Job waits for this reason; it then has no pods."""
        try:
            wait_until(f"Kueue reports {text!r}", lambda: text in self.messages(), WAIT_S, PAUSE_S)
        except BedError as err:
            raise AssertionError(f"{err}; it reports {self.messages()!r}") from err
        assert self.get("job", "j")["spec"]["suspend"], "the Job is not suspended"
        assert not self.get("pods", "-l", "batch.kubernetes.io/job-name=j")["items"], "it has pods"
        self.kubectl("delete", "job", "j")


def page_job_gets_a_set(queue: Queue) -> None:
    [example] = of_the_page("Job")
    queue.create(example)
    queue.runs()
    wait_until("it has devices", queue.devices, WAIT_S, PAUSE_S)
    assert queue.devices().startswith("neuron-set-4-"), queue.devices()
    queue.reserves(NEURON, "4")
    queue.create(limited({sets(8): "1"}))
    queue.waits(f"insufficient unused quota for {NEURON}")
    queue.finish()


def more_than_the_quota_waits(queue: Queue) -> None:
    queue.create(limited({sets(12): "1"}))
    queue.waits(f"insufficient quota for {NEURON}")


def each_pod_counts(queue: Queue) -> None:
    queue.create(limited({sets(4): "1"}, parallelism=3, completions=3))
    queue.waits(f"insufficient quota for {NEURON}")


def other_names_wait(queue: Queue) -> None:
    queue.create(limited({sets(3): "1"}))
    queue.waits(f"resource {sets(3)} unavailable in ClusterQueue")


def old_limits_count_before_they_are_rewritten(queue: Queue) -> None:
    queue.kubectl("label", "namespace", queue.namespace, f"{LABEL}=true")
    wait_until(
        "the policy rewrites",
        lambda: (
            sets(2)
            in queue.kubectl(
                "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(pod(one({NEURON: "2"})))
            )
        ),
        WAIT_S,
        PAUSE_S,
    )
    queue.create(limited({NEURON: "2"}))
    limits = queue.runs()["spec"]["containers"][0]["resources"]["limits"]
    assert sets(2) in limits, limits
    assert NEURON not in limits, limits
    queue.reserves(NEURON, "2")
    queue.finish()


def pods_are_queued(queue: Queue) -> None:
    item = pod(one({"cpu": "100m", sets(2): "1"}))
    item["metadata"]["labels"] = QUEUE
    queue.create(item)
    queue.runs()
    queue.reserves(NEURON, "2")
    queue.finish()


def claims_count_by_class(queue: Queue) -> None:
    queue.template(of_class("connected-4.neuron.aws.com"))
    queue.create(claiming(resourceClaimTemplateName="c"))
    queue.runs()
    queue.reserves(SETS_OF_FOUR, "1")
    assert queue.reserved(NEURON) == "0"
    queue.finish()


def constraints_are_ignored(queue: Queue) -> None:
    same = {"requests": ["r"], "matchAttribute": "neuron.aws.com/instanceType"}
    queue.template(of_class("neuron.aws.com", count=2), same)
    queue.create(claiming(resourceClaimTemplateName="c"))
    queue.runs()
    queue.reserves(NEURON, "2")
    queue.finish()


def all_waits(queue: Queue) -> None:
    queue.template(of_class("neuron.aws.com", allocationMode="All"))
    queue.create(claiming(resourceClaimTemplateName="c"))
    queue.waits("AllocationMode 'All' is not supported")


def alternatives_wait(queue: Queue) -> None:
    listed = [
        {"name": f"s{n}", "deviceClassName": each}
        for n, each in enumerate(("connected-4.neuron.aws.com", "neuron.aws.com"))
    ]
    queue.template(claim(firstAvailable=listed))
    queue.create(claiming(resourceClaimTemplateName="c"))
    queue.waits("FirstAvailable device selection is not supported")


def other_classes_wait(queue: Queue) -> None:
    queue.template(of_class("connected-3.neuron.aws.com"))
    queue.create(claiming(resourceClaimTemplateName="c"))
    queue.waits("DeviceClass connected-3.neuron.aws.com is not mapped")


def existing_claims_wait(queue: Queue) -> None:
    queue.create(of_class("connected-4.neuron.aws.com"))
    queue.create(claiming(resourceClaimName="c"))
    queue.waits("does not support use of resource claims")


CASES: Final[tuple[Callable[[Queue], None], ...]] = (
    page_job_gets_a_set,
    more_than_the_quota_waits,
    each_pod_counts,
    other_names_wait,
    old_limits_count_before_they_are_rewritten,
    pods_are_queued,
    claims_count_by_class,
    constraints_are_ignored,
    all_waits,
    alternatives_wait,
    other_classes_wait,
    existing_claims_wait,
)


def study(options: Options) -> int:
    """Run the cases with Kueue and the queues of the page."""
    return tried(options, Queue, CASES, with_kueue)


def with_kueue(plane: bench_api.Plane) -> None:
    """Start Kueue with the page's configuration, and create its queues."""
    [configuration] = of_the_page("Configuration")
    options = kueue.Options(
        health=network.free_port(),
        webhooks=network.free_port(),
        resources=configuration["resources"],
        frameworks=("batch/job", "pod"),
    )
    kueue.up(plane, options)
    whole = Queue(plane, "default")
    for item in of_the_page("ResourceFlavor", "ClusterQueue"):
        whole.create(item)
