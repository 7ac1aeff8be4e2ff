"""One test bed with its parts, as it is on disk now."""

from __future__ import annotations

from hack.bed import build, state
from hack.bed.controlplane import ControlPlane
from hack.bed.errors import BedError
from hack.bed.layout import Layout
from hack.bed.node import Node
from hack.bed.processes import Processes


class Bed:
    """One test bed: the layout, the state on disk, and the parts."""

    def __init__(self, layout: Layout, kubernetes: str | None = None) -> None:
        self.layout = layout
        self.state = state.load(layout)
        if not self.state.kubernetes:
            self.state.kubernetes = kubernetes or build.DEFAULT_KUBERNETES
        self.processes = Processes(layout, self.state)
        self.plane = ControlPlane(layout, self.state, self.processes)

    @property
    def nodes(self) -> dict[str, Node]:
        return {
            name: Node(self.layout, self.state, self.processes, self.plane, spec)
            for name, spec in self.state.nodes.items()
        }

    def node(self, name: str) -> Node:
        try:
            return self.nodes[name]
        except KeyError:
            known = ", ".join(self.state.nodes) or "none"
            raise BedError(f"there is no node {name!r}; nodes: {known}") from None
