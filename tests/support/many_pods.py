"""How much memory readers of pods need for many large pods: each in a process of its own, beside one pod.

    python -m tests.support.many_pods READER PODS SIZE_BYTES

prints by how many bytes the largest resident size grew. The server in the process makes pages of text, and no more text
than it may answer.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from controller.apply.claim_pods import ClaimPods
from controller.apply.pod_checks import PodLooks
from controller.jobs.early_pods import EarlyPods
from controller.limits.watcher import LimitsWatcher
from controller.observe.caches import Caches
from controller.settings import WatcherSettings
from controller.timing import DEFAULT_TIMING
from neuron_dra.errors import TooLarge
from neuron_dra.kube.client import MAX_ANSWER_BYTES, KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.kube.requests import PODS
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import ClaimUse, Consumer, Starting, Template
from tests.support.sending import new_sender, pods_looked_for, sent

NODES: Final = 16
NOW: Final = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
NUMBER: Final = b"7777777"
PAGE: Final = b'{"kind":"PodList","metadata":{"resourceVersion":"9","continue":"%s"},"items":[%s]}'


def pod(size_bytes: int) -> bytes:
    """Return a pod of this size that waits for a template and has a claim. Its annotations make up the size."""
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/9 nodes are free"}
    meta = {"name": "p7777777", "namespace": "ml", "uid": "u7777777", "resourceVersion": "7"}
    claims = [{"name": "neuron", "resourceClaimTemplateName": "other"}]
    containers = [{"name": "c", "image": "i", "resources": {"limits": {"aws.amazon.com/neuron": "1"}}}]
    made = {
        "metadata": {**meta, "annotations": {"a": ""}},
        "spec": {
            "containers": containers,
            "schedulerName": "default-scheduler",
            "schedulingGroup": {"podGroupName": "gang"},
            "resourceClaims": claims,
        },
        "status": {"phase": "Pending", "conditions": [refused]},
    }
    text = json.dumps(made).encode()
    return text.replace(b'"a": ""', b'"a": "%s"' % (b"x" * max(0, size_bytes - len(text))))


class ServerOfPods(KubeClient):
    """An API server with `pods` pods in each list."""

    def __init__(self, pods: int, size_bytes: int) -> None:
        super().__init__(KubeConfig("pods:"))
        self.pods = pods
        self._pod = pod(size_bytes)

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "",
        timeout_s: float = 0.0,
        most_bytes: int | None = None,
    ) -> bytes:
        if method != "GET" or not path.endswith("/pods"):
            return PAGE % (b"", b"")
        await asyncio.sleep(0)  # so that requests are in progress at the same time
        asked = params or {}
        first = int(asked.get("continue") or 0)
        last = min(self.pods, first + int(asked["limit"]))
        if most_bytes is not None and (last - first) * len(self._pod) > most_bytes:
            raise TooLarge("the page is too large")
        items = b",".join(self._pod.replace(NUMBER, b"%07d" % number) for number in range(first, last))
        return PAGE % (b"%d" % last if last < self.pods else b"", items)


async def claim_pods(server: ServerOfPods) -> None:
    """Read the pods of claims that are reserved for PodGroups."""
    nodes = tuple(f"node-{number}" for number in range(NODES))
    gang = Consumer("scheduling.k8s.io", "podgroups", "gang")
    claims = [ClaimUse("ml", f"claim-{number}", nodes, None, others=(gang,)) for number in range(8)]
    sender = new_sender()
    looks = ClaimPods(server, DEFAULT_TIMING.pods, sender)
    await sent(sender, lambda: looks.look(claims, NOW))


async def reread_claims(server: ServerOfPods) -> None:
    """Read the claims of nodes again."""
    caches = Caches(server, lambda: None, FleetIndex(), DEFAULT_TIMING.caches, claims_for_a_node=-1)
    await caches.reread_claims([f"node-{number}" for number in range(NODES)])


async def unscheduled_pods(server: ServerOfPods) -> None:
    """Look for pods that cannot be scheduled."""
    sender = new_sender()
    looks = PodLooks(server, EventRecorder(server, "here"), DEFAULT_TIMING.pods, sender)
    workloads = [Starting(f"n{number}", "w", f"u{number}", "other", 4, ("a",), None) for number in range(8)]
    for minutes in (0, 1, 2):
        now = NOW + datetime.timedelta(minutes=minutes)
        await sent(sender, partial(looks.look, workloads, now))


async def early_pods(server: ServerOfPods) -> None:
    """Look for pods that were made before their template."""
    early = EarlyPods(server, DEFAULT_TIMING.jobs, new_sender(), lambda: None)
    early.put(("ml", "other"), Template("ml", "other", "uid-t", None, deleting=False))
    for minutes in range(6):
        await pods_looked_for(early, NOW + datetime.timedelta(minutes=minutes))


async def limits_watcher(server: ServerOfPods) -> None:
    """List the pods that wait, and find what to say about them."""
    watcher = LimitsWatcher(WatcherSettings(), KubeConfig("pods:"))
    watcher.pods._client = server
    await watcher.pods.relist()
    watcher._follow()


async def whole_pods(server: ServerOfPods) -> None:
    """The control: keep pods whole, in pages of any size."""
    pods: list[dict[str, Any]] = []
    async for page in server.list(PODS, most_bytes=MAX_ANSWER_BYTES):
        pods += page.decoded(dict[str, Any]).objects


READERS: Final[Mapping[str, Callable[[ServerOfPods], Awaitable[None]]]] = {
    reader.__name__: reader
    for reader in (claim_pods, reread_claims, unscheduled_pods, early_pods, limits_watcher, whole_pods)
}


def largest_bytes() -> int:
    # Not `ru_maxrss`, which counts the process that started this one, too.
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


def main(words: list[str]) -> None:
    """Print by how much a reader made the process grow."""
    name, pods, size_bytes = words
    logging.disable(logging.CRITICAL)

    async def measure() -> int:
        reader: Any = READERS[name]
        server = ServerOfPods(1, int(size_bytes))
        await reader(server)
        before_bytes = largest_bytes()
        server.pods = int(pods)
        await reader(server)
        return largest_bytes() - before_bytes

    print(asyncio.run(measure()))


if __name__ == "__main__":
    main(sys.argv[1:])
