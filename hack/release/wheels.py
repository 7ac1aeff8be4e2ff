"""Fetch and build the wheels that the plugin image is made of, so that its build needs no network.

The wheels are for the Python of the image's *base*, which may differ from the one that runs this: set it with `--python`
and `--machine`. The downloads are locked in requirements/plugin.txt, with hashes; this project's wheel is built from the
tree. A folder with other contents is emptied first, because the image installs everything in it.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "plugin.txt"
OUT = ROOT / "build" / "wheels"
STAMP = "locked-by.txt"  # the inputs of the folder's contents; if they match, the download is skipped
DEFAULT_PYTHON = "3.13"  # the Python of Dockerfile.plugin's default base
OLDEST_PYTHON = (3, 11)
# A wheel for glibc 2.N runs on every glibc from 2.N on. 2.28 is the oldest supported base (RHEL 8).
GLIBC_MINORS = range(28, 4, -1)


def platform_tags(machine: str) -> list[str]:
    """Return the wheel platforms that a glibc base of this machine type can load, newest first."""
    modern = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS]
    return [*modern, f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]


def python_tag(version: str) -> str:
    """Return the tag of a CPython release: `3.11` is cp311. Exit if this project does not run on it."""
    major, _, minor = version.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise SystemExit(f"--python {version}: write major and minor, such as 3.11")
    if (int(major), int(minor)) < OLDEST_PYTHON:
        raise SystemExit(f"--python {version}: neuron-dra needs Python 3.11 or newer")
    return f"cp{major}{minor}"


def stamp(python: str, machine: str) -> str:
    """Return the inputs of the downloaded wheels: the lock file, the Python and the machine type."""
    return f"python {python}\nmachine {machine}\nlock sha256:{hashlib.sha256(LOCK.read_bytes()).hexdigest()}\n"


def target(python: str, machine: str) -> list[str]:
    """Return pip's options for wheels of this Python and machine type."""
    options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    for name in (python_tag(python), "abi3", "none"):
        options += ["--abi", name]
    for name in platform_tags(machine):
        options += ["--platform", name]
    return options


def check_complete(ours: Path, folder: Path, python: str, machine: str) -> None:
    """Exit with pip's message if a folder lacks a wheel that ours needs on this Python and machine type."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--no-index",
        "--find-links",
        str(folder),
    ]
    command += [*target(python, machine), "--target", str(folder / "none"), str(ours)]
    subprocess.run(command, check=True)


def download(out: Path, python: str, machine: str) -> None:
    """Download the locked wheels into `out`, unless they are there already."""
    wanted = stamp(python, machine)
    if (out / STAMP).is_file() and (out / STAMP).read_text() == wanted:
        return
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *target(python, machine)]
    command += ["--require-hashes", "--requirement", str(LOCK), "--dest", str(out)]
    subprocess.run(command, check=True)
    (out / STAMP).write_text(wanted)


def build_ours(out: Path, tree: Path = ROOT) -> Path:
    """Build the wheel of a tree into `out`, in place of an older one, and return its path."""
    for old in out.glob("neuron_dra-*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, check=True, cwd=tree, stdout=subprocess.DEVNULL)
    [wheel] = out.glob("neuron_dra-*.whl")
    return wheel


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=DEFAULT_PYTHON, help=f"the base image's Python (default {DEFAULT_PYTHON})")
    parser.add_argument(
        "--machine", default=platform.machine(), choices=["x86_64", "aarch64"], help="the nodes' machine type"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="the folder to fill (default build/wheels)")
    arguments = parser.parse_args()
    download(arguments.out, arguments.python, arguments.machine)
    wheel = build_ours(arguments.out)
    count = len(list(arguments.out.glob("*.whl")))
    print(
        f"{count} wheels for Python {arguments.python} on {arguments.machine} in {arguments.out}, with our own {wheel.name}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
