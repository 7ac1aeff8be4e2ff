"""4.02: no message in an object of one namespace names objects of another tenant."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from neuron_dra.core.wire import Wire
from neuron_dra.emulation.embedded_api import EmbeddedApi
from tests.support.fleet.safety import Safety
from tests.support.fleet.view import View

KINDS: Final = ("neuronultraserverworkloads", "pods", "resourceclaims")

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*[a-z0-9]")
_DIGIT = re.compile(r"\d")


def in_status(view: View, workload: Wire, namespaces: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each object of another namespace that the status of a workload names."""
    messages = [str(each.get("message")) for each in (workload.get("status") or {}).get("conditions") or ()]
    yield from _named(view, messages, str(workload["metadata"]["namespace"]), namespaces)


def judge_events(safety: Safety, view: View, api: EmbeddedApi | None, namespaces: Collection[str]) -> None:
    """Judge the messages of all Events on objects of namespaces. Raises Violation."""
    for event in [] if api is None else api.objects("events"):
        reader = event["involvedObject"].get("namespace") or ""
        for text in _named(view, [event["message"]], reader, namespaces):
            safety.violated(text)
    safety.check()


def _named(view: View, messages: Iterable[str], reader: str, namespaces: Collection[str]) -> Iterator[str]:
    if len(namespaces) < 2 or reader not in namespaces:
        return
    names = _names(item for kind in KINDS for item in view.all(kind))
    own = names.get(reader, set())
    for text in messages:
        words = {*_NAME.findall(text)}
        for namespace in namespaces:
            if namespace == reader:
                continue
            others = sorted(words.intersection(names.get(namespace, ())) - own)
            if f"{namespace}/" in text or others:
                yield f"a message in namespace {reader} names {', '.join(others) or namespace} of {namespace}: {text}"


def _names(objects: Iterable[Wire]) -> dict[str, set[str]]:
    """Return the names of objects by namespace; only those with a digit, because others may be ordinary words."""
    names: dict[str, set[str]] = {}
    for item in objects:
        meta = item["metadata"]
        if _DIGIT.search(meta["name"]):
            names.setdefault(meta["namespace"], set()).add(meta["name"])
    return names
