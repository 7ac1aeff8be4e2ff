"""Our layer of an image: the wheels, installed for another machine without running anything of it.

What `Dockerfile.plugin` does with the base's own Python happens here with the `installer` library: the files of the wheels
below /opt/neuron-dra, the commands, and bytecode. The layer depends on the wheels, the base's Python and the commit's time
only, so every build of a commit gives the same bytes.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile

from hack.bed import oci
from hack.release.base import Base, ReleaseError

HOME = PurePosixPath("/opt/neuron-dra")
OURS = ("neuron_dra", "controller")  # top-level packages that no dependency may have: the first one found would win
ELF_MACHINES = {"amd64": 62, "arm64": 183}  # EM_X86_64, EM_AARCH64
ELF_64, ELF_LITTLE_ENDIAN = 2, 1


def layer(base: Base, wheels: list[Path], epoch: int) -> bytes:
    """Return the tar archive of our layer on this base.

    Raises:
        ReleaseError: the wheels do not fit the base, or no Python of the base's version is here to compile them.
    """
    with tempfile.TemporaryDirectory(prefix="neuron-dra-release-") as scratch:
        root = Path(scratch) / "root"
        for wheel in sorted(wheels, key=lambda path: path.name):
            _install(wheel, base, root)
        check_machine(root, base)
        home = root / HOME.relative_to("/")
        _compile(home / "lib", root, base)
        _environment(home, base)
        _standard_library(root, Path(scratch) / "base", base)
        return _archive(root, base, epoch)


def _install(wheel: Path, base: Base, root: Path) -> None:
    packages = str(HOME / "lib" / base.python.name / "site-packages")
    schemes = {"purelib": packages, "platlib": packages, "scripts": str(HOME / "bin"), "data": str(HOME),
               "headers": str(HOME / "include")}  # fmt: skip
    with WheelFile.open(wheel) as source:
        foreign = [str(name) for (name, _, _) in source.get_contents() if str(name[0]).split("/")[0] in OURS]
        if foreign and source.distribution != "neuron_dra":
            raise ReleaseError(f"{wheel.name} has a package of our name: {foreign[0]}")
        destination = SchemeDictionaryDestination(
            schemes, interpreter=str(HOME / "bin" / "python"), script_kind="posix", destdir=str(root)
        )
        try:
            install(source=source, destination=destination, additional_metadata={"INSTALLER": b"neuron-dra release\n"})
        except FileExistsError as err:
            raise ReleaseError(f"{wheel.name}: another wheel has the same file: {err}") from err


def check_machine(root: Path, base: Base) -> None:
    """Compare the machine type of each ELF file, and the Python in its name, with the base."""
    wanted = (ELF_64, ELF_LITTLE_ENDIAN, ELF_MACHINES[base.architecture])
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            head = file.read(20)
        shown = path.relative_to(root)
        shared = re.search(r"\.so(\.\d+)*$", path.name)
        if head[:4] != b"\x7fELF":
            if shared:
                raise ReleaseError(f"{shown} is no ELF file")
            continue
        found = (head[4], head[5], struct.unpack("<H", head[18:20])[0])
        if found != wanted:
            raise ReleaseError(
                f"{shown}: ELF class, byte order and machine are {found}; {base.architecture} is {wanted}"
            )
        tag = re.search(r"\.cpython-(\d)(\d+)-", path.name)
        if tag and f"{tag[1]}.{tag[2]}" != base.python_version:
            raise ReleaseError(f"{shown} is for Python {tag[1]}.{tag[2]}; the base has {base.python_version}")


def interpreter(version: str) -> str:
    """Return a Python of this release that runs here: bytecode depends on it, and not on the machine type."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    if (found := shutil.which(f"python{version}")) is None:
        raise ReleaseError(f"the base has Python {version}: install python{version} here to compile for it, or set BASE"
                           " to an image with another Python")  # fmt: skip
    return found


def _compile(folder: Path, root: Path, base: Base) -> None:
    """Compile in one fresh process, in the order of names: what a .pyc shares between constants depends on that.

    Unchecked, because these files are never edited: a start need not compare their times.
    """
    command = [interpreter(base.python_version), "-S", "-m", "compileall", "-q", "-f", "--invalidation-mode",
               "unchecked-hash", "-s", str(root), "-p", "/", str(folder)]  # fmt: skip
    done = subprocess.run(
        command,
        env={"PATH": os.environ.get("PATH", ""), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"compileall failed:\n{(done.stdout + done.stderr)[-2000:]}")


def _environment(home: Path, base: Base) -> None:
    """Make the folder a virtual environment of the base's Python."""
    (home / "bin").mkdir(exist_ok=True)
    for name, target in (("python", base.python), ("python3", "python"), (base.python.name, "python")):
        (home / "bin" / name).symlink_to(target)
    (home / "lib64").symlink_to("lib")
    (home / "pyvenv.cfg").write_text(
        f"home = {base.python.parent}\ninclude-system-site-packages = false\nversion = {base.python_version}\n"
    )


def _standard_library(root: Path, scratch: Path, base: Base) -> None:
    """Add the bytecode of the standard library that the base lacks: the container's file system is read-only."""
    sources = base.sources_without_bytecode()
    for name, content in sources.items():
        path = scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if sources:
        _compile(scratch / base.library, scratch, base)
    for name in sources:
        folder = (scratch / name).parent / "__pycache__"
        for path in folder.glob(f"{PurePosixPath(name).stem}.cpython-*.pyc"):
            target = root / path.relative_to(scratch)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)


def _archive(root: Path, base: Base, epoch: int) -> bytes:
    """Return the folder as a tar archive: sorted, root's, with the commit's time and one of two modes."""
    archive = oci.Layer(mtime=epoch)
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            archive.link(name, os.readlink(path))
        elif not path.is_dir():
            archive.file(name, path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)
        elif name not in base.files:  # a folder of the base keeps its owner, mode and time
            archive.directory(name)
    return archive.close()
