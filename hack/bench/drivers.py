"""The processes of `make bench`: an API server, the plugin, the Go driver on the official helper, and the floor.

Each is a separate process on loopback and in a temporary folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import ClassVar

import aiohttp
import grpc

from hack.bench.shared import cpu_s, until
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.hanging import children
from neuron_dra.gen.kubelet.dra.v1 import dra_pb2, dra_pb2_grpc
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2, registration_pb2_grpc

HACK = Path(__file__).resolve().parents[1]
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
DEVICE_CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))


def _rollup(pid: int) -> dict[str, int]:
    """Return a process' memory by kind, in KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


class Driver:
    """The process of one driver, with its own node name and folder."""

    name = ""
    environment: ClassVar[Mapping[str, str]] = {}

    def __init__(self, root: Path, url: str) -> None:
        self.root = root / self.name.replace(" ", "-")
        self.node = self.name.replace(" ", "-").lower()
        self.url = url
        self.process: subprocess.Popen[bytes] | None = None
        for folder in ("registry", "plugins", "cdi", "device-plugins"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)

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
        self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, env=os.environ | self.environment)
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
        return sum(len(files) for folder in (self.data, self.root / "cdi") for _, _, files in os.walk(folder))

    def has_published(self, items: list[Obj]) -> bool:
        """Return True if these slices of the node have everything that it publishes."""
        return any(item["spec"].get("devices") for item in items)

    async def started(self, api: aiohttp.ClientSession) -> float:
        """Start the driver, and return the seconds until GetInfo is answered and the API server has the devices."""
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
            f"--cdi-root={self.root}/cdi",
            f"--kubelet-plugins-directory-path={self.root}/plugins",
            f"--kubelet-registrar-directory-path={self.root}/registry",
            f"--kubelet-device-plugins-directory-path={self.root}/device-plugins",
            f"--host-root={self.root.parent}/host",
            f"--kube-api-server={self.url}",
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


class Hurried(Ours):
    """The plugin in a process whose clock runs 60 times as fast, so that an hour passes in a minute."""

    name = "hurried"
    speed = 60
    program = (sys.executable, "-m", "hack.bench.fast_clock", str(speed))


class Peer(Driver):
    """hack/reference-driver: Go, on Kubernetes' own helper."""

    name = "Go peer"
    binary = Path("build/reference-driver").resolve()

    def command(self) -> list[str]:
        return [
            str(self.binary),
            f"-url={self.url}",
            f"-node={self.node}",
            f"-registry={self.root}/registry",
            f"-data={self.data}",
            f"-cdi-root={self.root}/cdi",
            f"-dev={self.root.parent}/host/dev",
            f"-slice={self.root.parent}/slice.json",
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


class Floor(Driver):
    """A DRA service in Python with the I/O of a prepare and no logic: the cost of grpc.aio, aiohttp and the disk."""

    name = "floor"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "hack.bench.node", "--serve-floor", str(self.root), self.url]

    async def listens(self) -> bool:
        """Return True if the service has its socket."""
        return self.dra_socket.exists()


async def serve_floor(root: Path, url: str) -> None:
    """Serve the floor until the process is ended."""
    (root / "plugins/neuron.aws.com").mkdir(exist_ok=True)

    def store(raw: bytes, uid: str) -> None:
        for path in (root / "cdi" / f"{uid}.json", root / "plugins/neuron.aws.com/checkpoint"):
            temporary = path.with_suffix(".tmp")
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(handle, raw)
            os.fsync(handle)
            os.close(handle)
            os.rename(temporary, path)
            directory = os.open(path.parent, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)

    turn = asyncio.Lock()
    async with aiohttp.ClientSession() as session:

        class Service(dra_pb2_grpc.DRAPluginServicer):
            async def NodePrepareResources(self, request, context):  # type: ignore[no-untyped-def]
                answer = dra_pb2.NodePrepareResourcesResponse()
                for claim in request.claims:
                    async with session.get(f"{url}{CLAIMS}/{claim.name}") as response:
                        raw = await response.read()
                    async with turn:
                        await asyncio.to_thread(store, raw, claim.uid)
                    answer.claims[claim.uid].devices.add(pool_name="n1", device_name="neuron-device-0")
                return answer

            async def NodeUnprepareResources(self, request, context):  # type: ignore[no-untyped-def]
                answer = dra_pb2.NodeUnprepareResourcesResponse()
                for claim in request.claims:
                    answer.claims[claim.uid].error = ""
                return answer

        server = grpc.aio.server()
        dra_pb2_grpc.add_DRAPluginServicer_to_server(Service(), server)
        server.add_insecure_port(f"unix:{root}/plugins/neuron.aws.com/dra.sock")
        await server.start()
        await server.wait_for_termination()


class Api:
    """The embedded API server in a separate process that counts requests by client."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process = process
        self.url = url

    async def requests(self) -> Counter[tuple[str, str]]:
        """Return the number of the plugin's requests since the last call, by (verb, resource)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"requests\n")
        answer = json.loads(await asyncio.wait_for(self._process.stdout.readline(), 30))
        return Counter({(verb, resource): count for verb, resource, count in answer})


@contextlib.asynccontextmanager
async def api_server() -> AsyncIterator[Api]:
    """Run the embedded API server."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hack.bench.node",
        "--serve-api",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    try:
        assert process.stdout is not None
        yield Api(process, (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip())
    finally:
        process.terminate()
        await process.wait()


async def serve_api() -> None:
    """Run the embedded API server; for each line on standard input it prints the requests since the last one."""
    from neuron_dra.emulation.embedded_api import EmbeddedApi

    async with EmbeddedApi(controllers=False) as api:
        print(api.url, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            ours = [(r.verb, r.resource) for r in api.log if r.user_agent.startswith("neuron-dra/")]
            api.log.clear()
            print(json.dumps([[*key, count] for key, count in Counter(ours).items()]), flush=True)
