"""The text of a manifest file: its documents before, and the text after they are changed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from neuron_dra.api.problems import BadInput
from neuron_dra.ask.migrate import edits

MOST_NODES: Final = 500_000
"""A file with more values, or with aliases that expand to more, is rejected."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document: `node` has its place in the text, None in a JSON file, and `end` is where it ends there."""

    node: yaml.Node | None
    value: Any
    end: int = 0


def read(text: str) -> list[Document]:
    """Return the documents of a YAML or JSON file, as trees without shared parts. Raises BadInput."""
    try:
        if text.lstrip().startswith("{"):
            try:
                return [Document(None, json.loads(text, object_pairs_hook=_pairs))]
            except json.JSONDecodeError:
                pass  # a flow mapping of YAML
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        for node in nodes:
            _check(node)
        values = list(yaml.load_all(text, Loader=yaml.SafeLoader))
        ends = edits.document_ends(text)
        return [Document(node, _unshared(value), end) for node, value, end in zip(nodes, values, ends, strict=True)]
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        hint = "; render a Helm template first (helm template)" if "{{" in text else ""
        raise BadInput(f"{at}{getattr(err, 'problem', None) or err}{hint}") from err
    except RecursionError as err:
        raise BadInput("the values are nested too deeply") from err
    except ValueError as err:  # a timestamp such as 2026-99-99
        raise BadInput(str(err)) from err


def written(text: str, documents: Sequence[Document], values: Sequence[Any], added: Sequence[Any]) -> tuple[str, bool]:
    """Return `text` with new values for its documents and `added` documents, and whether comments may be lost.

    Lines that do not change stay as they are. The result is read again; if it differs, whole documents are written.
    """
    if documents and documents[0].node is None:
        return _json(text, values[0], added), False
    newline = "\r\n" if "\r\n" in text else "\n"
    for replace in (_patched, _replaced):
        try:
            new_text = _changed(text, documents, values, replace)
        except edits.Unpatchable:
            continue
        for added_document in added:
            separator = "" if not new_text or new_text.endswith("\n") else "\n"
            new_text += f"{separator}---\n{edits.dump(added_document)}"
        if newline != "\n":
            new_text = re.sub(r"(?<!\r)\n", newline, new_text)
        if _reads_as(new_text, [*values, *added]):
            return new_text, replace is _replaced
    raise BadInput("this text cannot be changed safely; write it in a plainer form, without anchors and tags")


def _changed(
    text: str, documents: Sequence[Document], values: Sequence[Any], replace: Callable[[str, Document, Any], str]
) -> str:
    for document, value in reversed(list(zip(documents, values, strict=True))):  # places before it stay valid
        if document.value != value:
            text = replace(text, document, value)
    return text


def _reads_as(text: str, values: Sequence[Any]) -> bool:
    try:
        return [document.value for document in read(text)] == values
    except BadInput:  # an alias whose anchor is no longer before it
        return False


def _patched(text: str, document: Document, new: Any) -> str:
    """Return `text` with only those lines changed that differ. Raises Unpatchable."""
    if document.node is None:
        raise edits.Unpatchable("an empty document")
    return edits.patched(text, document.node, document.value, new)


def _replaced(text: str, document: Document, new: Any) -> str:
    """Return `text` with a whole document written again, without its comments, anchors and merge keys."""
    if document.node is not None:
        start = document.node.start_mark.index
    else:
        start = document.end
    return text[:start] + edits.dump(new).rstrip("\n") + text[document.end :]


def _json(text: str, value: Any, added: Sequence[Any]) -> str:
    """Return a JSON file; what is added makes it a List."""
    if added and value.get("kind") == "List":
        value = {**value, "items": [*(value.get("items") or []), *added]}
    elif added:
        value = {"apiVersion": "v1", "kind": "List", "items": [value, *added]}
    indent = re.match(r"\s*\{\s*\n([ \t]+)", text)
    return json.dumps(value, indent=indent[1] if indent else None, ensure_ascii=False) + "\n" * text.endswith("\n")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        raise BadInput(f"the key {next(name for name in names if names.count(name) > 1)} occurs twice")
    return mapping


def _check(root: yaml.Node | None) -> None:
    """Raise BadInput for duplicate keys, and for aliases that expand to a huge tree or a loop."""
    nodes_left, count = [root] if root is not None else [], 0
    while nodes_left:
        node = nodes_left.pop()
        count += 1
        if count > MOST_NODES:
            raise BadInput(f"it has more than {MOST_NODES} values, or its aliases expand to more")
        if isinstance(node, yaml.MappingNode):
            keys_so_far = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in keys_so_far and key.value != "<<":
                    raise BadInput(f"line {key.start_mark.line + 1}: the key {key.value} occurs twice")
                keys_so_far.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
                nodes_left += [key, value]
        elif isinstance(node, yaml.SequenceNode):
            nodes_left += node.value


def _unshared(value: Any) -> Any:
    """Return a copy without shared parts, even if the text has aliases."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unshared(item) for item in value]
    return value
