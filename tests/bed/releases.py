"""A release on its way to a cluster of the test bed: built, published to a registry, installed as the README says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hack.bed.real_cluster import REPOSITORY, TestBed, eventually
from tests.bed.deployed import CONTROLLER, DAEMONSET, NAMESPACE
from tests.support import image_registry
from tests.support.skipping import impossible

ADDRESS = "127.0.0.1:5000"  # in the test bed's network; containerd, skopeo and Helm use no TLS there
IMAGE = f"{ADDRESS}/neuron/neuron-dra-driver"
VERSIONS = ("1.2.3", "1.2.4")


@dataclass(frozen=True)
class Shell:
    """Runs commands as a user of the test bed's cluster does, in a clone, with the registry's address for REGISTRY."""

    bed: TestBed
    folder: Path

    def run(self, command: str) -> str:
        from hack.bed import network

        environment = {**os.environ, **self.bed.parts.plane.environment(), "HOME": str(self.folder / "home")}
        words = [*network.enter(self.bed.where), "bash", "-euo", "pipefail", "-c", self.here(command)]
        done = subprocess.run(
            words, cwd=self.folder / "tree", env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def here(self, command: str) -> str:
        """Return a command of the README for this registry, which has no TLS."""
        return re.sub(r"(oci://\S+)", r"\1 --plain-http", command).replace("REGISTRY/", f"{ADDRESS}/neuron/")


def with_registry(bed: TestBed, folder: Path) -> Iterator[Shell]:
    """Run a registry on a test bed that is up, beside a clone of this repository, until the generator is closed."""
    from hack.bed import build, network

    if shutil.which("skopeo") is None:
        impossible("skopeo is missing (Debian package skopeo)")
    subprocess.run(["git", "clone", "-q", REPOSITORY, folder / "tree"], check=True)
    (folder / "home").mkdir()
    module = build.registry(bed.where)
    build.build_modules(bed.where, [module], "the registry")
    where = tuple(network.enter(bed.where))
    (folder / "registry").mkdir()

    def answers(url: str) -> bool:
        return network.answers(bed.where, url)

    with image_registry.running(module.bin_dir / "registry", folder / "registry", ADDRESS, answers, where):
        yield Shell(bed, folder)


def publish(shell: Shell) -> None:
    """Build and publish two releases of what is checked out, which differ in their version alone."""
    from hack.release import build as release

    base = REPOSITORY / "build/debian-base.tar"
    subprocess.run(["make", str(base.relative_to(REPOSITORY))], cwd=REPOSITORY, check=True)
    for version in VERSIONS:
        release.build(version, base, shell.folder / "tree/build/release", shell.folder / "tree")
        push = "skopeo copy --quiet --all --dest-tls-verify=false"
        shell.run(f"make publish VERSION={version} REGISTRY={ADDRESS}/neuron PUSH='{push}'")


def section(title: str) -> str:
    """Return a section of the README, up to the next heading."""
    text = (REPOSITORY / "README.md").read_text()
    found = re.search(rf"^##+ {re.escape(title)}$(.*?)^##", text, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def commands(text: str) -> list[str]:
    """Return the commands in the shell blocks of a section, and those after a prompt in the console blocks."""
    found: list[str] = []
    for kind, block in re.findall(r"^```(sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        found += [line.removeprefix("$ ") for line in lines if line.startswith("$ ") or kind == "sh"]
    return found


def images(bed: TestBed) -> set[str]:
    pods = bed.get("pods", "--namespace", NAMESPACE)["items"]
    return {pod["spec"]["containers"][0]["image"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}


def upgrade(shell: Shell) -> None:
    """Upgrade to the second version, and wait until no pod of the first is left."""
    set_values(shell, VERSIONS[1])
    eventually("only pods of the new version", lambda: images(shell.bed) == {f"{IMAGE}:{VERSIONS[1]}"}, 120)


def set_values(shell: Shell, version: str, *values: str) -> None:
    """Upgrade the release to a version with these values, and wait until its pods are those of the upgrade."""
    command = f"helm upgrade neuron-dra oci://REGISTRY/neuron-dra --version {version} --namespace {NAMESPACE}"
    shell.run(" ".join([command, "--reset-then-reuse-values", *(f"--set {value}" for value in values)]))
    for name in (f"daemonset/{DAEMONSET}", f"deployment/{CONTROLLER}"):
        shell.run(f"kubectl rollout status {name} --namespace {NAMESPACE} --timeout=300s")


def uninstall(shell: Shell) -> None:
    """Check that nothing is held, and uninstall."""
    check = shell.bed.neuron_dra("uninstall-check")
    assert check.returncode == 0, check.stdout + check.stderr
    shell.run(f"helm uninstall neuron-dra --namespace {NAMESPACE} --wait")
    eventually("no slices", lambda: not shell.bed.get("resourceslices")["items"], 120)
