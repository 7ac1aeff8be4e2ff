"""Measure the plugin and print a table: figure, floor of the same run, ratio, target.

The floor of a prepare is the same I/O with no logic: one GET, a CDI file and a checkpoint, each flushed to the disk.
Where a Go toolchain is at hand, the peer is a Go driver on Kubernetes' own helper (hack/bench-peer) with the same I/O.
Everything runs on loopback and in a temporary folder: the plugin, an embedded API server and the caller are three
processes. Machines are noisy; read the ratios, and run it twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import grpc

from neuron_dra.gen.kubelet.dra.v1 import dra_pb2, dra_pb2_grpc
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2, registration_pb2_grpc
from neuron_dra.testing import fake_node

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
OPTIONS = (("grpc.default_authority", "localhost"),)
TICK = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Run every measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--claims", type=int, default=200, help="prepares for each size")
    parser.add_argument("--starts", type=int, default=5, help="starts of the plugin")
    parser.add_argument("--idle-s", type=float, default=30.0, help="seconds of idling to measure")
    parser.add_argument("--serve-api", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve-floor", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_api:
        return asyncio.run(serve_api())
    if args.serve_floor:
        return asyncio.run(serve_floor(*args.serve_floor))
    return asyncio.run(measure(args))


async def serve_api() -> int:
    """The embedded API server, until standard input ends."""
    from neuron_dra.testing.fake_api import FakeApi

    async with FakeApi(controllers=False) as api:
        print(api.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    return 0


async def serve_floor(socket: str, url: str, folder: str) -> int:
    """A DRA service with the I/O of a prepare and nothing else, until standard input ends."""

    def store(raw: bytes, uid: str) -> None:
        for path in (Path(folder) / f"{uid}.json", Path(folder) / "checkpoint"):
            temporary = path.with_suffix(".tmp")
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(handle, raw)
            os.fsync(handle)
            os.close(handle)
            os.rename(temporary, path)
            directory = os.open(path.parent, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)

    async with aiohttp.ClientSession() as session:

        class Floor(dra_pb2_grpc.DRAPluginServicer):
            async def NodePrepareResources(self, request, context):  # type: ignore[no-untyped-def]
                answer = dra_pb2.NodePrepareResourcesResponse()
                for claim in request.claims:
                    async with session.get(f"{url}{CLAIMS}/{claim.name}") as response:
                        raw = await response.read()
                    await asyncio.to_thread(store, raw, claim.uid)
                    answer.claims[claim.uid].devices.add(pool_name="n1", device_name="neuron-device-0")
                return answer

        server = grpc.aio.server()
        dra_pb2_grpc.add_DRAPluginServicer_to_server(Floor(), server)
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await server.stop(0)
    return 0


@contextlib.asynccontextmanager
async def helper(*arguments: str) -> AsyncIterator[str]:
    """Run this file as a server and give the line it prints when it is ready."""
    process = await asyncio.create_subprocess_exec(
        *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
    finally:
        process.terminate()
        await process.wait()


class PluginProcess:
    """`neuron-dra plugin` on a simulated trn2.48xlarge, in a folder of its own."""

    def __init__(self, root: Path, url: str, run: int) -> None:
        self.root = root
        self.url = url
        self.uid = f"bench-{run}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def dra_socket(self) -> Path:
        return self.root / "plugins/neuron.aws.com" / f"dra-{self.uid}.sock"

    @property
    def registration_socket(self) -> Path:
        return self.root / "registry" / f"neuron.aws.com-{self.uid}-reg.sock"

    def start(self) -> None:
        command = [
            str(Path(sys.executable).parent / "neuron-dra"),
            "plugin",
            "--node-name=n1",
            f"--pod-uid={self.uid}",
            f"--cdi-root={self.root}/cdi",
            f"--kubelet-plugins-directory-path={self.root}/plugins",
            f"--kubelet-registrar-directory-path={self.root}/registry",
            f"--kubelet-device-plugins-directory-path={self.root}/device-plugins",
            f"--host-root={self.root}/host",
            f"--kube-api-server={self.url}",
            "--healthcheck-port=0",
            "--metrics-bind-address=",
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)

    def cpu_s(self) -> float:
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def rss_mib(self) -> float:
        assert self.process is not None
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1024


async def until(check: Callable[[], Awaitable[bool]], timeout_s: float = 30.0) -> None:
    """Poll every 5 ms. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not await check():
        if time.monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0.005)


async def measure(args: argparse.Namespace) -> int:
    """Measure in a fresh folder, then print the table."""
    root = Path(tempfile.mkdtemp(prefix="neuron-dra-bench-", dir="/tmp"))
    try:
        fake_node.write(root / "host", "trn2.48xlarge")
        for folder in ("registry", "plugins", "device-plugins", "floor"):
            (root / folder).mkdir()
        async with helper(sys.executable, __file__, "--serve-api") as url, aiohttp.ClientSession(url) as api:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
            (await api.post("/api/v1/nodes", json=node)).raise_for_status()
            rows = await measure_plugin(args, root, url, api)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print_table(rows)
    return 0


async def allocate(api: aiohttp.ClientSession, size: int, number: int) -> dra_pb2.Claim:
    """Create a claim that holds `size` devices."""
    name = f"claim-{size}-{number}"
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "devices": {
                "requests": [{"name": "neurons", "exactly": {"deviceClassName": "neuron.aws.com", "count": size}}]
            }
        },
    }
    async with api.post(CLAIMS, json=body) as response:
        response.raise_for_status()
        stored = await response.json()
    results = [
        {"request": "neurons", "driver": "neuron.aws.com", "pool": "n1", "device": f"neuron-device-{i}"}
        for i in range(size)
    ]
    stored["status"] = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": name}],
    }
    async with api.put(f"{CLAIMS}/{name}/status", json=stored) as response:
        response.raise_for_status()
    return dra_pb2.Claim(namespace="default", name=name, uid=stored["metadata"]["uid"])


async def measure_plugin(
    args: argparse.Namespace,
    root: Path,
    url: str,
    api: aiohttp.ClientSession,
) -> list[tuple[str, str, str, str, str]]:
    """Return rows of figure, value, floor, ratio, target."""
    starts = []
    for run in range(args.starts):
        plugin = PluginProcess(root, url, run)
        starts.append(await one_start(plugin, api))
        if run < args.starts - 1:
            plugin.stop()
            (await api.delete("/apis/resource.k8s.io/v1/resourceslices")).raise_for_status()
    try:
        rows = [
            row(
                "start: process to GetInfo and slice accepted",
                f"{statistics.median(starts):.2f} s",
                "<= 2 s, goal 0.8 s",
            )
        ]
        rss = plugin.rss_mib()
        before, started = plugin.cpu_s(), time.monotonic()
        await asyncio.sleep(args.idle_s)
        millicores = (plugin.cpu_s() - before) / (time.monotonic() - started) * 1000
        rows += [
            row("idle: resident memory", f"{rss:.0f} MiB", "<= 64 MiB, goal 48 MiB"),
            row("idle: CPU", f"{millicores:.1f} millicores", "<= 5, goal 1"),
        ]
        sockets = {"ours": plugin.dra_socket, "floor": root / "floor.sock"}
        async with (
            helper(sys.executable, __file__, "--serve-floor", str(sockets["floor"]), url, str(root / "floor")),
            go_peer(root / "peer", url) as peer_socket,
        ):
            if peer_socket is not None:
                sockets["Go peer"] = peer_socket
            for size in (1, 16):
                batch = [await allocate(api, size, number) for number in range(args.claims)]
                rows += await prepares(size, batch, sockets)
        rows.append(row("after the prepares: resident memory", f"{plugin.rss_mib():.0f} MiB", "<= 64 MiB"))
    finally:
        plugin.stop()
    return rows


def row(name: str, value: str, target: str, floor: str = "", ratio: str = "") -> tuple[str, str, str, str, str]:
    return name, value, floor, ratio, target


async def one_start(plugin: PluginProcess, api: aiohttp.ClientSession) -> float:
    """Return seconds from the process' start until it answers GetInfo and its slice is in the API server."""
    started = time.monotonic()
    plugin.start()

    async def published() -> bool:
        async with api.get("/apis/resource.k8s.io/v1/resourceslices") as response:
            return bool((await response.json())["items"])

    async def exists() -> bool:
        return plugin.registration_socket.exists()

    await until(exists)
    async with grpc.aio.insecure_channel(f"unix:{plugin.registration_socket}", options=OPTIONS) as channel:
        await registration_pb2_grpc.RegistrationStub(channel).GetInfo(
            registration_pb2.InfoRequest(), wait_for_ready=True, timeout=30
        )
    await until(published)
    return time.monotonic() - started


async def prepares(
    size: int, batch: list[dra_pb2.Claim], sockets: dict[str, Path]
) -> list[tuple[str, str, str, str, str]]:
    """Prepare and unprepare each claim on every server, by turns."""
    times: dict[str, list[float]] = {name: [] for name in sockets}
    async with contextlib.AsyncExitStack() as stack:
        stubs = {}
        for name, socket in sockets.items():
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS))
            stubs[name] = dra_pb2_grpc.DRAPluginStub(channel)
        for index, claim in enumerate(batch):
            request = dra_pb2.NodePrepareResourcesRequest(claims=[claim])
            for name, stub in stubs.items():
                started = time.perf_counter()
                answer = await stub.NodePrepareResources(request)
                if index >= 5:  # the first ones warm everybody up
                    times[name].append(time.perf_counter() - started)
                if answer.claims[claim.uid].error:
                    raise RuntimeError(f"{name}: {answer.claims[claim.uid].error}")
            for name in stubs.keys() - {"floor"}:
                await stubs[name].NodeUnprepareResources(dra_pb2.NodeUnprepareResourcesRequest(claims=[claim]))
    rows = []
    for name, pick in (("p50", 0.50), ("p99", 0.99)):
        for other in [name for name in sockets if name != "ours"]:
            one, two = quantile(times["ours"], pick), quantile(times[other], pick)
            what = f"prepare, {size} device{'s' if size > 1 else ''}: {name} against the {other}"
            target = "<= 1.5, goal 0.8" if other == "Go peer" and name == "p50" else ""
            rows.append(row(what, f"{one * 1000:.2f} ms", target, f"{two * 1000:.2f} ms", f"{one / two:.2f}"))
    return rows


@contextlib.asynccontextmanager
async def go_peer(root: Path, url: str) -> AsyncIterator[Path | None]:
    """Build and run the Go driver, and give its socket; None where there is no Go."""
    folder = Path(__file__).resolve().parent / "bench-peer"
    binary = Path("build/bench-peer").resolve()
    if shutil.which("go") is None:
        print("no Go toolchain on the PATH: the Go peer is left out", file=sys.stderr)
        yield None
        return
    print("building the Go peer (a minute or two the first time)", file=sys.stderr)
    built = subprocess.run(["go", "build", "-o", str(binary), "."], cwd=folder, check=False)
    if built.returncode != 0:
        print("the Go peer cannot be built: left out", file=sys.stderr)
        yield None
        return
    root.mkdir()
    async with helper(str(binary), "-url", url, "-root", str(root)):
        yield root / "dra.sock"


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def print_table(rows: list[tuple[str, str, str, str, str]]) -> None:
    """Print aligned columns, and keep them as JSON in build/bench.json."""
    table = [("figure", "measured", "against", "ratio", "target"), *rows]
    widths = [max(len(line[column]) for line in table) for column in range(5)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    Path("build").mkdir(exist_ok=True)
    Path("build/bench.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
