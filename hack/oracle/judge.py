"""Kubernetes' own code as Go programs that answer one question a line: allocator and selectors, and the scheduler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from hack.bed import layout
from hack.bed.layout import short_hash
from neuron_dra.core.wire import Obj

SOURCE: Final = Path(__file__).resolve().parents[2] / "hack/oracle"


class CannotBuild(Exception):
    """The program cannot be built here; the message says why."""


VERSIONS: Final = {
    "1.37": (),
    "1.35": ("-tags", "kubernetes_1_35", "-modfile", "go_1_35.mod"),
    "1.34": ("-tags", "kubernetes_1_34", "-modfile", "go_1_34.mod"),
}
"""The arguments of the build for each version of Kubernetes; a release of 1.36 has its own go.mod, from go_1_36.mod."""
RELEASES: Final = ("1.34", "1.35", "1.36.3", "1.37")
"""A release of each minor version whose allocator can be built."""

ALLOCATOR: Final = "k8s.io/dynamic-resource-allocation"
BUILD_TIMEOUT_S: Final = 3600


def build(program: Path, kubernetes: str = "1.37") -> Path:
    """Build the program with the code of a Kubernetes version, and return it. Raises CannotBuild."""
    arguments: tuple[str, ...] = (
        VERSIONS[kubernetes] if kubernetes in VERSIONS else _of_1_36(program.parent, kubernetes)
    )
    return _built(program, SOURCE, arguments)


def built(kubernetes: str, *, build_it: bool = False) -> Path:
    """Return the program of a Kubernetes version from the cache of the test bed; with `build_it`, build it there.

    Raises CannotBuild if it is not there, or cannot be built.
    """
    files = sorted((*SOURCE.glob("*.go"), *SOURCE.glob("go*.mod"), *SOURCE.glob("go*.sum")))
    key = short_hash(*(file.read_bytes() for file in files), kubernetes)
    program = layout.from_environment().cache_dir / f"oracle-{kubernetes}-{key}" / "oracle"
    if program.exists():
        return program
    if not build_it:
        raise CannotBuild(f"the allocator of Kubernetes {kubernetes} is not built: NEURON_DRA_LONG=1 builds it")
    program.parent.mkdir(parents=True, exist_ok=True)
    return build(program, kubernetes)


def build_scheduler(program: Path) -> Path:
    """Build the program with the whole scheduler of Kubernetes 1.37, and return it. Raises CannotBuild."""
    # Without cgo and with trimmed paths the build takes its packages from that of the test bed.
    return _built(program, SOURCE / "scheduler", ("-trimpath",), CGO_ENABLED="0")


def _built(program: Path, source: Path, arguments: Sequence[str], **environment: str) -> Path:
    go = shutil.which("go")
    if go is None:
        raise CannotBuild("needs the Go toolchain for Kubernetes' own code")
    command = [go, "build", *arguments, "-o", str(program), "."]
    about = {**os.environ, **environment}
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, env=about, timeout=BUILD_TIMEOUT_S)
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


class _Program:
    """A running program that reads and answers lines."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _say(self, question: Obj) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> Obj:
        assert self._process.stdout is not None
        answer: Obj = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


class Oracle(_Program):
    """The running program with allocator and selectors."""

    def __init__(self, program: Path) -> None:
        super().__init__([program])

    def ask(self, question: Obj) -> Obj:
        """Return the answer to a question; hack/oracle/main.go describes both."""
        self._say(question)
        return self._hear()


class NotDecided(Exception):
    """The scheduler could not be asked, or has not decided on a pod; the message says why."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """What the scheduler did in a cluster; hack/oracle/scheduler/main.go describes it.

    - `pods`: its decision on each pod without a node, by namespace and name.
    - `claims`: the claims that it has written, as they are then.
    """

    pods: Mapping[str, Obj]
    claims: Mapping[str, Obj]


class Scheduler(_Program):
    """The running program with the scheduler; `gates` are feature gates, such as GenericWorkload=true."""

    def __init__(self, program: Path, gates: Sequence[str] = ()) -> None:
        super().__init__([program, *gates])

    def ask(self, clusters: Iterable[Sequence[Any]]) -> list[Decisions]:
        """Return what the scheduler does in each cluster, which is a list of its objects. Raises NotDecided."""
        asked = 0
        for objects in clusters:
            self._say({"objects": list(objects)})
            asked += 1
        answers = [self._hear() for _ in range(asked)]
        for answer in answers:
            if answer.get("error"):
                raise NotDecided(str(answer["error"]))
        return [Decisions(answer.get("pods") or {}, answer.get("claims") or {}) for answer in answers]
