"""Two whole builds of a release, with the locked wheels, on a base of Debian's packages (18.1).

Minutes, and the network: part `release` of `make night`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from hack.release import base as release_base
from hack.release import build as release
from tests.support.skipping import impossible
from tests.tools.small_release import MACHINES, ROOT, images, inside, layers

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
VERSION = "1.2.3-rc.1"
BASE = ROOT / "build" / "debian-base.tar"


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two releases of the commit that is checked out, from two clones."""
    if os.geteuid() != 0:
        impossible("debootstrap needs root")
    subprocess.run(["make", str(BASE.relative_to(ROOT))], cwd=ROOT, check=True)
    found = []
    for name in ("one", "other"):
        folder = tmp_path_factory.mktemp(name)
        subprocess.run(["git", "clone", "-q", ROOT, folder / "tree"], check=True)
        release.build(VERSION, BASE, folder / "release", folder / "tree")
        found.append(folder / "release")
    return found


def test_two_whole_builds_have_the_same_bytes(builds: list[Path]) -> None:
    """(18.1)"""
    one, other = ((path / "SHA256SUMS").read_text() for path in builds)
    assert one == other
    assert len(one.splitlines()) == 10


def content(layer: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = layer.extractfile(member)
    assert file is not None
    return file.read()


@pytest.mark.parametrize("architecture", list(MACHINES))
def test_sbom_of_the_release_equals_its_image(builds: list[Path], architecture: str) -> None:
    """(18.1)"""
    for name in ("neuron-dra-driver", "neuron-ultraserver-controller"):
        layout, found = images(builds[0] / f"{name}-{VERSION}.oci.tar")
        sbom = json.loads((builds[0] / f"{name}-{VERSION}-{architecture}.cdx.json").read_text())
        listed = {each["purl"] for each in sbom["components"]}
        assert {each for each in listed if each.startswith("pkg:pypi/")} == inside(layout, found[architecture])
        [debian] = [
            text.decode()
            for layer in layers(layout, found[architecture])
            for member in layer
            if member.name == "./var/lib/dpkg/status"
            if (text := content(layer, member))
        ]
        assert len([each for each in listed if each.startswith("pkg:deb/")]) == len(
            re.findall(r"^Package: ", debian, re.MULTILINE)
        )


def test_commands_of_the_image_run(builds: list[Path], tmp_path: Path) -> None:
    """The amd64 image, unpacked; that of arm64 has the same files but for the machine code."""
    layout, found = images(builds[0] / f"neuron-dra-driver-{VERSION}.oci.tar")
    config = layout.read(layout.read(found["amd64"])["config"])["config"]
    for layer in layers(layout, found["amd64"]):
        layer.extractall(tmp_path, filter="tar")
    environment = dict(each.split("=", 1) for each in config["Env"])
    chroot = [shutil.which("chroot") or "/usr/sbin/chroot", str(tmp_path)]
    for command, text in (
        ("neuron-dra --version", f"neuron-dra {VERSION}\n"),
        (f"{config['Entrypoint'][0]} --help", "usage"),
    ):
        ran = subprocess.run([*chroot, *command.split()], env=environment, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.startswith(text)
    program = "import grpc, msgspec, pydantic, yaml, aiohttp, controller.main, neuron_dra.node.plugin"
    subprocess.run([*chroot, "/opt/neuron-dra/bin/python", "-c", program], env=environment, check=True)


def test_command_line_is_installed_from_the_wheel(builds: list[Path], tmp_path: Path) -> None:
    [wheel] = builds[0].glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    subprocess.run([tmp_path / "bin/pip", "install", "--quiet", f"{wheel}[cli]"], check=True)
    kubeconfig = {"KUBECONFIG": "/nonexistent", "HOME": str(tmp_path)}
    for command, outcome in (
        ("neuron-dra --version", (0, f"neuron-dra {VERSION}\n")),
        ("neuron-dra simulate --fleet trn2.48xlarge /dev/null", (2, "")),
        ("neuron-dra status", (2, "")),
    ):
        ran = subprocess.run(
            [tmp_path / "bin" / command.split()[0], *command.split()[1:]],
            env=kubeconfig,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stdout) == outcome
        assert "Traceback" not in ran.stderr


def test_both_machines_have_the_same_files(builds: list[Path]) -> None:
    layout, found = images(builds[0] / f"neuron-dra-driver-{VERSION}.oci.tar")
    names = {each: _names(layers(layout, image)[-1]) for each, image in found.items()}
    differ = {name for name in names["amd64"] ^ names["arm64"] if name.startswith("opt/")}
    assert {Path(name).suffix for name in differ} <= {".so"}  # whose names have the machine type
    libraries = {each: len([name for name in names[each] if name.endswith(".so")]) for each in names}
    assert libraries["amd64"] == libraries["arm64"] > 10


def _names(layer: tarfile.TarFile) -> set[str]:
    return set(layer.getnames())


def test_release_needs_no_unknown_wheel(builds: list[Path]) -> None:
    """The distributions of our layer are those of the lock file, and ours."""
    locked = {
        line.split("==")[0] for line in (ROOT / "requirements/plugin.txt").read_text().splitlines() if "==" in line
    }
    layout, found = images(builds[0] / f"neuron-dra-driver-{VERSION}.oci.tar")
    base = release_base.bases(BASE, ("arm64",))[0]
    inherited = {name for name in base.files if name.endswith(".dist-info/METADATA")}
    purls = inside(layout, found["arm64"])
    assert {each.removeprefix("pkg:pypi/").split("@")[0] for each in purls} == locked | {"neuron-dra"}
    assert inherited == set()
