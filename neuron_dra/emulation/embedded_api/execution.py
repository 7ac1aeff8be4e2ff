"""pods/exec over a WebSocket, protocol v4.channel.k8s.io, output only: a message is the channel's number and bytes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from neuron_dra.emulation.embedded_api import errors, messages
from neuron_dra.emulation.embedded_api.authentication import Authentication
from neuron_dra.emulation.embedded_api.errors import StatusError

PATH: Final = "/api/v1/namespaces/{namespace}/pods/{name}/exec"
PROTOCOL: Final = "v4.channel.k8s.io"
_CHUNK: Final = 1000  # bytes: programs must put the messages of a channel together


@dataclass(frozen=True, slots=True)
class Output:
    """What a program wrote, and its exit code."""

    stdout: bytes = b""
    stderr: bytes = b""
    code: int = 0


Run = Callable[[str, str, str, Sequence[str]], Awaitable[Output]]
"""Namespace, pod, container (empty for the first one) and command."""


class Execution:
    """Serves pods/exec with `run`; without one, the path does not exist."""

    def __init__(self, authentication: Authentication) -> None:
        self._authentication = authentication
        self.run: Run | None = None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Run the command and send its output, and then its exit code as a Status."""
        try:
            self._authentication.check(request)
            if self.run is None:
                raise errors.NoSuchPath(is_of_a_built_in_group=False)
            if "*/*" not in request.headers.get("Accept", "*/*"):  # as the real server, for JSON too
                raise StatusError(406, "NotAcceptable", "only the following media types are accepted: */*")
        except StatusError as error:
            return messages.error_response(error)
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        names, query = request.match_info, request.query
        command = query.getall("command", [])
        output = await self.run(names["namespace"], names["name"], query.get("container", ""), command)
        for channel, content in ((1, output.stdout), (2, output.stderr), (3, _status(output.code))):
            for start in range(0, len(content), _CHUNK):
                await socket.send_bytes(bytes([channel]) + content[start : start + _CHUNK])
        await socket.close()
        return socket


def _status(code: int) -> bytes:
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    causes = [{"reason": "ExitCode", "message": str(code)}]
    status = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
    return json.dumps({**status, "message": f"command terminated with non-zero exit code: {code}"}).encode()
