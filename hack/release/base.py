"""The base image of a release: what its file system has, as far as our layer and the SBOM depend on it."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hack.bed import oci

ROOT = Path(__file__).resolve().parents[2]


# As in the Dockerfiles: parts of the standard library that the programs do not import.
NOT_COMPILED = re.compile(r"/(test|tests|idlelib|lib2to3|tkinter|turtledemo|ensurepip|site-packages|dist-packages)/")
# Files whose contents are needed: sources of the standard library, and lists of what is installed.
READ = re.compile(r"lib/python3\.\d+/.*\.py|.*\.dist-info/METADATA|var/lib/dpkg/status(\.d/.*)?")


class ReleaseError(Exception):
    """The release cannot be built; the text names the reason and what to change."""


@dataclass(frozen=True, slots=True)
class Base:
    """The base image for one machine type."""

    architecture: str  # as in image indexes: amd64, arm64
    descriptor: oci.Descriptor
    config: dict[str, Any]
    layers: dict[str, bytes]  # blobs by digest, as they are
    descriptors: list[oci.Descriptor]
    files: dict[str, bytes | None]  # by path; the contents of those in READ, else None
    python: PurePosixPath  # such as /usr/local/bin/python3.13

    @property
    def python_version(self) -> str:
        """Return `3.13`."""
        return self.python.name.removeprefix("python")

    @property
    def library(self) -> str:
        """Return the folder of the standard library, without the leading slash."""
        return str(self.python.parent.parent / "lib" / self.python.name).lstrip("/")

    def sources_without_bytecode(self) -> dict[str, bytes]:
        """Return the modules of the standard library that have no .pyc file in the base."""
        tag = "cpython-" + self.python_version.replace(".", "")
        found = {}
        for name, content in self.files.items():
            path = PurePosixPath(name)
            compiled = str(path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc")
            ours = name.startswith(f"{self.library}/") and path.suffix == ".py" and not NOT_COMPILED.search(name)
            if ours and content is not None and compiled not in self.files:
                found[name] = content
        return found


def flatten(layers: list[bytes]) -> dict[str, bytes | None]:
    """Return the paths of a stack of tar archives, upper layers over lower ones, with the contents of those in READ."""
    files: dict[str, bytes | None] = {}
    for layer in layers:
        added: dict[str, bytes | None] = {}
        with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
            for each in tar:
                name = str(PurePosixPath(each.name))
                folder, _, last = name.rpartition("/")
                if last == ".wh..wh..opq":
                    files = {path: content for path, content in files.items() if not path.startswith(f"{folder}/")}
                elif last.startswith(".wh."):
                    gone = f"{folder}/{last[4:]}".lstrip("/")
                    files = {
                        path: content
                        for path, content in files.items()
                        if path != gone and not path.startswith(f"{gone}/")
                    }
                else:
                    wanted = each.isfile() and READ.fullmatch(name.removeprefix("usr/").removeprefix("local/"))
                    source = tar.extractfile(each) if wanted else None
                    added[name] = source.read() if source else None
        files |= added
    return files


def _python(files: dict[str, bytes | None], architecture: str) -> PurePosixPath:
    """Return the interpreter that `python3` is in the base: /usr/local before /usr, then the newest."""
    found = [(match[1] == "usr/local", int(match[2]), name) for name in files
             if (match := re.fullmatch(r"(usr|usr/local)/bin/python3\.(\d+)", name))]  # fmt: skip
    if not found:
        raise ReleaseError(f"the base for {architecture} has no /usr/local/bin/python3.N and no /usr/bin/python3.N")
    return PurePosixPath("/") / max(found)[2]


def bases(path: Path, architectures: tuple[str, ...]) -> list[Base]:
    """Read the base images for these machine types from an image layout.

    Raises:
        ReleaseError: the layout cannot be used.
    """
    try:
        layout = oci.read(path)
        images = {architecture: each for each, architecture in _images(layout)}
        if missing := [each for each in architectures if each not in images]:
            raise ReleaseError(f"{path} has no image for linux on {', '.join(missing)}, only for {', '.join(images)}")
        return [_base(layout, images[each], each) for each in architectures]
    except ValueError as err:
        raise ReleaseError(f"the base image: {err}") from err


def _images(layout: oci.Layout) -> Iterator[tuple[oci.Descriptor, str]]:
    """Yield the images for Linux with their architecture; an index may also list attestations, which are none."""
    for each in layout.manifests():
        manifest = layout.read(each)
        if manifest["config"]["mediaType"] == oci.CONFIG:
            config = layout.read(manifest["config"])
            if config.get("os") == "linux":
                yield each, config["architecture"]


def _base(layout: oci.Layout, descriptor: oci.Descriptor, architecture: str) -> Base:
    manifest = layout.read(descriptor)
    blobs = {each["digest"]: layout.blobs[each["digest"]] for each in manifest["layers"]}
    files = flatten([oci.uncompressed(blobs[each["digest"]], each["mediaType"]) for each in manifest["layers"]])
    return Base(
        architecture=architecture,
        descriptor=descriptor,
        config=layout.read(manifest["config"]),
        layers=blobs,
        descriptors=manifest["layers"],
        files=files,
        python=_python(files, architecture),
    )
