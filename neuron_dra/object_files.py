"""Reads Kubernetes objects from a file: one object, a List, or YAML documents of either; JSON is read much faster."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from neuron_dra.errors import SettingsError

STDIN: Final = "-"
MANIFEST: Final = "FILE"
"""The word for a file of manifests in messages: their objects may have generateName."""
_SPACE: Final = re.compile(r"\s*")
MOST_LEVELS: Final = 5000
"""Of values in values in YAML: its C library ends the interpreter at some 30,000. Objects have about 20."""
_DEEP_LINE: Final = re.compile(rb"^[-?: ]{%d}" % MOST_LEVELS, re.MULTILINE)
SUFFIXES: Final = (".yaml", ".yml", ".json")
"""Of files in a folder."""
HELP: Final = "see --help for the command that prints one"


def read(path: str, flag: str = "--snapshot") -> list[dict[str, Any]]:
    """Return the objects in a file, or in standard input if `path` is "-".

    Raises SettingsError, which names `flag`, if the file is not a list of Kubernetes objects.
    """
    source = f"{flag} {path}"
    if path != STDIN and Path(path).is_dir():
        found = []
        for each in in_folder(path, source):
            found += read(each, flag)
        return found
    try:
        text = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    except OSError as err:
        missing = isinstance(err, FileNotFoundError)
        raise SettingsError(f"{source}: {'no such file' if missing else err.strerror or err}") from err
    return decoded(text, source, generated=flag == MANIFEST)


def decoded(text: bytes, source: str, *, generated: bool = False) -> list[dict[str, Any]]:
    """Return the objects in the text of a file. Raises SettingsError, which begins with `source`.

    With `generated`, an object may have generateName in place of its name, and gets a name.
    """
    documents = _documents(text, source)
    if all(document is None for document in documents):
        raise SettingsError(f"{source}: it is empty; {HELP}")
    numbers = itertools.count(1) if generated else None
    return list(objects(source, documents, numbers))


def in_folder(folder: str, source: str) -> list[str]:
    """Return the paths of the files of objects in a folder, sorted. Raises SettingsError if there are none."""
    found = []
    for each in Path(folder).iterdir():
        if each.suffix in SUFFIXES:
            found.append(str(each))
    inside = sorted(found)
    if not inside:
        raise SettingsError(f"{source}: the folder has no files with {', '.join(SUFFIXES)}")
    return inside


def _documents(text: bytes, source: str) -> list[Any]:
    import msgspec

    first = text[:64].lstrip()[:1]
    not_json = ""
    if first in (b"{", b"["):
        try:
            whole = msgspec.json.decode(text)
            if isinstance(whole, list):
                return whole
            return [whole]
        except RecursionError as err:
            raise SettingsError(f"{source}: its values are nested too deeply") from err
        except UnicodeDecodeError as err:
            raise SettingsError(f"{source}: it is not UTF-8: {err}") from err
        except msgspec.DecodeError as err:
            not_json = f"not JSON: {err}; and "  # YAML may begin with a brace too
        if found := _one_after_the_other(text):
            return found
    if _is_deep(text):
        raise SettingsError(f"{source}: {not_json}not YAML: its values are nested too deeply")
    import yaml

    from neuron_dra.kubernetes_yaml import KubernetesLoader

    try:
        return list(yaml.load_all(text, KubernetesLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        words = " ".join(str(err).split())
        raise SettingsError(f"{source}: {not_json}not YAML: {words}") from err


def _is_deep(text: bytes) -> bool:
    """Return True if a text of YAML may have more levels than MOST_LEVELS: in brackets, or in indented lines."""
    brackets = text.count(b"[") + text.count(b"{")
    if brackets < MOST_LEVELS:
        return _DEEP_LINE.search(text) is not None
    depth = deepest = 0
    for bracket in re.findall(rb"[\[\]{}]", text):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest > MOST_LEVELS or _DEEP_LINE.search(text) is not None


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


def objects(source: str, documents: Iterable[Any], numbers: Iterator[int] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the objects of documents and of the Lists in them; with `numbers`, objects with generateName get one.

    Raises SettingsError.
    """
    for document in documents:
        if document is None:
            continue
        if isinstance(document, dict) and "kind" not in document and isinstance(document.get("items"), list):
            yield from objects(source, document["items"], numbers)
            continue
        if not isinstance(document, dict) or "kind" not in document:
            raise SettingsError(f"{source}: not a list of Kubernetes objects; {HELP.removesuffix(' that prints one')}")
        if str(document["kind"]).endswith("List"):
            items = document.get("items") or []
            if not isinstance(items, list):
                raise SettingsError(f"{source}: items of the {document['kind']} is not a list")
            yield from objects(source, [_typed(document, each) for each in items], numbers)
        else:
            yield _named(source, document, numbers)


def _named(source: str, document: dict[str, Any], numbers: Iterator[int] | None) -> dict[str, Any]:
    """Return an object with its name. Raises SettingsError if it has none."""
    meta = document.get("metadata")
    if isinstance(meta, dict) and meta.get("name"):
        return document
    if isinstance(meta, dict) and isinstance(meta.get("generateName"), str) and numbers is not None:
        return {**document, "metadata": {**meta, "name": f"{meta['generateName']}{next(numbers):05}"}}
    if document["kind"] == "Status" and document.get("message"):
        raise SettingsError(f"{source}: it is an error of an API server: {document['message']}")
    raise SettingsError(f"{source}: a {document['kind']} without metadata.name")


def _typed(document: dict[str, Any], item: Any) -> Any:
    """Return an item of a typed list, such as a NodeList, with the kind that the list has; others as they are."""
    kind = str(document["kind"]).removesuffix("List")
    if not kind or not isinstance(item, dict) or "kind" in item:
        return item
    return {"apiVersion": document.get("apiVersion"), "kind": kind, **item}
