"""18.1. `make publish` with a real registry: what it pushes, and that Helm installs from there."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.bed import build, layout, network
from tests.support import image_registry
from tests.support.built_tools import HELM, needs
from tests.support.skipping import impossible
from tests.tools import small_release
from tests.tools.small_release import Published

NAMES = ("neuron-dra-driver", "neuron-ultraserver-controller", "neuron-dra-chart")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return small_release.published(tmp_path_factory.mktemp("publish"))


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
    assert "publish: 127.0.0.1:9/none/neuron-dra-driver:1.2.3 was not pushed: install skopeo, and log in" in ran.stderr
    assert "skopeo login 127.0.0.1:9. Then publish again" in ran.stderr
    assert not earlier.exists()


def test_damaged_release_is_not_published(tree: Published) -> None:
    damaged = tree.folder / "build/release/neuron-dra-1.2.3.tgz"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1])
    try:
        ran = tree.make("publish", "REGISTRY=127.0.0.1:9/none", "VERSION=1.2.3", "PUSH=false")
    finally:
        damaged.write_bytes(content)
    assert (ran.returncode, ran.stdout) == (2, "neuron-dra-1.2.3.tgz: FAILED\n")
    assert "publish: build/release is damaged: make release VERSION=1.2.3" in ran.stderr


def digests(tree: Published, *names: str) -> None:
    """Write what a push that stopped after these names leaves."""
    folder = tree.folder / "build/published"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"sha256:{'0' * 64}")


def test_sign_needs_a_registry(tree: Published) -> None:
    ran = tree.make("sign", "SIGN=echo")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "sign: set REGISTRY to the registry of make publish" in ran.stderr


@pytest.mark.parametrize("pushed", [(), NAMES[:1], NAMES[:2]])
def test_nothing_is_signed_before_everything_is_pushed(tree: Published, pushed: tuple[str, ...]) -> None:
    digests(tree, *pushed)
    ran = tree.make("sign", "SIGN=echo", "REGISTRY=127.0.0.1:9/none")
    missing = NAMES[len(pushed)].removesuffix("-chart")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"sign: {missing} was not published from this folder: make publish" in ran.stderr


@pytest.mark.parametrize("command", ["false", "no-such-cosign sign --yes"])
def test_failed_signature_says_what_to_do(tree: Published, command: str) -> None:
    digests(tree, *NAMES)
    ran = tree.make("sign", f"SIGN={command}", "REGISTRY=127.0.0.1:9/none")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"sign: 127.0.0.1:9/none/neuron-dra-driver@sha256:{'0' * 64} was not signed" in ran.stderr
    assert "install cosign 3, and log in with: cosign login 127.0.0.1:9. Then sign again" in ran.stderr


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
