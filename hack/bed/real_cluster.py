"""The running test bed, its nodes, and kubectl in a namespace, for tests.

Tests change state with the program `hack/testbed/testbed`, as users do, and read through its modules.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from hack.bed import layout, network
from hack.bed.errors import BedError as BedError
from hack.bed.images import QUICK as QUICK
from hack.bed.parts import Bed
from neuron_dra.kube import requests

REPOSITORY = Path(__file__).resolve().parents[2]
TESTBED = REPOSITORY / "hack" / "testbed"


IMAGE = "testbed.local/test:1"
COMMAND_TIMEOUT_S = 600
OBJECTS_KEPT = "pods,resourceclaims,resourceclaimtemplates,daemonsets,deployments,nodes"
PLURALS = {
    "node": "nodes",
    "pod": "pods",
    "job": "jobs",
    "lease": "leases",
    "resourceclaim": "resourceclaims",
    "nus": "neuronultraservers",
    "nusw": "neuronultraserverworkloads",
}
# The kinds that tests read most, in the versions that kubectl prefers.
SERVED = {
    resource.plural: resource
    for resource in (
        requests.NODES,
        requests.PODS,
        requests.EVENTS,
        requests.LEASES,
        requests.RESOURCE_SLICES,
        requests.RESOURCE_CLAIMS,
        requests.Resource("batch", "v1", "jobs", namespaced=True),
        replace(requests.NEURON_ULTRASERVERS, version="v1"),
        replace(requests.NEURON_WORKLOADS, version="v1"),
    )
}

T = TypeVar("T")


class CommandFailedError(AssertionError):
    """A command of the test bed failed; the text is its output."""


PATIENCE_S = 180
LONGEST_PAUSE_S = 0.4


def api_path(words: Sequence[str]) -> str:
    """Return the API path for `kubectl get WORDS`; empty if only kubectl can resolve it.

    Tests repeat most reads, and each kubectl takes a tenth of a second of a core.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("kind")
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--namespace", "-n", default="default")
    parser.add_argument("--all-namespaces", "-A", action="store_true")
    parser.add_argument("--selector", default="")
    parser.add_argument("--field-selector", default="")
    asked, others = parser.parse_known_args(words)
    plural = PLURALS.get(asked.kind, asked.kind)
    if others or plural not in SERVED:
        return ""
    path = SERVED[plural].path("" if asked.all_namespaces else asked.namespace, asked.name)
    selectors = {"labelSelector": asked.selector, "fieldSelector": asked.field_selector}
    return f"{path}?{urlencode({key: value for key, value in selectors.items() if value})}"


def eventually(what: str, check: Callable[..., T], timeout_s: float = 30, interval_s: float | None = None) -> T:
    """Call `check` without arguments until its result is true and return it; the error has the last result.

    An object that does not exist counts as not yet true: it may be about to be replaced. Some checks start a program,
    which takes a tenth of a second of a core, so the pauses grow. A busy machine gets PATIENCE_S, whatever `timeout_s`
    is.
    """
    began = time.monotonic()
    deadline = began + max(timeout_s, PATIENCE_S)
    while True:
        last: object
        try:
            last = answer = check()
            if answer:
                return answer
        except BedError as err:
            if "(NotFound)" not in str(err) and ": NotFound: " not in str(err):
                raise
            last = err
        if time.monotonic() > deadline:
            waited_s = time.monotonic() - began
            raise AssertionError(f"{what}: not within {waited_s:.0f} s, the last answer was {last!r}")
        time.sleep(interval_s or min(LONGEST_PAUSE_S, 0.1 + (time.monotonic() - began) / 8))


@dataclass(slots=True)
class TestBed:
    """One running test bed."""

    __test__ = False  # not a test class, despite its name

    where: layout.Layout

    def command(self, *words: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run `testbed WORDS` and return its output; `up` starts the version in NEURON_DRA_KUBERNETES."""
        version = os.environ.get("NEURON_DRA_KUBERNETES")
        if version and words[0] == "up":
            words = (*words, "--kubernetes", version)
        environment = {**os.environ, "NEURON_DRA_TESTBED_NAME": self.where.name}
        done = subprocess.run([str(TESTBED / "testbed"), *words], capture_output=True, text=True, timeout=timeout_s,
                              env=environment, check=False)  # fmt: skip
        if done.returncode != 0:
            raise CommandFailedError(f"testbed {' '.join(words)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    @property
    def parts(self) -> Bed:
        """The bed as it is on disk now."""
        return Bed(self.where)

    @property
    def is_up(self) -> bool:
        parts = self.parts
        return bool(parts.state.processes) and parts.processes.is_running("kube-apiserver")

    def has(self, node: str, instance_type: str) -> bool:
        """Return True if the node exists and all processes of the test bed run."""
        parts = self.parts
        known = node in parts.state.nodes and parts.state.nodes[node].instance_type == instance_type
        running = all(parts.processes.is_running(name) for name in parts.state.processes)
        return known and running and parts.node(node).is_ready()

    def kubectl(self, *words: str, stdin: str | None = None, timeout_s: float = 60) -> str:
        return self.parts.plane.kubectl(*words, stdin=stdin, timeout_s=timeout_s)

    def get(self, *words: str) -> dict[str, Any]:
        """Return what `kubectl get WORDS -o json` prints."""
        path = api_path(words)
        return self.parts.plane.read(path) if path else json.loads(self.kubectl("get", *words, "-o", "json"))

    def neuron_dra(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of neuron-dra as the administrator."""
        return subprocess.run(
            [*network.enter(self.where), sys.executable, "-m", "neuron_dra.cli", *words],
            cwd=REPOSITORY,
            env={**os.environ, **self.parts.plane.environment()},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Put this thread, and the threads it starts, into the test bed's network: for clients in this process."""
        with network.inside(self.where):
            yield

    def keep_logs(self, target: Path) -> None:
        """Copy every component's log and the API server's objects to `target`."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        if self.where.log_dir.exists():
            shutil.copytree(self.where.log_dir, target / "components")
        wanted = {
            "objects.yaml": ("get", OBJECTS_KEPT, "-A", "-o", "yaml"),
            "slices.yaml": ("get", "resourceslices,deviceclasses", "-o", "yaml"),
            "ultraservers.yaml": ("get", "nus,nusw", "-A", "-o", "yaml"),
            "events.txt": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
        }
        for name, words in wanted.items():
            with contextlib.suppress(BedError, subprocess.TimeoutExpired):
                (target / name).write_text(self.kubectl(*words))
        for node in self.parts.state.nodes:
            with contextlib.suppress(CommandFailedError):
                (target / f"{node}-plugin.log").write_text(self.command("logs", f"{node}/plugin"))
        with contextlib.suppress(CommandFailedError):
            (target / "controller.log").write_text(self.command("logs", "neuron-ultraserver-controller"))


@dataclass(slots=True)
class BedNode:
    """A node that only the running test uses."""

    bed: TestBed
    name: str
    instance_type: str
    broken: list[tuple[str, str]] = field(default_factory=list)

    def run(self, *command: str) -> str:
        """Run a command on the node, in its mount and network namespaces."""
        return self.bed.parts.node(self.name).run(*command)

    def break_(self, what: str, which: str = "") -> str:
        self.broken.append((what, which))
        return self.bed.command("break", self.name, what, *([which] if which else []))

    def repair(self, what: str, which: str = "") -> str:
        answer = self.bed.command("repair", self.name, what, *([which] if which else []))
        self.broken = [entry for entry in self.broken if entry != (what, which)]
        return answer

    def repair_all(self) -> None:
        """Repair the faults that the test left."""
        for what, which in reversed(list(self.broken)):
            self.repair(what, which)


@dataclass(slots=True)
class Namespace:
    """kubectl in a namespace of the running test."""

    bed: TestBed
    name: str

    def kubectl(self, *words: str, stdin: str | None = None, timeout_s: float = 60) -> str:
        return self.bed.kubectl("--namespace", self.name, *words, stdin=stdin, timeout_s=timeout_s)

    def apply(self, what: str | Path | dict[str, Any]) -> str:
        """Apply a manifest: its text, its file, or one object."""
        if isinstance(what, Path):
            what = what.read_text()
        return self.kubectl("apply", "-f", "-", stdin=what if isinstance(what, str) else json.dumps(what))

    def get(self, *words: str) -> dict[str, Any]:
        return self.bed.get("--namespace", self.name, *words)

    def delete(self, *words: str, grace_s: int = 1) -> None:
        self.kubectl("delete", *words, f"--grace-period={grace_s}", timeout_s=120)

    def run_pod(self, name: str, node: str = "", script: str = "sleep infinity", **spec: Any) -> None:
        """Start a pod without any privilege that runs `script`; `spec` is added to the pod's."""
        container = {
            "name": "main",
            "image": IMAGE,
            "command": ["bash", "-c", script],
            "securityContext": {
                "runAsUser": 1000,
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **spec.pop("container", {}),
        }
        content = {"terminationGracePeriodSeconds": 1, "containers": [container], **spec}
        if node:
            content["nodeSelector"] = {"kubernetes.io/hostname": node}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": content})

    def wait_ready(self, pod: str, timeout_s: float = 120) -> None:
        """Wait until the pod is Ready; the error has its events."""
        timeout_s = max(timeout_s, PATIENCE_S)
        try:
            self.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", f"--timeout={timeout_s:.0f}s",
                         timeout_s=timeout_s + 10)  # fmt: skip
        except BedError as err:
            raise AssertionError(f"pod {pod} is not Ready: {err}; events: {self.events(pod)}") from err

    def exec(self, pod: str, *command: str, timeout_s: float = 30) -> str:
        """Run a command in the pod; retries while a restarted kubelet has not listed its pods."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self.kubectl("exec", pod, "--", *command)
            except BedError as err:
                known = ("pod does not exist", "container not found", "unable to upgrade connection", "not running")
                if not any(text in str(err) for text in known) or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def logs(self, pod: str, *words: str) -> str:
        return self.kubectl("logs", pod, *words)

    def events(self, name: str) -> list[str]:
        """Return the messages of the events about the object `name`, oldest first."""
        items = self.get("events", f"--field-selector=involvedObject.name={name}")["items"]
        items.sort(key=lambda item: item.get("lastTimestamp") or item.get("eventTime") or "")
        return [item["message"] for item in items]

    def restarts(self, pod: str) -> int:
        statuses = self.get("pod", pod)["status"].get("containerStatuses", [])
        return sum(status["restartCount"] for status in statuses)

    def remove(self) -> None:
        """End the pods, so that their devices are free for the next test, and delete the namespace."""
        theirs = "pods,resourceclaims,resourceclaimtemplates"
        self.kubectl("delete", theirs, "--all", "--grace-period=1", "--timeout=180s", timeout_s=200)
        self.bed.kubectl("delete", "namespace", self.name, "--wait=false")
