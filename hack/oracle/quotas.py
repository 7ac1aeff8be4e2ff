"""Try what docs/connected-sets.md says about quotas: `make night ONLY=quotas`.

etcd, API server, scheduler and controller manager are real; the node and its slices are objects, and no kubelet runs.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from hack.bed import build
from hack.bed.errors import BedError
from hack.bed.processes import wait_until
from hack.bench import api as bench_api
from hack.bench import sets as bench_sets
from hack.oracle.limited import LABEL, NEURON, one, pod, sets
from hack.oracle.study import Options
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import from_kubeconfig

POLICIES: Final = bench_api.REPOSITORY / "deploy/manifests/connected-sets/35-limits-policies.yaml"
WAIT_S: Final = 300.0
PAUSE_S: Final = 0.5


def devices(device_class: str) -> str:
    """Return the name of the quota on the devices of a class."""
    return f"{device_class}.deviceclass.resource.k8s.io/devices"


def claim(**request: Any) -> Obj:
    spec = {"devices": {"requests": [{"name": "r", **request}]}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec}


def of_class(name: str, **fields: Any) -> Obj:
    return claim(exactly={"deviceClassName": name, **fields})


class Place:
    """A namespace with a quota."""

    def __init__(self, plane: bench_api.Plane, namespace: str) -> None:
        self._plane = plane
        self.namespace = namespace

    def begin(self) -> None:
        """Create the namespace."""
        self._plane.kubectl("create", "namespace", self.namespace)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self._plane.kubectl(*words, "--namespace", self.namespace, stdin=stdin)

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def create(self, item: Obj, *options: str) -> None:
        self.kubectl("create", *options, "-f", "-", stdin=json.dumps(item))

    def quota(self, resource: str, most: int) -> None:
        """Create a quota, and wait until Kubernetes has set its usage."""
        spec = {"hard": {resource: str(most)}}
        self.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": spec})
        wait_until("the quota counts", lambda: self.get("resourcequota", "q")["status"].get("hard"), WAIT_S, PAUSE_S)

    def rejection(self, item: Obj) -> str:
        """Return the message with which a dry run is rejected; empty if it is accepted."""
        try:
            self.create(item, "--dry-run=server")
        except BedError as err:
            return str(err)
        return ""

    def rejects(self, item: Obj, text: str) -> None:
        """Wait until the API server rejects a dry run with this text."""
        wait_until(f"rejected with {text!r}", lambda: text in self.rejection(item), WAIT_S, PAUSE_S)

    def starts(self, item: Obj) -> None:
        """Create a pod, and wait until it has a node and its claim is allocated."""
        self.create(item)

        def placed() -> bool:
            found = self.get("pod", item["metadata"]["name"])
            name = found["status"].get("extendedResourceClaimStatus", {}).get("resourceClaimName")
            return bool(
                name and found["spec"].get("nodeName") and self.get("resourceclaim", name)["status"]["allocation"]
            )

        wait_until("the pod has devices", placed, WAIT_S, PAUSE_S)


def name_counts_pods(place: Place) -> None:
    """The claim that the scheduler creates for a pod does not count a second time."""
    place.quota(f"requests.{sets(2)}", 1)
    place.starts(pod(one({sets(2): "1"})))
    place.rejects(
        pod(one({sets(2): "1"})), f"exceeded quota: q, requested: requests.{sets(2)}=1, used: requests.{sets(2)}=1"
    )
    assert not place.rejection(of_class("connected-3.neuron.aws.com")), "the quota counts another size"


def name_counts_claims(place: Place) -> None:
    place.quota(f"requests.{sets(2)}", 0)
    place.rejects(of_class("connected-2.neuron.aws.com"), f"exceeded quota: q, requested: requests.{sets(2)}=1")


def class_counts_pods_and_claims(place: Place) -> None:
    resource = devices("connected-2.neuron.aws.com")
    place.quota(resource, 1)
    place.starts(pod(one({sets(2): "1"})))
    place.rejects(
        of_class("connected-2.neuron.aws.com"), f"exceeded quota: q, requested: {resource}=1, used: {resource}=1"
    )


def class_lets_pods_wait(place: Place) -> None:
    """The pod is created; the claim that the scheduler creates for it is rejected."""
    place.quota(devices("connected-2.neuron.aws.com"), 0)
    place.create(pod(one({sets(2): "1"})))

    def waits() -> bool:
        conditions = place.get("pod", "p")["status"].get("conditions", ())
        return any("exceeded quota: q" in each.get("message", "") for each in conditions)

    wait_until("the pod's condition names the quota", waits, WAIT_S, PAUSE_S)


def all_counts_as_32(place: Place) -> None:
    place.quota(devices("neuron.aws.com"), 31)
    place.rejects(of_class("neuron.aws.com", allocationMode="All"), f"requested: {devices('neuron.aws.com')}=32")


def each_alternative_counts(place: Place) -> None:
    place.quota(devices("connected-4.neuron.aws.com"), 0)
    listed = [{"name": f"s{n}", "deviceClassName": f"connected-{n}.neuron.aws.com"} for n in (2, 4)]
    place.rejects(claim(firstAvailable=listed), f"requested: {devices('connected-4.neuron.aws.com')}=1")


def old_name_counts_until_pods_are_rewritten(place: Place) -> None:
    place.quota(f"requests.{NEURON}", 1)
    place.rejects(pod(one({NEURON: "2"})), f"exceeded quota: q, requested: requests.{NEURON}=2")
    place.kubectl("label", "namespace", place.namespace, f"{LABEL}=true")
    wait_until("the pod is accepted", lambda: not place.rejection(pod(one({NEURON: "2"}))), WAIT_S, PAUSE_S)


P = TypeVar("P", bound=Place)

CASES: Final[tuple[Callable[[Place], None], ...]] = (
    name_counts_pods,
    name_counts_claims,
    class_counts_pods_and_claims,
    class_lets_pods_wait,
    all_counts_as_32,
    each_alternative_counts,
    old_name_counts_until_pods_are_rewritten,
)


async def prepare(plane: bench_api.Plane) -> None:
    """Create the DeviceClasses and one node with its slices."""
    async with KubeClient(from_kubeconfig(plane.layout.kubeconfig), user_agent="neuron-dra-bench") as client:
        bench = bench_sets.Bench(client, plane)
        await bench.classes()
        await bench.node("inf2", with_sets=True)


def run(plane: bench_api.Plane, kind: type[P], cases: Sequence[Callable[[P], None]]) -> int:
    """Run the cases, each in a namespace of its own, and print the results; return how many failed."""
    failed = 0
    for case in cases:
        place = kind(plane, case.__name__.replace("_", "-"))
        try:
            place.begin()
            case(place)
        except (AssertionError, BedError, subprocess.TimeoutExpired) as err:
            failed += 1
            print(f"FAILED {case.__name__}: {err}", flush=True)
        else:
            print(f"ok {case.__name__}", flush=True)
    return failed


def tried(
    options: Options, kind: type[P], cases: Sequence[Callable[[P], None]], set_up: Callable[[bench_api.Plane], None]
) -> int:
    """Run the cases on a control plane with the policies, each in a namespace; return 1 if one fails."""
    with bench_api.running(options.kubernetes, with_scheduler=True) as plane:
        asyncio.run(prepare(plane))
        plane.kubectl("apply", "-f", str(POLICIES))
        set_up(plane)
        failed = run(plane, kind, cases)
        version = build.KUBERNETES[plane.state.kubernetes]
    print(f"{failed} of {len(cases)} failed" if failed else f"{len(cases)} passed, Kubernetes {version}")
    return 1 if failed else 0


def study(options: Options) -> int:
    """Run the cases about quotas."""
    return tried(options, Place, CASES, lambda _: None)
