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
        self._snapshot = Snapshot({})
        self._misshapen: dict[Key, DamagedObject] = {}
        self.touched: frozenset[Key] = frozenset()
        """The objects that the last changes were about."""

    def apply(self, changes: Changes) -> Snapshot:
        """Return the snapshot after the changes."""
        replaced: list[dict[str, Any]] = []
        removed: list[Key] = []
        damaged: list[DamagedObject] = []
        for kind_changes in changes.kinds:
            damaged += kind_changes.damaged
            for (namespace, name), raw_object in kind_changes.objects.items():
                self._misshapen.pop((kind_changes.kind, namespace, name), None)
                if raw_object is None:
                    removed.append((kind_changes.kind, namespace, name))
                else:
                    replaced.append({**raw_object, "kind": kind_changes.kind})
            if kind_changes.whole:
                removed += self._absent(kind_changes)
        built = snapshot.build(replaced, damaged=[])
        for wrong in built.damaged:
            key = (wrong.kind, wrong.namespace, wrong.name)
            self._misshapen[key] = wrong
            removed.append(key)
        removed_keys = [key for key in removed if key in self._snapshot.objects and key not in built.objects]
        changed = self._snapshot.changed(list(built.objects.values()), removed_keys)
        self.touched = frozenset((*built.objects, *removed_keys))
        damaged += self._misshapen.values()
        damaged.sort(key=lambda damaged_object: (damaged_object.kind, damaged_object.key))
        self._snapshot = dataclasses.replace(
            changed,
            damaged=damaged,
            left_out=dict(changes.left_out),
            version=changes.version or self._snapshot.version,
        )
        return self._snapshot

    def _absent(self, changes: KindChanges) -> list[Key]:
        """Return the known objects of a kind that are not among all of it."""
        known_keys = [*map(snapshot.key_of, self._snapshot.all(changes.kind)), *self._misshapen]
        absent_keys = [key for key in known_keys if key[0] == changes.kind and key[1:] not in changes.objects]
        for key in absent_keys:
            self._misshapen.pop(key, None)
        return absent_keys
