"""The documentation site of a release: one archive, the same bytes each time, to be unpacked and opened or served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hack.bed import oci
from hack.release.base import ROOT, ReleaseError
from hack.release.image import compressed

MKDOCS = "build/site-venv/bin/mkdocs"
"""Where `make site` installs mkdocs, with the locked packages of requirements/site.txt."""


def site(tree: Path, name: str, epoch: int) -> bytes:
    """Build the site of a tree, check its links, and return its archive, in which it is the folder `name`.

    `epoch` is the time of all files. Raises ReleaseError if a link leads nowhere.
    """
    _run(["make", "--silent", "--no-print-directory", "build/site-venv/.installed"], ROOT, epoch)
    _run([sys.executable, "-m", "hack.site.pages"], tree, epoch)
    _run([str(ROOT / MKDOCS), "--quiet", "build", "--strict"], tree, epoch)
    _run([sys.executable, "-m", "hack.site.check"], tree, epoch)
    return packed(tree / "build" / "site", name, epoch)


def _run(words: list[str], folder: Path, epoch: int) -> None:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"the documentation site: {words[0]}: {(done.stderr or done.stdout).strip()}")


def packed(folder: Path, name: str, epoch: int) -> bytes:
    """Return the archive of a folder, sorted, with the time `epoch`."""
    archive = oci.Layer(mtime=epoch)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            archive.file(f"{name}/{path.relative_to(folder)}", path.read_bytes())
    return compressed(archive.close())
