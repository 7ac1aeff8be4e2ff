"""Plans the labels of Nodes that say which UltraServer they are in. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from neuron_dra.planner.decisions.actions import LabelNode
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.discovery import labels


def changes(index: FleetIndex, nodes: Iterable[str]) -> list[LabelNode]:
    """Return the label changes of those of these nodes that publish.

    A node without slices, or with incomplete ones, keeps its labels. Only labels of this controller are removed.
    """
    actions: list[LabelNode] = []
    for node_name in sorted(nodes):
        node, published = index.node_by_name.get(node_name), index.published_by_name.get(node_name)
        if node is None or published is None or published.node_uid not in ("", node.uid) or not published.complete:
            continue
        required_labels: dict[str, str] = labels(published) if published.ultraserver_id else {}
        differences: dict[str, str | None] = {
            label: text for label, text in required_labels.items() if node.labels.get(label) != text
        }
        differences |= {label: None for label in node.labels if label not in required_labels}
        if differences:
            actions.append(LabelNode(node.name, node.uid, dict(sorted(differences.items()))))
    return actions
