"""OCI image layouts. The same content always gives the same bytes, so it has the same digest.

Source: https://github.com/opencontainers/image-spec, version 1.1. The test bed writes its small images with this module,
`make release` the images and the chart.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Descriptor = dict[str, Any]

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
LAYER_GZIP = f"{LAYER}+gzip"
LAYOUT = {"imageLayoutVersion": "1.0.0"}


@dataclass(slots=True)
class Layer:
    """A tar archive whose files belong to root and have one time."""

    mtime: int = 0
    buffer: io.BytesIO = field(default_factory=io.BytesIO)
    archive: tarfile.TarFile = field(init=False)

    def __post_init__(self) -> None:
        self.archive = tarfile.TarFile(fileobj=self.buffer, mode="w", format=tarfile.PAX_FORMAT)

    def directory(self, name: str, mode: int = 0o755) -> None:
        info = self._info(name, mode)
        info.type = tarfile.DIRTYPE
        self.archive.addfile(info)

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        info = self._info(name, mode)
        info.size = len(content)
        self.archive.addfile(info, io.BytesIO(content))

    def link(self, name: str, target: str) -> None:
        info = self._info(name, 0o777)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self.archive.addfile(info)

    def _info(self, name: str, mode: int) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = mode, self.mtime
        return info

    def close(self) -> bytes:
        self.archive.close()
        return self.buffer.getvalue()


def digest(data: bytes) -> str:
    """Return the name of a blob."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def encode(content: Any) -> bytes:
    """Return a document as JSON, with sorted keys."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


@dataclass(slots=True)
class Layout:
    """The blobs of an image layout, and the entries of its index."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    entries: list[Descriptor] = field(default_factory=list)

    def blob(self, data: bytes, media_type: str) -> Descriptor:
        """Add a blob and return its descriptor."""
        name = digest(data)
        self.blobs[name] = data
        return {"mediaType": media_type, "digest": name, "size": len(data)}

    def document(self, content: dict[str, Any]) -> Descriptor:
        """Add a manifest or an index and return its descriptor."""
        return self.blob(encode({"schemaVersion": 2, **content}), content["mediaType"])

    def image(self, config: dict[str, Any], layers: list[Descriptor], **fields: Any) -> Descriptor:
        """Add an image of layers that are there already and return the descriptor of its manifest."""
        content = {"mediaType": MANIFEST, "config": self.blob(encode(config), CONFIG), "layers": layers}
        return self.document({**content, **fields})

    def read(self, descriptor: Descriptor) -> Any:
        """Return the JSON document that a descriptor names."""
        return json.loads(self.blobs[descriptor["digest"]])

    def manifests(self) -> Iterator[Descriptor]:
        """Yield the descriptors of all manifests, also of those in nested indexes."""
        waiting = list(self.entries)
        while waiting:
            each = waiting.pop(0)
            if each["mediaType"] == INDEX:
                waiting += self.read(each)["manifests"]
            else:
                yield each

    def archive(self) -> bytes:
        """Return the layout as a tar archive."""
        tar = Layer()
        tar.file("oci-layout", encode(LAYOUT))
        tar.file("index.json", encode({"schemaVersion": 2, "mediaType": INDEX, "manifests": self.entries}))
        for name in ("blobs", "blobs/sha256"):
            tar.directory(name)
        for name, data in sorted(self.blobs.items()):
            tar.file("blobs/" + name.replace(":", "/"), data)
        return tar.close()


def uncompressed(data: bytes, media_type: str) -> bytes:
    """Return the tar archive of a layer."""
    if media_type.endswith("gzip"):
        return gzip.decompress(data)
    if media_type.endswith(".tar"):
        return data
    raise ValueError(f"a layer has the media type {media_type}; only tar and tar+gzip can be read")


def read(path: Path) -> Layout:
    """Read an image layout, a folder or a tar archive.

    Raises:
        ValueError: the path is no image layout.
    """
    try:
        if path.is_dir():
            files = {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}
        else:
            with tarfile.open(path) as tar:
                files = {
                    each.name.removeprefix("./"): source.read() for each in tar if (source := tar.extractfile(each))
                }
        found = json.loads(files["oci-layout"])
        entries = json.loads(files["index.json"])["manifests"]
    except (OSError, tarfile.TarError, KeyError, ValueError) as err:
        raise ValueError(f"{path} is no OCI image layout: {err!r}") from err
    if found != LAYOUT:
        raise ValueError(f"{path}: oci-layout is {found}, not {LAYOUT}")
    blobs = {
        name.removeprefix("blobs/").replace("/", ":"): data for name, data in files.items() if name.startswith("blobs/")
    }
    return Layout(blobs, entries)


def problems(layout: Layout) -> list[str]:
    """Return what the specification does not allow: wrong digests, sizes, types, diff_ids, and blobs that are not used."""
    found = [
        f"{name}: the blob's digest is {digest(data)}" for name, data in layout.blobs.items() if name != digest(data)
    ]
    used: set[str] = set()
    waiting = list(layout.entries)
    while waiting:
        each = waiting.pop(0)
        used.add(each["digest"])
        data = layout.blobs.get(each["digest"])
        if data is None:
            found.append(f"{each['digest']}: no such blob")
        elif len(data) != each["size"]:
            found.append(f"{each['digest']}: {len(data)} bytes, its descriptor says {each['size']}")
        elif each["mediaType"] in (INDEX, MANIFEST):
            content = layout.read(each)
            if (content["schemaVersion"], content.get("mediaType")) != (2, each["mediaType"]):
                found.append(f"{each['digest']}: not an {each['mediaType']}")
            waiting += content["manifests"] if each["mediaType"] == INDEX else [content["config"], *content["layers"]]
            if each["mediaType"] == MANIFEST and content["config"]["mediaType"] == CONFIG:
                found += _image_problems(layout, each, content)
    return found + [f"{name}: not used" for name in sorted(layout.blobs.keys() - used)]


def _image_problems(layout: Layout, descriptor: Descriptor, manifest: dict[str, Any]) -> list[str]:
    """Return what is wrong between a manifest, its configuration and its layers."""
    if any(each["digest"] not in layout.blobs for each in (manifest["config"], *manifest["layers"])):
        return []  # reported as missing
    config = layout.read(manifest["config"])
    found = []
    layers = [digest(uncompressed(layout.blobs[each["digest"]], each["mediaType"])) for each in manifest["layers"]]
    if layers != config["rootfs"]["diff_ids"]:
        found.append(f"{descriptor['digest']}: the layers are {layers}, diff_ids are {config['rootfs']['diff_ids']}")
    platform = descriptor.get("platform", {})
    for name in ("architecture", "os"):
        if name in platform and platform[name] != config[name]:
            found.append(
                f"{descriptor['digest']}: {name} is {platform[name]} in the index, {config[name]} in the image"
            )
    return found
