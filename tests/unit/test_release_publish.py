"""18.1. `make publish` with a real registry: what it pushes, and that Helm installs from there."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import small_release
from small_release import ROOT

from tests.support import image_registry
from tests.support.built_tools import HELM, needs
from tests.support.skipping import impossible

from bed import build, layout, network  # isort: skip
import release  # isort: skip
import release_base  # isort: skip

RELEASE = release.Release("1.2.3", "0123456789abcdef0123456789abcdef01234567", 1_700_000_000)


@dataclass(frozen=True)
class Published:
    """A folder with a release and the Makefile, and the digests that the release's build printed."""

    folder: Path
    digests: dict[str, str]

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "--no-print-directory", *words], cwd=self.folder, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Published:
    folder = tmp_path_factory.mktemp("publish")
    base = small_release.base_archive(folder / "base.tar")
    wheels = small_release.wheels(folder / "wheels")
    shutil.copy(ROOT / "Makefile", folder)
    out = folder / "build" / "release"
    out.mkdir(parents=True)
    digests = release.write(RELEASE, ROOT, release_base.bases(base, ("amd64", "arm64")), wheels, out)
    return Published(folder, digests)


@pytest.mark.parametrize("version", ["1.2.4", ""])
def test_release_of_another_version_is_not_published(tree: Published, version: str) -> None:
    ran = tree.make("publish", "REGISTRY=127.0.0.1:9/none", f"VERSION={version}")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f'publish: build/release has no version "{version}": make release VERSION={version}' in ran.stderr


def test_publish_needs_a_registry(tree: Published) -> None:
    ran = tree.make("publish", "VERSION=1.2.3")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "publish: set REGISTRY to a registry to which you are logged in" in ran.stderr


def test_a_push_that_fails_leaves_no_digests_to_sign(tree: Published) -> None:
    """`make sign` would sign those of an earlier release."""
    earlier = tree.folder / "build/published/neuron-dra-chart"
    earlier.parent.mkdir(exist_ok=True)
    earlier.write_text(f"sha256:{'0' * 64}")
    ran = tree.make("publish", "REGISTRY=127.0.0.1:9/none", "VERSION=1.2.3", "PUSH=false")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert not earlier.exists()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry, which is built first."""
    if shutil.which("skopeo") is None:
        impossible("skopeo is missing (Debian package skopeo)")
    here = layout.from_environment()
    module = build.registry(here)
    build.build_modules(here, [module], "the registry")
    folder = tmp_path_factory.mktemp("registry")
    address = f"127.0.0.1:{network.free_port()}"
    with image_registry.running(module.bin_dir / "registry", folder, address, answers):
        yield address


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.long
@needs("helm")
def test_helm_and_others_pull_what_was_published(tree: Published, registry: str, tmp_path: Path) -> None:
    assert HELM is not None
    where = f"{registry}/neuron"
    push = "PUSH=skopeo copy --quiet --all --dest-tls-verify=false"
    ran = tree.make("publish", f"REGISTRY={where}", "VERSION=1.2.3", push)
    assert (ran.returncode, ran.stderr) == (0, "")
    driver, controller, chart = tree.digests.values()
    assert ran.stdout.splitlines() == [
        f"{where}/neuron-dra-driver:1.2.3@{driver}",
        f"{where}/neuron-ultraserver-controller:1.2.3@{controller}",
        f"{where}/neuron-dra:1.2.3@{chart}",
    ]
    words = ["skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{where}/neuron-dra-driver:1.2.3"]
    index = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert {each["platform"]["architecture"] for each in index["manifests"]} == {"amd64", "arm64"}
    words = [str(HELM), "pull", f"oci://{where}/neuron-dra", "--version", "1.2.3", "--plain-http", "-d", str(tmp_path)]
    subprocess.run(words, capture_output=True, text=True, check=True)
    pulled = (tmp_path / "neuron-dra-1.2.3.tgz").read_bytes()
    assert pulled == (tree.folder / "build/release/neuron-dra-1.2.3.tgz").read_bytes()
