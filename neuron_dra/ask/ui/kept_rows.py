"""Rows of a world that changes: only what a change touches is computed again. Pure, except for the terminal's width."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.ask.status import stuck
from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.ui import rows
from neuron_dra.ask.ui.rows import Rows
from neuron_dra.ask.ui.touched import Touched
from neuron_dra.ask.world import faults, fleet, picture, unseen
from neuron_dra.ask.world.capacity import Layouts
from neuron_dra.ask.world.faults import FleetFault
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.picture import Legend
from neuron_dra.ask.world.world import World

Part = dict[tuple[str, str], Any]
"""The rows of one node or UltraServer, by section and key."""
_KEPT: Final = ("nodes", "servers", "wrong", "holders", "shapes")
"""The sections with rows of nodes and UltraServers; the others are short, and replaced as a whole."""
_CLAIMING: Final = {"Pod", "ResourceClaim"}
"""Kinds that show whether a container sees the devices of its pod."""
_EXPLAINING: Final = _CLAIMING | {"Event", "Node", "NeuronUltraServer", "NeuronUltraServerWorkload"}
"""Kinds that show why a pod with a node does not start."""


@dataclass(slots=True)
class Patch:
    """What is new of a page: whole sections, and single rows of others, None for those that are gone."""

    sections: Rows = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)


class KeptRows:
    """The rows of the newest world. `computed` counts those of nodes and UltraServers that were computed so far."""

    def __init__(self) -> None:
        self.computed = 0
        self._forget()

    def _forget(self) -> None:
        self._parts: dict[tuple[str, str], Part] = {}
        self._types: dict[str, dict[str, NodeView]] = defaultdict(dict)
        self._views: dict[str, NodeView] = {}
        self._type_rows: dict[str, Any] = {}
        self._layouts: Layouts = {}

    def whole(self, world: World) -> Rows:
        """Return all rows of a world, which takes the place of the last one."""
        self._forget()
        views = fleet.nodes(world)
        everything = Touched(
            nodes=frozenset(view.name for view in views), servers=frozenset(fleet.ultraservers(views)), is_whole=True
        )
        patch = self._patch(world, everything, {view.name: view for view in views})
        return {**{section: patch.rows.get(section, {}) for section in _KEPT}, **patch.sections}

    def after(self, world: World, touched: Touched) -> Patch:
        """Return what is new in a world, which differs from the last one in what is touched."""
        views = {name: fleet.view(world, name) for name in touched.nodes}
        return self._patch(world, touched, views)

    def _patch(self, world: World, touched: Touched, views: Mapping[str, NodeView | None]) -> Patch:
        missing = unseen.kinds(world.snapshot)
        before = [self._views.get(name) for name in views]
        affected_views = [view for view in (*before, *views.values()) if view is not None]
        patch = Patch()
        servers = faults.by_id(world)
        for name in sorted(touched.servers | {view.ultraserver for view in affected_views if view.ultraserver}):
            self._replace(patch, ("server", name), self._server(world, name, servers.get(name), views))
        for name, view in views.items():
            self._replace(patch, ("node", name), self._node(world, view, missing))
            self._keep(name, view)
        if touched.is_whole or touched.kinds & _CLAIMING:
            self._replace(patch, ("pods", ""), _wrong(stuck.without_devices(world, "")))
        patch.sections["facts"] = rows.facts(world, is_empty=not self._views)
        if affected_views or touched.is_whole:
            self._count_types({view.type for view in affected_views}, missing)
            patch.sections["types"] = dict(sorted(self._type_rows.items()))
        if touched.is_whole or "Pod" in touched.kinds:
            patch.sections["waiting"] = rows.waiting(fleet.waiting(world))
        if touched.is_whole or touched.kinds & _EXPLAINING:
            patch.sections["stuck"] = rows.stuck_pods(world)
        if touched.is_whole or touched.kinds & {"NeuronUltraServer", "NeuronUltraServerWorkload"}:
            patch.sections["workloads"] = rows.workloads(world)
        return patch

    def _keep(self, name: str, view: NodeView | None) -> None:
        old = self._views.pop(name, None)
        if old is not None:
            self._types[old.type].pop(name)
        if view is not None:
            self._views[name] = view
            self._types[view.type][name] = view

    def _count_types(self, names: Iterable[str], missing: Mapping[str, str]) -> None:
        if len(self._layouts) > 2 * len(self._views):
            self._layouts.clear()  # most of them are of nodes as they were
        for name in names:
            members = list(self._types[name].values())
            if members:
                row = status_text.of_type(name, members, missing, self._layouts)
                servers = status_text.free_servers(members, row)
                self._type_rows[name] = {**row, "unit": status_text.unit(members), "freeServers": servers}
            else:
                self._type_rows.pop(name, None)

    def _node(self, world: World, view: NodeView | None, missing: Mapping[str, str]) -> Part:
        """Return the rows of a node; none if it has no Neuron devices any more."""
        if view is None:
            return {}
        self.computed += 1
        node_picture = picture.draw(view, Legend())
        node_rows: Part = {("nodes", view.name): rows.node(node_picture, missing)}
        node_rows["shapes", rows.shape_key(node_picture)] = rows.shape(node_picture)
        for key, row in rows.holders_of([view]).items():
            node_rows["holders", key] = row
        return node_rows | _wrong(faults.all_of_node(world, view, slices_seen="ResourceSlice" not in missing))

    def _server(self, world: World, name: str, server_object: Any, views: Mapping[str, NodeView | None]) -> Part:
        """Return the rows of an UltraServer; none if no node publishes it any more."""
        members = faults.members(world, name, views)
        if not members:
            return {}
        self.computed += 1
        server_rows: Part = {("servers", name): rows.server(members, faults.missing(members, server_object))}
        return server_rows | _wrong(faults.of_ultraserver(name, members, server_object))

    def _replace(self, patch: Patch, whose: tuple[str, str], new: Part) -> None:
        """Keep the rows of a node or an UltraServer, and note what is new and what is gone."""
        old = self._parts.pop(whose, {})
        if new:
            self._parts[whose] = new
        removed_keys = old.keys() - new.keys()
        for section, key in removed_keys:
            if section != "shapes":  # other nodes have the same one
                patch.rows.setdefault(section, {})[key] = None
        for (section, key), row in new.items():
            patch.rows.setdefault(section, {})[key] = row


def _wrong(fleet_faults: Iterable[FleetFault]) -> Part:
    fault_rows = {}
    for fault in fleet_faults:
        fault_rows[("wrong", f"{fault.kind}/{fault.name}/{fault.what}/{fault.detail}")] = status_text.fault_row(fault)
    return fault_rows
