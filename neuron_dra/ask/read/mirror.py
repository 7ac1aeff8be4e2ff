"""A snapshot that follows changes of a cluster; what does not change stays the same object. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.read.snapshot import DamagedObject, Key, Snapshot


@dataclass(frozen=True, slots=True)
class KindChanges:
    """What changed of one kind: objects as they are now, None for those that are gone, by namespace and name.

    `whole`: these are all objects of the kind, and what is not among them is gone. `damaged` are all that cannot be
    decoded.
    """

    kind: str
    objects: Mapping[tuple[str, str], Mapping[str, Any] | None]
    whole: bool = False
    damaged: Sequence[DamagedObject] = ()


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed of a cluster since the last time, and what cannot be read of it now, and why."""

    kinds: Sequence[KindChanges] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    version: str = ""


class Mirror:
    """The snapshot that changes are applied to."""

    def __init__(self) -> None:
        self._known = Snapshot({})
        self._misshapen: dict[Key, DamagedObject] = {}
        self.touched: frozenset[Key] = frozenset()
        """The objects that the last changes were about."""

    def apply(self, changes: Changes) -> Snapshot:
        """Return the snapshot after the changes."""
        replaced: list[dict[str, Any]] = []
        removed: list[Key] = []
        damaged: list[DamagedObject] = []
        for each in changes.kinds:
            damaged += each.damaged
            for (namespace, name), item in each.objects.items():
                self._misshapen.pop((each.kind, namespace, name), None)
                if item is None:
                    removed.append((each.kind, namespace, name))
                else:
                    replaced.append({**item, "kind": each.kind})
            if each.whole:
                removed += self._absent(each)
        built = snapshot.build(replaced, damaged=[])
        for wrong in built.damaged:
            key = (wrong.kind, wrong.namespace, wrong.name)
            self._misshapen[key] = wrong
            removed.append(key)
        gone = [key for key in removed if key in self._known.objects and key not in built.objects]
        found = self._known.changed(list(built.objects.values()), gone)
        self.touched = frozenset((*built.objects, *gone))
        every = sorted([*damaged, *self._misshapen.values()], key=lambda each: (each.kind, each.key))
        self._known = dataclasses.replace(
            found, damaged=every, left_out=dict(changes.left_out), version=changes.version or self._known.version
        )
        return self._known

    def _absent(self, changes: KindChanges) -> list[Key]:
        """Return the known objects of a kind that are not among all of it."""
        known = [*map(snapshot.key_of, self._known.all(changes.kind)), *self._misshapen]
        gone = [key for key in known if key[0] == changes.kind and key[1:] not in changes.objects]
        for key in gone:
            self._misshapen.pop(key, None)
        return gone
