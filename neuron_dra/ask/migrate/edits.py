"""Changes the text of a YAML document so that it has new values, and touches no other line.

The nodes of PyYAML have their places in the text. Where a place cannot be edited, as with merge keys, Unpatchable is
raised; the caller then writes the whole document. The caller also reads the result again and compares it.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

Edit = tuple[int, int, str]
"""Start and end in the text, and what replaces that part."""


class Unpatchable(Exception):
    """The text cannot be edited in place."""


def dump(value: Any, indent: int = 0) -> str:
    """Return `value` as YAML in block style, each line indented by `indent` spaces."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=10**6, allow_unicode=True)
    return "".join(" " * indent + line for line in text.splitlines(keepends=True))


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def patched(text: str, node: yaml.Node, old: Any, new: Any) -> str:
    """Return `text` with the value of `node` changed from `old` to `new`. Raises Unpatchable."""
    edits: dict[tuple[int, int, str], None] = {}
    _Patch(text, edits).value(node, old, new)
    pieces, at = [], 0
    for start, end, replacement in sorted(edits, key=lambda edit: edit[:2]):
        if start < at:
            raise Unpatchable("two changes of one place")  # an anchor whose uses differ now
        pieces += [text[at:start], replacement]
        at = end
    return "".join([*pieces, text[at:]])


class _Patch:
    """Collects edits of one text."""

    def __init__(self, text: str, edits: dict[Edit, None]) -> None:
        self._text = text
        self._edits = edits

    def value(self, node: yaml.Node, old: Any, new: Any) -> None:
        """Collect the edits that give `node` the value `new`."""
        if old == new and type(old) is type(new):
            return
        if isinstance(node, yaml.MappingNode) and isinstance(old, dict) and isinstance(new, dict) and new:
            self._mapping(node, old, new)
        elif isinstance(node, yaml.SequenceNode) and isinstance(old, list) and isinstance(new, list):
            self._sequence(node, old, new)
        elif isinstance(node, yaml.ScalarNode) and isinstance(new, str | int):
            self._edit(node.start_mark.index, node.end_mark.index, _scalar(new, node.style))
        else:
            raise Unpatchable("another kind of value")

    def _mapping(self, node: yaml.MappingNode, old: dict[str, Any], new: dict[str, Any]) -> None:
        entries = {key.value: (key, value) for key, value in node.value}
        if len(entries) != len(node.value) or set(entries) != set(old):
            raise Unpatchable("a merge key")
        if node.flow_style:
            self._edit(node.start_mark.index, node.end_mark.index, _flow(new))
            return
        for name in (name for name in old if name in new):
            self.value(entries[name][1], old[name], new[name])
        removed = [name for name in old if name not in new]
        added = [name for name in new if name not in old]
        for name in removed:
            is_scalar = not isinstance(old[name], dict | list)
            if added and not (is_scalar and isinstance(new[added[0]], list)):
                self._replace(entries, name, added.pop(0), old, new)
            else:
                self._remove(node, entries[name])
        if added:
            self._append(node, {name: new[name] for name in added})

    def _replace(self, entries: dict[str, Any], name: str, to: str, old: Any, new: Any) -> None:
        """Replace an entry by another one; values that move into the new entry keep their lines."""
        key, value = entries[name]
        inner = new[to]
        if not isinstance(inner, dict | list) and isinstance(value, yaml.ScalarNode) and value.style not in ("|", ">"):
            self._edit(key.start_mark.index, key.end_mark.index, _scalar(to, key.style))
            self.value(value, old[name], inner)
            return
        end = self._end(value)
        if isinstance(inner, dict) and all(field in entries and old[field] == inner[field] for field in inner):
            text = f"{to}:\n" + "".join(self._indented(*entries[field]) for field in inner).rstrip()
            end = len(self._text[: self._line_end(end)].rstrip())  # its comment moves too
        else:
            text = dump({to: inner}, key.start_mark.column).strip()
        self._edit(key.start_mark.index, end, text)

    def _indented(self, key: yaml.Node, value: yaml.Node) -> str:
        """Return the unchanged lines of an entry, indented by two more spaces."""
        lines = self._text[key.start_mark.index : self._line_end(self._end(value))].splitlines(keepends=True)
        first, other_lines = " " * key.start_mark.column + lines[0], lines[1:]
        return "".join("  " + line if line.strip() else line for line in [first, *other_lines])

    def _remove(self, node: yaml.MappingNode, entry: tuple[yaml.Node, yaml.Node]) -> None:
        """Remove the lines of an entry; if it is the first of a list item, the next entry gets the dash."""
        key, value = entry
        start = self._text.rfind("\n", 0, key.start_mark.index) + 1
        if self._text[start : key.start_mark.index].strip():
            following = []
            for sibling_key, _ in node.value:
                if sibling_key.start_mark.index > key.start_mark.index:
                    following.append(sibling_key)
            if not following:
                raise Unpatchable("the only entry of a list's item")
            self._edit(key.start_mark.index, following[0].start_mark.index, "")
        else:
            self._edit(start, self._line_end(self._end(value)), "")

    def _append(self, node: yaml.MappingNode, added: dict[str, Any]) -> None:
        self._insert(self._end(node), dump(added, node.value[0][0].start_mark.column))

    def _sequence(self, node: yaml.SequenceNode, old: list[Any], new: list[Any]) -> None:
        if not node.value or len(new) < len(old):
            raise Unpatchable("a shorter list")
        if node.flow_style:
            self._edit(node.start_mark.index, node.end_mark.index, _flow(new))
            return
        for child, before, after in zip(node.value, old, new, strict=False):
            self.value(child, before, after)
        if len(new) > len(old):
            self._insert(self._end(node.value[-1]), dump(new[len(old) :], node.start_mark.column))

    def _insert(self, after: int, text: str) -> None:
        """Insert whole lines after the line that contains this place."""
        at = self._line_end(after)
        self._edit(at, at, text if self._text[:at].endswith("\n") else "\n" + text)

    def _line_end(self, index: int) -> int:
        """Return the start of the next line; a scalar in block style ends there already."""
        if index and self._text[index - 1] == "\n":
            return index
        newline = self._text.find("\n", index)
        if newline < 0:
            return len(self._text)
        return newline + 1

    def _end(self, node: yaml.Node) -> int:
        return end_of(self._text, node)

    def _edit(self, start: int, end: int, text: str) -> None:
        self._edits[(start, end, text)] = None


def document_ends(text: str) -> list[int]:
    """Return where the last value of each document ends, which an alias may be, before comments and empty lines."""
    ends: list[int] = []
    end = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        start, last = event.start_mark, event.end_mark
        if isinstance(event, yaml.DocumentEndEvent):
            ends.append(end)
        elif start is None or last is None or last.index == start.index:
            continue  # collections in block style end with an empty mark
        elif isinstance(event, yaml.ScalarEvent) and event.style in ("|", ">"):
            end = len(text[: last.index].rstrip())
        else:
            end = last.index
    return ends


def end_of(text: str, node: yaml.Node) -> int:
    """Return the end of a node in `text`, without the comments and empty lines after it."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(node, yaml.MappingNode) else last
    end: int = node.end_mark.index
    if getattr(node, "style", None) in ("|", ">"):
        return len(text[:end].rstrip())
    return end


def _scalar(value: Any, style: str | None) -> str:
    if isinstance(value, str) and style in ('"', "'"):
        return json.dumps(value, ensure_ascii=False)
    return yaml.dump(value, Dumper=_Dumper, width=10**6, allow_unicode=True).removesuffix("\n").removesuffix("\n...")


def _flow(value: Any) -> str:
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=True, width=10**6, allow_unicode=True
    )
    return text.strip()
