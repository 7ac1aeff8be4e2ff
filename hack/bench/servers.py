"""The servers of `make bench`, each in a process of its own: the embedded API server, and the floor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc

from hack.bench.drivers import CLAIMS
from neuron_dra.gen.kubelet.dra.v1 import dra_pb2, dra_pb2_grpc


async def serve_floor(root: Path, cdi: Path, url: str) -> None:
    """Serve the floor until the process is ended."""
    (root / "plugins/neuron.aws.com").mkdir(exist_ok=True)

    def store(raw: bytes, uid: str) -> None:
        for path in (cdi / f"{uid}.json", root / "plugins/neuron.aws.com/checkpoint"):
            temporary = path.with_suffix(".tmp")
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(handle, raw)
            os.close(handle)
            os.rename(temporary, path)

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


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate for 127.0.0.1 that signs itself."""

    certificate: Path
    key: Path

    @classmethod
    def write(cls, folder: Path) -> Certificate:
        """Write them with the command openssl. Raises OSError, subprocess.CalledProcessError."""
        made = cls(folder / "tls.crt", folder / "tls.key")
        words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1 -addext"
        command = ["openssl", *words.split(), "subjectAltName=IP:127.0.0.1"]
        files = ["-keyout", str(made.key), "-out", str(made.certificate)]
        subprocess.run([*command, *files], check=True, capture_output=True)
        return made

    @property
    def of_the_server(self) -> ssl.SSLContext:
        """What the server presents."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def write_kubeconfig(self, path: Path, url: str) -> Path:
        """Write a kubeconfig of the server, without credentials, and return its path."""
        cluster = {"server": url, "certificate-authority": str(self.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": cluster}],
            "users": [{"name": "bench", "user": {}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        }
        path.write_text(json.dumps(config))
        return path

    @property
    def of_a_client(self) -> ssl.SSLContext:
        """What a client trusts."""
        return ssl.create_default_context(cafile=str(self.certificate))


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
async def api_server(certificate: Certificate | None = None) -> AsyncIterator[Api]:
    """Run the embedded API server; with a certificate it serves https."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "hack.bench.node",
        "--serve-api",
        *((str(certificate.certificate), str(certificate.key)) if certificate else ()),
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


async def serve_api(certificate: Certificate | None) -> None:
    """Run the embedded API server; for each line on standard input it prints the requests since the last one."""
    from neuron_dra.emulation.embedded_api import EmbeddedApi

    tls = certificate.of_the_server if certificate is not None else None
    async with EmbeddedApi(controllers=False, tls=tls) as api:
        print(api.url, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            ours = [(r.verb, r.resource) for r in api.log if r.user_agent.startswith("neuron-dra/")]
            api.log.clear()
            print(json.dumps([[*key, count] for key, count in Counter(ours).items()]), flush=True)
