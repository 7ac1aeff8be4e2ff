"""Opens the page: its key goes through a file that only the user can read, not through arguments of programs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import webbrowser
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

_REDIRECT: Final = """\
<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>neuron-dra ui</title>
<p><a href="{address}">Open the fleet</a></p>
"""


def address(host: str, token: str) -> str:
    """Return the address of the page, with the token in the fragment, which browsers send to no server."""
    return f"http://{host}/#token={token}"


def once(host: str, ticket: str) -> str:
    """Return an address of the page that works once: a browser's history keeps it."""
    return f"http://{host}/#ticket={ticket}"


@contextlib.contextmanager
def redirecting(target: str) -> Iterator[Path]:
    """Yield a file, which only the user can read, that leads a browser to `target`; delete it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="neuron-dra-ui-"))
    try:
        file = folder / "open.html"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(_REDIRECT.format(address=escape(target)))
        yield file
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_browser(file: Path) -> bool:
    """Open a file in the user's browser; return False if there is none."""
    try:
        return webbrowser.open(file.as_uri())
    except webbrowser.Error:
        return False
