"""A watched copy stays equal to the server's objects, despite failures of the watch."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
import pytest
from yarl import URL

from neuron_dra.api.objects import node_object
from neuron_dra.core.slices import Pool, desired
from neuron_dra.emulation.embedded_api import Do, EmbeddedApi, InjectedFault
from neuron_dra.errors import Unavailable
from neuron_dra.kube import objects
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.connections import KEEPALIVE, make_socket, options
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import NODES, RESOURCE_SLICES, Resource
from tests.support.fleet.clock import VirtualLoop
from tests.support.silent_proxy import SilentProxy
from tests.support.timings import QUICK_CLIENT, quicker
from tests.support.waiting import always, eventually


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi() as server:
        server.create(node_object("a"))
        yield server


@pytest.fixture
async def client(api: EmbeddedApi) -> AsyncIterator[KubeClient]:
    async with KubeClient(KubeConfig(api.url), timing=QUICK_CLIENT) as made:
        yield made


@contextlib.asynccontextmanager
async def running(reflector: Reflector) -> AsyncIterator[Reflector]:
    task = asyncio.create_task(reflector.run())
    try:
        async with asyncio.timeout(60):
            await reflector.synced.wait()
        yield reflector
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def names(reflector: Reflector) -> set[str]:
    return {key.removeprefix("/") for key in reflector.items}


async def shows(reflector: Reflector, *wanted: str) -> None:
    await eventually(lambda: names(reflector) == set(wanted), what=f"{wanted}")


async def test_reflector_follows_objects(api: EmbeddedApi, client: KubeClient) -> None:
    changes: list[int] = []
    async with running(Reflector(client, NODES, on_change=lambda: changes.append(1))) as nodes:
        assert names(nodes) == {"a"}
        api.create(node_object("b"))
        await shows(nodes, "a", "b")
        api.patch("nodes", "b", {"metadata": {"labels": {"x": "y"}}})
        await eventually(lambda: nodes.items["/b"]["metadata"].get("labels") == {"x": "y"})
        api.delete("nodes", "a")
        await shows(nodes, "b")
        assert len(changes) >= 4
        assert len(api.requests("list", "nodes")) == 1


async def test_gathering_loses_no_change(api: EmbeddedApi, client: KubeClient) -> None:
    async with running(Reflector(client, NODES, gather_s=0.2)) as nodes:
        await eventually(lambda: api.watches.count("nodes") == 1)
        api.create(node_object("first"))
        await shows(nodes, "a", "first")
        many = [f"n{number}" for number in range(50)]
        for name in many:
            api.create(node_object(name))
            await asyncio.sleep(0.001)
        await shows(nodes, "a", "first", *many)
        assert len(api.requests("list", "nodes")) == 1


async def test_requests_use_the_selector(api: EmbeddedApi, client: KubeClient) -> None:
    api.create(node_object("b"))
    async with running(Reflector(client, NODES, field_selector="metadata.name=b")) as nodes:
        assert names(nodes) == {"b"}
        api.create(node_object("c"))
        api.delete("nodes", "b")
        await shows(nodes)


async def test_ended_watch_resumes_without_a_list(api: EmbeddedApi, client: KubeClient) -> None:
    async with running(Reflector(client, NODES)) as nodes:
        for number in range(3):
            await eventually(lambda: api.watches.count("nodes") == 1)
            await asyncio.sleep(0.06)
            api.watches.close("nodes")
            api.create(node_object(f"n{number}"))
        await shows(nodes, "a", "n0", "n1", "n2")
        assert len(api.requests("list", "nodes")) == 1


@pytest.mark.contract("S9")
async def test_expired_history_lists_again(api: EmbeddedApi, client: KubeClient) -> None:
    async with running(Reflector(client, NODES)) as nodes:
        await eventually(lambda: api.watches.count("nodes") == 1)
        api.faults.add(InjectedFault(verb="watch", resource="nodes", status=410))
        api.watches.close("nodes")
        api.delete("nodes", "a")
        api.create(node_object("b"))
        await shows(nodes, "b")
        assert len(api.requests("list", "nodes")) == 2


@pytest.mark.contract("S9")
async def test_watch_410_lists_again(api: EmbeddedApi, client: KubeClient) -> None:
    async with running(Reflector(client, NODES)) as nodes:
        await eventually(lambda: api.watches.count("nodes") == 1)
        api.watches.expire("nodes")
        api.create(node_object("b"))
        await shows(nodes, "a", "b")
        assert len(api.requests("list", "nodes")) == 2


@pytest.mark.parametrize(
    "fault",
    [
        InjectedFault(status=500, times=3),
        InjectedFault(Do.DROP, times=3),
        InjectedFault(status=403, times=3),
        InjectedFault(status=200, body=b"<html>", times=3),
        InjectedFault(status=200, body=b'{"items": null}', times=3),
        InjectedFault(status=200, body=b'{"metadata": []}', times=3),
        InjectedFault(status=200, body=b'{"metadata": {}, "items": ["a"]}', times=3),
        InjectedFault(status=200, body=b"[" * 200_000, times=3),
    ],
)
async def test_reflector_survives_failed_lists(api: EmbeddedApi, client: KubeClient, fault: InjectedFault) -> None:
    fault.verb = "list"
    api.faults.add(fault)
    async with running(Reflector(client, NODES)) as nodes:
        await shows(nodes, "a")
        assert fault.hits == 3


@pytest.mark.parametrize(
    "fault",
    [
        InjectedFault(status=500, times=3),
        InjectedFault(Do.DROP, times=3),
        InjectedFault(Do.CLOSE_WATCH, times=3),
        InjectedFault(status=200, body=b"{nonsense\n", times=2),
        InjectedFault(status=200, body=b'{"type": "ADDED", "object": {}}\n', times=2),
        InjectedFault(status=200, body=b'{"type": "ERROR", "object": []}\n', times=2),
        InjectedFault(
            status=200,
            body=b'{"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": true}}}\n',
            times=2,
        ),
        InjectedFault(status=200, body=b'{"type": "ERROR", "object": {"code": 500, "reason": "x"}}\n', times=2),
    ],
)
async def test_reflector_survives_failed_watches(api: EmbeddedApi, client: KubeClient, fault: InjectedFault) -> None:
    fault.verb = "watch"
    api.faults.add(fault)
    async with running(Reflector(client, NODES)) as nodes:
        await eventually(lambda: fault.hits == fault.times)
        api.create(node_object("b"))
        await shows(nodes, "a", "b")


async def test_silent_watch_is_given_up(api: EmbeddedApi) -> None:
    timing = quicker(QUICK_CLIENT, watch={"silence_s": 0.2})
    hang = api.faults.add(InjectedFault(Do.HANG, verb="watch", times=1))
    async with KubeClient(KubeConfig(api.url), timing=timing) as client, running(Reflector(client, NODES)) as nodes:
        await eventually(lambda: hang.hits == 1)
        api.create(node_object("b"))
        await shows(nodes, "a", "b")


async def test_watch_without_its_bookmarks_is_opened_again(api: EmbeddedApi) -> None:
    """31.8: a proxy keeps the connection open and swallows what the server sends. It took seven minutes."""
    port = URL(api.url).port
    assert port is not None
    timing = quicker(QUICK_CLIENT, watch={"bookmarks_s": 0.3})
    async with SilentProxy(port) as proxy, KubeClient(KubeConfig(proxy.url), timing=timing) as through:
        async with running(Reflector(through, NODES)) as nodes:
            await eventually(lambda: api.watches.count("nodes") == 1)
            api.watches.bookmark("nodes")
            await eventually(lambda: nodes._gets_bookmarks, what="the bookmark")
            proxy.silence()
            api.create(node_object("b"))
            await shows(nodes, "a", "b")


async def test_resumed_watch_sees_what_a_dead_one_missed_and_lists_nothing(api: EmbeddedApi) -> None:
    port = URL(api.url).port
    assert port is not None
    async with SilentProxy(port) as proxy, KubeClient(KubeConfig(proxy.url), timing=QUICK_CLIENT) as through:
        async with running(Reflector(through, NODES)) as nodes:
            await eventually(lambda: api.watches.count("nodes") == 1)
            proxy.silence()
            api.create(node_object("b"))
            await nodes.resume()
            await shows(nodes, "a", "b")
    assert len(api.requests("list", "nodes")) == 1


async def test_a_resume_does_not_wait_for_the_next_try(api: EmbeddedApi) -> None:
    timing = quicker(QUICK_CLIENT, watch={"retry_s": (3600.0, 3600.0), "short_s": 3600.0})
    async with KubeClient(KubeConfig(api.url), timing=timing) as client, running(Reflector(client, NODES)) as nodes:
        await eventually(lambda: api.watches.count("nodes") == 1)
        api.watches.close("nodes")
        await eventually(lambda: api.watches.count("nodes") == 0)
        api.create(node_object("b"))
        await nodes.resume()
        await shows(nodes, "a", "b")
    assert len(api.requests("list", "nodes")) == 1


async def test_watch_that_cannot_be_resumed_lists_again(api: EmbeddedApi, client: KubeClient) -> None:
    async with running(Reflector(client, NODES)) as nodes:
        await eventually(lambda: api.watches.count("nodes") == 1)
        api.faults.add(InjectedFault(verb="watch", status=503, times=None))
        await nodes.resume()
        assert len(api.requests("list", "nodes")) == 2
        api.faults.add(InjectedFault(verb="list", status=503, times=None))
        with pytest.raises(Unavailable):
            await nodes.resume()
        api.faults.clear()


async def test_resume_without_a_watch_lists(api: EmbeddedApi, client: KubeClient) -> None:
    nodes = Reflector(client, NODES)
    await nodes.resume()
    assert names(nodes) == {"a"}


async def test_quiet_watch_without_bookmarks_stays_open(api: EmbeddedApi) -> None:
    """The API server sends no bookmark of a kind that has never changed since it started."""
    timing = quicker(QUICK_CLIENT, watch={"bookmarks_s": 0.05})
    async with KubeClient(KubeConfig(api.url), timing=timing) as client, running(Reflector(client, NODES)):
        await eventually(lambda: api.watches.count("nodes") == 1)
        await always(lambda: len(api.requests("watch", "nodes")) == 1, 0.5)


async def test_connections_have_keepalive(api: EmbeddedApi) -> None:
    """31.8: where packets are dropped, the kernel ends a connection within 45 s."""
    made = make_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1)))
    with made:
        found = {name: made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options(KEEPALIVE)}
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert found == {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 40_000}
    assert KEEPALIVE.idle_s + KEEPALIVE.count * KEEPALIVE.interval_s <= 45


class ShortWatches(KubeClient):
    """A server whose watches end at once; `times` are those of the watches."""

    def __init__(self) -> None:
        super().__init__(KubeConfig("none:"))
        self.times: list[float] = []

    async def list(
        self, resource: Resource, namespace: str = "", *, most_bytes: int = 0, **selectors: str
    ) -> AsyncGenerator[objects.Page, None]:
        yield objects.page(b'{"metadata": {"resourceVersion": "1"}, "items": []}')

    @contextlib.asynccontextmanager
    async def watch(self, *_: Any, **more: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        self.times.append(asyncio.get_running_loop().time())

        async def nothing() -> AsyncIterator[bytes]:
            no_lines: tuple[bytes, ...] = ()
            for line in no_lines:
                yield line

        yield nothing()


def test_short_watches_back_off() -> None:
    """Each delay is between half of its step and the whole; the steps double, from half a second to half a minute."""

    async def hour(client: ShortWatches) -> None:
        async with running(Reflector(client, NODES)):
            await asyncio.sleep(3600)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        client = ShortWatches()
        runner.run(hour(client))
    delays = [later - earlier for earlier, later in itertools.pairwise(client.times)]
    steps = [min(0.5 * 2**number, 30.0) for number in range(len(delays))]
    assert [delay for delay, step in zip(delays, steps, strict=True) if not step / 2 <= delay <= step] == []
    assert 3600 / 30 <= len(delays) <= 3600 / 15 + 8


async def test_bookmarks_move_the_resume_version(api: EmbeddedApi, client: KubeClient) -> None:
    async with running(Reflector(client, NODES, field_selector="metadata.name=a")) as nodes:
        await eventually(lambda: api.watches.count("nodes") == 1)
        for number in range(5):
            api.create(node_object(f"n{number}"))
        newest = api.get("nodes", "n4")["metadata"]["resourceVersion"]
        api.watches.bookmark("nodes")
        await eventually(lambda: nodes._version == newest)
        api.compact()
        await asyncio.sleep(0.06)
        api.watches.close("nodes")
        api.patch("nodes", "a", {"metadata": {"labels": {"x": "y"}}})
        await eventually(lambda: nodes.items["/a"]["metadata"].get("labels"))
        assert len(api.requests("list", "nodes")) == 1


@pytest.mark.parametrize("version", [b"7", b"null", b"[]"])
async def test_bookmark_without_a_text_is_malformed(slices: Reflector, version: bytes) -> None:
    """31, mend 2: the next own write that was remembered ended the plugin."""
    with pytest.raises(objects.MALFORMED):
        slices._receive("BOOKMARK", b'{"metadata": {"resourceVersion": %s}}' % version)
    slices.remember(slice_of(5))
    assert set(slices.items) == {KEY}


async def test_list_that_repeats_its_page_ends(api: EmbeddedApi, client: KubeClient) -> None:
    """31, mend 2: a proxy that leaves out the query returns the first page again and again."""
    page = b'{"kind": "NodeList", "metadata": {"resourceVersion": "1", "continue": "x"}, "items": []}'
    api.faults.add(InjectedFault(verb="list", resource="nodes", status=200, body=page, times=None))
    async with asyncio.timeout(120):
        with pytest.raises(Unavailable, match="the same page"):
            await Reflector(client, NODES).relist()


# Our own writes.


def slice_of(version: int, uid: str = "u1", devices: int = 1) -> dict[str, Any]:
    wanted = [{"name": f"neuron-device-{i}"} for i in range(devices)]
    item = desired(Pool("a", "n"), wanted, 1)[0]
    item["metadata"] |= {"uid": uid, "resourceVersion": str(version)}
    return item


@pytest.fixture
def slices(client: KubeClient) -> Reflector:
    return Reflector(client, RESOURCE_SLICES)


KEY = "/a-neuron.aws.com-00"


def test_own_write_is_visible_before_the_watch_event(slices: Reflector) -> None:
    slices.remember(slice_of(5))
    assert slices.items[KEY]["metadata"]["resourceVersion"] == "5"


@pytest.mark.parametrize("text", ["²", "9" * 5000], ids=["a digit that is no number", "a number without end"])
def test_version_of_another_form_is_no_number(slices: Reflector, text: str) -> None:
    """31, mend 2: such a version raised a ValueError where the write was remembered, which ended the plugin."""
    for version in ("5", text, "6"):
        strange = slice_of(5)
        strange["metadata"]["resourceVersion"] = version
        slices.remember(strange)
    assert slices.items[KEY]["metadata"]["resourceVersion"] == "6"
    slices._reached(text)
    other = slice_of(7)
    other["metadata"]["name"] = "other"
    slices.remember(other)
    assert set(slices.items) == {KEY, "/other"}


def test_late_event_does_not_undo_own_write(slices: Reflector) -> None:
    slices.remember(slice_of(9, devices=2))
    slices._apply("MODIFIED", msgspec.json.encode(slice_of(7)))
    assert slices.items[KEY]["metadata"]["resourceVersion"] == "9"
    slices._apply("DELETED", msgspec.json.encode(slice_of(8)))
    assert slices.items[KEY]["metadata"]["resourceVersion"] == "9"
    slices._apply("MODIFIED", msgspec.json.encode(slice_of(10)))
    assert slices.items[KEY]["metadata"]["resourceVersion"] == "10"
    slices._apply("DELETED", msgspec.json.encode(slice_of(11)))
    assert slices.items == {}


def test_own_write_does_not_hide_newer_events(slices: Reflector) -> None:
    slices._apply("ADDED", msgspec.json.encode(slice_of(12)))
    slices.remember(slice_of(9))
    assert slices.items[KEY]["metadata"]["resourceVersion"] == "12"


def test_late_reply_does_not_restore_deleted_object(slices: Reflector) -> None:
    """14.6."""
    slices._apply("ADDED", msgspec.json.encode(slice_of(5)))
    slices._apply("DELETED", msgspec.json.encode(slice_of(6)))
    slices.remember(slice_of(5))
    assert slices.items == {}
    slices.remember(slice_of(7, uid="u2"))
    assert slices.items[KEY]["metadata"]["uid"] == "u2"


async def test_reply_after_deletion_leaves_no_object(api: EmbeddedApi, client: KubeClient, slices: Reflector) -> None:
    """14.6."""
    pool = Pool("a", api.get("nodes", "a")["metadata"]["uid"])
    wanted = desired(pool, [{"name": "neuron-device-0"}], 1)[0]
    async with running(slices):
        await eventually(lambda: api.watches.count("resourceslices") == 1)
        late = api.faults.add(InjectedFault(Do.ANSWER_LATE, verb="create", resource="resourceslices"))
        call = asyncio.create_task(client.create(RESOURCE_SLICES, "", wanted))
        await eventually(lambda: slices.items, what="the watch event precedes the reply")
        api.delete("resourceslices", wanted["metadata"]["name"])
        await eventually(lambda: not slices.items, what="the watch has the deletion")
        late.release()
        slices.remember(await call)
        assert slices.items == {}


def test_forget_keeps_a_newer_object_of_the_name(slices: Reflector) -> None:
    slices.remember(slice_of(9, uid="u2"))
    slices.forget(slice_of(8, uid="u1"))
    assert KEY in slices.items
    slices.forget(slice_of(8, uid="u2"))
    assert slices.items == {}


async def test_failed_list_on_request_raises(api: EmbeddedApi, client: KubeClient) -> None:
    api.faults.add(InjectedFault(verb="list", status=503))
    nodes = Reflector(client, NODES)
    with pytest.raises(Unavailable):
        await nodes.relist()
    assert not nodes.synced.is_set()
    await nodes.relist()
    assert names(nodes) == {"a"}


async def test_changes_during_a_relist_are_kept(api: EmbeddedApi) -> None:
    for name in ("b", "c"):
        api.create(node_object(name))
    paged = KubeClient(KubeConfig(api.url), timing=QUICK_CLIENT, page_size=2)
    async with paged as client, running(Reflector(client, NODES)) as nodes:
        await eventually(lambda: api.watches.count("nodes") == 1)
        second = api.faults.add(InjectedFault(Do.ANSWER_LATE, verb="list", nth=2))
        listing = asyncio.create_task(nodes.relist())
        await eventually(lambda: second.hits == 1, what="the first page is read")
        api.patch("nodes", "a", {"metadata": {"labels": {"x": "y"}}})
        api.delete("nodes", "b")
        ours = await client.patch(NODES, "", "c", {"metadata": {"labels": {"of": "ours"}}})
        nodes.remember(ours)
        await eventually(lambda: names(nodes) == {"a", "c"}, what="the watch brings it")
        second.release()
        await listing
        assert names(nodes) == {"a", "c"}
        assert [nodes.items[f"/{name}"]["metadata"].get("labels") for name in "ac"] == [{"x": "y"}, {"of": "ours"}]


async def test_relist_keeps_unchanged_objects(api: EmbeddedApi, client: KubeClient) -> None:
    api.create(node_object("b"))
    made: list[str] = []

    def project(item: dict[str, Any]) -> dict[str, Any]:
        made.append(item["metadata"]["name"])
        return item

    nodes = Reflector(client, NODES, project=project)
    await nodes.relist()
    made.clear()
    api.patch("nodes", "b", {"metadata": {"labels": {"x": "y"}}})
    await nodes.relist()
    assert (made, names(nodes)) == (["b"], {"a", "b"})
    assert nodes.items["/b"]["metadata"]["labels"] == {"x": "y"}


class Meta(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str = ""
    resource_version: str = ""


class Named(msgspec.Struct, omit_defaults=True):
    metadata: Meta


async def test_projection_reads_only_its_fields(api: EmbeddedApi, client: KubeClient) -> None:
    async with running(Reflector(client, NODES, fields=Named)) as nodes:
        await shows(nodes, "a")
        api.create(node_object("b"))
        await shows(nodes, "a", "b")
        assert nodes.items["/b"] == {"metadata": {"name": "b", "resourceVersion": nodes._version}}


async def test_change_outside_the_projection_is_silent(api: EmbeddedApi, client: KubeClient) -> None:
    calls: list[int] = []

    def project(item: dict[str, Any]) -> dict[str, Any]:
        meta = item["metadata"]
        kept = {name: meta[name] for name in ("name", "uid", "resourceVersion")}
        return {"metadata": kept, "value": (meta.get("labels") or {}).get("rack")}

    reflector = Reflector(client, NODES, on_change=lambda: calls.append(1), project=project)
    async with running(reflector):
        calls.clear()
        api.patch("nodes", "a", {"metadata": {"annotations": {"heartbeat": "1"}}})
        version = api.get("nodes", "a")["metadata"]["resourceVersion"]
        await eventually(lambda: reflector.items["/a"]["metadata"]["resourceVersion"] == version)
        assert calls == []
        api.patch("nodes", "a", {"metadata": {"labels": {"rack": "7"}}})
        await eventually(lambda: calls == [1])
        assert reflector.items["/a"]["value"] == "7"


async def test_field_that_comes_and_goes_is_noticed(api: EmbeddedApi, client: KubeClient) -> None:
    """An Event gets a series when it is repeated. The watch ended with KeyError, and the change was lost until then."""
    changes: list[int] = []
    reflector = Reflector(client, NODES, project=dict, on_change=lambda: changes.append(1))
    async with running(reflector):
        for spec in ({"unschedulable": True}, None):
            before = len(changes)
            api.patch("nodes", "a", {"spec": spec})
            await eventually(lambda before=before: len(changes) > before)
            assert reflector.items["/a"].get("spec") == spec
        assert reflector.failures == 0
