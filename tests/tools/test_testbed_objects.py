"""Parsing of kubectl's JSON output."""

from __future__ import annotations

import json

from hack.bed import objects

A, B, C = ({"kind": "Service", "metadata": {"name": name}} for name in "abc")


def test_documents_and_lists_are_split() -> None:
    text = f"{json.dumps(A, indent=1)}\n{objects.as_list([B, C])}\n"
    assert list(objects.parse(text)) == [A, B, C]


def test_nothing_is_no_object() -> None:
    assert list(objects.parse(" \n")) == []
