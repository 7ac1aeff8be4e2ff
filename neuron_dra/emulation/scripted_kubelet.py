"""A kubelet that follows a script: a gRPC client on real sockets, for tests and demonstrations.

    async with ScriptedKubelet(registry, node_name="a", api_url=api.url) as kubelet:
        await kubelet.registered("neuron.aws.com")
        results = await kubelet.prepare([claim])

It watches a plugin registry folder, registers the plugins that appear, and calls the most recently registered
connected instance of a driver, with a kubelet's deadlines and messages. It knows no pods (see `scripted_node`): each
`prepare` is a call. It remembers which claims it called for, as a kubelet does in a file of its own, also after a
restart: these, and no others, it unprepares when their pods are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import grpc.aio

from neuron_dra.emulation.kubelet_wire import (
    DRA_SERVICES,
    DRA_V1,
    DRA_V1BETA1,
    HEALTH_SERVICES,
    HEALTH_V1,
    HEALTH_V1ALPHA1,
    KubeletClaim,
    KubeletDevice,
    KubeletError,
    PreparedResult,
    RegisteredPlugin,
    ReportedHealth,
    dial,
    error_words,
    find_sockets,
    first_error,
    health_of,
    result_of,
    why_known,
    why_refused,
)
from neuron_dra.emulation.slice_wiper import SliceWiper
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2, registration_pb2_grpc

ANSWERS_S = 2.0

__all__ = [
    "DRA_V1",
    "DRA_V1BETA1",
    "HEALTH_V1",
    "HEALTH_V1ALPHA1",
    "KubeletClaim",
    "KubeletDevice",
    "KubeletError",
    "PreparedResult",
    "RegisteredPlugin",
    "ReportedHealth",
    "Script",
    "ScriptedKubelet",
    "first_error",
]

_FIRST_BACKOFF_S: Final = 0.5  # pause between attempts to register one socket; doubles
_LONGEST_BACKOFF_S: Final = 122.0

_remembered: Final[dict[Path, dict[str, KubeletClaim]]] = {}  # by registry, then UID


@dataclass(slots=True)
class _Instance:
    registration: RegisteredPlugin
    channel: grpc.aio.Channel
    connected: bool = False
    monitor: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Socket:
    """One socket file in the registry; a recreated file is another socket."""

    path: str
    identity: tuple[int, int]
    task: asyncio.Task[None] | None = None
    instance: _Instance | None = None


@dataclass(slots=True)
class Script:
    """The kubelet's faults. Each list has one entry per attempt to register, and is consumed from the front."""

    refusals: list[str] = field(default_factory=list)  # reject the registration with this text
    silent_attempts: int = 0  # attempts that call GetInfo and send no result
    retries_registration: bool = True  # False, as up to 1.35: a rejected socket must be recreated


class ScriptedKubelet:
    """A scripted kubelet. All times are in seconds."""

    def __init__(
        self,
        registry: Path | str,
        *,
        node_name: str = "",
        api_url: str = "",
        services: Iterable[str] = (DRA_V1, DRA_V1BETA1),
        poll_s: float = 0.02,
        dial_timeout_s: float = 10.0,
        info_timeout_s: float = 1.0,
        notify_timeout_s: float = 5.0,
        deadline_s: float = 45.0,
        wipe_delay_s: float = 30.0,
    ) -> None:
        """`services`: the DRA services of this kubelet; `(DRA_V1BETA1,)` is a kubelet 1.33.

        With `api_url` and `node_name` it deletes the node's ResourceSlices when it starts, and those of a driver
        `wipe_delay_s` after its last instance has disconnected, as kubelets do.
        """
        self.script = Script()
        self.deadline_s = deadline_s
        self.attempts: list[str] = []  # errors of registrations, oldest first
        self._registry = Path(registry)
        self._services = frozenset(services)
        self._poll_s = poll_s
        self._dial_timeout_s = dial_timeout_s
        self._info_timeout_s = info_timeout_s
        self._notify_timeout_s = notify_timeout_s
        self._sockets: dict[str, _Socket] = {}
        self._instances: list[_Instance] = []  # in the order of registration
        self._closing: list[asyncio.Task[None]] = []  # connections to removed plugins
        self._wiper = SliceWiper(api_url, node_name, wipe_delay_s)
        self._watcher: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._watcher = asyncio.create_task(self._watch(), name="kubelet: plugin registry")
        self._wiper.start("", 0.0)

    async def stop(self) -> None:
        """Close all connections and drop all plugins. The plugins' sockets stay."""
        tasks = [task for task in (self._watcher, *self._wiper.stop()) if task]
        tasks += [socket.task for socket in self._sockets.values() if socket.task]
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for instance in list(self._instances):
            await self._forget(instance, wipe=False)
        closing, self._closing = self._closing, []
        await asyncio.gather(*closing, return_exceptions=True)
        self._sockets.clear()
        self._watcher = None
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def restart(self) -> None:
        """Stop and start: register the plugins that are present, delete the node's ResourceSlices."""
        await self.stop()
        await self.start()

    async def drop_connections(self) -> None:
        """Close the connections to all plugins, even during calls, and reconnect."""
        for instance in self._instances:
            old = instance.channel
            await _cancel(instance.monitor)
            await old.close()
            self._connect(instance)

    # Registrations

    @property
    def registrations(self) -> list[RegisteredPlugin]:
        """The instances in the order in which they registered."""
        return [instance.registration for instance in self._instances]

    async def registered(self, driver: str, timeout_s: float = 10.0, *, endpoint: str = "") -> RegisteredPlugin:
        """Wait until an instance of the driver (at `endpoint`) is registered and connected; return it."""

        def wanted() -> RegisteredPlugin | None:
            for instance in reversed(self._instances):
                registration = instance.registration
                if registration.driver == driver and instance.connected and endpoint in ("", registration.endpoint):
                    return registration
            return None

        registration: RegisteredPlugin = await self._until(
            wanted, timeout_s, f"{driver} to register; attempts: {self.attempts}"
        )
        return registration

    async def gone(self, driver: str, timeout_s: float = 10.0, *, endpoint: str = "") -> None:
        """Wait until no instance of the driver (at `endpoint`) is registered."""

        def absent() -> bool:
            return not any(r.driver == driver and endpoint in ("", r.endpoint) for r in self.registrations)

        await self._until(absent, timeout_s, f"{driver} to go away")

    async def _until(self, condition: Any, timeout_s: float, what: str) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                while not (result := condition()):
                    self._changed.clear()
                    await self._changed.wait()
            return result
        except TimeoutError:
            raise TimeoutError(f"waited {timeout_s} s for {what}") from None

    # Calls

    async def prepare(
        self, claims: Iterable[KubeletClaim | Mapping[str, Any]], *, driver: str = "", deadline_s: float | None = None
    ) -> dict[str, PreparedResult]:
        """Call NodePrepareResources once with all claims; return the results by UID.

        Raises KubeletError for a failed call and for missing or extra results.
        """
        refs = [KubeletClaim.of(claim) for claim in claims]
        _remembered.setdefault(self._registry, {}).update(
            {ref.uid: ref for ref in refs}
        )  # before the call, which may succeed without an answer
        response = await self._call("NodePrepareResources", driver, refs, deadline_s)
        return {uid: result_of(answer) for uid, answer in response.claims.items()}

    async def unprepare(
        self, claims: Iterable[KubeletClaim | Mapping[str, Any]], *, driver: str = "", deadline_s: float | None = None
    ) -> dict[str, str]:
        """Call NodeUnprepareResources once; return the error text of each claim by UID, "" for success."""
        response = await self._call("NodeUnprepareResources", driver, claims, deadline_s)
        for uid, answer in response.claims.items():
            if not answer.error:
                self.remembered.pop(uid, None)
        return {uid: answer.error for uid, answer in response.claims.items()}

    @property
    def remembered(self) -> dict[str, KubeletClaim]:
        """The claims, by UID, that a kubelet of this registry has called a plugin to prepare and not yet unprepared."""
        return _remembered.get(self._registry, {})

    @property
    def has_called(self) -> bool:
        """True if a kubelet of this registry has ever called a plugin to prepare a claim."""
        return self._registry in _remembered

    async def unprepare_all(self) -> dict[str, str]:
        """Unprepare all remembered claims, as a kubelet whose pods are gone; return the error texts by UID."""
        return await self.unprepare(list(self.remembered.values())) if self.remembered else {}

    async def health(self, dialect: str = "", *, driver: str = "") -> AsyncGenerator[list[ReportedHealth], None]:
        """Open a health stream and yield each complete list. `dialect` "" takes the first that the plugin offers."""
        instance = self._pick(driver)
        offered = []
        for service in instance.registration.offered:
            if service in HEALTH_SERVICES:
                offered.append(service)
        if not dialect and not offered:
            raise KubeletError(f"DRA driver {instance.registration.driver} offers no health service")
        messages, stub = HEALTH_SERVICES[dialect or offered[0]]
        stream = stub(instance.channel).NodeWatchResources(messages.NodeWatchResourcesRequest())
        try:
            async for message in stream:
                yield [health_of(messages, device_health) for device_health in message.devices]
        except grpc.aio.AioRpcError as error:
            raise KubeletError(f"NodeWatchResources: {error_words(error)}") from error
        finally:
            stream.cancel()

    async def _call(
        self, method: str, driver: str, claims: Iterable[KubeletClaim | Mapping[str, Any]], deadline_s: float | None
    ) -> Any:
        refs = [KubeletClaim.of(claim) for claim in claims]
        instance = self._pick(driver)
        messages, stub = DRA_SERVICES[instance.registration.service]
        wire = []
        for ref in refs:
            wire.append(messages.Claim(namespace=ref.namespace, uid=ref.uid, name=ref.name))
        request = getattr(messages, f"{method}Request")(claims=wire)
        try:
            response = await getattr(stub(instance.channel), method)(
                request, timeout=self.deadline_s if deadline_s is None else deadline_s
            )
        except grpc.aio.AioRpcError as error:
            raise KubeletError(f"{method}: {error_words(error)}") from error
        requested_uids = {ref.uid for ref in refs}
        for uid in response.claims:
            if uid not in requested_uids:
                raise KubeletError(f"{method} returned result for unknown claim UID {uid}")
        skipped = len(refs) - len(response.claims)
        if skipped:
            raise KubeletError(f"{method} skipped {skipped} ResourceClaims")
        return response

    def _pick(self, driver: str) -> _Instance:
        """Return the instance that a kubelet would call: the latest that is connected, else the latest."""
        drivers = {instance.registration.driver for instance in self._instances}
        if not driver and len(drivers) == 1:
            driver = drivers.pop()
        instances = []
        for instance in self._instances:
            if instance.registration.driver == driver:
                instances.append(instance)
        if not instances:
            raise KubeletError(f"DRA driver {driver} is not registered" if driver else "DRA driver name is empty")
        return next((instance for instance in reversed(instances) if instance.connected), instances[-1])

    # The registry

    async def _watch(self) -> None:
        while True:
            present = find_sockets(self._registry)
            for path, socket in list(self._sockets.items()):
                if present.get(path) != socket.identity:
                    del self._sockets[path]
                    await _cancel(socket.task)
                    if socket.instance:
                        await self._forget(socket.instance)
            for path, identity in present.items():
                if path not in self._sockets:
                    socket = self._sockets[path] = _Socket(path, identity)
                    socket.task = asyncio.create_task(self._register(socket), name=f"kubelet: register {path}")
            await asyncio.sleep(self._poll_s)

    async def _register(self, socket: _Socket) -> None:
        """Try until the plugin at this socket is registered, with growing pauses."""
        pause_s = _FIRST_BACKOFF_S
        while True:
            channel = dial(socket.path)
            try:
                retry = await self._attempt(socket, channel)
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                text = "context deadline exceeded"
                if isinstance(error, grpc.aio.AioRpcError):
                    text = error_words(error)
                self.attempts.append(f"{socket.path}: {text}")
                retry = True
            finally:
                await channel.close()
            if not retry:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_BACKOFF_S)

    async def _attempt(self, socket: _Socket, channel: grpc.aio.Channel) -> bool:
        """Make one attempt; return True to try again."""
        async with asyncio.timeout(self._dial_timeout_s):
            await channel.channel_ready()
        stub = registration_pb2_grpc.RegistrationStub(channel)
        info = await stub.GetInfo(registration_pb2.InfoRequest(), timeout=self._info_timeout_s)
        if find_sockets(self._registry).get(socket.path) != socket.identity:
            return True  # a newer socket replied, which the watcher finds next
        if self.script.silent_attempts > 0:
            self.script.silent_attempts -= 1
            self.attempts.append(f"{socket.path}: no reply, according to the script")
            return False
        text, retry = why_refused(info, socket.path, self._services), True
        if not text and (text := why_known(info, socket.path, self.registrations)):
            retry = self.script.retries_registration
        if not text and self.script.refusals:
            text, retry = self.script.refusals.pop(0), self.script.retries_registration
        if text:
            self.attempts.append(f"{socket.path}: {text}")
            await self._notify(stub, accepted=False, text=text)
            return retry
        service = next(name for name in info.supported_versions if name in self._services)
        offered = tuple(info.supported_versions)
        registration = RegisteredPlugin(info.name, info.endpoint or socket.path, service, offered, socket.path)
        instance = _Instance(registration, channel)
        self._connect(instance)
        self._instances.append(instance)
        socket.instance = instance
        try:
            await self._notify(stub, accepted=True, text="")
        except BaseException:
            socket.instance = None
            await self._forget(instance)
            raise
        self._changed.set()
        return False

    async def _notify(self, stub: Any, *, accepted: bool, text: str) -> None:
        status = registration_pb2.RegistrationStatus(plugin_registered=accepted, error=text)
        await stub.NotifyRegistrationStatus(status, timeout=self._notify_timeout_s)

    # Connections

    def _connect(self, instance: _Instance) -> None:
        instance.channel = dial(instance.registration.endpoint)
        instance.connected = False
        instance.monitor = asyncio.create_task(
            self._monitor(instance), name=f"kubelet: connection to {instance.registration.endpoint}"
        )

    async def _monitor(self, instance: _Instance) -> None:
        """Keep the connection up and record its state."""
        channel = instance.channel
        state = channel.get_state(try_to_connect=True)
        while True:
            instance.connected = state is grpc.ChannelConnectivity.READY
            self._settle_wipe(instance.registration.driver)
            self._changed.set()
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)

    async def _forget(self, instance: _Instance, *, wipe: bool = True) -> None:
        if instance in self._instances:
            self._instances.remove(instance)
        await _cancel(instance.monitor)
        if wipe:
            # As with a real kubelet, a removed plugin may still reply to earlier calls.
            self._closing.append(asyncio.create_task(instance.channel.close(ANSWERS_S)))
        else:
            await instance.channel.close()
        if wipe:
            self._settle_wipe(instance.registration.driver)
        self._changed.set()

    def _settle_wipe(self, driver: str) -> None:
        of_driver = [instance for instance in self._instances if instance.registration.driver == driver]
        self._wiper.settle(driver, is_connected=any(instance.connected for instance in of_driver))


async def _cancel(task: asyncio.Task[None] | None) -> None:
    if task and task is not asyncio.current_task():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
