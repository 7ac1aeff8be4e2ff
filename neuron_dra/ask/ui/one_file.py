"""The page as one file without a server, to be sent to others. Pure, except for the terminal's width."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.ui.board import Board
from neuron_dra.ask.ui.rows import Rows
from neuron_dra.ask.ui.table import Table, encoded
from neuron_dra.ask.world import faults

ANSWERED: Final = 1000
"""Objects about which the file has the answer of `why`: what waits first, then what is faulty."""
_IMPORT: Final = re.compile(r'^import .*? from "\./(\w+\.js)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ", re.MULTILINE)


def page(snapshot: Snapshot, name: str, files: Mapping[str, bytes], start: str = "", written: str = "") -> str:
    """Return the page of a snapshot; `files` are those of the page, `start` is the link of the first view.

    `written` is the time of the snapshot, empty if it is unknown.
    """
    board, table = Board(), Table()
    rows = board.show(snapshot)
    table.put({**rows, "source": {"name": name, "written": written}, "connection": {"": {"state": "file", "text": ""}}})
    about = {}
    for kind, namespace, thing in itertools.islice(_asked(rows), ANSWERED):
        about[f"{kind}/{namespace}/{thing}"] = board.about(kind, namespace, thing)
    embedded = {"rows": msgspec.Raw(table.since(0)), "about": about, "start": start}
    return _html(files, encoded(embedded).decode())


def _asked(rows: Rows) -> Iterator[tuple[str, str, str]]:
    """Yield kind, namespace and name of what the answers are about, the most important first."""
    for row in rows["waiting"].values():
        yield "Pod", row["namespace"], row["pods"][0]
    for row in rows["stuck"].values():
        yield "Pod", row["namespace"], row["pod"]
    for row in rows["workloads"].values():
        yield "NeuronUltraServerWorkload", row["namespace"], row["name"]
    kinds = {faults.NODE: "Node", faults.ULTRASERVER: "NeuronUltraServer"}
    faulty = {row["name"]: kinds[row["kind"]] for row in rows["wrong"].values() if row["kind"] in kinds}
    for name, kind in faulty.items():
        yield kind, "", name
    for name in rows["nodes"]:
        if name not in faulty:
            yield "Node", "", name
    for name in rows["servers"]:
        if name not in faulty:
            yield "NeuronUltraServer", "", name
    for row in rows["holders"].values():
        for pod in row["pods"]:
            yield "Pod", row["namespace"], pod


def script(files: Mapping[str, bytes]) -> str:
    """Return the modules as one, each after those that it imports."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        done[name] = ""  # a module that imports itself through others is not added twice
        text = files[name].decode()
        for needed in _IMPORT.findall(text):
            add(needed)
        del done[name]
        done[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    add("main.js")
    return "\n".join(done.values())


def _html(files: Mapping[str, bytes], data: str) -> str:
    code, style = script(files), files["app.css"].decode()
    policy = (
        f"default-src 'none'; script-src {_hash(code)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    escaped = data.replace("<", "\\u003c")  # so that no text of a cluster ends the element
    index = files["index.html"].decode()
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<meta name="referrer" content="no-referrer">'
    )
    changes = {
        '<link rel="icon" href="icon.svg">': head,
        '<link rel="stylesheet" href="app.css">': f"<style>{style}</style>",
        '<script type="module" src="main.js"></script>': (
            f'<script type="application/json" id="embedded">{escaped}</script>\n<script type="module">{code}</script>'
        ),
    }
    for old, new in changes.items():
        before, _, after = index.partition(old)
        index = before + new + after
    return index


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
