"""Rows of the newest world, and answers about single objects, once each. Pure, except for the terminal's width."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from neuron_dra.ask.read.snapshot import Key, Snapshot
from neuron_dra.ask.ui import rows
from neuron_dra.ask.ui import touched as touching
from neuron_dra.ask.ui.kept_rows import KeptRows, Patch
from neuron_dra.ask.why import answer
from neuron_dra.ask.world import faults, fleet
from neuron_dra.ask.world.world import World


class Board:
    """The world and the answers of one moment; it belongs to one thread at a time."""

    def __init__(self) -> None:
        self._world = World(Snapshot({}))
        self._answers: dict[tuple[str, str, str], Mapping[str, Any] | None] = {}
        self.kept = KeptRows()

    def show(self, snapshot: Snapshot) -> rows.Rows:
        """Take a snapshot in place of the last one, and return its rows."""
        self._world = World(snapshot, proposes=answer.proposes(snapshot), memo=self._world.memo)
        self._answers = {}
        return self.kept.whole(self._world)

    def follow(self, snapshot: Snapshot, keys: Set[Key]) -> Patch:
        """Take a snapshot in which the objects with these keys are others, and return the rows that are new."""
        last = self._world
        if snapshot.version != last.snapshot.version or snapshot.left_out != last.snapshot.left_out:
            return Patch(self.show(snapshot))
        self._world = last.following(snapshot, keys)
        self._answers = {}
        touched = touching.by(last, self._world, keys)
        last.forget(keys)
        if touched.is_whole:
            return Patch(self.kept.whole(self._world))
        return self.kept.after(self._world, touched)

    def about(self, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return what is to be said about an object; None if it is not there."""
        key = (kind, namespace, name)
        if key not in self._answers:
            self._answers[key] = self._about(kind, namespace, name)
        return self._answers[key]

    def _about(self, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        if kind == "NeuronUltraServer":
            item = faults.objects_by_id(self._world).get(name)
        else:
            item = self._world.snapshot.get(kind, name, namespace)
        if item is None or kind not in answer.REPORTS:
            return None
        report = answer.of(self._world, kind, item)
        report_fields = {**report.to_wire(), "fine": report.fine}
        view = fleet.view(self._world, name) if kind == "Node" else None
        if view is not None:
            report_fields["picture"] = rows.node_details(view)
            report_fields["node"] = rows.node_object(item, view)
        return report_fields
