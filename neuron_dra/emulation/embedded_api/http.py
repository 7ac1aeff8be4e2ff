"""The HTTP side of the embedded API server: paths, query, bodies, status codes, watch streams."""

from __future__ import annotations

import asyncio
import base64
import binascii
import email.utils
import itertools
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from neuron_dra.core import versions
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import (
    discovery,
    errors,
    execution,
    messages,
    openapi,
    patches,
    proxy,
    scale,
    schema,
    selectors,
)
from neuron_dra.emulation.embedded_api.authentication import Authentication
from neuron_dra.emulation.embedded_api.errors import StatusError
from neuron_dra.emulation.embedded_api.eviction import bind, evict
from neuron_dra.emulation.embedded_api.faults import Do, Faults, InjectedFault
from neuron_dra.emulation.embedded_api.messages import RequestParts
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource, Registry
from neuron_dra.emulation.embedded_api.store import ObjectStore
from neuron_dra.emulation.embedded_api.tables import Tables, wanted
from neuron_dra.emulation.embedded_api.watch import Watches, WatchRequest

_MOST_PAGES = 1024  # snapshots that are kept for lists with `continue`
_LONGEST_WATCH_S = 1800.0
_LARGEST_BODY = 3 * 1024 * 1024  # bytes, as the real server's limit
_VERSION = f"v{versions.text(versions.NEWEST)}.0{versions.EMBEDDED}"


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One entry of the request log. `resource` includes the subresource: "resourceclaims/status"."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    status: int = 0
    user_agent: str = ""
    query: str = ""


@dataclass(frozen=True, slots=True)
class _Target:
    resource: EmbeddedResource
    version: str
    namespace: str
    name: str
    subresource: str

    @property
    def label(self) -> str:
        if self.subresource:
            return f"{self.resource.plural}/{self.subresource}"
        return self.resource.plural


class Handler:
    """Serves requests on a store."""

    def __init__(
        self,
        registry: Registry,
        store: ObjectStore,
        watches: Watches,
        faults: Faults,
        schemas: openapi.PublishedSchemas,
    ) -> None:
        self.schemas = schemas
        self.authentication = Authentication()
        self.proxy = proxy.Proxy()
        self.execution = execution.Execution(self.authentication)
        self.answering = asyncio.Event()
        self.answering.set()
        self.log: list[LoggedRequest] = []
        self.versions: Iterator[str] = itertools.repeat(_VERSION)
        self._registry = registry
        self._store = store
        self._watches = watches
        self._faults = faults
        self._pages: OrderedDict[str, tuple[int, list[Obj]]] = OrderedDict()

    def forget_pages(self) -> None:
        self._pages.clear()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.on_response_prepare.append(self._date)
        app.router.add_get(execution.PATH, self.execution.serve)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def _date(self, request: web.Request, response: web.StreamResponse) -> None:
        """Show the server's clock, which may be another one than that of the machine."""
        response.headers["Date"] = email.utils.formatdate(self._store.now(), usegmt=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        await self.answering.wait()
        target: _Target | None = None
        verb = request.method.lower()
        try:
            self.authentication.check(request)
            if (broken := self._faults.match_path(verb, request.path)) is not None:
                return messages.fault_response(broken)
            fixed = self._fixed(request.path.rstrip("/"))
            if fixed is not None:
                return fixed
            if (pod := proxy.addressed(request.path)) is not None:
                return await self.proxy.respond(request, pod)
            target = self._target(request.path)
            verb = _verb(request, target)
            fault = self._faults.match(verb, target.label, target.namespace, target.name)
            return self._logged(request, verb, target, await self._serve(request, verb, target, fault))
        except StatusError as error:
            return self._logged(request, verb, target, messages.error_response(error))
        except ConnectionResetError:  # a fault closed the connection
            return web.Response(status=500)

    def respond(self, request: RequestParts, body: Any) -> Obj:
        """Serve a request that is not a watch at once, without HTTP and without faults. Raises ApiError."""
        described = self._described(request.path)
        if described is not None:
            return described
        target = self._target(request.path)
        verb = _verb(request, target)
        try:
            status, answer = self._do(request, verb, target, body, [], dry_run="dryRun" in request.query)
        except StatusError as error:
            self._log(request, verb, target, error.code)
            raise
        self._log(request, verb, target, status)
        return answer

    async def events(self, request: RequestParts) -> AsyncGenerator[Obj, None]:
        """Yield the events of a watch, without HTTP and without faults. Raises ApiError."""
        target = self._target(request.path)
        watch_request = self._watch_request(request, target)
        self._log(request, "watch", target, 200)
        async for line in self._watches.lines(watch_request):
            if line["type"] == "ERROR":
                obj = line["object"]
            else:
                obj = self._out(target, line["object"])
            yield {"type": line["type"], "object": obj}

    def _logged(
        self, request: web.Request, verb: str, target: _Target | None, response: web.StreamResponse
    ) -> web.StreamResponse:
        if verb != "watch" or response.status >= 400:  # a watch is logged when it begins
            self._log(request, verb, target, response.status)
        return response

    def _log(self, request: RequestParts, verb: str, target: _Target | None, status: int) -> None:
        if target:
            label, namespace, name = (target.label, target.namespace, target.name)
        else:
            label, namespace, name = (request.path, "", "")
        agent = request.headers.get("User-Agent", "")
        self.log.append(LoggedRequest(verb, label, namespace, name, status, agent, request.query_string))

    def _fixed(self, path: str) -> web.Response | None:
        if path in ("/readyz", "/livez", "/healthz"):
            return web.Response(text="ok")
        if path == "/openapi/v2":
            return web.Response(body=openapi.NO_OLD_DOCUMENT, content_type=openapi.OLD_DOCUMENT)
        body = self._described(path)
        return None if body is None else messages.json_response(200, body)

    def _described(self, path: str) -> Obj | None:
        """Return what the server says about itself at a path; None if it says nothing there. Raises StatusError."""
        parts = path.strip("/").split("/")
        body: Obj | None
        match parts:
            case ["version"]:
                body = discovery.version(next(self.versions))
            case ["api"]:
                body = discovery.core_versions()
            case ["apis"]:
                body = discovery.groups(self._registry)
            case ["apis", group]:
                body = discovery.group(self._registry, group)
            case ["api", version]:
                body = discovery.resources(self._registry, "", version)
            case ["apis", group, version]:
                body = discovery.resources(self._registry, group, version)
            case ["openapi", "v3"]:
                body = openapi.index(self._registry)
            case ["openapi", "v3", "api", version]:
                body = openapi.of_version(self._registry, self.schemas, "", version)
            case ["openapi", "v3", "apis", group, version]:
                body = openapi.of_version(self._registry, self.schemas, group, version)
            case _:
                return None
        if body is None:
            raise self._no_such_path(parts)
        return body

    def _target(self, path: str) -> _Target:
        parts = path.strip("/").split("/")
        match parts:
            case ["api", version, *rest]:
                group = ""
            case ["apis", group, version, *rest]:
                pass
            case _:
                raise self._no_such_path(parts)
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        resource = self._registry.at(group, version, rest[0])
        if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
            raise self._no_such_path(parts)
        name, subresource = [*rest, "", ""][1:3]
        subresources = (*resource.subresources, *(["status"] if resource.status else []))
        if (subresource and subresource not in subresources) or (name and resource.namespaced and not namespace):
            raise self._no_such_path(parts)
        return _Target(resource, version, namespace, name, subresource)

    def _no_such_path(self, parts: Sequence[str]) -> errors.NoSuchPath:
        match parts:
            case ["api", _, *_]:
                is_of_a_built_in_group = True
            case ["apis", group, _, *_]:
                is_of_a_built_in_group = self._registry.is_built_in(group)
            case _:
                is_of_a_built_in_group = False
        return errors.NoSuchPath(is_of_a_built_in_group)

    async def _serve(
        self, request: web.Request, verb: str, target: _Target, fault: InjectedFault | None
    ) -> web.StreamResponse:
        if fault is not None:
            if fault.do in (Do.HANG, Do.DROP):
                self._log(request, verb, target, 0)
            match fault.do:
                case Do.RESPOND:
                    return messages.fault_response(fault)
                case Do.NOT_FOUND:
                    raise errors.not_found(target.resource.group, target.resource.plural, target.name)
                case Do.HANG:
                    await asyncio.Event().wait()
                case Do.DELAY:
                    await asyncio.sleep(fault.delay_s)
                case Do.DROP:
                    messages.cut(request)
        if verb == "watch":
            return await self._watch(request, target, closing=fault is not None and fault.do is Do.CLOSE_WATCH)
        if request.method in ("POST", "PUT", "PATCH", "DELETE"):
            body = await messages.read_body(request)
        else:
            body = {}
        if request.method in ("POST", "PUT") and not isinstance(body, dict):
            raise errors.bad_request("the body of the request is not an object")
        dry_run = request.query.getall("dryRun", [])
        if dry_run not in ([], ["All"]):
            raise errors.bad_request('dryRun: Unsupported value: supported values: "All"')
        warnings: list[str] = []
        try:
            status, answer = self._do(request, verb, target, body, warnings, dry_run=bool(dry_run))
        finally:  # an error is answered late, too
            if fault is not None and fault.do is Do.ANSWER_LATE:
                await fault.held()
        if fault is not None and fault.do is Do.DROP_AFTER:
            self._log(request, verb, target, status)
            messages.cut(request)
        if verb in ("get", "list") and (tables := self._tables(request, target)) is not None:
            answer = tables.of(answer)
        response = messages.json_response(status, answer)
        for text in warnings:
            response.headers.add("Warning", f"299 - {messages.quoted(text)}")
        return response

    def _do(
        self, request: RequestParts, verb: str, target: _Target, body: Any, warnings: list[str], *, dry_run: bool
    ) -> tuple[int, Obj]:
        """Carry out one request that is not a watch; everything here happens at once."""
        resource, namespace, name = target.resource, target.namespace, target.name
        store = self._store
        if target.subresource == "scale":
            return 200, scale.change(store, request, verb, store.get(resource, namespace, name), body, dry_run=dry_run)
        if verb == "list":
            return 200, self._list(request, target)
        if verb == "get":
            return 200, self._out(target, store.get(resource, namespace, name))
        if verb == "create" and target.subresource == "binding":
            return 201, bind(store, namespace, name, body)
        if verb == "create" and target.subresource == "eviction":
            return 201, evict(store, namespace, name, body, dry_run=dry_run)
        if verb == "create":
            return 201, self._out(
                target, store.create(resource, namespace, self._in(request, target, body, warnings), dry_run=dry_run)
            )
        if verb == "update":
            return 200, self._update(target, self._in(request, target, body, warnings), dry_run=dry_run)
        if verb == "patch":
            old = self._out(target, store.get(resource, namespace, name))
            changed = patches.apply(request.content_type, old, body, custom=resource.custom)
            return 200, self._update(target, self._in(request, target, changed, warnings), dry_run=dry_run)
        options = messages.delete_options(request, body)
        if verb == "deletecollection":
            chosen = [obj for obj in store.list(resource, namespace) if self._predicate(request, resource)(obj)]
            for obj in chosen:
                meta = obj["metadata"]
                store.delete(resource, meta.get("namespace", ""), meta["name"], options, dry_run=dry_run)
            return 200, self._as_list(target, chosen, {"resourceVersion": str(store.revision)})
        obj, is_gone = store.delete(resource, namespace, name, options, dry_run=dry_run)
        if is_gone and not resource.returns_deleted:
            return 200, messages.success(resource, obj)
        return 200, self._out(target, obj)

    def _tables(self, request: RequestParts, target: _Target) -> Tables | None:
        """Return what makes tables of the reply to a request that asks for them; None if it does not."""
        if not wanted(request.headers.get("Accept", "")):
            return None
        return Tables(target.resource, request.query.get("includeObject", ""), self._store.now())

    def _update(self, target: _Target, obj: Obj, *, dry_run: bool) -> Obj:
        updated = self._store.update(
            target.resource, target.namespace, target.name, obj, subresource=target.subresource, dry_run=dry_run
        )
        return self._out(target, updated)

    def _in(self, request: RequestParts, target: _Target, body: Obj, warnings: list[str]) -> Obj:
        """Check apiVersion, kind and fields of what a client sent."""
        resource, expected = target.resource, target.resource.api_version(target.version)
        sent = body.get("apiVersion", expected), body.get("kind", resource.kind)
        if sent != (expected, resource.kind):
            text = f"{sent[1]} in version {sent[0]!r} cannot be handled as a {resource.kind} of {expected}"
            raise errors.bad_request(text)
        _, unknown = schema.decode(resource.group, resource.kind, body)
        texts = [f'unknown field "{path}"' for path in unknown]
        if unknown and request.query.get("fieldValidation") == "Strict":
            listed = ", ".join(texts)
            text = f"{resource.kind} in version {expected} cannot be handled: strict decoding error: {listed}"
            raise errors.bad_request(text)
        if request.query.get("fieldValidation") != "Ignore":
            warnings += texts
        return body

    def _out(self, target: _Target, obj: Obj) -> Obj:
        resource = target.resource
        if target.version == resource.storage:
            return obj
        return {**obj, "apiVersion": resource.api_version(target.version)}

    def _predicate(self, request: RequestParts, resource: EmbeddedResource) -> selectors.Predicate:
        by_fields = selectors.by_fields(request.query.get("fieldSelector", ""), resource.selectable)
        by_labels = selectors.by_labels(request.query.get("labelSelector", ""))
        return lambda obj: by_fields(obj) and by_labels(obj)

    # Lists

    def _list(self, request: RequestParts, target: _Target) -> Obj:
        limit = messages.integer(request, "limit", 0)
        token = request.query.get("continue", "")
        if token:
            revision, matching, start = self._resume(token)
        else:
            revision, start = self._store.revision, 0
            matches = self._predicate(request, target.resource)
            oldest = messages.integer(request, "resourceVersion", 0)
            if oldest > revision:
                raise errors.too_large_version(oldest, revision)
            matching = []
            for obj in self._store.list(target.resource, target.namespace):
                if matches(obj):
                    matching.append(obj)
        page = matching[start : start + limit] if limit else matching[start:]
        meta: Obj = {"resourceVersion": str(revision)}
        remaining = len(matching) - start - len(page)
        if remaining:
            meta["continue"] = self._keep(revision, matching, start + len(page))
            if not (request.query.get("fieldSelector") or request.query.get("labelSelector")):
                meta["remainingItemCount"] = remaining
        return self._as_list(target, page, meta)

    def _keep(self, revision: int, matching: list[Obj], start: int) -> str:
        self._pages[f"{revision}:{id(matching)}"] = revision, matching
        while len(self._pages) > _MOST_PAGES:
            self._pages.popitem(last=False)
        return base64.urlsafe_b64encode(f"{revision}:{id(matching)}:{start}".encode()).decode().rstrip("=")

    def _resume(self, token: str) -> tuple[int, list[Obj], int]:
        try:
            text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
            key, _, start = text.rpartition(":")
            position = int(start)
        except (binascii.Error, UnicodeDecodeError, ValueError):
            raise errors.bad_request("continue key is not valid: encoding error") from None
        if key not in self._pages:
            raise errors.expired("The provided continue parameter is too old to display a consistent list result.")
        revision, matching = self._pages[key]
        return revision, matching, position

    def _as_list(self, target: _Target, objects: list[Obj], meta: Obj) -> Obj:
        resource = target.resource
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version(target.version),
            "metadata": meta,
            "items": [self._out(target, obj) for obj in objects],
        }

    # Watches

    def _watch_request(self, request: RequestParts, target: _Target) -> WatchRequest:
        predicate = self._predicate(request, target.resource)
        if target.name:
            by_name = selectors.by_fields(f"metadata.name={target.name}", ())
            everything_else = predicate
            predicate = lambda obj: by_name(obj) and everything_else(obj)  # noqa: E731
        initial = request.query.get("sendInitialEvents") == "true"
        bookmarks = request.query.get("allowWatchBookmarks") in ("true", "1")
        version = messages.integer(request, "resourceVersion", 0)
        watch_request = WatchRequest(
            resource=target.resource,
            namespace=target.namespace,
            matches=predicate,
            revision=None if initial or version == 0 else version,
            bookmarks=bookmarks,
            initial_events=initial,
            not_older_than=version if initial else 0,
            timeout_s=float(messages.integer(request, "timeoutSeconds", 0) or _LONGEST_WATCH_S),
        )
        if initial and request.query.get("resourceVersionMatch") != "NotOlderThan":
            why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            cause = errors.forbidden("resourceVersionMatch", why)
            raise errors.unprocessable("meta.k8s.io", "ListOptions", "", [cause])
        self._watches.check(watch_request)
        return watch_request

    async def _watch(self, request: web.Request, target: _Target, *, closing: bool) -> web.StreamResponse:
        watch_request = self._watch_request(request, target)
        tables = self._tables(request, target)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self._log(request, "watch", target, 200)
        await response.prepare(request)
        if not closing:
            await self._stream(response, target, watch_request, tables)
        await response.write_eof()
        return response

    async def _stream(
        self, response: web.StreamResponse, target: _Target, watch_request: WatchRequest, tables: Tables | None
    ) -> None:
        async for line in self._watches.lines(watch_request):
            if not self.answering.is_set():
                await self.answering.wait()
            obj = line["object"]
            if line["type"] != "ERROR":
                obj = self._out(target, obj)
                obj = obj if tables is None else tables.of(obj)
            await response.write(msgspec.json.encode({"type": line["type"], "object": obj}) + b"\n")


def _verb(request: RequestParts, target: _Target) -> str:
    match request.method:
        case "GET" if request.query.get("watch") in ("true", "1"):
            return "watch"
        case "GET":
            if target.name:
                return "get"
            return "list"
        case "POST" if not target.name or target.subresource in target.resource.subresources:
            return "create"
        case "PUT" if target.name:
            return "update"
        case "PATCH" if target.name:
            return "patch"
        case "DELETE" if not target.subresource:
            if target.name:
                return "delete"
            return "deletecollection"
    raise errors.method_not_allowed()
