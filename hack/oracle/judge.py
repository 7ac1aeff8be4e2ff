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
"""The arguments of the build for each version of Kubernetes."""


def build(program: Path, kubernetes: str = "1.37") -> Path:
    """Build the program with the code of a Kubernetes version, and return it. Raises CannotBuild."""
    go = shutil.which("go")
    if go is None:
        raise CannotBuild("needs the Go toolchain for Kubernetes' allocator")
    built = subprocess.run(
        [go, "build", *VERSIONS[kubernetes], "-o", program, "."], cwd=SOURCE, capture_output=True, text=True
    )
    if built.returncode:
        raise CannotBuild(f"the oracle does not build here: {built.stderr.strip()[-300:]}")
    return program


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
