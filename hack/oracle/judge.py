"""Kubernetes' own allocator and CEL selectors, as a Go program that answers one question a line (hack/oracle)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final, Self

from neuron_dra.core.wire import Obj

SOURCE: Final = Path(__file__).resolve().parents[2] / "hack/oracle"


class CannotBuild(Exception):
    """The program cannot be built here; the message says why."""


VERSIONS: Final = {"1.37": (), "1.34": ("-tags", "kubernetes_1_34", "-modfile", "go_1_34.mod")}
"""The arguments of the build for each version of Kubernetes; a release of 1.36 has its own go.mod, from go_1_36.mod."""

ALLOCATOR: Final = "k8s.io/dynamic-resource-allocation"


def build(program: Path, kubernetes: str = "1.37") -> Path:
    """Build the program with the code of a Kubernetes version, and return it. Raises CannotBuild."""
    go = shutil.which("go")
    if go is None:
        raise CannotBuild("needs the Go toolchain for Kubernetes' allocator")
    arguments: tuple[str, ...] = (
        VERSIONS[kubernetes] if kubernetes in VERSIONS else _of_1_36(program.parent, kubernetes)
    )
    command = [go, "build", *arguments, "-o", str(program), "."]
    built = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True)
    if built.returncode:
        raise CannotBuild(f"the oracle does not build here: {built.stderr.strip()[-300:]}")
    return program


def _of_1_36(folder: Path, kubernetes: str) -> tuple[str, ...]:
    """Return the arguments for a release such as 1.36.2: only the module with the allocator is that release's."""
    patch = kubernetes.removeprefix("1.36.")
    text = (SOURCE / "go_1_36.mod").read_text()
    (folder / "go.mod").write_text(f"{text}\nreplace {ALLOCATOR} => {ALLOCATOR} v0.36.{patch}\n")
    (folder / "go.sum").write_text((SOURCE / "go_1_36.sum").read_text())
    return "-tags", "kubernetes_1_36", "-modfile", str(folder / "go.mod")


class Oracle:
    """The running program."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, question: Obj) -> Obj:
        """Return the answer to a question; hack/oracle/main.go describes both."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: Obj = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()
