"""What is fuzzed. A target takes bytes and fails on an undocumented exception, or on a wrong device."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import itertools
import json
import marshal
import re
import selectors
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from hack.bench.ultraservers import ultraserver
from neuron_dra.api import claims as wire_claims
from neuron_dra.api.objects import (
    allocated_claim,
    healthy_node,
    neuron_config,
    opaque,
)
from neuron_dra.core import cdi, checkpoint, claims, decision, devices, health, limits, names, signals, slices, topology
from neuron_dra.core.facts import NodeLabels
from neuron_dra.core.ultraserver import decode_allocations
from neuron_dra.emulation.embedded_api import STRANGE
from neuron_dra.errors import CheckpointDamaged, ClaimError, Gone, Unavailable
from neuron_dra.kube import client
from neuron_dra.kube import objects as kube_objects
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import NODES
from neuron_dra.kube.timing import DEFAULT_CLIENT_TIMING
from neuron_dra.node.hardware import helper, sysfs
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import WriteUltraServerStatus
from neuron_dra.planner.observed import decode as controller_decode
from neuron_dra.planner.observed import discovery
from neuron_dra.planner.plan.planning import plan
from tests.fuzz.fuzz_connected_sets import connected_sets
from tests.fuzz.fuzz_inputs import Bytes, MemorySource, changed
from tests.fuzz.fuzz_limits import limits as limits_of_pods

NODE = "node-a"
NOW = datetime.datetime(2026, 3, 1, 12, 0, 30, tzinfo=datetime.UTC)
REF = claims.ClaimRef("default", "training", "uid-1")


# -- opaque parameters -------------------------------------------------------------------------------------------------


@functools.cache
def _nodes() -> tuple[topology.Node, ...]:
    return tuple(healthy_node(kind) for kind in ("trn2.48xlarge", "trn1.2xlarge", "trn2u.48xlarge"))


@functools.cache
def _claims() -> tuple[Any, ...]:
    ultra = {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "UltraServerConfig",
        "ultraserverMode": 4,
        "workloadId": "job",
        "workloadUid": "u",
    }
    made = (
        allocated_claim("training", NODE, [0, 1, 15], config=[neuron_config(1), opaque(ultra)]),
        allocated_claim("training", NODE, ["neuron-node-0"], config=[opaque(ultra, requests=["neuron"])]),
        allocated_claim("training", NODE, [{"device": "neuron-device-3", "adminAccess": True, "shareID": "s"}]),
    )
    for item in made:
        item["metadata"]["uid"] = REF.uid
    return made


def parameters(data: bytes) -> None:
    """A claim with any opaque parameters is rejected with a ClaimError, or gets the devices in its allocation."""
    source = Bytes(data)
    node = source.pick(_nodes())
    item = changed(source, source.pick(_claims()))
    raw = source.raw(source.left) if source.below(16) == 15 else json.dumps(item).encode()
    try:
        decoded = wire_claims.decode_claim(raw)
        claim = wire_claims.to_core(decoded, REF)
        prepared = decision.decide(claim, node_name=NODE, node=node, held=(), device_files=cdi.DeviceFiles())
    except ClaimError as err:
        assert 0 < len(str(err)) < 4096, err
        return
    results = item["status"]["allocation"]["devices"]["results"]
    named = {r["device"] for r in results if (r.get("driver"), r.get("pool")) == (names.DRIVER, NODE)}
    whole = {device.device_id for device in node.devices}
    may = set().union(*(whole if name == names.NODE_DEVICE else {int(name.rsplit("-", 1)[1])} for name in named))
    got = {device_id for device in prepared.devices for device_id in device.device_ids}
    assert got, "prepared without a device"
    assert got <= may & whole, (got, may)
    cores = [e.split("=")[1] for d in prepared.devices for e in d.env if e.startswith("NEURON_LOGICAL_NC_CONFIG=")]
    assert {*cores} <= {"1", "2"}, cores
    cdi.encode(cdi.spec(prepared))


# -- sysfs -------------------------------------------------------------------------------------------------------------

_FILES = tuple(path for paths in sysfs.DEVICE_FILES.values() for path in paths)
_CLASS_FILES = tuple(path for paths in sysfs.ULTRASERVER_FILES.values() for path in paths)
_CONTENTS = (
    b"",
    b"\n",
    b"busy\n",
    b"8",
    b"2\n",
    b"1, 2, 3\n",
    b"0,1\n",
    b"243:1\n",
    b"-1\n",
    b"0000000000000000\n",
    b"89a1b2c3d4e5f607\n",
    b"EIO",
    b"nc_0,link_1\n",
    b"99999999999999999999",
    b"\xff\xfe",
    b"1" * 5000,
)
_TYPES = (
    b"trn2.48xlarge\n",
    b"trn1.2xlarge",
    b"trn3.48xlarge\n",
    b"trn2u.48xlarge\n",
    b"inf2.xlarge\n",
    b"p5.48xlarge\n",
)


def hardware(data: bytes) -> None:
    """With any contents of sysfs, only present devices are published, within the API's limits."""
    source = Bytes(data)
    tree: dict[str, bytes | None] = {"/sys/class/neuron_device": None}
    there: set[int] = set()

    def contents() -> bytes:
        return source.pick(_CONTENTS) if source.below(4) else source.raw(source.below(20))

    for path in (*sysfs.PRODUCT_NAME, *sysfs.DRIVER_VERSION):
        tree[f"/{path}"] = source.pick(_TYPES) if source.below(2) else contents()
    for _ in range(source.below(18)):
        name = f"neuron{source.below(20)}" if source.below(8) else "neuron" + source.text()
        folder = f"/sys/class/neuron_device/{name}"
        tree[folder] = None
        if name[6:].isascii() and name[6:].isdigit():
            there.add(int(name[6:]))
        for _ in range(source.below(8)):
            tree[f"{folder}/{source.pick(_FILES)}"] = contents()
        if source.below(2):
            tree[f"/dev/{name}"] = b""
    for _ in range(source.below(6)):
        tree[f"/sys/class/neuron_device/{source.pick(_CLASS_FILES)}"] = contents()
    dev = source.pick(["/dev", "/not-mounted"])
    reads = [sysfs.read(MemorySource(tree), "", dev)]
    ids = reads[0].ids or []
    units = [f"neuron{number}" for number in ids] + [f"{helper.CLASS}/{path}" for path in _CLASS_FILES]
    hung = {source.pick(units) for _ in range(source.below(3))}
    hanging = {f"{helper.CLASS}/{unit}/reset" if unit.startswith("neuron") else unit for unit in hung}
    before = reads[0] if source.below(2) else None
    reads.append(sysfs.read(MemorySource(tree), "", dev, lambda unit: unit not in hung))
    facts = sysfs.facts(
        sysfs.FileReading(*marshal.loads(marshal.dumps(tuple(reads[1])))), before=before, hanging=hanging
    )
    assert [device.device_id for device in facts.devices if device.hangs] == sorted(
        number for number in ids if f"neuron{number}" in hung
    )
    node = topology.build(facts, NodeLabels.from_labels({names.INSTANCE_TYPE_LABEL: source.text()}))
    watch = health.observe({}, facts.devices, sorted(there), 0.0, 60.0)
    for shape in ("node", "devices"):
        published = devices.published(node, driver_version="0.1.0", ultraserver_devices=shape)
        kept, _ = limits.check_devices(published)
        shown = {device_id for device in kept for device_id in device.device_ids}
        assert shown <= there, (shown, there)
        assert len({device.name for device in kept}) == len(kept)
        for device in kept:
            assert len(device.attributes) + len(device.capacity) <= limits.ATTRIBUTES_AND_CAPACITIES
            judged = health.judged(device.name, device.device_ids, watch)
            _check_marks(health.marked(device.to_wire(), judged.reasons, "NoSchedule"), judged)
        for read in facts.devices:
            if read.hangs:
                state = health.judged(f"neuron-device-{read.device_id}", [read.device_id], watch)
                assert state.status is health.Health.UNKNOWN, (read, state)
            elif read.reset_state == signals.RESET_INVALID:
                state = health.judged("neuron-device-0", [read.device_id], watch)
                assert signals.INVALID in state.reasons, (read, state)


def _check_marks(marked: Mapping[str, Any], judged: health.DeviceHealth) -> None:
    """An unhealthy device has attribute and taints that the API server accepts."""
    assert (judged.status is health.Health.UNHEALTHY) == bool(judged.reasons) == ("taints" in marked)
    shown = health.reasons_on(marked)
    assert shown == tuple(reason for reason in judged.reasons if reason in shown)  # one that is too long is left out
    assert shown[:1] == judged.reasons[:1]
    assert len(marked.get("taints", ())) <= health.TAINTS
    for taint in marked.get("taints", ()):
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", taint["value"]), taint
    assert len(marked["attributes"].get(health.ATTRIBUTE, {"string": ""})["string"]) <= limits.TEXT_BYTES
    json.dumps(marked, allow_nan=False).encode()


# -- checkpoint --------------------------------------------------------------------------------------------------------


@functools.cache
def _checkpoints() -> tuple[Any, ...]:
    node = healthy_node("trn2.48xlarge")
    held: dict[str, claims.PreparedClaim] = {}
    for number, admin in enumerate((False, True)):
        ref = claims.ClaimRef("default", f"claim-{number}", f"uid-{number}")
        result = claims.AllocatedDevice("neuron", NODE, f"neuron-device-{number}", admin, "share" if admin else None)
        prepared = decision.decide(
            claims.Claim(ref, (result,)), node_name=NODE, node=node, held=held.values(), device_files=cdi.DeviceFiles()
        )
        held[ref.uid] = prepared
    tag = dict.fromkeys(("workloadId", "workloadNamespace", "workloadUid", "allocationId", "workloadPhase"), "x")
    full = checkpoint.Checkpoint(
        "boot", held, {"later": {"field": 1}, "workloadTag": {**tag, "workloadPhase": "Bound"}}
    )
    header = ("checksum", "length", "sequence", "version")
    bodies = (json.loads(checkpoint.encode(each)) for each in (checkpoint.Checkpoint("boot"), full))
    return tuple({name: value for name, value in body.items() if name not in header} for body in bodies)


def checkpoint_bytes(data: bytes) -> None:
    """A checkpoint is read as written, or is damaged; encoding a decoded one changes nothing."""
    source = Bytes(data)
    if source.below(8) == 7:
        raw = source.raw(source.left)
    else:
        body = changed(source, source.pick(_checkpoints()))
        raw = json.dumps(body).encode()
        if isinstance(body, dict) and source.below(8):  # mostly with a valid checksum, to get past the check
            raw = checkpoint._sealed(raw, source.below(1000), "v2" if source.below(32) == 31 else checkpoint.VERSION)
        for _ in range(source.below(3)):
            at = source.below(max(1, len(raw)))
            raw = raw[:at] + bytes([source.byte()]) + raw[at + source.below(2) :]
    try:
        found = checkpoint.decode(raw)
    except CheckpointDamaged as err:
        assert str(err)
        return
    again = checkpoint.encode(found)
    assert checkpoint.decode(again) == found
    assert checkpoint.newest((raw, again)) == found
    assert checkpoint.encode(checkpoint.decode(again)) == again
    assert all(isinstance(n, int) and n >= 0 for n in checkpoint.holders(found.claims.values()))
    for claim in found.claims.values():
        cdi.encode(cdi.spec(claim))
    assert found.tag is None or found.tag.texts()


# -- slices of others --------------------------------------------------------------------------------------------------

POOL = slices.Pool(NODE, "node-uid")


@functools.cache
def _devices() -> tuple[Any, ...]:
    published = devices.published(healthy_node("trn2.48xlarge"), driver_version="0.1.0", ultraserver_devices="devices")
    return tuple(device.to_wire() for device in published)


@functools.cache
def _cluster() -> tuple[Any, ...]:
    items = [*ultraserver("u1"), *ultraserver("u2")]
    for number, size in enumerate((4, 2, 1)):
        items.append(
            {
                "apiVersion": "neuron.aws.com/v1beta1",
                "kind": "NeuronUltraServerWorkload",
                "metadata": {
                    "name": f"job-{number}",
                    "namespace": "ml",
                    "uid": f"job-uid-{number}",
                    "creationTimestamp": "2026-03-01T12:00:00Z",
                    "resourceVersion": "5",
                    "generation": 1,
                },
                "spec": {"instanceType": "trn3.48xlarge", "topologySize": size, "serverCount": 1},
            }
        )
    for group in discovery.discover(controller_decode.snapshot(items)):
        body = objects.ultraserver(group)
        body["metadata"] |= {"uid": f"uid-{group.name}", "resourceVersion": "7", "generation": 1}
        items.append(body)
    held = plan(controller_decode.snapshot(items), NOW)
    statuses = {each.name: each.status for each in held.actions if isinstance(each, WriteUltraServerStatus)}
    return tuple(
        {**each, "status": statuses.get(each["metadata"]["name"], {})} if "topology" in each.get("spec", {}) else each
        for each in items
    )


def foreign_slices(data: bytes) -> None:
    """From any existing slices, one publish leads to exactly ours, and the controller counts no node twice."""
    source = Bytes(data)
    if source.below(2):
        _publishes(source)
    else:
        _plans(source)


def _publishes(source: Bytes) -> None:
    wanted = _devices()[: source.pick((0, 1, 16))]
    stored: dict[str, Any] = {}
    for number, item in enumerate(slices.desired(POOL, _devices(), 1) * source.below(4)):
        made = changed(source, item["spec"], typed=True)
        made = {"driver": names.DRIVER, "nodeName": NODE, **made, "pool": {"name": NODE, **(made.get("pool") or {})}}
        name = item["metadata"]["name"] if source.below(2) else f"other-{number}"
        owners = item["metadata"]["ownerReferences"] if source.below(2) else []
        stored[name] = _stored({"metadata": {"name": name, "ownerReferences": owners}, "spec": made}, number)
    for turn in range(3):
        made_plan = slices.diff(POOL, list(stored.values()), wanted)
        if not (made_plan.delete or made_plan.update or made_plan.create):
            break
        for gone in made_plan.delete:
            del stored[gone["metadata"]["name"]]
        for written in (*made_plan.update, *made_plan.create):
            stored[written["metadata"]["name"]] = _stored(written, turn + 10)
    else:
        raise AssertionError(f"no end of writes: {made_plan}")
    assert sorted(stored) == [item["metadata"]["name"] for item in slices.desired(POOL, wanted, 1)]
    assert [d for item in stored.values() for d in item["spec"].get("devices") or []] == list(wanted)


def _stored(item: Any, number: int) -> Any:
    return {**item, "metadata": {**item["metadata"], "uid": f"u{number}", "resourceVersion": str(number)}}


def _plans(source: Bytes) -> None:
    keep_reservations = source.below(2)
    items = []
    for item in _cluster():
        if item["kind"] == "ResourceSlice":
            item = {**item, "spec": changed(source, item["spec"], typed=True, most=2)}
        elif item["kind"] == "NeuronUltraServer":
            status = changed(source, item["status"], typed=True, most=2) if keep_reservations else {}
            item = {**item, "status": status}
        items.append(item)
    snapshot = controller_decode.snapshot(items)
    made = plan(snapshot, NOW)
    assert plan(snapshot, NOW) == made
    before = {each.name: _held(each.status) for each in snapshot.ultraservers}
    after = before | {a.name: _held(a.status) for a in made.actions if isinstance(a, WriteUltraServerStatus)}
    for name, owners in after.items():
        for node, of in owners.items():
            assert len(of) == 1 or len(before[name].get(node, ())) > 1, (node, of)
    assert {*made.verdicts} == {workload.uid for workload in snapshot.workloads}


def _held(status: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the allocations of each node."""
    found: dict[str, list[str]] = {}
    for each in decode_allocations({"status": status}):
        for name in each.nodes:
            found.setdefault(name, []).append(each.allocation_id)
    return found


# -- watch streams -----------------------------------------------------------------------------------------------------


class _NoWaiting(selectors.SelectSelector):
    """Needs no time: waits end at once, and the loop's clock advances."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> Any:
        _NoWaiting.skipped += max(0.0, timeout or 0.0)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(_NoWaiting())

    def time(self) -> float:
        return super().time() + _NoWaiting.skipped


class _Server:
    """Serves one list and one watch from the input, then the real object."""

    timing = DEFAULT_CLIENT_TIMING

    def __init__(self, source: Bytes) -> None:
        self._source = source
        self._sent = b""
        self.calls = 0
        self.done = asyncio.Event()

    @property
    def truth(self) -> dict[str, Any]:
        """Return the only object, in a new version: no server reuses a version for other contents."""
        version = next(number for number in itertools.count(100) if str(number).encode() not in self._sent)
        return {"metadata": {"name": "node-a", "uid": "1", "resourceVersion": str(version)}, "spec": {"a": 1}}

    def _send(self, body: Any) -> bytes:
        line = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._sent += line
        return line

    def _item(self) -> Any:
        return {
            "metadata": {
                "name": self._source.pick(("node-a", "node-b")),
                "uid": self._source.text(),
                "resourceVersion": str(self._source.below(100)),
            },
            "spec": {"a": self._source.byte()},
        }

    async def list(self, *_: Any, **__: Any) -> AsyncIterator[kube_objects.Page]:
        self.calls += 1
        if self.calls == 1:
            page = {
                "metadata": {"resourceVersion": "10"},
                "items": [self._item() for _ in range(self._source.below(3))],
            }
            yield _page(self._send(changed(self._source, page, most=2)))
        else:
            yield _page(json.dumps({"metadata": {"resourceVersion": "100"}, "items": [self.truth]}).encode())

    @contextlib.asynccontextmanager
    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        if self.calls > 1:
            self.done.set()
            await asyncio.Event().wait()
        yield self._lines()

    async def _lines(self) -> AsyncIterator[bytes]:
        for _ in range(self._source.below(6)):
            event = {
                "type": self._source.pick(("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")),
                "object": self._item(),
            }
            if self._source.below(8) == 7:
                yield self._send(self._source.raw(self._source.below(40)))
            else:
                yield self._send(changed(self._source, event, most=2))
        raise Gone("expired")


def _page(raw: bytes) -> kube_objects.Page:
    """Return a page as the client does."""
    try:
        return kube_objects.page(raw)
    except kube_objects.MALFORMED as err:
        raise Unavailable(str(err)) from err


async def _watches(source: Bytes) -> None:
    server = _Server(source)
    project: Callable[[dict[str, Any]], dict[str, Any]] = source.pick(
        (lambda item: item, lambda item: {"metadata": item["metadata"], "value": controller_decode.cluster_node(item)})
    )
    reflector = Reflector(server, NODES, project=project)  # type: ignore[arg-type]
    task = asyncio.create_task(reflector.run())
    waits = asyncio.create_task(server.done.wait())
    await asyncio.wait([task, waits], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert reflector.items == {"/node-a": project(server.truth)}


def watch(data: bytes) -> None:
    """Malformed lists and watches do not end a reflector, and after the next list it has the real object."""
    loop = _loop()
    loop.run_until_complete(_watches(Bytes(data)))


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    return _Loop()


# -- answers of the API server -----------------------------------------------------------------------------------------


def answers(data: bytes) -> None:
    """Any body with any status gives an object, a page, a claim, or a documented error."""
    source = Bytes(data)
    raw = bytearray(source.pick([strange.body[:4096] for strange in STRANGE.values()]))
    for _ in range(source.below(6)):
        at = source.below(len(raw) + 1)
        raw[at : at + source.below(3)] = source.raw(source.below(8))
    body = bytes(raw)
    with contextlib.suppress(Unavailable):
        assert isinstance(client.decode_object(body), dict)
    with contextlib.suppress(ClaimError):
        wire_claims.to_core(wire_claims.decode_claim(body), REF)
    with contextlib.suppress(*kube_objects.MALFORMED):
        for item in kube_objects.page(body).decoded(wire_claims.ResourceClaim).objects:
            wire_claims.allocated_devices(item)
    with contextlib.suppress(*kube_objects.MALFORMED):
        kube_objects.identity(kube_objects.event(body)[1])
    status = source.pick((400, 401, 403, 404, 409, 410, 422, 429, 500, 502, 503, 504))
    retry_after = source.pick((None, "7", "-1", "", "1e9", "Thu, 01 Jan 2026 00:00:00 GMT", "9" * 400, "\u0663"))
    err = client._error("GET", "/api", status, body, retry_after)
    assert err.status == status
    assert str(err).startswith(f"GET /api: {status}")
    assert err.retry_after_s is None or err.retry_after_s >= 0


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "answers": answers,
    "parameters": parameters,
    "sysfs": hardware,
    "checkpoint": checkpoint_bytes,
    "slices": foreign_slices,
    "watch": watch,
    "sets": connected_sets,
    "limits": limits_of_pods,
}
