"""The driver's own image, from `Dockerfile.plugin`, without a registry: debootstrap, then buildah."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hack.bed import images, packages
from hack.bed.errors import BedError
from hack.bed.layout import REPOSITORY, Layout, short_hash
from hack.bed.state import exclusive

REPOSITORY_NAME = "neuron-dra-plugin"  # Kubernetes reads it as docker.io/library/neuron-dra-plugin
SUITE = "bookworm"
BASE_PYTHON = "3.11"  # the Python of that suite, for which the wheels are downloaded
BASE_INCLUDES = "python3,python3-venv,ca-certificates"
BASE_WASTE = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")
MIRROR = "http://deb.debian.org/debian"
# The inputs of the image: the wheel's sources, the files that the wheel's build reads, the lock file, the Dockerfile.
SOURCES = ("neuron_dra", "controller", "pyproject.toml", "README.md", "LICENSE", "requirements/plugin.txt",
           "Dockerfile.plugin", "hack/release/wheels.py")  # fmt: skip
TIMEOUT_S = 1200


def tag() -> str:
    """Return the image's tag, which changes with its sources, so that the DaemonSet rolls out when they do."""
    parts: list[str | bytes] = [SUITE, BASE_INCLUDES]
    for name in SOURCES:
        path = REPOSITORY / name
        if not path.exists():
            raise BedError(f"{name} is missing in {REPOSITORY}: the driver's image cannot be built")
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                parts += [str(file.relative_to(REPOSITORY)), file.read_bytes()]
    return "dev-" + short_hash(*parts)


def archive(layout: Layout) -> Path:
    """Return an archive of the image for the current sources; build it if there is none."""
    this_tag = tag()
    path = layout.cache_dir / "images" / f"plugin-{this_tag}.tar"
    image = f"docker.io/library/{REPOSITORY_NAME}:{this_tag}"
    what = f"the driver's image {REPOSITORY_NAME}:{this_tag}"
    return on_base(layout, path, what, REPOSITORY / "Dockerfile.plugin", image, before=_wheels)


def on_base(
    layout: Layout, path: Path, what: str, dockerfile: Path, image: str, before: Callable[[], None] | None = None
) -> Path:
    """Return `path`, an archive of an image on the base; build it if there is none, after a call of `before`."""
    if path.exists():
        path.touch()  # marks it as used, so that it is kept
        return path
    base = base_archive(layout)
    with exclusive(layout.cache_dir / "images.lock", "another image build"):
        if not path.exists():
            started = time.monotonic()
            print(f"testbed: building {what} ...", flush=True)
            if before is not None:
                before()
            _build(layout, base, dockerfile, image, path)
            print(f"testbed: image built in {time.monotonic() - started:.0f} s", flush=True)
    images.forget_old(path, f"{path.name.partition('-')[0]}-*.tar")
    return path


def _wheels() -> None:
    python = REPOSITORY / ".venv" / "bin" / "python"
    if not python.exists():
        raise BedError(f"{python} is missing; run `make setup` first")
    _run([python, REPOSITORY / "hack" / "release" / "wheels.py", "--python", BASE_PYTHON])


def _build(layout: Layout, base: Path, dockerfile: Path, image: str, path: Path) -> None:
    """Import the base unless it exists, build the image with that name, and export it to `path`."""
    root = layout.cache_dir / "buildah"
    base_name = f"localhost/neuron-dra-base:{base.stem.rpartition('-')[2]}"
    with tempfile.TemporaryDirectory(prefix="neuron-dra-buildah-") as scratch:
        buildah: list[str | Path] = [
            "buildah",
            "--root",
            root,
            "--runroot",
            f"{scratch}/run",
            "--storage-driver",
            "vfs",
        ]
        if base_name not in _run([*buildah, "images", "--format", "{{.Name}}:{{.Tag}}"]).split():
            container = _run([*buildah, "from", "scratch"]).strip()
            _run([*buildah, "add", "--quiet", container, base, "/"])
            _run([*buildah, "commit", "--quiet", "--rm", container, base_name])
        _run([*buildah, "build", "--isolation", "chroot", "--layers=false", "--quiet",
              "--build-arg", f"BASE_IMAGE={base_name}", "-f", dockerfile, "-t", image, REPOSITORY])  # fmt: skip
        exported = Path(scratch) / "image.tar"
        _run([*buildah, "push", "--quiet", image, f"docker-archive:{exported}:{image}"])
        _run([*buildah, "rmi", image])
        shutil.move(exported, path.with_name(f".{path.name}"))
        path.with_name(f".{path.name}").replace(path)


def mirror() -> str:
    """Return the mirror of Debian's packages."""
    return os.environ.get("NEURON_DRA_TESTBED_DEBIAN_MIRROR", MIRROR)


def base_path(layout: Layout) -> Path:
    """Return where the archive of the base is, or will be."""
    return layout.cache_dir / "images" / f"base-{short_hash(SUITE, BASE_INCLUDES, repr(BASE_WASTE))}.tar"


def base_archive(layout: Layout) -> Path:
    """Return an archive of a small Debian with Python, made on first use."""
    path = base_path(layout)
    if path.exists():
        return path
    packages.require(packages.FOR_PLUGIN_IMAGE, "the driver's image")
    with exclusive(layout.cache_dir / "images.lock", "another image build"):
        if path.exists():
            return path
        print(f"testbed: making the image base, Debian {SUITE} with Python, by debootstrap ...", flush=True)
        started = time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="neuron-dra-base-", dir=layout.cache_dir) as scratch:
            target = Path(scratch) / "root"
            _run(["debootstrap", "--variant=minbase", f"--include={BASE_INCLUDES}", SUITE, target, mirror()])
            for name in BASE_WASTE:
                shutil.rmtree(target / name, ignore_errors=True)
            temporary = path.with_name(f".{path.name}")
            _run(["tar", "--numeric-owner", "--exclude=./dev/*", "--exclude=./proc/*", "-C", target, "-cf", temporary,
                  "."])  # fmt: skip
            temporary.replace(path)
        print(f"testbed: base made in {time.monotonic() - started:.0f} s", flush=True)
    return path


def _run(command: Sequence[str | Path]) -> str:
    words = [str(word) for word in command]
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin", "BUILDAH_ISOLATION": "chroot",
                   "PYTHONPATH": str(REPOSITORY)}  # fmt: skip
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, cwd=REPOSITORY,
                              check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as err:
        raise BedError(f"`{' '.join(words[:3])} ...`: {err}") from err
    if done.returncode != 0:
        raise BedError(f"`{' '.join(words)}` failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout
