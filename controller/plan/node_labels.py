"""Plans the labels of Nodes that say which UltraServer they are in. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from controller.decisions.actions import LabelNode
from controller.fleet.fleet_index import FleetIndex
from controller.observe.discovery import labels


def changes(index: FleetIndex, nodes: Iterable[str]) -> list[LabelNode]:
    """Return the label changes of those of these nodes that publish.

    A node without slices, or with incomplete ones, keeps its labels. Only labels of this controller are removed.
    """
    actions: list[LabelNode] = []
    for name in sorted(nodes):
        node, published = index.node_by_name.get(name), index.published_by_name.get(name)
        if node is None or published is None or published.node_uid not in ("", node.uid) or not published.complete:
            continue
        wanted: dict[str, str] = labels(published) if published.ultraserver_id else {}
        differences: dict[str, str | None] = {k: v for k, v in wanted.items() if node.labels.get(k) != v}
        differences |= {name: None for name in node.labels if name not in wanted}
        if differences:
            actions.append(LabelNode(node.name, node.uid, dict(sorted(differences.items()))))
    return actions
