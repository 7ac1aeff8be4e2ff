"""What `make release` builds, on a small base and small wheels (18.1)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hack.bed import oci
from hack.release import base as release_base
from hack.release import build as release
from hack.release import chart as release_chart
from hack.release import image as release_image
from hack.release import layer as release_layer
from tests.support.built_tools import HELM, needs
from tests.tools import small_release
from tests.tools.small_release import ROOT, TAG, content, images, inside, layers

RELEASE = release.Release("1.2.3", "0123456789abcdef0123456789abcdef01234567", 1_700_000_000)
SITE_PACKAGES = f"opt/neuron-dra/lib/{small_release.PYTHON}/site-packages"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], dict[str, list[Path]]]:
    folder = tmp_path_factory.mktemp("inputs")
    base = small_release.base_archive(folder / "base.tar")
    return release_base.bases(base, ("amd64", "arm64")), small_release.wheels(folder / "wheels")


@pytest.fixture(scope="module")
def built(inputs: tuple[list[Any], dict[str, list[Path]]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("release")
    release.write(RELEASE, ROOT, *inputs, out)
    return out


def test_release_has_these_files_and_sums(built: Path) -> None:
    names = ["neuron-dra-driver", "neuron-ultraserver-controller"]
    expected = {"SHA256SUMS", "neuron-dra-1.2.3.tgz", "neuron-dra-chart-1.2.3.oci.tar"}
    expected.add("neuron_dra-1.2.3-py3-none-any.whl")
    expected |= {f"{name}-1.2.3.oci.tar" for name in names}
    expected |= {f"{name}-1.2.3-{architecture}.cdx.json" for name in names for architecture in ("amd64", "arm64")}
    assert {path.name for path in built.iterdir()} == expected
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=built, capture_output=True, text=True, check=True)
    assert len(checked.stdout.splitlines()) == len(expected) - 1


def test_two_builds_have_the_same_bytes(
    built: Path, inputs: tuple[list[Any], dict[str, list[Path]]], tmp_path: Path
) -> None:
    """(18.1) Other folder, later time, other umask."""
    bases, wheels = inputs
    for each in {path for paths in wheels.values() for path in paths}:
        os.utime(each, (0, 0))
    before = os.umask(0o077)
    try:
        release.write(RELEASE, ROOT, bases, {name: paths[::-1] for name, paths in wheels.items()}, tmp_path)
    finally:
        os.umask(before)
    assert time.time() > RELEASE.epoch
    assert (tmp_path / "SHA256SUMS").read_text() == (built / "SHA256SUMS").read_text()


@pytest.mark.parametrize("name", ["neuron-dra-driver", "neuron-ultraserver-controller"])
def test_layer_is_installed_and_compiled(built: Path, name: str) -> None:
    layout, found = images(built / f"{name}-1.2.3.oci.tar")
    assert list(found) == ["amd64", "arm64"]
    for architecture, image in found.items():
        ours = layers(layout, image)[-1]
        members = {each.name: each for each in ours}
        pyc = members[f"{SITE_PACKAGES}/neuron_dra/__pycache__/__init__.{TAG}.pyc"]
        assert {(each.uid, each.gid, each.mtime) for each in members.values()} == {(0, 0, RELEASE.epoch)}
        assert [each.name for each in ours] == sorted(members, key=lambda path: path.split("/"))
        assert members["opt/neuron-dra/bin/python"].linkname == f"/usr/local/bin/{small_release.PYTHON}"
        assert (members["opt/neuron-dra/bin/neuron-dra"].mode, pyc.mode) == (0o755, 0o644)
        script = content(ours, "opt/neuron-dra/bin/neuron-dra")
        assert script.startswith(b"#!/opt/neuron-dra/bin/python\n")
        assert content(ours, pyc.name)[4:8] == (1).to_bytes(4, "little")  # by hash, unchecked
        assert f"/{SITE_PACKAGES}/neuron_dra/__init__.py".encode() in content(ours, pyc.name)
        library = content(ours, f"{SITE_PACKAGES}/fast/core.{TAG}-linux-gnu.so")
        assert library == small_release.elf(small_release.MACHINES[architecture])


def test_standard_library_is_compiled_where_it_is_not(built: Path) -> None:
    layout, found = images(built / "neuron-dra-driver-1.2.3.oci.tar")
    names = [name for name in layers(layout, found["arm64"])[-1].getnames() if name.startswith("usr/")]
    assert names == [f"{small_release.LIBRARY}/__pycache__/plain.{TAG}.pyc"]


def test_installed_package_runs(built: Path, tmp_path: Path) -> None:
    """The folder is a virtual environment of the base's Python; here the Python of the tests takes its place."""
    layout, found = images(built / "neuron-dra-driver-1.2.3.oci.tar")
    layers(layout, found["amd64"])[-1].extractall(tmp_path, filter="tar")
    home = tmp_path / "opt" / "neuron-dra"
    (home / "bin" / "python").unlink()
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (home / "bin" / "python").symlink_to(python)
    settings = (home / "pyvenv.cfg").read_text()
    (home / "pyvenv.cfg").write_text(settings.replace("home = /usr/local/bin\n", f"home = {python.parent}\n"))
    program = "import fast, neuron_dra, controller.main, sys; print(neuron_dra.__cached__, sys.prefix)"
    ran = subprocess.run([home / "bin" / "python", "-I", "-c", program], capture_output=True, text=True, check=True)
    cached, prefix = ran.stdout.split()
    assert (Path(cached).exists(), prefix) == (True, str(home))


def test_image_settings_are_the_dockerfiles(built: Path) -> None:
    layout, found = images(built / "neuron-ultraserver-controller-1.2.3.oci.tar")
    manifest = layout.read(found["arm64"])
    config = layout.read(manifest["config"])
    settings = config["config"]
    assert (config["architecture"], config["os"], config["created"]) == ("arm64", "linux", "2023-11-14T22:13:20Z")
    assert (settings["User"], settings["Entrypoint"]) == ("65532:65532", ["k8s-neuron-ultraserver-operator"])
    assert "Cmd" not in settings
    assert settings["Env"][0] == "PATH=/opt/neuron-dra/bin:/usr/local/bin:/bin"
    assert "GRPC_VERBOSITY=ERROR" in settings["Env"]
    assert settings["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert settings["Labels"]["org.opencontainers.image.version"] == "1.2.3"
    assert manifest["annotations"]["org.opencontainers.image.revision"] == RELEASE.commit


def test_archives_follow_the_specification(built: Path) -> None:
    """(18.1) Digests, sizes, types, diff_ids; no blob that nothing names."""
    archives = sorted(built.glob("*.oci.tar"))
    assert [oci.problems(oci.read(path)) for path in archives] == [[], [], []]


def test_damaged_archives_are_found(built: Path) -> None:
    layout, found = images(built / "neuron-dra-driver-1.2.3.oci.tar")
    image = found["amd64"]
    manifest = layout.read(image)
    [first, *others] = manifest["layers"]
    changed = oci.Layout({**layout.blobs, first["digest"]: layout.blobs[others[0]["digest"]]}, layout.entries)
    assert {text.partition(": ")[0] for text in oci.problems(changed)} == {first["digest"], image["digest"]}
    lost = oci.Layout({name: blob for name, blob in layout.blobs.items() if name != first["digest"]}, layout.entries)
    assert oci.problems(lost) == [f"{first['digest']}: no such blob"]
    more = oci.Layout({**layout.blobs, oci.digest(b"x"): b"x"}, layout.entries)
    assert oci.problems(more) == [f"{oci.digest(b'x')}: not used"]
    config = {**layout.read(manifest["config"]), "rootfs": {"type": "layers", "diff_ids": []}}
    other = oci.Layout(dict(layout.blobs))
    other.entries = [{**other.image(config, manifest["layers"]), "platform": {"architecture": "s390x", "os": "linux"}}]
    texts = [text for text in oci.problems(other) if not text.endswith("not used")]
    assert [bool(re.search("diff_ids are|s390x in the index, amd64", text)) for text in texts] == [True, True]


# The bill of materials.


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_sbom_equals_the_image(built: Path, architecture: str) -> None:
    """(18.1) Each distribution of the image is in the SBOM, and each one of the SBOM in the image."""
    layout, found = images(built / "neuron-dra-driver-1.2.3.oci.tar")
    sbom = json.loads((built / f"neuron-dra-driver-1.2.3-{architecture}.cdx.json").read_text())
    listed = {each["purl"] for each in sbom["components"]}
    packages = inside(layout, found[architecture])
    assert len(packages) == 3
    assert {each for each in listed if each.startswith("pkg:pypi/")} == packages
    assert listed - packages == {f"pkg:deb/debian/libc6@2.41-12?arch={architecture}", "pkg:generic/python@3.99.1"}
    assert found[architecture]["digest"].removeprefix("sha256:") in sbom["metadata"]["component"]["purl"]


def test_sbom_is_valid_cyclonedx(built: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    for path in built.glob("*.cdx.json"):
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text()) is None


# The chart.


def test_chart_is_a_helm_artifact(built: Path) -> None:
    layout = oci.read(built / "neuron-dra-chart-1.2.3.oci.tar")
    manifest = layout.read(layout.entries[0])
    [layer] = manifest["layers"]
    assert layer["mediaType"] == "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
    assert manifest["config"]["mediaType"] == "application/vnd.cncf.helm.config.v1+json"
    assert layout.blobs[layer["digest"]] == (built / "neuron-dra-1.2.3.tgz").read_bytes()
    metadata = layout.read(manifest["config"])
    assert (metadata["version"], metadata["appVersion"], metadata["name"]) == ("1.2.3", "1.2.3", "neuron-dra")


@needs("helm")
def test_helm_renders_the_chart_of_the_release(built: Path) -> None:
    """As the chart in the folder, with the version of the release as the image's tag."""
    assert HELM is not None
    chart = built / "neuron-dra-1.2.3.tgz"
    words = [HELM, "template", "r", str(chart), "--set", "draDriver.image.repository=r", "--kube-version", "1.37.0"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r'image: "?r:([^"\n]+)', text)) == {"1.2.3"}
    linted = subprocess.run([HELM, "lint", chart], capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout


# What is not released.


def test_libraries_of_another_machine_are_rejected(
    inputs: tuple[list[Any], dict[str, list[Path]]],
) -> None:
    """(18.1) The files of arm64 are checked, since they are not run."""
    [_, arm64], wheels = inputs
    text = (
        rf"fast/core\.{TAG}-linux-gnu\.so: ELF class, byte order and machine are \(2, 1, 62\); arm64 is \(2, 1, 183\)"
    )
    with pytest.raises(release_base.ReleaseError, match=text):
        release_layer.layer(arm64, wheels["amd64"], RELEASE.epoch)


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("fast.so", b"#!/bin/sh", r"fast\.so is no ELF file"),
        ("fast.cpython-399-x.so", small_release.elf(183), "is for Python 3.99; the base has"),
        ("controller/more.py", b"", "has a package of our name: .*controller/more.py"),
        ("neuron_dra/__init__.py", b"", "has a package of our name"),
    ],
)
def test_wheels_that_do_not_fit_are_rejected(
    inputs: tuple[list[Any], dict[str, list[Path]]], tmp_path: Path, file: str, content: bytes, text: str
) -> None:
    [_, arm64], wheels = inputs
    wrong = small_release.wheel(tmp_path, "wrong", "1", {file: content})
    with pytest.raises(release_base.ReleaseError, match=text):
        release_layer.layer(arm64, [*wheels["arm64"], wrong], RELEASE.epoch)


def test_two_wheels_with_one_file_are_rejected(inputs: tuple[list[Any], dict[str, list[Path]]], tmp_path: Path) -> None:
    [amd64, _], wheels = inputs
    wrong = small_release.wheel(tmp_path, "wrong", "1", {"fast/__init__.py": b""})
    with pytest.raises(release_base.ReleaseError, match="another wheel has the same file"):
        release_layer.layer(amd64, [*wheels["amd64"], wrong], RELEASE.epoch)


def test_base_without_a_machine_is_rejected(tmp_path: Path) -> None:
    base = small_release.base_archive(tmp_path / "base.tar", ("amd64",))
    with pytest.raises(release_base.ReleaseError, match="has no image for linux on arm64, only for amd64"):
        release_base.bases(base, ("amd64", "arm64"))
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(release_base.ReleaseError, match="is no OCI image layout"):
        release_base.bases(tmp_path / "text", ("amd64",))


def test_layers_hide_what_lower_ones_have(inputs: tuple[list[Any], dict[str, list[Path]]]) -> None:
    [amd64, _], _ = inputs
    assert "etc/gone" not in amd64.files
    upper = oci.Layer()
    upper.file("usr/local/.wh..wh..opq", b"")
    upper.file("usr/local/new", b"")
    names = set(release_base.flatten([small_release.base_layer("amd64"), upper.close()]))
    assert names == {"usr", "usr/local", "usr/local/new", "var/lib/dpkg/status", "etc/gone"}


def test_dockerfile_with_other_instructions_is_rejected() -> None:
    with pytest.raises(release_base.ReleaseError, match="has WORKDIR, which"):
        release_image.last_stage('FROM x\nWORKDIR /tmp\nUSER 0\nENTRYPOINT ["x"]\n')


@pytest.mark.parametrize("version", ["", "1", "1.2", "v1.2.3", "1.2.3.4", "01.2.3", "1.2.3+x", "1.2.3-x", "1.2.3-rc1"])
def test_wrong_versions_are_rejected(version: str) -> None:
    with pytest.raises(release_base.ReleaseError, match=r"use a semantic version such as 1\.2\.3"):
        release.checked_version(version)


@pytest.mark.parametrize("version", ["0.1.0", "1.2.3", "10.20.30-rc.1", "1.0.0-alpha.0"])
def test_versions_are_versions_everywhere(version: str) -> None:
    assert release.checked_version(version) == version
    assert release_chart.with_version("version: 0\nappVersion: 0\n", version).count(version) == 2


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A work tree of Git with one commit."""
    folder = tmp_path / "tree"
    (folder / "neuron_dra").mkdir(parents=True)
    (folder / "neuron_dra" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    author = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def test_version_gets_into_the_sources(tree: Path, tmp_path: Path) -> None:
    """`neuron-dra --version` prints `__version__`."""
    described = release.described("1.2.3-rc.1", tree)
    folder = release.exported(tree, described, tmp_path / "sources")
    assert (folder / "neuron_dra" / "__init__.py").read_text() == '__version__ = "1.2.3-rc.1"\n'
    assert (tree / "neuron_dra" / "__init__.py").read_text() == '__version__ = "0.1.0"\n'


def test_uncommitted_changes_are_rejected(tree: Path, tmp_path: Path) -> None:
    (tree / "new").write_text("")
    with pytest.raises(release_base.ReleaseError, match=r"uncommitted changes: commit or remove them first\n.*new"):
        release.build("1.2.3", tmp_path / "base.tar", tmp_path / "out" / "release", tree)
    assert not (tmp_path / "out").exists()


def test_failed_build_leaves_the_last_release(tree: Path, tmp_path: Path) -> None:
    (tree / "neuron_dra" / "__init__.py").write_text("")
    commit(tree)
    base = small_release.base_archive(tmp_path / "base.tar")
    out = tmp_path / "out" / "release"
    out.mkdir(parents=True)
    (out / "SHA256SUMS").write_text("of the last release")
    with pytest.raises(release_base.ReleaseError, match=r"__init__\.py has 0 lines `__version__ =`"):
        release.build("1.2.3", base, out, tree)
    assert [path.relative_to(out.parent) for path in out.parent.rglob("*")] == [
        Path("release"),
        Path("release/SHA256SUMS"),
    ]


def test_make_reports_a_missing_version() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "hack.release.build", "--version", "", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("release: VERSION is ''")
