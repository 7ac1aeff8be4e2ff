"""18.1. deploy/install.sh on a real API server without nodes."""

from __future__ import annotations

import os
import subprocess

import pytest

from hack.bed.real_cluster import REPOSITORY, TestBed
from tests.bed.deployed import NAMESPACE

SCRIPT = REPOSITORY / "deploy/install.sh"
IMAGE = "registry.example.com:5000/neuron/neuron-dra-driver"


def install(bed: TestBed, *words: str) -> subprocess.CompletedProcess[str]:
    from hack.bed import network

    environment = {**os.environ, **bed.parts.plane.environment()}
    command = [*network.enter(bed.where), str(SCRIPT), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def images(bed: TestBed) -> set[str]:
    """Return the images of all that runs in the driver's namespace."""
    items = bed.get("daemonsets", "--namespace", NAMESPACE)["items"]
    items += bed.get("deployments", "--namespace", NAMESPACE)["items"]
    return {each["image"] for item in items for each in item["spec"]["template"]["spec"]["containers"]}


def test_script_installs_and_updates(other_bed: TestBed) -> None:
    """(18.1) A second run with another image is an update; the controller comes with --ultraserver."""
    other_bed.command("up")
    first = install(other_bed, f"{IMAGE}:1.2.3")
    assert (first.returncode, first.stderr) == (0, ""), first.stdout
    assert first.stdout.splitlines()[-1] == "The driver runs on 0 nodes."
    assert images(other_bed) == {f"{IMAGE}:1.2.3"}
    second = install(other_bed, "--ultraserver", "--no-wait", f"{IMAGE}:1.2.4@sha256:{'0' * 64}")
    assert (second.returncode, second.stderr) == (0, ""), second.stdout
    assert images(other_bed) == {f"{IMAGE}:1.2.4@sha256:{'0' * 64}"}
    assert other_bed.get("nusw", "-A")["items"] == []
    third = install(other_bed, f"{IMAGE}:1.2.5")
    refusal = "neuron-ultraserver-controller is installed: give --ultraserver, or delete that Deployment first"
    assert (third.returncode, third.stderr) == (2, f"install.sh: {refusal}\n"), third.stdout
    assert images(other_bed) == {f"{IMAGE}:1.2.4@sha256:{'0' * 64}"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name the driver's image: deploy/install.sh IMAGE (--help describes it)"),
        (("a", "b"), "two images, a and b: give one"),
        (('a"b',), 'a"b: not the name of an image'),
        (("--ultraservers", "a"), "--ultraservers: unknown; --help lists the options"),
        (("--ultraserver", "--connected-sets", "a"), "--ultraserver and --connected-sets: give one of them"),
    ],
)
def test_wrong_words_change_nothing(words: tuple[str, ...], message: str) -> None:
    """(18.1)"""
    done = subprocess.run(
        [SCRIPT, *words], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"install.sh: {message}\n")
