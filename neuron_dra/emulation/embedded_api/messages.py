"""Bodies of requests and replies: YAML and JSON, `Status` objects, and the replies of faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import msgspec
import yaml
from aiohttp import web
from multidict import MultiMapping

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import bodies, errors
from neuron_dra.emulation.embedded_api.errors import StatusError
from neuron_dra.emulation.embedded_api.faults import InjectedFault
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource
from neuron_dra.emulation.embedded_api.store import DeleteOptions
from neuron_dra.kubernetes_yaml import KubernetesLoader


class RequestParts(Protocol):
    """The parts of a request that the server reads, except for the body. Implemented by aiohttp's requests and
    `direct.Call`.
    """

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def query(self) -> MultiMapping[str]: ...
    @property
    def query_string(self) -> str: ...
    @property
    def content_type(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


async def read_body(request: web.Request) -> Any:
    raw = await request.read()
    if not raw:
        return {}
    content_type = request.content_type
    if "yaml" in content_type and not content_type.startswith("application/apply-patch"):
        return yaml.load(raw, KubernetesLoader)
    if "protobuf" in content_type:
        offered = "application/json, application/yaml"
        text = f"the body of the request was in an unknown format - accepted media types include: {offered}"
        raise errors.unsupported_media_type(text)
    try:
        return bodies.decode(raw)
    except ValueError as error:
        if content_type.startswith("application/apply-patch"):
            return {}
        raise errors.bad_request(f"the object provided is unrecognized: {error}") from error


def delete_options(request: RequestParts, body: Any) -> DeleteOptions:
    options = DeleteOptions.from_wire(body if isinstance(body, dict) else {})
    if "gracePeriodSeconds" in request.query:
        options = replace(options, grace_s=integer(request, "gracePeriodSeconds", 0))
    if "propagationPolicy" in request.query:
        options = replace(options, propagation=request.query["propagationPolicy"])
    return options


def integer(request: RequestParts, name: str, default: int) -> int:
    text = request.query.get(name, "")
    if not text:
        return default
    if not text.isdigit():
        raise errors.bad_request(f'{name}: Invalid value: "{text}": must be a whole number')
    return int(text)


def json_response(status: int, body: Obj, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json", headers=headers)


def quoted(text: str) -> str:
    """Return a text as an HTTP quoted-string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def error_response(error: StatusError) -> web.Response:
    if error.retry_after is not None:
        headers = {"Retry-After": str(error.retry_after)}
    else:
        headers = None
    if isinstance(error, errors.NoSuchPath) and not error.has_status:
        return web.Response(status=error.code, text=error.text)
    return json_response(error.code, error.to_status(), headers)


def fault_response(fault: InjectedFault) -> web.Response:
    if fault.body is not None:
        response = web.Response(status=fault.status, body=fault.body, content_type=fault.content_type)
    else:
        seconds = fault.retry_after if isinstance(fault.retry_after, int) else None
        response = error_response(StatusError(fault.status, fault.reason, fault.message, retry_after=seconds))
    if fault.retry_after is not None:
        response.headers["Retry-After"] = str(fault.retry_after)
    return response


def cut(request: web.Request) -> None:
    """Close the connection without a reply."""
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError


def success(resource: EmbeddedResource, obj: Obj) -> Obj:
    details = {"name": obj["metadata"]["name"], "kind": resource.plural, "uid": obj["metadata"]["uid"]}
    if resource.group:
        details["group"] = resource.group
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
