"""The release workflow's commands, from the tag to signatures that users verify (18.1).

Minutes, root and the network: part `release` of `make night`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hack.release import base as release_base
from tests.tools.keyless import ISSUER
from tests.tools.release_network import ADDRESS, REPOSITORY, Network, Run, network
from tests.tools.small_release import ROOT, base_archive

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
REGISTRY = f"{ADDRESS}/{REPOSITORY.partition('/')[0].lower()}"
NAMES = ("neuron-dra-driver", "neuron-ultraserver-controller", "neuron-dra")
NO_SIGNATURE = "no signatures found"


@dataclass(frozen=True)
class Published:
    """What the workflow has published and signed."""

    net: Network
    tree: Path
    """The clone of the job that published."""
    digests: dict[str, str]

    def verify(self, name: str, **changed: str) -> str:
        """Verify an image with the documented command, and return the errors; `changed` replaces words in it."""
        [command] = [each for each in documented() if "--certificate-identity" in each]
        command = command.replace("neuron-dra-driver:1.2.3", name)
        for old, new in changed.items():
            assert old in command
            command = command.replace(old, new)
        # The services that signed are not the public ones, and have no log of certificates.
        command += f" --trusted-root {self.net.signing.trust} --insecure-ignore-sct"
        done = self.net.run(command.replace("https://token.actions.githubusercontent.com", ISSUER), self.tree)
        assert (done.returncode == 0) == ("The cosign claims were validated" in done.stderr)
        return done.stderr if done.returncode else ""

    def copy(self, source: str, target: str) -> None:
        done = self.net.run(f"skopeo copy --quiet --all {source} docker://{REGISTRY}/{target}", self.tree)
        assert done.returncode == 0, done.stderr


def documented() -> list[str]:
    """Return the commands of docs/release.md for this repository and registry."""
    text = (ROOT / "docs/release.md").read_text()
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).replace("\\\n", " ")
    found = blocks.replace("REGISTRY=REGISTRY", f"REGISTRY={REGISTRY}").replace("REGISTRY/", f"{REGISTRY}/")
    return found.replace("OWNER/REPOSITORY", REPOSITORY).splitlines()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    folder = tmp_path_factory.mktemp("workflow")
    (folder / "network").mkdir()
    with network(folder / "network") as net:
        net.environment["BASE"] = str(base_archive(folder / "base.tar"))
        run = Run(net, folder)
        built = dict(re.findall(r"^(?:chart )?(\S+)@(sha256:\S+)$", run.job("build"), re.MULTILINE))
        found = dict(re.findall(r"^(\S+)@(sha256:\S+)$", run.job("publish"), re.MULTILINE))
        assert found == {f"{REGISTRY}/{name}": digest for name, digest in built.items()}
        yield Published(net, run.tree("publish"), found)


def test_users_verify_what_the_workflow_signed(published: Published) -> None:
    assert list(published.digests) == [f"{REGISTRY}/{name}:1.2.3" for name in NAMES]
    assert [published.verify(f"{name}:1.2.3") for name in NAMES] == ["", "", ""]
    assert sorted(each.name for each in published.tree.iterdir() if each.name in {".venv", "build"}) == ["build"]


@pytest.mark.parametrize(
    ("old", "new"),
    [("refs/tags/v1.2.3", "refs/tags/v1.2.4"), (REPOSITORY, "Other/neuron-dra"), ("token.actions", "accounts")],
)
def test_signature_of_another_identity_is_rejected(published: Published, old: str, new: str) -> None:
    assert "no matching CertificateIdentity found" in published.verify("neuron-dra-driver:1.2.3", **{old: new})


def test_changed_and_unsigned_images_are_rejected(published: Published) -> None:
    """Also with the signature of another image beside it."""
    signed = published.digests[f"{REGISTRY}/neuron-dra-driver:1.2.3"]
    other = published.digests[f"{REGISTRY}/neuron-ultraserver-controller:1.2.3"]
    published.copy(f"docker://{REGISTRY}/neuron-ultraserver-controller:1.2.3", "neuron-dra-driver:changed")
    assert NO_SIGNATURE in published.verify("neuron-dra-driver:changed")
    assert NO_SIGNATURE in published.verify(f"neuron-dra-driver@{other}")
    tag = signed.replace(":", "-")
    published.copy(f"docker://{REGISTRY}/neuron-dra-driver:{tag}", f"neuron-dra-driver:{other.replace(':', '-')}")
    moved = published.verify("neuron-dra-driver:changed")
    assert moved
    assert NO_SIGNATURE not in moved
    assert published.verify(f"neuron-dra-driver@{signed}") == ""


def test_publish_and_sign_can_run_again(published: Published) -> None:
    before = {each.name: each.read_text() for each in (published.tree / "build/published").iterdir()}
    for command in (each.partition("#")[0] for each in documented() if re.search(r"^make (publish|sign) .*#", each)):
        done = published.net.run(command, published.tree, **published.net.signing.environment)
        assert done.returncode == 0, done.stderr
    assert {each.name: each.read_text() for each in (published.tree / "build/published").iterdir()} == before
    assert [published.verify(f"{name}:1.2.3") for name in NAMES] == ["", "", ""]


def test_base_is_fetched_for_all_machine_types(published: Published, tmp_path: Path) -> None:
    """As the workflow does, whose build has no base."""
    given = base_archive(tmp_path / "base.tar")
    published.copy(f"oci-archive:{given}", "python:3.13-slim")
    command = f"make build/release-base.tar BASE_IMAGE={REGISTRY}/python:3.13-slim"
    done = published.net.run(command, published.tree)
    assert done.returncode == 0, done.stderr
    fetched = release_base.bases(published.tree / "build/release-base.tar", ("amd64", "arm64"))
    assert [each.descriptor["digest"] for each in fetched] == [
        each.descriptor["digest"] for each in release_base.bases(given, ("amd64", "arm64"))
    ]


def test_documented_commands_sign_with_a_key(published: Published, tmp_path: Path) -> None:
    generate, *commands = [each for each in documented() if "~/" in each or "$HOME" in each]
    assert [each.split()[:2] for each in commands] == [
        ["cosign", "signing-config"],
        ["make", "sign"],
        ["cosign", "verify"],
    ]
    home = {"HOME": str(tmp_path), "COSIGN_PASSWORD": "test"}
    for command in (generate, *commands):
        done = published.net.run(command, published.tree, **home)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    for name in NAMES[1:]:
        verified = published.net.run(commands[-1].replace("neuron-dra-driver:", f"{name}:"), published.tree, **home)
        assert (verified.returncode, "The cosign claims were validated" in verified.stderr) == (0, True)
    another = {**home, "HOME": str(tmp_path / "another")}
    (tmp_path / "another").mkdir()
    assert published.net.run(generate, published.tree, **another).returncode == 0
    assert published.net.run(commands[-1], published.tree, **another).returncode != 0
