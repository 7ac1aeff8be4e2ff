"""Updates from one release to the next and back, with plugin processes: no claim is lost, and no call fails.

`tests/golden/checkpoints` has a checkpoint of each release; these files never change. The next release is this one with
more fields in its checkpoint, the only change that a release may make.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from neuron_dra.api.objects import allocated_claim, neuron_config
from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.checkpoint import SLOTS
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.kubelet_wire import KubeletClaim, KubeletDevice
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from tests.story.next_release import FIELD, VALUE
from tests.story.plugin_story import DRIVER, START_S, prepared, published, refused, slice_writes, started, unprepared
from tests.support import slots
from tests.support.plugin_host import PluginHost, PluginProcess
from tests.support.waiting import eventually

HERE = Path(__file__).resolve().parent
RELEASES = sorted((HERE.parent / "golden/checkpoints").iterdir())
THIS, NEXT = ("-m", "neuron_dra.cli"), (str(HERE / "next_release.py"),)

pytestmark = pytest.mark.contract("O7")


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


# Files of a former release


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_all_fields_of_old_releases_are_written(release: Path) -> None:
    """The older release needs them after a downgrade."""
    raw = (release / "checkpoint.0").read_bytes()
    then, now = json.loads(raw), json.loads(checkpoints.encode(checkpoints.decode(raw)))
    for name in ("checksum", "length"):
        del then[name], now[name]
    assert within(then, now)


def within(then: Any, now: Any) -> bool:
    """Return True if `now` has all fields of `then`, unchanged; objects may have more fields."""
    if isinstance(then, dict) and isinstance(now, dict):
        return all(name in now and within(value, now[name]) for name, value in then.items())
    if isinstance(then, list) and isinstance(now, list):
        return len(then) == len(now) and all(within(*pair) for pair in zip(then, now, strict=True))
    return bool(then == now)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
async def test_serves_claims_of_an_older_release(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, release: Path
) -> None:
    texts = in_cluster(api, {path.name: path.read_text() for path in release.iterdir()})
    left = json.loads(texts["checkpoint.0"])
    specs = {name: text.encode() for name, text in texts.items() if name != "checkpoint.0"}
    host.hardware.set_boot_id(left["bootId"])
    for folder in (host.data, host.cdi):
        folder.mkdir()
    for path, sequence in ((host.data / name, number) for number, name in enumerate(SLOTS, start=1)):
        path.write_bytes(slots.sealed(without_header(left), sequence=sequence))
    for name, text in specs.items():
        (host.cdi / name).write_bytes(text)
    process = await started(host, kubelet, "pod-1")
    await published(api)

    refs = {uid: KubeletClaim(claim["namespace"], claim["name"], uid) for uid, claim in left["claims"].items()}
    for uid, claim in left["claims"].items():
        if not claim.get("adopted"):
            answer = (await kubelet.prepare([refs[uid]]))[uid]
            assert (answer.error, answer.devices) == ("", answered(claim))
    assert {path.name: path.read_bytes() for path in host.cdi.iterdir()} == specs
    assert "damaged" not in process.log
    for uid, claim in left["claims"].items():
        for device in claim["devices"]:
            if not device.get("adminAccess"):
                rival = api.create(allocated_claim(f"rival-of-{device['device']}", "node-a", [device["device"]]))
                assert re.search(rf"is held by .*\(UID {uid}\)", await refused(kubelet, rival))
    assert set((await kubelet.unprepare(refs.values())).values()) == {""}
    assert (host.checkpointed, host.specified) == (set(), set())


def in_cluster(api: EmbeddedApi, texts: dict[str, str]) -> dict[str, str]:
    """Create the claims of a release's files in the cluster; return the files with the UIDs that they got."""
    whole = json.dumps(texts)
    for namespace in {claim["namespace"] for claim in json.loads(texts["checkpoint.0"])["claims"].values()}:
        if namespace != "default":
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    for uid, claim in json.loads(texts["checkpoint.0"])["claims"].items():
        fields = {"request": "request", "pool": "pool", "device": "device", "adminAccess": "adminAccess"}
        results = [
            {ours: device[theirs] for theirs, ours in (fields | {"shareId": "shareID"}).items() if theirs in device}
            for device in claim["devices"]
        ]
        made = api.create(allocated_claim(claim["name"], "node-a", results, namespace=claim["namespace"]))
        whole = whole.replace(uid, made["metadata"]["uid"])
    found: dict[str, str] = json.loads(whole)
    return found


def without_header(body: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint has behind its header."""
    return {name: value for name, value in body.items() if name not in slots.HEADER}


def answered(claim: dict[str, Any]) -> tuple[KubeletDevice, ...]:
    """Return the kubelet's result for a claim in a checkpoint."""
    return tuple(
        KubeletDevice(
            (device["request"],), device["pool"], device["device"], tuple(device["cdiIds"]), device.get("shareId")
        )
        for device in claim["devices"]
    )


# Update and rollback, with both releases running for a moment


class Stream:
    """Claims that are prepared and unprepared without a pause, four at a time, each on its own device."""

    def __init__(self, api: EmbeddedApi, kubelet: ScriptedKubelet) -> None:
        self._api, self._kubelet = api, kubelet
        self.rounds: Counter[int] = Counter()
        self._ended = False
        self._tasks = [asyncio.create_task(self._go(device), name=f"device {device}") for device in range(8, 12)]

    async def _go(self, device: int) -> None:
        while not self._ended:
            claim = self._api.create(allocated_claim(f"short-{device}-{self.rounds[device]}", "node-a", [device]))
            await prepared(self._kubelet, claim)
            await unprepared(self._kubelet, claim)
            self._api.delete("resourceclaims", claim["metadata"]["name"], "default")
            self.rounds[device] += 1

    async def goes_on(self) -> None:
        """Return when each device has had three more claims; raises the errors."""
        before = self.rounds.copy()

        def further() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return all(self.rounds[device] >= before[device] + 3 for device in range(8, 12))

        await eventually(further)

    async def end(self) -> None:
        """Wait until all prepared claims are unprepared; raises the errors."""
        self._ended = True
        await asyncio.gather(*self._tasks)


def fields_since(host: PluginHost, *claims: dict[str, Any]) -> list[bool]:
    """Return True if the next release's fields are in the checkpoint and in its entry of each of these claims."""
    body = json.loads(slots.newest(host.data).read_bytes().partition(b"\n")[0])
    entries = [body["claims"][claim["metadata"]["uid"]] for claim in claims]
    found = [all(each.get(FIELD) == VALUE for each in (entry, *entry["devices"])) for entry in entries]
    return [body.get(FIELD) == VALUE, *found]


class DaemonSet:
    """One plugin after the other on the node, as a DaemonSet with maxSurge replaces them."""

    def __init__(self, host: PluginHost, kubelet: ScriptedKubelet) -> None:
        self._host, self._kubelet = host, kubelet
        self._running: tuple[PluginProcess, str] | None = None
        self._uids = (f"pod-{number}" for number in itertools.count())
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._probed_at = free.getsockname()[1]  # on the host's network all plugins use the same port

    async def roll_out(self, program: tuple[str, ...], stream: Stream | None = None) -> None:
        """Start a plugin, and end the one before once the new one publishes; the stream must continue."""
        uid = next(self._uids)
        self._host.program = program
        new = await started(self._host, self._kubelet, uid, healthcheck_port=self._probed_at)
        await eventually(lambda: "this plugin publishes" in new.log, START_S)
        if stream is not None:
            await stream.goes_on()
            assert await self._alive()
        if self._running is not None:
            old, old_uid = self._running
            assert await old.stop() == 0
            await self._kubelet.gone(DRIVER, endpoint=str(self._host.settings(old_uid).dra_socket))
        self._running = new, uid
        if stream is not None:
            await stream.goes_on()
        async with asyncio.timeout(START_S):
            while not await self._alive():
                await asyncio.sleep(0.1)

    async def _alive(self) -> bool:
        """Probe as the kubelet does."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self._probed_at}") as channel:
            with contextlib.suppress(grpc.aio.AioRpcError):
                request = health_pb2.HealthCheckRequest(service="liveness")
                answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)
                return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False


@pytest.mark.contract("R13")
@pytest.mark.contract("S23")
async def test_update_and_rollback_fail_no_claim(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    first, second, third = claims = [
        api.create(allocated_claim(name, "node-a", [number, number + 4], config=[neuron_config(1)]))
        for number, name in enumerate(("first", "second", "third"))
    ]
    plugins = DaemonSet(host, kubelet)
    await plugins.roll_out(THIS)
    slices = await published(api)
    stream = Stream(api, kubelet)
    answers = [await prepared(kubelet, first)]

    await plugins.roll_out(NEXT, stream)
    answers.append(await prepared(kubelet, second))
    assert [await prepared(kubelet, claim) for claim in claims[:2]] == answers

    await plugins.roll_out(THIS, stream)
    answers.append(await prepared(kubelet, third))
    assert [await prepared(kubelet, claim) for claim in claims] == answers
    assert fields_since(host, *claims) == [True, True, True, False]

    await plugins.roll_out(NEXT, stream)
    await stream.end()
    assert [await prepared(kubelet, claim) for claim in claims] == answers
    assert (host.checkpointed, len(host.specified)) == ({claim["metadata"]["uid"] for claim in claims}, 3)
    for claim in claims:
        await unprepared(kubelet, claim)
    assert (host.checkpointed, host.specified) == (set(), set())
    assert slice_writes(api) == ["create"]
    assert api.objects("resourceslices") == [slices]
