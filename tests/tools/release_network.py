"""The release workflow's jobs, run in a network with a registry and with what signs without a key."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hack.bed import build, layout
from hack.bed import network as namespace
from tests.support import fast_yaml, image_registry
from tests.support.skipping import impossible
from tests.tools import keyless
from tests.tools.small_release import ROOT

ADDRESS = "127.0.0.1:5000"
REPOSITORY, TAG = "Owner/neuron-dra", "v1.2.3"
WORKFLOW = fast_yaml.load((ROOT / ".github/workflows/release.yaml").read_text())
INSECURE = f'[[registry]]\nlocation = "{ADDRESS}"\ninsecure = true\n'  # skopeo uses TLS otherwise


@dataclass(frozen=True)
class Network:
    """A network without a way out, and the programs for it."""

    prefix: tuple[str, ...]
    environment: dict[str, str]
    signing: keyless.Signing

    def run(self, command: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
        words = [*self.prefix, "timeout", "1200", "bash", "-euo", "pipefail", "-c", command]
        environment = {**self.environment, **more}
        return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@contextlib.contextmanager
def network(folder: Path) -> Iterator[Network]:
    """Run a registry and Sigstore's services in a network namespace, until the block ends."""
    here = layout.from_environment()
    for missing in ["skopeo", "openssl"]:
        if shutil.which(missing) is None:
            impossible(f"{missing} is missing (Debian package {missing})")
    if not here.is_root:
        impossible("a network namespace needs root")
    programs, registry = build.signing(here), build.registry(here)
    build.build_modules(here, [programs, registry], "publishing and signing")
    where = replace(here, name=f"{here.name}-release-{os.getpid()}")
    for name in ("registry", "keyless"):
        (folder / name).mkdir()
    (folder / ".config/containers").mkdir(parents=True)
    (folder / ".config/containers/registries.conf").write_text(INSECURE)
    workflow = f"{REPOSITORY}/.github/workflows/release.yaml@refs/tags/{TAG}"
    with contextlib.ExitStack() as stack:
        stack.callback(namespace.down, where)
        namespace.up(where)
        prefix = tuple(namespace.enter(where))
        words = (programs.bin_dir, folder / "keyless", where, workflow, "a" * 40)
        signing = stack.enter_context(keyless.running(*words))
        stack.enter_context(
            image_registry.running(
                registry.bin_dir / "registry", folder / "registry", ADDRESS,
                lambda url: namespace.answers(where, url), prefix,
            )
        )  # fmt: skip
        environment = {
            **os.environ,
            "PATH": f"{programs.bin_dir}:{os.environ['PATH']}",
            "HOME": str(folder),
            "SIGN": f"cosign sign --yes --signing-config {signing.config} --trusted-root {signing.trust}",
        }
        yield Network(prefix, environment, signing)


@dataclass(frozen=True)
class Run:
    """A run of the workflow for a tag of this repository: each job has a clean clone, as on GitHub."""

    net: Network
    folder: Path

    def tree(self, job: str) -> Path:
        return self.folder / job

    def job(self, name: str) -> str:
        """Run a job's steps in order, and return what its commands print."""
        job = WORKFLOW["jobs"][name]
        environment = {"CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_REF_NAME": TAG}
        environment |= {key: _resolved(value) for key, value in job.get("env", {}).items()}
        if job["permissions"].get("id-token") == "write":
            environment |= self.net.signing.environment
        net = self.net
        if name == "build":  # it downloads packages, with the settings of this machine
            net = replace(net, prefix=(), environment={**net.environment, "HOME": os.environ["HOME"]})
        printed = ""
        for step in job["steps"]:
            if "uses" in step:
                self.action(step["uses"].partition("@")[0], step.get("with", {}), self.tree(name))
            else:
                # GitHub's shell, where a step names none.
                (self.folder / "step.sh").write_text(step["run"])
                done = net.run(f"bash -e {self.folder}/step.sh", self.tree(name), **environment)
                assert done.returncode == 0, f"{step['run']}\n{done.stdout}\n{done.stderr}"
                printed += done.stdout
        return printed

    def action(self, name: str, given: dict[str, Any], tree: Path) -> None:
        """Do what an action does, as far as the commands after it need it."""
        if name == "actions/checkout":
            origin = self.folder / "origin"
            if not origin.exists():
                subprocess.run(["git", "clone", "-q", ROOT, origin], check=True)
                subprocess.run(["git", "tag", TAG], cwd=origin, check=True)
            words = ["-c", "advice.detachedHead=false", "clone", "-q", "--depth=1", f"--branch={TAG}"]
            subprocess.run(["git", *words, f"file://{origin}", tree], check=True)
        elif name == "actions/upload-artifact":
            _copy(tree / given["path"], self.folder / given["name"])
        elif name == "actions/download-artifact":
            _copy(self.folder / given["name"], tree / given["path"])
        elif name == "actions/attest-build-provenance":
            subprocess.run(["sha256sum", "-c", Path(given["subject-checksums"]).name], cwd=tree / "build/release",
                           capture_output=True, check=True)  # fmt: skip
        else:
            assert name in {"actions/setup-python", "docker/login-action", "sigstore/cosign-installer"}


def _copy(source: Path, target: Path) -> None:
    """Copy as the actions do: no hidden files, and no modes."""
    for path in source.rglob("[!.]*"):
        if path.is_file():
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.relative_to(source))


def _resolved(text: str) -> str:
    """Return a value of the workflow with its expressions replaced, for the registry of the network."""
    values = {
        "github.repository_owner": REPOSITORY.partition("/")[0],
        "github.repository": REPOSITORY,
        "github.server_url": "https://github.com",
    }
    return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: values[found[1]], text).replace("ghcr.io", ADDRESS)
