"""A real etcd, kube-apiserver and kube-controller-manager on 127.0.0.1 with an audit log of every write."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import signal
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hack.bed import build, controlplane, layout, pki, processes, state

REPOSITORY = Path(__file__).resolve().parents[2]


class Plane(controlplane.ControlPlane):
    """The control plane; its controller manager ignores Nodes without kubelets, and a scheduler runs on request."""

    with_scheduler = False
    only_api = False
    """True if nothing runs beside etcd and the API server."""
    caches_slices = True
    """False if nodes publish so much that the copies in memory of all slices would not fit this machine."""

    audit_rules = (
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    )

    def _start(self, name: str, arguments: Sequence[str]) -> None:
        more: list[str] = []
        if name == "kube-scheduler" and not self.with_scheduler:
            return
        if name == "kube-controller-manager" and self.only_api:
            return
        if name == "kube-controller-manager":
            left_out = ["node-lifecycle-controller"]
            if not self.caches_slices:
                left_out.append("device-taint-eviction-controller")  # it keeps all slices
            more.append("--controllers=*," + ",".join(f"-{each}" for each in left_out))
        if name == "kube-apiserver" and not self.caches_slices:
            more.append("--watch-cache-sizes=resourceslices.resource.k8s.io#0")
        super()._start(name, [*arguments, *more])

    def create(self, path: str, item: Mapping[str, object]) -> tuple[int, dict[str, Any]]:
        """Create an object as the administrator, at the path of its kind, and return the status and the answer."""
        request = urllib.request.Request(f"{self.url}{path}", data=json.dumps(item).encode(), method="POST")
        request.add_header("Authorization", f"Bearer {token(self)}")
        request.add_header("Content-Type", "application/json")
        trusted = ssl.create_default_context(cafile=str(self.layout.pki_dir / "ca.crt"))
        try:
            with urllib.request.urlopen(request, context=trusted, timeout=30) as answer:
                return int(answer.status), json.load(answer)
        except urllib.error.HTTPError as err:
            return err.code, json.load(err)


class Writes:
    """Reads the audit log incrementally."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0

    def since(self) -> list[Write]:
        """Return every write since the last call, except those to leases and those that were only tried (dryRun)."""
        with self._log.open("rb") as file:
            file.seek(self._offset)
            raw = file.read()
        end = raw.rfind(b"\n") + 1
        self._offset += end
        lines = map(json.loads, raw[:end].splitlines())
        found = (_write(line) for line in lines if "dryRun=" not in line["requestURI"])
        return [each for each in found if each.resource != "leases"]


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """One write request, successful or rejected."""

    agent: str
    verb: str
    resource: str  # with its subresource: neuronultraservers/status
    name: str
    code: int


def _write(line: dict[str, object]) -> Write:
    about = line.get("objectRef") or {}
    status = line.get("responseStatus") or {}
    assert isinstance(about, dict)
    assert isinstance(status, dict)
    resource = "/".join(part for part in (about.get("resource", ""), about.get("subresource", "")) if part)
    return Write(
        str(line.get("userAgent")), str(line.get("verb")), resource, str(about.get("name")), int(status.get("code", 0))
    )


def tally(writes: Sequence[Write]) -> dict[str, int]:
    """Return the numbers of writes by kind, as text."""
    return dict(Counter(f"{each.verb} {each.resource} {each.code}" for each in writes).most_common())


@contextlib.contextmanager
def nothing_left(where: layout.Layout) -> Iterator[None]:
    """End every process that was started for this layout and remove its folder, after an error or SIGTERM too."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        processes.end(processes.marked(where.name), signal.SIGTERM, 5)
        shutil.rmtree(where.state_dir, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def running(
    kubernetes: str | None = None,
    *,
    with_scheduler: bool = False,
    caches_slices: bool = True,
    only_api: bool = False,
) -> Iterator[Plane]:
    """Run the control plane in a separate folder with the test bed's binaries, which are built if they are missing."""
    usual = layout.from_environment()
    folder = Path(tempfile.mkdtemp(prefix="neuron-dra-bench-"))
    where = dataclasses.replace(usual, name=folder.name, is_root=False, state_dir=folder)
    version = kubernetes or build.DEFAULT_KUBERNETES
    with nothing_left(where):
        build.build(where, version)
        known = state.load(where)
        known.kubernetes = version
        plane = Plane(where, known, processes.Processes(where, known))
        plane.with_scheduler = with_scheduler
        plane.caches_slices = caches_slices
        plane.only_api = only_api
        plane.up()
        yield plane


def token(plane: Plane) -> str:
    """Return the administrator's token."""
    return pki.token(plane.layout, "admin")
