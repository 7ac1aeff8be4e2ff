"""Reads Kubernetes objects from a file: one object, a List, or YAML documents of either; JSON is read much faster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from neuron_dra.errors import SettingsError

STDIN: Final = "-"
HELP: Final = "see --help for the command that prints one"


def read(path: str, flag: str = "--snapshot") -> list[dict[str, Any]]:
    """Return the objects in a file, or in standard input if `path` is "-".

    Raises SettingsError, which names `flag`, if the file is not a list of Kubernetes objects.
    """
    source = f"{flag} {path}"
    try:
        text = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    except OSError as err:
        raise SettingsError(f"{source}: {err}") from err
    documents = _documents(text, source)
    if all(document is None for document in documents):
        raise SettingsError(f"{source}: it is empty; {HELP}")
    return list(_objects(source, documents))


def _documents(text: bytes, source: str) -> list[Any]:
    import msgspec

    if text[:64].lstrip()[:1] == b"{":
        try:
            return [msgspec.json.decode(text)]
        except (msgspec.DecodeError, RecursionError):
            pass  # YAML may begin with a brace too
    import yaml

    try:
        return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        raise SettingsError(f"{source}: not YAML: {err}") from err


def _objects(source: str, documents: list[Any]) -> Iterator[dict[str, Any]]:
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
            yield from _objects(source, items)
        elif not isinstance(document.get("metadata"), dict) or not document["metadata"].get("name"):
            raise SettingsError(f"{source}: a {document['kind']} without metadata.name")
        else:
            yield document
