"""What an unreadable object holds: never more than its own nodes, and never less while it may run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.apply.claim_pods import ClaimPods
from controller.observe.caches import Caches, wall_clock
from controller.timing import DEFAULT_TIMING
from neuron_dra.core.wire import Obj
from neuron_dra.errors import NotFound, Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import ClaimUse, Consumer
from tests.support.sending import new_sender, sent

BAD = b'"\\ud800"'


def claim(name: str, *nodes: str, version: int = 1, **admin: Any) -> Obj:
    results = [
        {"request": "r", "driver": "neuron.aws.com", "pool": n, "device": "neuron-device-0", **admin} for n in nodes
    ]
    allocation = {"devices": {"results": results}} if nodes else None
    status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": "p"}]}
    meta = {"name": name, "namespace": "ml", "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"devices": {"requests": [{"name": "r"}]}}, "status": status if nodes else {}}


def raw(item: Obj, *, results: bool = True, anything: bool = True) -> bytes:
    """The text of a claim that cannot be decoded, with or without readable results."""
    text = json.dumps(item).encode()
    if anything:
        text = text.replace(b'"requests": [{"name": "r"}]', b'"requests": %s' % BAD)
    return text if results else text.replace(b'"request": "r"', b'"request": %s' % BAD)


class Shelf(KubeClient):
    """An API server with these texts of claims, a pod on node-p, and one that cannot be read."""

    def __init__(self, *claims: bytes) -> None:
        super().__init__(KubeConfig("shelf:"))
        self.claims = claims

    async def _send(self, method: str, path: str, *_: object) -> bytes:
        if path.endswith("/resourceclaims"):
            return b'{"kind":"List","metadata":{"resourceVersion":"1"},"items":[%s]}' % b",".join(self.claims)
        if path.endswith("/pods"):
            pods = b'{"metadata":{"name":"p","namespace":"ml"},"spec":%s}' % BAD
            return b'{"kind":"List","metadata":{},"items":[%s]}' % pods
        if path.endswith("/pods/pod-c"):
            return b'{"metadata":{"name":"pod-c","uid":"p"},"spec":{"nodeName":"node-p"}}'
        raise NotFound(path, status=404)


async def caches_of(*claims: bytes) -> Caches[FleetIndex]:
    caches = Caches(Shelf(*claims), lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
    await caches.claims.relist()
    await caches.find_nodes_of_pods()
    return caches


def held(caches: Caches[FleetIndex]) -> dict[str, tuple[str, ...]]:
    return {use.name: use.nodes for use in caches.index().claims}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (raw(claim("c", "node-a", "node-b")), {"c": ("node-a", "node-b")}),
        (raw(claim("c", "node-a"), results=False), {"c": ("node-p",)}),
        (raw(claim("c", "node-a", adminAccess=True)), {}),
        (raw(claim("c")), {}),
        (raw(claim("c", "node-a")).replace(b"neuron.aws.com", b"other.example.com"), {}),
    ],
    ids=["results", "pods", "admin access", "no allocation", "another driver"],
)
async def test_unreadable_claim_holds_its_nodes(text: bytes, expected: dict[str, tuple[str, ...]]) -> None:
    caches = await caches_of(text, raw(claim("other", "node-z"), anything=False))
    assert held(caches) == {**expected, "other": ("node-z",)}
    assert list(caches.damaged["resourceclaims"]) == ["ml/c"]


async def test_unreadable_change_keeps_what_was_last_read() -> None:
    caches = await caches_of(raw(claim("c", "node-a"), anything=False))
    caches.claims._receive("MODIFIED", raw(claim("c", "node-b", version=2), results=False))
    assert (held(caches), list(caches.claims.damaged)) == ({"c": ("node-a",)}, ["ml/c"])
    caches.claims._receive("MODIFIED", raw(claim("c", "node-b", version=3)))
    assert (held(caches), list(caches.claims.damaged)) == ({"c": ("node-b",)}, ["ml/c"])
    caches.claims._receive("MODIFIED", raw(claim("c", "node-b", version=4), anything=False))
    assert (held(caches), list(caches.claims.damaged)) == ({"c": ("node-b",)}, [])


async def test_unreadable_claim_is_added_and_deleted() -> None:
    caches = await caches_of()
    caches.claims._receive("ADDED", raw(claim("c", "node-a", version=2)))
    assert held(caches) == {"c": ("node-a",)}
    caches.claims._receive("DELETED", raw(claim("c", "node-a", version=3)))
    assert (held(caches), list(caches.claims.damaged)) == ({}, [])


async def test_claim_that_frees_its_devices_holds_nothing() -> None:
    caches = await caches_of(raw(claim("c", "node-a"), anything=False))
    caches.claims._receive("MODIFIED", raw(claim("c", version=2)))
    assert held(caches) == {}


async def test_unreadable_objects_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caches = await caches_of(raw(claim("c", "node-a")))
    await caches.claims.relist()
    assert [each.__dict__["object"] for each in caplog.records] == ["ml/c"]


async def test_claims_of_a_pod_that_cannot_be_read_are_read_with_all_others() -> None:
    shelf = Shelf(raw(claim("c", "node-a"), anything=False))
    caches = Caches(shelf, lambda: None, FleetIndex(), DEFAULT_TIMING.caches, claims_for_a_node=0)
    await caches.claims.relist()
    shelf.claims = (*shelf.claims, raw(claim("new", "node-b"), anything=False))
    await caches.reread_claims({"node-b"})
    assert held(caches) == {"c": ("node-a",), "new": ("node-b",)}


async def test_list_of_pods_without_an_answer_raises_its_error() -> None:
    """The outbox sends a request again, later each time, whose error says that it got no answer."""

    class Silent(Shelf):
        async def _send(self, method: str, path: str, *others: object) -> bytes:
            if path.endswith("/pods"):
                raise Unavailable("GET /api/v1/pods: the API server does not answer")
            return await super()._send(method, path, *others)

    shelf = Silent(raw(claim("c", "node-a"), anything=False))
    caches = Caches(shelf, lambda: None, FleetIndex(), DEFAULT_TIMING.caches, claims_for_a_node=0)
    await caches.claims.relist()
    with pytest.raises(Unavailable, match="does not answer"):
        await caches.reread_claims({"node-a", "node-b"})


async def test_a_pod_that_cannot_be_read_may_use_a_claim_of_its_group() -> None:
    use = ClaimUse("ml", "c", ("node-a",), None, others=(Consumer("scheduling.k8s.io", "podgroups", "g"),))
    sender = new_sender()
    looks = ClaimPods(Shelf(), DEFAULT_TIMING.pods, sender)
    await sent(sender, lambda: looks.look([use], wall_clock()))
    assert looks.found == {}
