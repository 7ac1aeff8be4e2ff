"""18.1. A release on its way to a pod: build, publish, the commands of the README, upgrade, uninstall.

Kubelets pull the images. Minutes, and the network: part `installs` of `make acceptance`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from deployed import DAEMONSET, NAMESPACE
from real_cluster import REPOSITORY, Namespace, TestBed, eventually

from tests.support import image_registry
from tests.support.skipping import impossible

sys.path.insert(0, str(REPOSITORY / "hack"))

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]
ADDRESS = "127.0.0.1:5000"  # in the test bed's network; containerd, skopeo and Helm use no TLS there
VERSIONS = ("1.2.3", "1.2.4")
CONTROLLER = "neuron-ultraserver-controller"
MOST_COMMANDS = 10


@dataclass(frozen=True)
class Shell:
    """Runs commands as a user of the test bed's cluster does, in a clone, with the registry's address for REGISTRY."""

    bed: TestBed
    folder: Path

    def run(self, command: str) -> str:
        from bed import network

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


@pytest.fixture
def shell(other_bed: TestBed, tmp_path: Path) -> Iterator[Shell]:
    """A cluster with one Neuron node and no driver, a registry, and a clone of this repository."""
    from bed import build, network

    if shutil.which("skopeo") is None:
        impossible("skopeo is missing (Debian package skopeo)")
    subprocess.run(["git", "clone", "-q", REPOSITORY, tmp_path / "tree"], check=True)
    (tmp_path / "home").mkdir()
    other_bed.command("up", "--node", "a=trn2.48xlarge", timeout_s=1200)
    module = build.registry(other_bed.where)
    build.build_modules(other_bed.where, [module], "the registry")
    where = tuple(network.enter(other_bed.where))
    (tmp_path / "registry").mkdir()

    def answers(url: str) -> bool:
        return network.answers(other_bed.where, url)

    with image_registry.running(module.bin_dir / "registry", tmp_path / "registry", ADDRESS, answers, where):
        yield Shell(other_bed, tmp_path)


def publish(shell: Shell) -> None:
    """Build and publish two releases of what is checked out, which differ in their version alone."""
    import release  # the import path is set here

    base = REPOSITORY / "build/debian-base.tar"
    subprocess.run(["make", str(base.relative_to(REPOSITORY))], cwd=REPOSITORY, check=True)
    for version in VERSIONS:
        release.build(version, base, shell.folder / "tree/build/release", shell.folder / "tree")
        push = "skopeo copy --quiet --all --dest-tls-verify=false"
        shell.run(f"make publish VERSION={version} REGISTRY={ADDRESS}/neuron PUSH='{push}'")


def section(title: str) -> str:
    """Return a section of the README, up to the next heading."""
    text = (REPOSITORY / "README.md").read_text()
    found = re.search(rf"^## {re.escape(title)}$(.*?)^##", text, re.MULTILINE | re.DOTALL)
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


def test_commands_of_the_readme_lead_to_a_pod(shell: Shell) -> None:
    """From an empty cluster to the first pod in ten commands or fewer, then an upgrade beside that pod, and the end."""
    publish(shell)
    steps = commands(section("Install")) + commands(section("Run a pod"))
    assert len(steps) <= MOST_COMMANDS
    output = [shell.run(step) for step in steps]
    assert output[-1].split() == [f"/dev/neuron{number}" for number in range(4)]
    image = f"{ADDRESS}/neuron/neuron-dra-driver"
    assert images(shell.bed) == {f"{image}:1.2.3"}
    assert "Phase:          Succeeded" in shell.run(f"helm test neuron-dra --namespace {NAMESPACE}")

    upgrade = f"helm upgrade neuron-dra oci://REGISTRY/neuron-dra --version 1.2.4 --namespace {NAMESPACE}"
    shell.run(f"{upgrade} --reset-then-reuse-values")
    for name in (f"daemonset/{DAEMONSET}", f"deployment/{CONTROLLER}"):
        shell.run(f"kubectl rollout status {name} --namespace {NAMESPACE} --timeout=300s")
    eventually("only pods of the new version", lambda: images(shell.bed) == {f"{image}:1.2.4"}, 120)
    default = Namespace(shell.bed, "default")
    assert default.exec("pod0", "sh", "-c", "ls /dev/neuron*").split() == output[-1].split()
    assert default.restarts("pod0") == 0

    check = shell.bed.neuron_dra("uninstall-check")
    assert (check.returncode, "pod0" in check.stdout) == (1, True), check.stdout + check.stderr
    shell.run("kubectl delete -f deploy/examples/1x4-connected-devices.yaml")
    check = shell.bed.neuron_dra("uninstall-check")
    assert check.returncode == 0, check.stdout + check.stderr
    shell.run(f"helm uninstall neuron-dra --namespace {NAMESPACE} --wait")
    eventually("no slices", lambda: not shell.bed.get("resourceslices")["items"], 120)
