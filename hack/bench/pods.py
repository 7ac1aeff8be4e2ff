"""Sixteen pods at once on one node of the test bed: from `apply` to Ready, with our driver and with the Go peer.

Two nodes of the same type in one cluster, the plugin on one and the peer on the other, each as a process and on a real
kubelet. Rounds alternate, so that both run under the same load.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from hack.bed import driver, images, layout
from hack.bed.deployed import DATA, SLOTS
from hack.bed.parts import Bed
from hack.bed.processes import wait_until
from hack.bench.table import Row, compared
from neuron_dra.core.wire import Obj

REPOSITORY = Path(__file__).resolve().parents[2]


NAMESPACE = "bench"
POLICY = "neuron-dra-driver-own-resourceslices"
ACCOUNT = "neuron-dra-driver:neuron-dra-driver-sa"
PODS = 16
NODES = {"ours": "bench-ours", "Go peer": "bench-peer"}
READY_WITHIN_S = 180.0


def measure(slice_file: Path, binary: Path, rounds: int) -> Row | None:
    """Start the test bed, measure, and end it; return None, with the reason on standard error, if it cannot run."""
    if os.geteuid() != 0:
        print("the pods are left out: the test bed needs root", file=sys.stderr)
        return None
    if Bed(layout.from_environment()).state.processes:
        print("the pods are left out: a test bed already runs (`make testbed-down` ends it)", file=sys.stderr)
        return None
    print("starting the test bed for the pods (a quarter of an hour the first time)", file=sys.stderr)
    wanted = [word for name in NODES.values() for word in ("--node", f"{name}=trn2.48xlarge")]
    testbed("up", *wanted, "--driver", "process")
    try:
        bed = Bed(layout.from_environment())
        put_peer(bed, slice_file, binary)
        bed.plane.kubectl("create", "namespace", NAMESPACE)
        apply(bed, [template()])
        times: dict[str, list[float]] = {who: [] for who in NODES}
        for number in range(rounds + 1):
            order = list(NODES) if number % 2 else list(reversed(NODES))
            for who in order:
                took = one_round(bed, NODES[who])
                print(f"{PODS} pods with {who}: {took:.2f} s", file=sys.stderr)
                if number:  # the first round is a warm-up
                    times[who].append(took)
    finally:
        testbed("down")
    ours, its = (statistics.median(times[who]) * 1000 for who in NODES)
    return compared(f"pods apply to Ready, {PODS} at once, {rounds} rounds", ours, "Go peer", its, 1.0)


def testbed(*words: str) -> None:
    """Run a command of the test bed."""
    subprocess.run([str(REPOSITORY / "hack/testbed/testbed"), *words], check=True, stdout=subprocess.DEVNULL)


def put_peer(bed: Bed, slice_file: Path, binary: Path) -> None:
    """Replace the plugin with the peer on its node, and wait until the peer's devices are published."""
    node = bed.node(NODES["Go peer"])
    name = driver.process_name(node.name)
    bed.processes.stop([name], grace_s=30)
    # The policy of our chart: a helper of this release generates names that do not begin with the node's.
    bed.plane.kubectl("delete", "validatingadmissionpolicybinding", POLICY)
    # The helper reads its Node with a GET. The plugin lists that one Node, so the chart's role has no GET.
    bed.plane.kubectl("create", "clusterrole", "bench-peer", "--verb=get", "--resource=nodes")
    granted = ("--clusterrole=bench-peer", f"--serviceaccount={ACCOUNT}")
    bed.plane.kubectl("create", "clusterrolebinding", "bench-peer", *granted)
    # The checkpoint's format has fields that the peer does not use.
    subprocess.run([*node.enter(), "rm", "-f", f"{DATA}/boot.json", *SLOTS], check=True)
    kubeconfig = node.directory / "plugin.kubeconfig"
    command: list[str | Path] = [binary, f"-kubeconfig={kubeconfig}", f"-node={node.name}", f"-slice={slice_file}"]
    bed.processes.start(name, [*node.enter(), *command])

    def published() -> bool:
        found = get(bed, "resourceslices")
        mine = [item for item in found if item["spec"].get("nodeName") == node.name]
        # The helper's slices have generated names; the plugin's are deleted when the helper takes over the pool.
        return len(mine) == 1 and not mine[0]["metadata"]["name"].endswith("-00")

    bed.processes.wait_ready(name, published, 60)


def template() -> Obj:
    """One device for each pod."""
    request = {"name": "neuron", "exactly": {"deviceClassName": "neuron.aws.com"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one", "namespace": NAMESPACE},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def pod(node: str, number: int) -> Obj:
    """A pod of a trivial container with one device of a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{node}-{number}", "namespace": NAMESPACE, "labels": {"on": node}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "resourceClaims": [{"name": "neuron", "resourceClaimTemplateName": "one"}],
            "containers": [
                {
                    "name": "main",
                    "image": images.TEST,
                    "command": ["sleep", "3600"],
                    "resources": {"claims": [{"name": "neuron"}]},
                }
            ],
        },
    }


def one_round(bed: Bed, node: str) -> float:
    """Start the pods, and return the seconds until the last one is Ready; then end them."""
    began = time.monotonic()
    apply(bed, [pod(node, number) for number in range(PODS)])
    words = ("wait", "pods", "--for=condition=Ready", f"--selector=on={node}", f"--timeout={READY_WITHIN_S:.0f}s")
    bed.plane.kubectl(*words, "--namespace", NAMESPACE, timeout_s=READY_WITHIN_S + 10)
    took = time.monotonic() - began
    bed.plane.kubectl("delete", "pods", "--namespace", NAMESPACE, f"--selector=on={node}", timeout_s=120)
    wait_until(f"the end of the pods on {node}", lambda: is_over(bed, node), 60, interval_s=0.2)
    return took


def is_over(bed: Bed, node: str) -> bool:
    """Return True if nothing is left of a round, also on the node: a device is freed before its container ends."""
    left = subprocess.run([*bed.node(node).enter(), "ls", "/var/run/cdi"], check=True, capture_output=True, text=True)
    return "claim_" not in left.stdout and not get(bed, "resourceclaims", "--namespace", NAMESPACE)


def apply(bed: Bed, items: list[Obj]) -> None:
    """Apply objects."""
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    bed.plane.kubectl("apply", "-f", "-", stdin=body, timeout_s=READY_WITHIN_S)


def get(bed: Bed, *words: str) -> list[Obj]:
    """Return the objects that kubectl finds."""
    found: list[Obj] = json.loads(bed.plane.kubectl("get", *words, "-o", "json"))["items"]
    return found
