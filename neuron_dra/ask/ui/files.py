"""The files of the page, which are part of the package."""

from __future__ import annotations

import importlib.resources
from typing import Final

KINDS: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
"""The media types of files by the ends of their names."""
INDEX: Final = "index.html"


def kind(name: str) -> str:
    """Return the media type of a file; empty if it is none of the page's."""
    return KINDS.get(name.rpartition(".")[2], "")


def read() -> dict[str, bytes]:
    """Return the contents by name."""
    folder = importlib.resources.files("neuron_dra.ask.ui") / "page"
    return {file.name: file.read_bytes() for file in folder.iterdir() if kind(file.name)}
