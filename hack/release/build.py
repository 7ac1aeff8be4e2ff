"""Build a release in build/release/: `make release VERSION=1.2.3`. docs/release.md describes the files.

Everything comes from the commit that is checked out, so uncommitted changes are an error. Nothing is left behind when
something fails: the files are written beside build/release and take its place at the end.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hack.bed import oci
from hack.release.base import ROOT, Base, ReleaseError, bases
from hack.release.chart import artifact, chart
from hack.release.image import add_image, add_index, last_stage
from hack.release.layer import interpreter, layer
from hack.release.sbom import sbom
from hack.release.site import site
from hack.release.wheels import build_ours, check_complete, download

OUT = ROOT / "build" / "release"
BASE = ROOT / "build" / "release-base.tar"  # which `make release` fetches
IMAGES = {"neuron-dra-driver": "Dockerfile.plugin", "neuron-ultraserver-controller": "Dockerfile.controller"}
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# Semantic versions that are also versions of Python packages, and tags of images.
NUMBER = r"(0|[1-9]\d*)"
VERSION = re.compile(rf"{NUMBER}\.{NUMBER}\.{NUMBER}(-(alpha|beta|rc)\.{NUMBER})?")


@dataclass(frozen=True, slots=True)
class Release:
    """What is released."""

    version: str
    commit: str
    epoch: int  # the commit's time, in seconds: the time of all files and documents

    def annotations(self, title: str) -> dict[str, str]:
        """Return the annotations of everything that has this title."""
        created = datetime.datetime.fromtimestamp(self.epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "org.opencontainers.image.title": title,
            "org.opencontainers.image.version": self.version,
            "org.opencontainers.image.revision": self.commit,
            "org.opencontainers.image.created": created,
        }


def checked_version(text: str) -> str:
    """Return the version, if it is one that all parts of a release can have."""
    if not VERSION.fullmatch(text):
        raise ReleaseError(f"VERSION is {text!r}: use a semantic version such as 1.2.3 or 1.2.3-rc.1 (alpha, beta, rc)")
    return text


def described(version: str, tree: Path) -> Release:
    """Return the release of what is checked out in a Git work tree, which must be clean."""
    if changed := _git(tree, "status", "--porcelain"):
        raise ReleaseError(f"uncommitted changes: commit or remove them first\n{changed}")
    commit, epoch = _git(tree, "log", "-1", "--format=%H %ct").split()
    return Release(checked_version(version), commit, int(epoch))


def _git(tree: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def exported(tree: Path, release: Release, folder: Path) -> Path:
    """Write the commit's files into a folder, with the release's version, and return it."""
    archive = subprocess.run(["git", "archive", release.commit], cwd=tree, capture_output=True, check=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    path = folder / "neuron_dra/__init__.py"
    line = f'__version__ = "{release.version}"'
    text, count = re.subn(r'^__version__ = ".*"$', line, path.read_text(), flags=re.MULTILINE)
    if count != 1:
        raise ReleaseError(f"neuron_dra/__init__.py has {count} lines `__version__ =`, one is needed")
    path.write_text(text)
    return folder


def wheels_for(base: Base, ours: Path, cache: Path) -> list[Path]:
    """Download the locked wheels for a base, check that they are complete, and return them with ours."""
    machine = MACHINES[base.architecture]
    folder = cache / f"{machine}-{base.python_version}"
    download(folder, base.python_version, machine)
    check_complete(ours, folder, base.python_version, machine)
    return [ours, *sorted(folder.glob("*.whl"))]


def write(release: Release, tree: Path, found: list[Base], wheels: dict[str, list[Path]], out: Path) -> dict[str, str]:
    """Write the files of a release into a folder; return the digests of the images and the chart by name and tag.

    One of the wheels, the same for each architecture, is ours. SHA256SUMS has all files of the folder.
    """
    layers = {base.architecture: layer(base, wheels[base.architecture], release.epoch) for base in found}
    shutil.copy(next(path for paths in wheels.values() for path in paths if path.name.startswith("neuron_dra-")), out)
    digests = {}
    for name, dockerfile in IMAGES.items():
        layout = oci.Layout()
        stage = last_stage((tree / dockerfile).read_text())
        notes = release.annotations(name)
        images = [add_image(layout, base, layers[base.architecture], stage, notes) for base in found]
        for base, image in zip(found, images, strict=True):
            text = sbom(name, release.version, image, base, layers[base.architecture], release.epoch)
            (out / f"{name}-{release.version}-{base.architecture}.cdx.json").write_bytes(text)
        digests[f"{name}:{release.version}"] = add_index(layout, images, f"{name}:{release.version}", notes)
        _write_layout(layout, out / f"{name}-{release.version}.oci.tar")
    content, metadata = chart(tree / "deploy" / "helm" / "neuron-dra", release.version, release.epoch)
    (out / f"neuron-dra-{release.version}.tgz").write_bytes(content)
    packed = artifact(content, metadata, release.annotations("neuron-dra"))
    digests[f"chart neuron-dra:{release.version}"] = packed.entries[0]["digest"]
    _write_layout(packed, out / f"neuron-dra-chart-{release.version}.oci.tar")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(sums))
    return digests


def _write_layout(layout: oci.Layout, path: Path) -> None:
    path.write_bytes(layout.archive())
    if wrong := oci.problems(oci.read(path)):
        raise ReleaseError(f"{path.name} breaks the OCI image layout's rules: {'; '.join(wrong)}")


def build(version: str, base: Path, out: Path, tree: Path = ROOT) -> dict[str, str]:
    """Build a release of what is checked out into `out`, in place of an older one; return the digests by name."""
    checked_version(version)
    release = described(version, tree)
    found = bases(base, tuple(MACHINES))
    for each in found:
        interpreter(each.python_version)  # before the downloads
    os.environ["SOURCE_DATE_EPOCH"] = str(release.epoch)  # hatchling writes it into our wheel
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=out.parent) as scratch:
        sources = exported(tree, release, Path(scratch) / "tree")
        (Path(scratch) / "wheel").mkdir()
        ours = build_ours(Path(scratch) / "wheel", sources)
        wheels = {each.architecture: wheels_for(each, ours, ROOT / "build" / "release-wheels") for each in found}
        files = Path(scratch) / "release"
        files.mkdir()
        pages = f"neuron-dra-docs-{version}"
        (files / f"{pages}.tar.gz").write_bytes(site(sources, pages, release.epoch))
        digests = write(release, sources, found, wheels, files)
        shutil.rmtree(out, ignore_errors=True)
        files.rename(out)
    return digests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", required=True, help="a semantic version, such as 1.2.3 or 1.2.3-rc.1")
    parser.add_argument("--base", type=Path, default=BASE, help="OCI archive with the base for amd64 and arm64")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder to write (default build/release)")
    parser.add_argument("--check", action="store_true", help="check version and work tree, and build nothing")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the files beside build/release are removed
    try:
        if arguments.check:
            described(checked_version(arguments.version), ROOT)
            return 0
        digests = build(arguments.version, arguments.base, arguments.out)
    except (ReleaseError, subprocess.CalledProcessError) as err:
        print(f"release: {err}", file=sys.stderr)
        return 1
    for name, value in digests.items():
        print(f"{name}@{value}")
    print(f"{len(list(arguments.out.iterdir()))} files in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
