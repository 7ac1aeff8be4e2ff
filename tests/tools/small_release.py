"""A release in small: a base image and wheels that are made here, without the network; and how to read a release."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.bed import oci

ROOT = Path(__file__).resolve().parents[2]


PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = f"usr/local/lib/{PYTHON}"
TAG = f"cpython-{sys.version_info.major}{sys.version_info.minor}"
MACHINES = {"amd64": 62, "arm64": 183}  # e_machine of ELF
DPKG = """\
Package: libc6
Status: install ok installed
Version: 2.41-12
Architecture: {}

Package: gone
Status: deinstall ok config-files
Version: 1
"""


def base_layer(architecture: str) -> bytes:
    """Return the base's file system: a Python with two modules, one of them compiled, pip, and dpkg's list."""
    layer = oci.Layer()
    for name in ("usr", "usr/local", "usr/local/bin", "usr/local/lib", LIBRARY, f"{LIBRARY}/__pycache__"):
        layer.directory(name)
    layer.file(f"usr/local/bin/{PYTHON}", elf(MACHINES[architecture]), 0o755)
    for name in ("plain", "compiled", "test/left_out"):
        layer.file(f"{LIBRARY}/{name}.py", b"NAMES = {'a', 'b', 'c'}\n")
    layer.file(f"{LIBRARY}/__pycache__/compiled.{TAG}.pyc", b"")
    layer.file(f"{LIBRARY}/site-packages/pip-26.0.dist-info/METADATA", b"Name: pip\nVersion: 26.0\nLicense: MIT\n")
    layer.file("var/lib/dpkg/status", DPKG.format(architecture).encode())
    layer.file("etc/gone", b"")
    return layer.close()


def base_archive(path: Path, architectures: tuple[str, ...] = ("amd64", "arm64")) -> Path:
    """Write an OCI archive with base images of two layers, the second of which removes a file."""
    layout = oci.Layout()
    images = []
    for architecture in architectures:
        upper = oci.Layer()
        upper.file("etc/.wh.gone", b"")
        tars = [base_layer(architecture), upper.close()]
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Env": ["PATH=/usr/local/bin:/bin", "PYTHON_VERSION=3.99.1"],
                "Cmd": ["python3"],
                "Labels": None,
            },
            "rootfs": {"type": "layers", "diff_ids": [oci.digest(tar) for tar in tars]},
        }
        layers = [layout.blob(gzip.compress(tar, mtime=0), oci.LAYER_GZIP) for tar in tars]
        images.append({**layout.image(config, layers), "platform": {"architecture": architecture, "os": "linux"}})
    layout.entries = [layout.document({"mediaType": oci.INDEX, "manifests": images})]
    path.write_bytes(layout.archive())
    return path


def elf(machine: int) -> bytes:
    """Return the beginning of a 64-bit little-endian ELF file."""
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, machine) + bytes(44)


def wheel(folder: Path, name: str, version: str, files: dict[str, bytes], scripts: str = "") -> Path:
    """Write a wheel and return its path."""
    info = f"{name}-{version}.dist-info"
    contents = dict(files)
    contents[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: MIT\n".encode()
    )
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if scripts:
        contents[f"{info}/entry_points.txt"] = f"[console_scripts]\n{scripts}\n".encode()
    rows = [f"{path},sha256={_hash(content)},{len(content)}" for path, content in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for each, content in contents.items():
            archive.writestr(each, content)
    path.write_bytes(buffer.getvalue())
    return path


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def wheels(folder: Path) -> dict[str, list[Path]]:
    """Write our wheel, and one with a library for each machine type; return those that each machine installs."""
    folder.mkdir()
    ours = wheel(
        folder,
        "neuron_dra",
        "1.2.3",
        {"neuron_dra/__init__.py": b"NAMES = frozenset({'x', 'y'})\n", "controller/main.py": b"def main(): return 0\n"},
        "neuron-dra = controller.main:main",
    )
    found = {}
    for architecture, machine in MACHINES.items():
        (folder / architecture).mkdir()
        library = {"fast/__init__.py": b"", f"fast/core.{TAG}-linux-gnu.so": elf(machine)}
        found[architecture] = [ours, wheel(folder / architecture, "Fast_Lib", "4.5", library)]
    return found


@dataclass(frozen=True)
class Published:
    """A folder with a release and the Makefile, and the digests that the release's build printed."""

    folder: Path
    digests: dict[str, str]

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--no-print-directory", *words]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=300, check=False)


def published(folder: Path) -> Published:
    """Write a release of version 1.2.3 into `build/release` of a folder."""
    from hack.release import base as release_base
    from hack.release import build as release

    what = release.Release("1.2.3", "0123456789abcdef0123456789abcdef01234567", 1_700_000_000)
    found = release_base.bases(base_archive(folder / "base.tar"), tuple(MACHINES))
    shutil.copy(ROOT / "Makefile", folder)
    out = folder / "build" / "release"
    out.mkdir(parents=True)
    return Published(folder, release.write(what, ROOT, found, wheels(folder / "wheels"), out))


# To read what a release has.


def images(path: Path) -> tuple[Any, dict[str, dict[str, Any]]]:
    """An archive, and its images by architecture."""
    layout = oci.read(path)
    [index] = layout.entries
    return layout, {each["platform"]["architecture"]: each for each in layout.read(index)["manifests"]}


def layers(layout: Any, image: dict[str, Any]) -> list[tarfile.TarFile]:
    """The file systems of an image's layers, the base's first."""
    blobs = [layout.blobs[each["digest"]] for each in layout.read(image)["layers"]]
    return [tarfile.open(fileobj=io.BytesIO(blob)) for blob in blobs]


def content(archive: tarfile.TarFile, name: str) -> bytes:
    source = archive.extractfile(name)
    assert source is not None
    return source.read()


def inside(layout: Any, image: dict[str, Any]) -> set[str]:
    """The distributions in an image, from the names of their folders."""
    names = [name for layer in layers(layout, image) for name in layer.getnames()]
    found = [re.search(r"/([^/]+)-([^/-]+)\.dist-info/METADATA$", name) for name in names]
    return {f"pkg:pypi/{each[1].lower().replace('_', '-')}@{each[2]}" for each in found if each}
