"""Runs `neuron-dra doctor --local` in the driver's pod of a node, and returns its lines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from neuron_dra.ask.doctor import lines
from neuron_dra.ask.doctor.lines import Line, unknown
from neuron_dra.ask.doctor.seen import NAMESPACE
from neuron_dra.ask.doctor.timing import DEFAULT_TIMING, DoctorTiming
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.render import words
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ApiError, Forbidden
from neuron_dra.kube import requests
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig

COMMAND: Final = ("neuron-dra", "doctor", "--local", "-o", "json")
PROTOCOL: Final = "v4.channel.k8s.io"
AREA: Final = "on node: "


def chosen(pods: Sequence[Wire]) -> Wire | Line:
    """Return the driver's pod to look from, or why there is none.

    Any namespace may have pods with the driver's labels: that of the chart is preferred, others must be the only one.
    """
    running = [pod for pod in pods if PodView.of(pod).status.phase == "Running"]
    if not running:
        return unknown("on node", "no pod of the driver runs on the node, so nothing can be looked at there")
    spaces = sorted({PodView.of(pod).metadata.namespace for pod in running})
    space = NAMESPACE if NAMESPACE in spaces else spaces[0]
    if space != NAMESPACE and len(spaces) > 1:
        text = f"several namespaces have pods that look like the driver's: {words.listed(spaces)}"
        return unknown("on node", text, "kubectl exec -n NAMESPACE POD -- neuron-dra doctor --local")
    own = [pod for pod in running if PodView.of(pod).metadata.namespace == space]
    return max(own, key=lambda pod: str(PodView.of(pod).metadata.creation_timestamp or ""))


async def look(kube: KubeConfig, pod: Wire, timing: DoctorTiming = DEFAULT_TIMING) -> list[Line]:
    """Return the lines that the driver's pod prints about its node."""
    pod_view = PodView.of(pod)
    space, name = pod_view.metadata.namespace, pod_view.metadata.name
    container = next((container.name for container in pod_view.spec.containers), "")
    by_hand = f"kubectl exec -n {space} {name} -- neuron-dra doctor --local"
    try:
        async with asyncio.timeout(timing.pod_s), KubeClient(kube) as client:
            output, status = await _run(client, space, name, container)
    except (ApiError, TimeoutError) as err:
        if isinstance(err, Forbidden) and err.status == 403:
            text = f"you may not run a program in pod {space}/{name}: it needs get and create on pods/exec"
            return [unknown("on node", text, by_hand)]
        why = str(err) or f"no answer within {timing.pod_s:g} s"
        return [unknown("on node", f"pod {space}/{name}: {why}", by_hand)]
    return parsed(output, status, f"pod {space}/{name}", by_hand)


async def _run(client: KubeClient, namespace: str, pod: str, container: str) -> tuple[bytes, bytes]:
    """Return what the command wrote to standard output, and the Status of its end. Raises ApiError."""
    params = [
        *(("command", word) for word in COMMAND),
        ("container", container),
        ("stdout", "true"),
        ("stderr", "true"),
    ]
    received: dict[int, list[bytes]] = {}
    async with client.websocket(requests.PODS.path(namespace, pod, "exec"), params, PROTOCOL) as messages:
        async for message in messages:
            if message:
                received.setdefault(message[0], []).append(message[1:])
    return b"".join(received.get(1, ())), b"".join(received.get(3, ()))


def parsed(output: bytes, status: bytes, pod: str, by_hand: str) -> list[Line]:
    """Return the lines in the output of another release's command, or why there are none."""
    try:
        answer: Any = msgspec.json.decode(output)
        parsed_lines = [lines.from_wire(wire_line) for wire_line in answer["checks"]]
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError, KeyError):
        ended = lines.printable(status.decode(errors="replace"))[:200] or "the connection ended"
        text = f"{pod} did not answer; a driver before this release has no doctor ({ended})"
        return [unknown("on node", text, by_hand)]
    prefixed = []
    for line in parsed_lines:
        prefixed.append(Line(line.state, AREA + line.area, line.code, line.text, line.todo))
    return prefixed
