"""The rows of the page with the version in which each changed, so that a page gets what it does not have. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec

KEPT: Final = 100_000
"""Rows that are gone and that are remembered; a page that is behind by more gets everything again."""


NO_ROWS: Final[Mapping[str, Mapping[str, Any]]] = {}


def encoded(value: Any) -> bytes:
    """Return a value as JSON. Half of a character, which a file can have and no API server, becomes a question mark."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_whole(value))


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_whole(name): _whole(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole(member) for member in value]
    return value


class Table:
    """Rows by section and key; `version` grows by one with each change."""

    def __init__(self, kept: int = KEPT) -> None:
        self.version = 0
        self._rows: dict[str, dict[str, tuple[int, bytes]]] = {}
        self._gone: deque[tuple[int, str, str]] = deque(maxlen=kept)
        self._forgotten = 0  # the version up to which rows that are gone may no longer be remembered

    def put(self, sections: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Mapping[str, Any]] = NO_ROWS) -> bool:
        """Replace all rows of these sections, and single rows of others; return True if that changed any.

        A single row that is None is gone.
        """
        version = self.version + 1
        is_changed = False
        for section, new in sections.items():
            is_changed |= self._put(section, new, version)
        for section, some in rows.items():
            is_changed |= self._put_some(section, some, version)
        self.version += is_changed
        return is_changed

    def _put(self, section: str, new: Mapping[str, Any], version: int) -> bool:
        before = self._rows.get(section, {})
        after: dict[str, tuple[int, bytes]] = {}
        for key, row in new.items():
            text = encoded(row)
            versioned_row = before.get(key)
            if versioned_row is not None and versioned_row[1] == text:
                after[key] = versioned_row
            else:
                after[key] = (version, text)
        removed_keys = before.keys() - after.keys()
        for key in removed_keys:
            self._note_gone(version, section, key)
        self._rows[section] = after
        return bool(removed_keys) or any(versioned_row is not before.get(key) for key, versioned_row in after.items())

    def _put_some(self, section: str, some: Mapping[str, Any], version: int) -> bool:
        rows_by_key = self._rows.setdefault(section, {})
        is_changed = False
        for key, row in some.items():
            if row is None:
                if rows_by_key.pop(key, None) is not None:
                    self._note_gone(version, section, key)
                    is_changed = True
                continue
            text = encoded(row)
            last_row = rows_by_key.get(key)
            if last_row is None or last_row[1] != text:
                rows_by_key[key] = version, text
                is_changed = True
        return is_changed

    def _note_gone(self, version: int, section: str, key: str) -> None:
        if len(self._gone) == self._gone.maxlen:
            self._forgotten = self._gone[0][0]
        self._gone.append((version, section, key))

    def since(self, version: int) -> bytes:
        """Return one line of JSON for a page that has this version, 0 for a new one.

        `set` has rows by section and key, `gone` keys by section; with `whole`, the page forgets all others.
        """
        whole = version == 0 or version < self._forgotten
        least = 0 if whole else version
        changed: dict[str, dict[str, msgspec.Raw]] = {}
        for section, rows in self._rows.items():
            new = {key: msgspec.Raw(text) for key, (when, text) in rows.items() if when > least}
            if new:
                changed[section] = new
        removed_by_section: dict[str, list[str]] = {}
        for when, section, key in () if whole else self._gone:
            if when > least and key not in self._rows[section]:
                removed_by_section.setdefault(section, []).append(key)
        line = {"version": self.version, "whole": whole, "set": changed, "gone": removed_by_section}
        return encoded(line) + b"\n"
