"""18.1. A release on its way to a pod: build, publish, the commands of the README, upgrade, uninstall.

Kubelets pull the images. Minutes, and the network: part `installs` of `make night`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.bed.real_cluster import Namespace, TestBed
from tests.bed.deployed import NAMESPACE
from tests.bed.releases import (
    IMAGE,
    VERSIONS,
    Shell,
    commands,
    images,
    publish,
    section,
    uninstall,
    upgrade,
    with_registry,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]
MOST_COMMANDS = 10


@pytest.fixture
def shell(other_bed: TestBed, tmp_path: Path) -> Iterator[Shell]:
    """A cluster with one Neuron node and no driver, a registry, and a clone of this repository."""
    other_bed.command("up", "--node", "a=trn2.48xlarge", timeout_s=1200)
    yield from with_registry(other_bed, tmp_path)


def test_commands_of_the_readme_lead_to_a_pod(shell: Shell) -> None:
    """From an empty cluster to the first pod in ten commands or fewer, then an upgrade beside that pod, and the end."""
    publish(shell)
    steps = commands(section("Install from a registry")) + commands(section("Run a pod"))
    assert len(steps) <= MOST_COMMANDS
    output = [shell.run(step) for step in steps]
    assert output[-1].split() == [f"/dev/neuron{number}" for number in range(4)]
    assert images(shell.bed) == {f"{IMAGE}:{VERSIONS[0]}"}
    assert "Phase:          Succeeded" in shell.run(f"helm test neuron-dra --namespace {NAMESPACE}")

    upgrade(shell)
    default = Namespace(shell.bed, "default")
    assert default.exec("pod0", "sh", "-c", "ls /dev/neuron*").split() == output[-1].split()
    assert default.restarts("pod0") == 0

    check = shell.bed.neuron_dra("uninstall-check")
    assert (check.returncode, "pod0" in check.stdout) == (1, True), check.stdout + check.stderr
    shell.run("kubectl delete -f deploy/examples/1x4-connected-devices.yaml")
    uninstall(shell)
