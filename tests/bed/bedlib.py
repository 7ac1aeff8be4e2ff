"""The test bed as tests use it: `testbed` commands, kubectl, and waits with a limit. No pytest in here."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

ROOT = Path(__file__).resolve().parents[2]
TESTBED = ROOT / "hack/testbed/testbed"
NAMESPACE = "neuron-dra-driver"
DAEMONSET = "neuron-dra-driver-kubelet-plugin"
IMAGE = "public.ecr.aws/ubuntu/ubuntu:22.04"  # the test bed's own, under the name that the documents use
CHECKPOINT = "/var/lib/kubelet/plugins/neuron.aws.com/checkpoint.json"

Object = dict[str, Any]
T = TypeVar("T")


class Bed:
    """A test bed that is up."""

    def up(self, *nodes: str, driver: str = "daemonset") -> None:
        """Start what is missing; `nodes` are the arguments that name them."""
        self._testbed("up", *nodes, "--driver", driver, timeout_s=600)

    def break_(self, node: str, what: str, *argument: str) -> None:
        """Make something fail."""
        self._testbed("break", node, what, *argument, timeout_s=120)

    def repair(self, node: str, what: str, *argument: str) -> None:
        """Undo it."""
        self._testbed("repair", node, what, *argument, timeout_s=120)

    def _testbed(self, *words: str, timeout_s: float) -> None:
        done = subprocess.run([TESTBED, *words], capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, f"testbed {' '.join(words)}:\n{done.stdout}{done.stderr}"

    def run(
        self, *words: str, node: str = "", stdin: str = "", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside the test bed's network, and inside a node if one is named."""
        command = [str(TESTBED), "exec", *(["--node", node] if node else []), "--", *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)

    def start(self, *words: str, node: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a program inside a node; the caller ends it."""
        with log.open("wb") as out:
            return subprocess.Popen([TESTBED, "exec", "--node", node, "--", *words], stdout=out, stderr=out)

    def on(self, node: str, *words: str) -> str:
        """Return what a command prints inside a node."""
        done = self.run(*words, node=node)
        assert done.returncode == 0, f"{' '.join(words)} on {node}: {done.stderr}"
        return done.stdout

    def kubectl(self, *words: str, stdin: str = "", timeout_s: float = 60) -> str:
        """Return what kubectl prints."""
        done = self.run("kubectl", *words, stdin=stdin, timeout_s=timeout_s)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def refused(self, *words: str, stdin: str = "") -> str:
        """Return why kubectl was refused."""
        done = self.run("kubectl", *words, stdin=stdin)
        assert done.returncode != 0, f"kubectl {' '.join(words)} was accepted: {done.stdout}"
        return done.stderr

    def get(self, kind: str, name: str = "", namespace: str = "") -> Any:
        """Return an object, or the objects of a kind; None or [] if there are none."""
        where = ["--namespace", namespace] if namespace else []
        text = self.kubectl("get", kind, *([name] if name else []), *where, "--ignore-not-found", "-o", "json")
        if name:
            return json.loads(text) if text else None
        return json.loads(text)["items"] if text else []

    def slices(self, node: str, driver: str = "neuron.aws.com") -> list[Object]:
        """Return the ResourceSlices of a node."""
        return [
            s for s in self.get("resourceslices") if (s["spec"].get("nodeName"), s["spec"]["driver"]) == (node, driver)
        ]

    def devices(self, node: str) -> list[Object]:
        """Return the published Neuron devices of a node."""
        return [device for item in self.slices(node) for device in item["spec"].get("devices") or []]

    def plugin_pod(self, node: str) -> Object:
        """Return the ready driver pod of a node."""
        ready = [
            pod
            for pod in self.get("pods", namespace=NAMESPACE)
            if pod["spec"].get("nodeName") == node and is_ready(pod) and "deletionTimestamp" not in pod["metadata"]
        ]
        assert ready, f"no driver pod is ready on {node}"
        return max(ready, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def prepared(self, node: str) -> set[str]:
        """Return the UIDs of the claims in a node's checkpoint."""
        return set(json.loads(self.on(node, "cat", CHECKPOINT))["claims"])

    def cdi_claims(self, node: str) -> set[str]:
        """Return the UIDs of the claims that have a CDI file on a node."""
        names = self.on(node, "ls", "/var/run/cdi").split()
        return {m[1] for name in names if (m := re.fullmatch(r"k8s\.neuron\.aws\.com-claim_(.*)\.json", name))}


@dataclass(frozen=True)
class Place:
    """A namespace of one test."""

    bed: Bed
    name: str

    def apply(self, *documents: Object | str) -> None:
        """Create objects, given as dicts or as YAML."""
        texts = [d if isinstance(d, str) else yaml.safe_dump(d) for d in documents]
        self.bed.kubectl("create", "--namespace", self.name, "-f", "-", stdin="\n---\n".join(texts))

    def pod(self, name: str) -> Object | None:
        """Return a pod of this namespace."""
        found: Object | None = self.bed.get("pod", name, self.name)
        return found

    def running(self, name: str, timeout_s: float = 60) -> Object:
        """Wait until a pod runs and is ready, and return it."""

        def ready() -> Object | None:
            pod = self.pod(name)
            return pod if pod and is_ready(pod) else None

        return until(ready, timeout_s, lambda: f"pod {name} does not run: {self.events(name)}")

    def stays_pending(self, name: str, seconds: float = 4) -> str:
        """Check that the scheduler has refused a pod, and that it waits; return the scheduler's words."""
        words = until(
            lambda: [e for e in self.events(name) if e.startswith("FailedScheduling")],
            30,
            lambda: f"the scheduler says nothing about pod {name}: {self.events(name)}",
        )
        time.sleep(seconds)
        pod = self.pod(name)
        assert pod is not None
        assert pod["status"]["phase"] == "Pending"
        assert "nodeName" not in pod["spec"]
        return words[-1]

    def refusal(self, name: str, timeout_s: float = 60) -> str:
        """Wait until the kubelet says that a pod's resources could not be prepared, and return its words."""
        words = until(
            lambda: [e for e in self.events(name) if e.startswith("FailedPrepareDynamicResources")],
            timeout_s,
            lambda: f"pod {name} was not refused: {self.events(name)}",
        )
        return words[-1]

    def events(self, name: str) -> list[str]:
        """Return `reason: message` of each event about a pod."""
        found = self.bed.get("events", namespace=self.name)
        return [f"{e['reason']}: {e.get('message', '')}" for e in found if e["involvedObject"]["name"] == name]

    def exec(self, name: str, *words: str) -> str:
        """Return what a command prints in a pod."""
        return self.bed.kubectl("exec", "--namespace", self.name, name, "--", *words)

    def devices(self, name: str) -> list[int]:
        """Return the numbers of the Neuron devices that a pod sees."""
        listed = self.exec(name, "sh", "-c", "ls /dev")
        return sorted(int(m[1]) for word in listed.split() if (m := re.fullmatch(r"neuron(\d+)", word)))

    def environment(self, name: str) -> dict[str, str]:
        """Return the NEURON_ and DRA_NET_ variables of a pod."""
        lines = self.exec(name, "env").splitlines()
        pairs = (line.partition("=")[::2] for line in lines)
        return {key: value for key, value in pairs if key.startswith(("NEURON_", "DRA_NET_"))}

    def delete(self, *pods: str) -> None:
        """Delete pods and wait until they are gone; no name means all."""
        words = list(pods) or ["--all"]
        self.bed.kubectl(
            "delete", "pod", "--namespace", self.name, "--grace-period=1", "--timeout=60s", *words, timeout_s=70
        )


def is_ready(pod: Object) -> bool:
    """Return whether a pod's Ready condition is true."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))


def until(condition: Callable[[], T | None], timeout_s: float, problem: Callable[[], str]) -> T:
    """Return the condition's first true value; fail with `problem()` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, problem()
        time.sleep(0.3)
    return value


def template(
    name: str,
    count: int | None = 1,
    *,
    instance_type: str = "trn2.48xlarge",
    where: str = "",
    group: int = 0,
    config: Object | None = None,
) -> Object:
    """Return a ResourceClaimTemplate for `count` devices (None: all) of a type, in one group of that size."""
    selector = f"device.attributes['neuron.aws.com'].instanceType == '{instance_type}'" + (
        f" && {where}" if where else ""
    )
    mode: Object = {"allocationMode": "All"} if count is None else {"allocationMode": "ExactCount", "count": count}
    exactly = {"deviceClassName": "neuron.aws.com", **mode, "selectors": [{"cel": {"expression": selector}}]}
    devices: Object = {"requests": [{"name": "neurons", "exactly": exactly}]}
    if group:
        devices["constraints"] = [
            {"requests": ["neurons"], "matchAttribute": f"resource.aws.com/devicegroup{group}_id"}
        ]
    if config:
        opaque = {"driver": "neuron.aws.com", "parameters": {"apiVersion": "neuron.aws.com/v1", **config}}
        devices["config"] = [{"requests": ["neurons"], "opaque": opaque}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }


def lnc(value: int) -> Object:
    """Return the parameters that ask for logical cores of this size."""
    return {"kind": "NeuronConfig", "logicalNeuronCore": value}


def pod(name: str, template_name: str, *, node: str = "") -> Object:
    """Return a pod that takes one claim from a template and waits."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
            "containers": [
                {
                    "name": "ctr0",
                    "image": IMAGE,
                    "command": ["bash", "-c"],
                    "args": ["trap 'exit 0' TERM; sleep 9999 & wait"],
                    "resources": {"claims": [{"name": "neurons"}]},
                }
            ],
            "resourceClaims": [{"name": "neurons", "resourceClaimTemplateName": template_name}],
        },
    }


def rows(devices: Iterable[int]) -> set[int]:
    """Return the groups of four that these devices are in."""
    return {device // 4 for device in devices}
