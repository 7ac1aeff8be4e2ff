"""Small container images, written as OCI archives, because there is no registry to pull from."""

from __future__ import annotations

import gzip
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hack.bed import oci, packages
from hack.bed.errors import BedError
from hack.bed.layout import Layout, short_hash

PAUSE = "testbed.local/pause:1"
TEST = "testbed.local/test:1"
QUICK = "testbed.local/quick:1"  # the same, stopped by SIGKILL, because `sleep` as first process ignores SIGTERM
# The documents' pods use these names for the test image, so their manifests run unchanged.
# (With the tag `latest` the default pull policy is Always: such a pod needs another image name.)
DOCUMENTED = ("public.ecr.aws/ubuntu/ubuntu:22.04", "public.ecr.aws/docker/library/alpine:latest")

KEPT_ARCHIVES = 3

ETC = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}


@dataclass(frozen=True, slots=True)
class Image:
    """One image of one layer."""

    names: tuple[str, ...]
    layer: bytes
    command: tuple[str, ...]
    stop_signal: str = "SIGTERM"


def _busybox() -> bytes:
    path = shutil.which("busybox", path=os.environ.get("PATH", "") + ":/bin:/usr/bin")
    if path is None:
        raise BedError("busybox is missing (Debian package busybox-static)")
    return Path(path).read_bytes()


def _bash() -> bytes:
    path = shutil.which("bash-static", path=os.environ.get("PATH", "") + ":/bin:/usr/bin")
    if path is None:
        raise BedError("bash-static is missing (Debian package bash-static)")
    return Path(path).read_bytes()


def _base_layer() -> oci.Layer:
    layer = oci.Layer()
    for name in ("bin", "dev", "etc", "proc", "root", "sys", "usr", "usr/bin", "var", "var/run"):
        layer.directory(name)
    layer.directory("tmp", 0o1777)
    layer.file("bin/busybox", _busybox(), 0o755)
    for name, content in ETC.items():
        layer.file(name, content.encode())
    return layer


def _pause_layer() -> bytes:
    layer = _base_layer()
    layer.link("bin/sleep", "/bin/busybox")
    return layer.close()


def _test_layer() -> bytes:
    layer = _base_layer()
    applets = subprocess.run(["busybox", "--list"], capture_output=True, text=True, timeout=30, check=True).stdout
    for applet in sorted(set(applets.split()) - {"busybox", "bash"}):
        layer.link(f"bin/{applet}", "/bin/busybox")
    layer.file("bin/bash", _bash(), 0o755)
    layer.link("usr/bin/bash", "/bin/bash")
    layer.link("usr/bin/env", "/bin/busybox")
    return layer.close()


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _write_archive(path: Path, contents: list[Image]) -> None:
    """Write an OCI archive to `path`."""
    layout = oci.Layout()
    for image in contents:
        config = {
            "architecture": _architecture(),
            "os": "linux",
            "config": {
                "Cmd": image.command,
                "Env": ["PATH=/usr/bin:/bin"],
                "WorkingDir": "/",
                "StopSignal": image.stop_signal,
            },
            "rootfs": {"type": "layers", "diff_ids": [oci.digest(image.layer)]},
        }
        layer = layout.blob(gzip.compress(image.layer, compresslevel=3, mtime=0), oci.LAYER_GZIP)
        entry = layout.image(config, [layer])
        layout.entries += [{**entry, "annotations": {"io.containerd.image.name": name}} for name in image.names]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(layout.archive())
    temporary.replace(path)


def small_images(layout: Layout) -> Path:
    """Return the archive with the pause and the test images, written on first use."""
    packages.require(packages.FOR_NODES, "the nodes")
    key = short_hash(_busybox(), _bash(), Path(__file__).read_bytes(), Path(oci.__file__).read_bytes())
    path = layout.cache_dir / "images" / f"small-{key}.tar"
    if not path.exists():
        layer = _test_layer()
        pause = Image((PAUSE,), _pause_layer(), ("/bin/sleep", "infinity"))
        test = Image((TEST, *DOCUMENTED), layer, ("/bin/bash",))
        _write_archive(path, [pause, test, Image((QUICK,), layer, ("/bin/bash",), "SIGKILL")])
        forget_old(path, "small-*.tar")
    return path


def forget_old(newest: Path, pattern: str) -> None:
    """Remove all but the few archives of this kind that were used last."""
    found = sorted(newest.parent.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[KEPT_ARCHIVES:]:
        path.unlink(missing_ok=True)
