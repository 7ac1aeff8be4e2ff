"""The drivers that `make bench` compares: the plugin, the Go driver on the official helper, and the floor.

Each is a separate process on loopback and in a temporary folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import aiohttp
import grpc

from hack.bench.shared import cpu_s, until
from neuron_dra.api import objects
from neuron_dra.core import catalogue, efa, names
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.dra_driver import EFA
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.hanging import children
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2, registration_pb2_grpc

HACK = Path(__file__).resolve().parents[1]
TYPE = "trn2.48xlarge"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DEVICE_CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))


def _hardware() -> InstanceType:
    spec = catalogue.lookup(TYPE)
    assert spec is not None
    return spec


HARDWARE = _hardware()


def _rollup(pid: int) -> Counter[str]:
    """Return a process' memory by kind, in KiB; nothing of a process that has ended, as a helper may just have."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return Counter()
    return Counter({line.split(":")[0]: int(line.split()[1]) for line in lines})


@dataclass(frozen=True, slots=True)
class Place:
    """Where drivers keep their files, and what they run under.

    - `name`: part of the node's name, so that a node has the claims of one place only; empty for the usual place.
    - `files`: the folder of their folders.
    - `cdi`: the same for the CDI files, if they are elsewhere.
    - `under`: the words of a command that the drivers run under, such as strace.
    - `kubeconfig`: how to reach an API server that serves https.
    """

    name: str
    files: Path
    cdi: Path | None = None
    under: tuple[str, ...] = ()
    kubeconfig: Path | None = None


class Driver:
    """The process of one driver, with its own node name and folder. `root` has the simulated hardware and the slice."""

    name = ""
    driver_name = names.DRIVER
    device_class = names.DRIVER
    environment: ClassVar[Mapping[str, str]] = {}

    def __init__(self, root: Path, url: str, place: Place | None = None) -> None:
        self.shared = root
        self.place = place or Place("", root)
        self.node = "-".join(filter(None, (self.name.replace(" ", "-").lower(), self.place.name)))
        self.root = self.place.files / self.node
        self.cdi = (self.place.cdi or self.place.files) / self.node / "cdi"
        self.url = url
        self.process: subprocess.Popen[bytes] | None = None
        for folder in ("registry", "plugins", "device-plugins"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.cdi.mkdir(parents=True, exist_ok=True)

    @property
    def data(self) -> Path:
        """The folder of the socket and the checkpoint."""
        return self.root / "plugins/neuron.aws.com"

    @property
    def dra_socket(self) -> Path:
        """The socket for prepare and unprepare."""
        return self.data / "dra.sock"

    @property
    def registration_socket(self) -> Path:
        """The socket for GetInfo."""
        return self.root / "registry/neuron.aws.com-reg.sock"

    def command(self) -> list[str]:
        """Return the command to run."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the process; `answers` returns True when it is ready."""
        log = (self.root / "log").open("ab")
        command = [*self.place.under, *self.command()]
        self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | self.environment)
        log.close()

    def stop(self) -> None:
        """End the process as the end of its pod does."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)
            self.process = None

    @property
    def pid(self) -> int:
        """The running process."""
        assert self.process is not None
        return self.process.pid

    def devices(self, first: int, size: int) -> list[str]:
        """Return the names of the devices in a claim for `size` of them."""
        return [f"neuron-device-{i}" for i in range(first, first + size)]

    def cpu_s(self) -> float:
        """Return the CPU time of all threads so far, in seconds, including its helper process."""
        return cpu_s(self.pid, *children(self.pid))

    def rss_mib(self) -> float:
        """Return the resident memory in MiB, with the unshared memory of helper processes."""
        own = _rollup(self.pid)["Rss"]
        return (own + sum(_rollup(pid)["Anonymous"] for pid in children(self.pid))) / 1024

    def pss_mib(self) -> float:
        """Return the memory in MiB with this driver's share of shared pages, helper processes included."""
        return sum(_rollup(pid)["Pss"] for pid in (self.pid, *children(self.pid))) / 1024

    def open_files(self) -> int:
        """Return the number of open file descriptors, without connections to the API server, which come and go."""
        table = Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]
        connections = {f"socket:[{line.split()[9]}]" for line in table}
        found = 0
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(OSError):
                found += os.readlink(f"/proc/{self.pid}/fd/{name}") not in connections
        return found

    def files(self) -> int:
        """Return the number of files in the folders that the driver writes to."""
        return sum(len(files) for folder in (self.data, self.cdi) for _, _, files in os.walk(folder))

    def has_published(self, items: list[Obj]) -> bool:
        """Return True if these slices of the node have everything that it publishes."""
        return any(item["spec"].get("devices") for item in items)

    async def started(self, api: aiohttp.ClientSession) -> float:
        """Start the driver, and return the seconds until GetInfo is answered and the API server has the devices."""
        async with api.post("/api/v1/nodes", json=objects.node_object(self.node)) as created:
            if created.status != 409:  # it was started before
                created.raise_for_status()
        began = time.monotonic()
        self.start()

        async def listens() -> bool:
            return self.registration_socket.exists()

        async def published() -> bool:
            async with api.get(SLICES) as response:
                items = (await response.json())["items"]
            return self.has_published([item for item in items if item["spec"].get("nodeName") == self.node])

        await until(listens)
        async with grpc.aio.insecure_channel(f"unix:{self.registration_socket}", options=OPTIONS) as channel:
            stub = registration_pb2_grpc.RegistrationStub(channel)
            await stub.GetInfo(registration_pb2.InfoRequest(), wait_for_ready=True, timeout=30)
        await until(published)
        return time.monotonic() - began


class Ours(Driver):
    """`neuron-dra plugin` on a simulated trn2.48xlarge."""

    name = "ours"
    environment: ClassVar[Mapping[str, str]] = {"MALLOC_ARENA_MAX": "1"}  # as in Dockerfile.plugin
    program: tuple[str, ...] = (str(Path(sys.executable).parent / "neuron-dra"),)

    def command(self) -> list[str]:
        return [
            *self.program,
            "plugin",
            f"--node-name={self.node}",
            f"--cdi-root={self.cdi}",
            f"--kubelet-plugins-directory-path={self.root}/plugins",
            f"--kubelet-registrar-directory-path={self.root}/registry",
            f"--kubelet-device-plugins-directory-path={self.root}/device-plugins",
            f"--host-root={self.shared}/host",
            f"--kubeconfig={self.place.kubeconfig}" if self.place.kubeconfig else f"--kube-api-server={self.url}",
            "--healthcheck-port=0",
            "--metrics-bind-address=",
        ]


class WithSets(Ours):
    """The plugin with connected sets; a claim for several devices has one set."""

    name = "sets"

    def command(self) -> list[str]:
        return [*super().command(), "--connected-sets"]

    def devices(self, first: int, size: int) -> list[str]:
        return super().devices(first, size) if size == 1 else [f"neuron-set-{size}-{first}"]

    def has_published(self, items: list[Obj]) -> bool:
        return any("sharedCounters" in item["spec"] for item in items)


class WithEfa(Ours):
    """The plugin with EFA interfaces; a claim has Neuron devices."""

    name = "EFA on"

    def command(self) -> list[str]:
        return [*super().command(), "--efa-interfaces"]

    def has_published(self, items: list[Obj]) -> bool:
        return len({item["spec"]["driver"] for item in items if item["spec"].get("devices")}) == 2


class OfInterfaces(WithEfa):
    """The same; a claim has EFA interfaces."""

    name = "EFA claims"
    driver_name = EFA.name
    device_class = efa.CLASS

    @property
    def dra_socket(self) -> Path:
        return self.data / "efa/dra.sock"

    def devices(self, first: int, size: int) -> list[str]:
        functions = sorted(set(HARDWARE.efa or ()))
        return [efa.Interface(function).name for function in functions[first : first + size]]


class Hurried(Ours):
    """The plugin in a process whose clock runs 60 times as fast, so that an hour passes in a minute."""

    name = "hurried"
    speed = 60
    program = (sys.executable, "-m", "hack.bench.fast_clock", str(speed))


class Peer(Driver):
    """hack/reference-driver: Go, on Kubernetes' own helper. It flushes each file and folder before it replies."""

    name = "Go peer"
    flushes = True
    binary = Path("build/reference-driver").resolve()

    def command(self) -> list[str]:
        return [
            str(self.binary),
            f"-kubeconfig={self.place.kubeconfig}" if self.place.kubeconfig else f"-url={self.url}",
            f"-node={self.node}",
            f"-registry={self.root}/registry",
            f"-data={self.data}",
            f"-cdi-root={self.cdi}",
            f"-dev={self.shared}/host/dev",
            f"-slice={self.shared}/slice.json",
            f"-flush={str(self.flushes).lower()}",
        ]

    @classmethod
    def build(cls) -> bool:
        """Build the driver; return False, with the reason on standard error, if that is not possible."""
        if shutil.which("go") is None:
            print("the Go peer is left out: no Go toolchain on the PATH", file=sys.stderr)
            return False
        print("building the Go peer (a minute or two the first time)", file=sys.stderr)
        command = ["go", "build", "-o", str(cls.binary), "."]
        if subprocess.run(command, cwd=HACK / "reference-driver", check=False).returncode != 0:
            print("the Go peer is left out: it cannot be built", file=sys.stderr)
            return False
        return True


class Unflushed(Peer):
    """The same, which flushes nothing, as the plugin does before it replies."""

    name = "Go peer without flushes"
    flushes = False


class Floor(Driver):
    """A DRA service in Python with the I/O of a prepare and no logic: the cost of grpc.aio, aiohttp and the disk."""

    name = "floor"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "hack.bench.node", "--serve-floor", str(self.root), str(self.cdi), self.url]

    async def listens(self) -> bool:
        """Return True if the service has its socket."""
        return self.dra_socket.exists()
