"""Reads Kubernetes objects from a file: one object, a List, or YAML documents of either; JSON is read much faster."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from neuron_dra.errors import SettingsError

STDIN: Final = "-"
_SPACE: Final = re.compile(r"\s*")
SUFFIXES: Final = (".yaml", ".yml", ".json")
"""Of files in a folder."""
HELP: Final = "see --help for the command that prints one"


def read(path: str, flag: str = "--snapshot") -> list[dict[str, Any]]:
    """Return the objects in a file, or in standard input if `path` is "-".

    Raises SettingsError, which names `flag`, if the file is not a list of Kubernetes objects.
    """
    source = f"{flag} {path}"
    if path != STDIN and Path(path).is_dir():
        return [item for each in in_folder(path, source) for item in read(each, flag)]
    try:
        text = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    except OSError as err:
        raise SettingsError(f"{source}: {err}") from err
    documents = _documents(text, source)
    if all(document is None for document in documents):
        raise SettingsError(f"{source}: it is empty; {HELP}")
    return list(objects(source, documents))


def in_folder(folder: str, source: str) -> list[str]:
    """Return the paths of the files of objects in a folder, sorted. Raises SettingsError if there are none."""
    inside = sorted(str(each) for each in Path(folder).iterdir() if each.suffix in SUFFIXES)
    if not inside:
        raise SettingsError(f"{source}: the folder has no files with {', '.join(SUFFIXES)}")
    return inside


def _documents(text: bytes, source: str) -> list[Any]:
    import msgspec

    first = text[:64].lstrip()[:1]
    if first in (b"{", b"["):
        try:
            whole = msgspec.json.decode(text)
            return whole if isinstance(whole, list) else [whole]
        except (msgspec.DecodeError, RecursionError):
            pass  # YAML may begin with a brace too
        if found := _one_after_the_other(text):
            return found
    import yaml

    try:
        return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        raise SettingsError(f"{source}: not YAML: {err}") from err


def _one_after_the_other(text: bytes) -> list[Any]:
    """Return JSON values that follow each other, as `jq -c` prints them; an empty list if it is something else."""
    decoder, found = json.JSONDecoder(), []
    try:
        rest = text.decode().rstrip()
        at = _SPACE.match(rest, 0)
        while at is not None and at.end() < len(rest):
            value, end = decoder.raw_decode(rest, at.end())
            found.append(value)
            at = _SPACE.match(rest, end)
    except (ValueError, RecursionError):
        return []
    return found


def objects(source: str, documents: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of documents and of the Lists in them. Raises SettingsError."""
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict) or "kind" not in document:
            raise SettingsError(f"{source}: not a list of Kubernetes objects; {HELP.removesuffix(' that prints one')}")
        if str(document["kind"]).endswith("List"):
            items = document.get("items") or []
            if not isinstance(items, list):
                raise SettingsError(f"{source}: items of the {document['kind']} is not a list")
            yield from objects(source, [_typed(document, each) for each in items])
        elif not isinstance(document.get("metadata"), dict) or not document["metadata"].get("name"):
            raise SettingsError(f"{source}: a {document['kind']} without metadata.name")
        else:
            yield document


def _typed(document: dict[str, Any], item: Any) -> Any:
    """Return an item of a typed list, such as a NodeList, with the kind that the list has; others as they are."""
    kind = str(document["kind"]).removesuffix("List")
    if not kind or not isinstance(item, dict) or "kind" in item:
        return item
    return {"apiVersion": document.get("apiVersion"), "kind": kind, **item}
