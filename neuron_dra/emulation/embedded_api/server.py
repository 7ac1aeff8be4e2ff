"""`EmbeddedApi`: an API server in this process, on its own port of 127.0.0.1.

    async with EmbeddedApi() as api:
        api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})
        ... give api.url to the program under test ...
        slices = await api.until("resourceslices", lambda found: len(found) == 1)

The object's methods act directly, without HTTP, faults or the request log; programs use the URL.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import yaml
from aiohttp import web

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import bodies, job_controller, openapi, patches
from neuron_dra.emulation.embedded_api.columns import QUALIFICATION, ULTRASERVER, WORKLOAD, Column
from neuron_dra.emulation.embedded_api.controllers import Controllers
from neuron_dra.emulation.embedded_api.direct import DirectClient
from neuron_dra.emulation.embedded_api.dropping import Adder, Dropper
from neuron_dra.emulation.embedded_api.errors import StatusError
from neuron_dra.emulation.embedded_api.execution import Run
from neuron_dra.emulation.embedded_api.faults import Faults
from neuron_dra.emulation.embedded_api.http import Handler, LoggedRequest
from neuron_dra.emulation.embedded_api.resources import EmbeddedResource, Registry
from neuron_dra.emulation.embedded_api.store import Backup, DeleteOptions, ObjectStore
from neuron_dra.emulation.embedded_api.watch import Watches
from neuron_dra.kube.client import KubeClient

NEURON_GROUP = "neuron.aws.com"


class EmbeddedApi:
    """An embedded API server. Not thread-safe: use it from the event loop that started it."""

    def __init__(
        self,
        *,
        port: int | None = 0,
        controllers: bool = True,
        workloads: bool = False,
        seed: int = 0,
        now: Callable[[], float] = time.time,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`port` 0 takes a free port; with None there is no port, only `client`. `now` is for timestamps.

        With `tls` it serves https; a new context takes effect with the next `resume`.

        `controllers` False omits garbage collection, claims for pods and budgets. `workloads` runs Deployments,
        ReplicaSets, DaemonSets and Jobs.
        """
        self._registry = Registry()
        self.clock_offset_s = 0.0
        """How far the server's clock is ahead of `now`; a test may set it."""
        self.store = ObjectStore(self._registry, now=lambda: now() + self.clock_offset_s, seed=seed)
        self.watches = Watches(self.store)
        self.faults = Faults()
        self._dropper, self._adder = Dropper(), Adder()
        self._schemas = openapi.PublishedSchemas(self._dropper.paths)
        self._handler = Handler(self._registry, self.store, self.watches, self.faults, self._schemas)
        self.proxy = self._handler.proxy
        self.store.mutators += [self._dropper, self._adder]
        if workloads:
            self.store.mutators.append(job_controller.complete_job)
        self._controllers = Controllers(self.store, workloads=workloads) if controllers else None
        self._port = port
        self.tls = tls
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        if self._port is not None:
            await self._listen()
        if self._controllers:
            self._controllers.start()

    async def stop(self) -> None:
        if self._controllers:
            await self._controllers.stop()
        self._handler.answering.set()
        self.watches.close()
        await self._close()

    async def _listen(self) -> None:
        runner = web.AppRunner(
            self._handler.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=self.tls).start()
        self._port = runner.addresses[0][1]
        self._runner = runner

    async def _close(self) -> None:
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._port}"

    def client(self, user_agent: str = "direct") -> KubeClient:
        """Return a client that needs no socket. Injected faults do not affect it."""
        return DirectClient(self._handler, user_agent)

    def write_kubeconfig(self, path: Path | str, *, token: str = "") -> Path:
        """Write a kubeconfig for this server; return its path."""
        user = {"token": token} if token else {}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "embedded",
            "clusters": [{"name": "embedded", "cluster": {"server": self.url}}],
            "users": [{"name": "embedded", "user": user}],
            "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "embedded"}}],
        }
        Path(path).write_text(yaml.safe_dump(config, sort_keys=False))
        return Path(path)

    # Kinds

    def register(
        self,
        group: str,
        versions: tuple[str, ...],
        kind: str,
        plural: str,
        *,
        namespaced: bool = True,
        status: bool = True,
        short_names: tuple[str, ...] = (),
        selectable: tuple[str, ...] = (),
        columns: tuple[Column, ...] = (),
    ) -> None:
        """Serve a custom kind. The first version is the stored one; the others differ in apiVersion only.

        `columns` are those that kubectl prints: without any, name and age.
        """
        self._registry.add(
            EmbeddedResource(group, kind, plural, namespaced, versions, versions[0], status=status, custom=True,
                     blind_update=False, returns_deleted=False, short_names=short_names, selectable=selectable,
                     columns=columns)
        )  # fmt: skip

    def unregister(self, plural: str) -> None:
        """Delete the objects of a custom kind and serve it no longer, as after its CRD was deleted."""
        for item in self.objects(plural):
            self.delete(plural, item["metadata"]["name"], item["metadata"].get("namespace", ""))
        self._registry.remove(self._registry.named(plural))

    def register_neuron_kinds(self) -> None:
        """Serve the custom kinds of the UltraServer controller, as its CRDs do."""
        versions = ("v1beta1", "v1")
        for kind, short, columns in (
            ("NeuronUltraServer", "nus", ULTRASERVER),
            ("NeuronUltraServerWorkload", "nusw", WORKLOAD),
        ):
            plural = f"{kind.lower()}s"
            self.register(NEURON_GROUP, versions, kind, plural, short_names=(short,), columns=columns)
        kind = "NeuronUltraServerQualification"
        self.register(
            NEURON_GROUP,
            ("v1beta1",),
            kind,
            f"{kind.lower()}s",
            namespaced=False,
            short_names=("nusq",),
            columns=QUALIFICATION,
        )
        self._schemas.fields.update(openapi.crd_fields())

    def publish_schema(self, definition: Obj) -> None:
        """Publish the schemas of a CustomResourceDefinition, whose kind is served already."""
        for version in definition["spec"]["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            self._schemas.whole[definition["metadata"]["name"], version["name"]] = schema

    # Objects

    def create(self, obj: Obj) -> Obj:
        """Create an object of any served version; namespaced ones without a namespace go to "default"."""
        resource, namespace, stored = self._stored(obj)
        created = self.store.create(resource, namespace, stored)
        if "status" in obj and resource.status and not resource.keeps_status_on_create:
            changed = {**created, "status": bodies.copied(obj["status"])}
            created = self.store.update(resource, namespace, created["metadata"]["name"], changed, subresource="status")
        return bodies.copied(created)

    def apply(self, obj: Obj) -> Obj:
        """Create the object, or merge it (status too) into the one that exists."""
        resource, namespace, stored = self._stored(obj)
        name = stored["metadata"].get("name", "")
        if not name or self.store.find(resource, namespace, name) is None:
            return self.create(obj)
        patch = {}
        for key, value in stored.items():
            if key not in ("apiVersion", "kind"):
                patch[key] = value
        return self.patch(resource.plural, name, patch, namespace)

    def get(self, kind: str, name: str, namespace: str = "") -> Obj:
        """Return an object (v1 form for resource.k8s.io). Raises ApiError 404."""
        resource = self._registry.named(kind)
        return bodies.copied(self.store.get(resource, _place(resource, namespace), name))

    def find(self, kind: str, name: str, namespace: str = "") -> Obj | None:
        try:
            return self.get(kind, name, namespace)
        except StatusError:
            return None

    def objects(self, kind: str, namespace: str = "") -> list[Obj]:
        """Return the objects of a namespace, "" for all namespaces."""
        return bodies.copied(self.store.list(self._registry.named(kind), namespace))

    def replace(self, obj: Obj) -> Obj:
        """PUT: with resourceVersion it can conflict."""
        resource, namespace, stored = self._stored(obj)
        return bodies.copied(self.store.update(resource, namespace, stored["metadata"]["name"], stored))

    def patch(self, kind: str, name: str, patch: Obj, namespace: str = "") -> Obj:
        """Merge-patch an object; a `status` in the patch goes to the status subresource."""
        resource = self._registry.named(kind)
        namespace = _place(resource, namespace)
        without_status = {}
        for key, value in patch.items():
            if key != "status" or not resource.status:
                without_status[key] = value
        stored = self.store.get(resource, namespace, name)
        if without_status:
            stored = self.store.update(resource, namespace, name, patches.merge(stored, without_status))
        if "status" in patch and resource.status:
            changed = patches.merge(stored, {"status": patch["status"]})
            stored = self.store.update(resource, namespace, name, changed, subresource="status")
        return bodies.copied(stored)

    def delete(self, kind: str, name: str, namespace: str = "", *, grace_s: int | None = None) -> None:
        resource = self._registry.named(kind)
        self.store.delete(resource, _place(resource, namespace), name, DeleteOptions(grace_s=grace_s))

    async def until(
        self, kind: str, condition: Callable[[list[Obj]], Any], *, namespace: str = "", timeout_s: float = 10.0
    ) -> list[Obj]:
        """Wait until `condition` holds for the objects of a kind and return them.

        Raises TimeoutError, which shows the current objects.
        """
        waker = asyncio.Event()
        self.store.wake_on_change(waker)
        try:
            async with asyncio.timeout(timeout_s):
                while not condition(objects := self.objects(kind, namespace)):
                    await waker.wait()
                    waker.clear()
            return objects
        except TimeoutError:
            raise TimeoutError(f"{kind} after {timeout_s} s: {self.objects(kind, namespace)}") from None
        finally:
            self.store.stop_waking(waker)

    # Faults

    @property
    def log(self) -> list[LoggedRequest]:
        """All requests so far; clear it with `api.log.clear()`."""
        return self._handler.log

    def requests(self, verb: str = "", resource: str = "", name: str = "") -> list[LoggedRequest]:
        """Return the logged requests that match; `resource` as "resourceclaims" or "resourceclaims/status"."""
        matching_requests = []
        for request in self.log:
            if verb in ("", request.verb) and resource in ("", request.resource) and name in ("", request.name):
                matching_requests.append(request)
        return matching_requests

    @property
    def dropped_fields(self) -> dict[str, set[str]]:
        """Fields that the server drops on every write, as fields of a disabled feature gate.

        By plural: `api.dropped_fields["resourceslices"] = {"spec.devices[*].taints"}`.
        """
        return self._dropper.paths

    @property
    def added_fields(self) -> dict[str, dict[str, Any]]:
        """Fields that the server adds on every write, as defaults of a newer release or an admission policy do.

        By plural: `api.added_fields["resourceslices"] = {"spec.devices[*].bindsToNode": True}`.
        """
        return self._adder.values

    @property
    def published_enums(self) -> dict[str, dict[str, list[str]]]:
        """The values that the published schema of a kind accepts, by plural and path; every value without an entry.

        `api.published_enums["neuronultraservers"] = {"status.allocations[].phase": ["Bound"]}`. Add a fault to reject
        writes, too.
        """
        return self._schemas.enums

    def answer_versions(self, *versions: str) -> None:
        """Answer /version with these in turn for ever, as servers of several releases behind one address do."""
        self._handler.versions = itertools.cycle(versions)

    def execute_with(self, run: Run) -> None:
        """Serve pods/exec: `run` gets namespace, pod, container and command, and returns the program's output."""
        self._handler.execution.run = run

    def compact(self) -> None:
        """Discard history: watches and pages that start before now get a 410."""
        self.store.compact()
        self._handler.forget_pages()

    def backup(self) -> Backup:
        """Return all objects and the resourceVersion, as a backup of etcd has them."""
        return self.store.backup()

    def restore(self, backup: Backup, *, ends_watches: bool = True) -> None:
        """Go back to a backup: objects, resourceVersion and history are those of its time.

        Watches end, because the API server starts again; with `ends_watches` False their connections stay open, as
        behind a proxy. Later watches from a resourceVersion of the lost time: `watches.ahead`.
        """
        self.store.restore(backup)
        self._handler.forget_pages()
        if self._controllers:
            self._controllers.begin_again()
        if ends_watches:
            self.watches.close()

    def require_tokens(self, *tokens: str) -> None:
        """Reply 401 to requests without one of these bearer tokens; without arguments, require none."""
        self._handler.authentication.tokens = set(tokens) or None

    def require_certificates(self) -> None:
        """Reply 401 to requests without a valid client certificate or one of the required tokens."""
        self._handler.authentication.certificates = True

    def stop_answering(self) -> None:
        """Accept connections, but send no replies and no events."""
        self._handler.answering.clear()

    async def refuse_connections(self) -> None:
        """Close the port and all connections. `resume` opens the same port again."""
        self.watches.close()
        await self._close()

    async def resume(self) -> None:
        """End `stop_answering` and `refuse_connections`."""
        self._handler.answering.set()
        if self._runner is None:
            await self._listen()

    async def settle(self) -> None:
        """Return when the built-in controllers have handled all changes."""
        if self._controllers:
            await self._controllers.idle()

    # Helpers

    def _stored(self, obj: Obj) -> tuple[EmbeddedResource, str, Obj]:
        resource, _ = self._registry.of_object(obj)
        return resource, _place(resource, obj.get("metadata", {}).get("namespace", "")), obj


def _place(resource: EmbeddedResource, namespace: str) -> str:
    if resource.namespaced:
        return namespace or "default"
    return ""
