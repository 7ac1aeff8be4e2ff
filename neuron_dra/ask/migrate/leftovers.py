"""Old resource names that are left in a document after it was rewritten: none passes without a line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

OLD: Final = re.compile(r"aws\\*\.amazon\\*\.com(?:/|~1)neuron(?:core|device)?(?![\w-]|\.\w)")
"""An old name, also as a JSON pointer or a path of Helm's `--set` has it."""

_TAINT: Final = re.compile(r"(tolerations|taints)\[\d+\]\.key$", re.IGNORECASE)
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

COUNTING: Final = {
    "ResourceQuota": "docs/quotas.md",
    "LimitRange": "docs/quotas.md",
    "ClusterQueue": "docs/queues.md",
    "Cohort": "docs/queues.md",
    "NodePool": "docs/autoscaling.md",
    "Provisioner": "docs/autoscaling.md",
}
"""Kinds that count or limit resources by their names, and the page about each."""

_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Left:
    """An old name at a place of a document; what it means there."""

    where: str
    text: str
    is_problem: bool


def found(document: Any) -> list[Left]:
    """Return the old names in a document, those that a person must change first."""
    remarks = []
    for where, document_object in _objects(document):
        kind = str(document_object.get("kind")) if isinstance(document_object, dict) else ""
        if kind in COUNTING:
            remarks += _counting(f"{where} {kind}".lstrip(), document_object, COUNTING[kind])
        else:
            remarks += [_left(place, text, beside) for place, text, beside in _texts(document_object, where)]
    return sorted(remarks, key=lambda remark: not remark.is_problem)


def _objects(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a list, each with its place, or the document itself."""
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list) or not str(document.get("kind", "")).endswith("List"):
        yield "", document
        return
    yield "", {key: value for key, value in document.items() if key != "items"}
    for index, item in enumerate(items):
        yield f"items[{index}]", item


def _counting(where: str, counting_object: Any, page: str) -> list[Left]:
    names = sorted({match for _, text, _ in _texts(counting_object, "") for match in _names(text)})
    if not names:
        return []
    return [Left(where, f"{' and '.join(names)} counts nothing after this; see {page}", is_problem=False)]


def _texts(value: Any, where: str, above: Any = None) -> Iterator[tuple[str, str, Any]]:
    """Yield each key or string that has an old name: its place, the text, and the key's value or the string's key."""
    if isinstance(value, dict):
        for key, item in value.items():
            at = f"{where}.{key}" if where else str(key)
            if isinstance(key, str) and OLD.search(key):
                yield at, key, item
            yield from _texts(item, at, key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{where}[{index}]", above)
    elif isinstance(value, str) and OLD.search(value):
        yield where, value, above


def _names(text: str) -> list[str]:
    return [match[0].replace("~1", "/").replace("\\", "") for match in OLD.finditer(text)]


def _left(where: str, text: str, beside: Any) -> Left:
    names = " and ".join(dict.fromkeys(_names(text)))
    if where.endswith(_APPLIED):
        return Left(
            where, f"{names} stays in what kubectl applied last; kubectl apply writes it anew", is_problem=False
        )
    if "aws\\" in text:
        return Left(where, f"a path to {names} is left alone; change it by hand", is_problem=True)
    if _TAINT.search(where):
        return Left(where, f"{names} stays: it is about a taint, which nodes may still have", is_problem=False)
    if text.startswith("/") and "~1" in text:
        return Left(where, f"a JSON patch of {names} is left alone; {RENDER}", is_problem=True)
    if "\n" in text or (beside == "patch" and text != names):
        return Left(where, f"text with {names} is left alone; if it is a patch, {RENDER}", is_problem=True)
    if text == names and str(beside) == "0":
        return Left(where, f"{names} is 0 and is left alone", is_problem=False)
    if text == names:
        return Left(where, f"{names} is left alone; change it by hand", is_problem=True)
    return Left(where, f"a text mentions {names} and is left alone", is_problem=False)


RENDER: Final = "render the whole first, as with: kubectl kustomize DIR | neuron-dra migrate -"


def lines(remarks: list[Left]) -> list[str]:
    """Return a line for each kind of remark, with the first places that it is about."""
    by_text: dict[str, list[str]] = {}
    for remark in remarks:
        by_text.setdefault(remark.text, []).append(remark.where)
    remark_lines = []
    for text, places in by_text.items():
        more = ""
        if len(places) > _EXAMPLES:
            more = f" and {len(places) - _EXAMPLES} more places"
        remark_lines.append(f"{', '.join(places[:_EXAMPLES])}{more}: {text}")
    return remark_lines
