"""Laws of notices: containers find out why they end before they do, and nobody is told without a reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from neuron_dra.core.notice import CONTAINER_FOLDER, FILE
from neuron_dra.core.ultraserver import Phase
from tests.support.fleet.nodes import FleetNode
from tests.support.fleet.pods import Container, Pods
from tests.support.fleet.view import View


def read(container: Container) -> str | None:
    """Return the notice in the folder that a container has mounted; empty without one, None without a folder."""
    for claim in container.claims:
        for device in claim.devices:
            for mount in device.edits.get("mounts", ()):
                if mount["containerPath"] == CONTAINER_FOLDER:
                    path = Path(mount["hostPath"]) / FILE
                    return path.read_text() if path.exists() else ""
    return None


def _here(container: Container, nodes: Mapping[str, FleetNode]) -> bool:
    """Return True if the container's node is still the one on which it started."""
    return nodes[container.node].incarnation == container.incarnation


def evicted_untold(view: View, pods: Pods, nodes: Mapping[str, FleetNode], pod: str) -> Iterator[str]:
    """A notice is there before every eviction from a node that shows that it closes.

    A node that publishes nothing, or is given up, has no program that could write one. `pod` is namespace/name.
    """
    tags = view.tags()
    for container in pods.running.values():
        tag = tags.get(container.node)
        if container.pod != pod or tag is None or not _here(container, nodes):
            continue
        closes = tag.phase is Phase.DRAINING and tag.workload_uid == container.workload_uid
        if closes and read(container) == "":
            yield f"pod {pod} is evicted from {container.node}, and found no notice"


def untrue(view: View, pods: Pods, nodes: Mapping[str, FleetNode]) -> Iterator[str]:
    """The notice of each container in an open group is that of its reservation, perhaps none."""
    holders = view.holders()
    for container in pods.running.values():
        node, held = nodes[container.node], holders.get(container.node)
        if held is None or held.allocation.phase is not Phase.BOUND or not _here(container, nodes):
            continue
        if held.allocation.workload_uid != container.workload_uid or not (node.healthy and node.tags_its_devices):
            continue
        found, notice = read(container), held.allocation.notice
        wanted = "" if notice is None else notice.encode().decode()
        if found is not None and found != wanted:
            yield f"pod {container.pod} on {node.name} reads the notice {found!r}, and its reservation has {wanted!r}"
