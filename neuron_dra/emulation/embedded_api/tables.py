"""Lists and objects as the tables that `kubectl get` asks for and prints: meta.k8s.io/v1 Table."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import errors
from neuron_dra.emulation.embedded_api.columns import AGE, NAME, OF_KIND, UNKNOWN, Column
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource

VERSION: Final = "meta.k8s.io/v1"
_INCLUDES: Final = ("", "None", "Metadata", "Object")


def wanted(accept: str) -> bool:
    """Return True if the first media type of an Accept header that this server can serve is a table."""
    for media_range in accept.split(","):
        kind, *parameters = (part.strip() for part in media_range.split(";"))
        if kind not in ("application/json", "application/*", "*/*"):
            continue
        options = dict(parameter.partition("=")[::2] for parameter in parameters)
        if options.get("as") is None:
            return False
        if options["as"] == "Table" and (options.get("g"), options.get("v")) == ("meta.k8s.io", "v1"):
            return True
    return False


class Tables:
    """The tables of one reply, or of one watch, of which only the first has the definitions of columns."""

    def __init__(self, resource: EmbeddedResource, include: str, now: float) -> None:
        """`include` is what each row has of its object: None, Metadata or Object. Raises ApiError 400."""
        if include not in _INCLUDES:
            raise errors.bad_request(f'includeObject: Unsupported value: "{include}": supported: {_INCLUDES[1:]}')
        self._columns = resource.columns or OF_KIND.get(resource.qualified) or (NAME, AGE)
        self._include = include or "Metadata"
        self._now = now
        self._defined = False

    def of(self, answer: Obj) -> Obj:
        """Return the table of an object or of a list of objects."""
        if str(answer.get("kind")).endswith("List"):
            items = answer["items"]
        else:
            items = [answer]
        about = answer.get("metadata") or {}
        kept = ("resourceVersion", "continue", "remainingItemCount")
        meta = {name: about[name] for name in kept if name in about}
        if self._defined:
            definitions = []
        else:
            definitions = [_definition(column) for column in self._columns]
        self._defined = True
        return {
            "kind": "Table",
            "apiVersion": VERSION,
            "metadata": meta,
            "columnDefinitions": definitions,
            "rows": [self._row(item) for item in items],
        }

    def _row(self, item: Obj) -> Obj:
        row: Obj = {"cells": cells(self._columns, item, self._now)}
        if self._include == "Object":
            row["object"] = item
        elif self._include == "Metadata":
            row["object"] = {"kind": "PartialObjectMetadata", "apiVersion": VERSION, "metadata": item["metadata"]}
        return row


def _definition(column: Column) -> Obj:
    is_name = column is NAME
    return {
        "name": column.name,
        "type": "string" if column.type == "date" else column.type,
        "format": "name" if is_name else "",
        "description": "",
        "priority": int(column.wide),
    }


def cells(columns: Sequence[Column], item: Obj, now: float) -> list[Any]:
    """Return the cells of an object."""
    cell_values: list[Any] = []
    for column in columns:
        value = column.cell(item)
        cell_values.append(age(value, now) if column.type == "date" else value)
    return cell_values


def age(timestamp: str | None, now: float) -> str:
    """Return how long ago a timestamp is, in at most two units, as kubectl writes it."""
    if not timestamp:
        return UNKNOWN
    then = datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    seconds = int(now - then.timestamp())
    if seconds < 0:
        if seconds >= -1:
            return "0s"
        return "<invalid>"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 365 * 2:
        return f"{days}d"
    return _two(days // 365, "y", days % 365 if days < 365 * 8 else 0, "d")


def _two(large: int, unit: str, small: int, rest: str) -> str:
    if small:
        return f"{large}{unit}{small}{rest}"
    return f"{large}{unit}"
