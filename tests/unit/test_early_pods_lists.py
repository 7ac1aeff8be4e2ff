"""How the pods that wait for a template are listed: page by page, within a budget. Issue 4.02."""

from __future__ import annotations

import asyncio
import datetime
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from controller.apply.outbox import Answer
from controller.jobs.early_pods import AT_ONCE, LOOKS, EarlyPods, touched, waits_for
from controller.timing import JobTiming
from neuron_dra.core.wire import Obj
from neuron_dra.errors import Forbidden, TooLarge
from neuron_dra.kube import objects
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.requests import PODS
from neuron_dra.planner.observed import projections
from neuron_dra.planner.observed.model import Template
from tests.support.sending import new_sender, pods_looked_for
from tests.support.waiting import eventually

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
MIB = 1024 * 1024
MOST_ABOVE_BYTES = 16 * MIB


def waiting_pod(number: int, template: str = "rct", size_bytes: int = 0) -> Obj:
    """A pod without a node that names a template; its variables have this size together."""
    variables = [{"name": f"V{place}", "value": "x" * 64} for place in range(size_bytes // 96)]
    return {
        "metadata": {"name": f"p{number:05}", "namespace": "ml", "uid": f"u{number}", "resourceVersion": "7"},
        "spec": {
            "containers": [{"name": "c", "env": variables}],
            "resourceClaims": [{"name": "n", "resourceClaimTemplateName": template}],
        },
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
    }


class Pods(KubeClient):
    """A server with these pods. A list is of one moment: further pages do not show what was written meanwhile."""

    def __init__(self, pods: list[Obj], rejected: frozenset[str] = frozenset()) -> None:
        super().__init__(KubeConfig("pods:"))
        self.pods = pods
        self.rejected = rejected
        self.pages = 0
        self.patched: Counter[str] = Counter()
        self.listed: list[Obj] = []

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "",
        timeout_s: float = 0,
        most_bytes: int | None = None,
    ) -> bytes:
        if method == "PATCH":
            return self._patch(path.split("/")[-2], body)
        assert params is not None
        self.pages += 1
        if "continue" not in params:
            self.listed = [*self.pods]
        begin, limit = int(params.get("continue", 0)), int(params["limit"])
        meta = {"continue": str(begin + limit)} if begin + limit < len(self.listed) else {}
        raw = msgspec.json.encode({"kind": "PodList", "metadata": meta, "items": self.listed[begin : begin + limit]})
        if most_bytes is not None and len(raw) > most_bytes:
            raise TooLarge("too large")
        return raw

    def _patch(self, name: str, body: Any) -> bytes:
        self.patched[name] += 1
        if name in self.rejected:
            raise Forbidden("a policy", status=403)
        [place] = [place for place, pod in enumerate(self.pods) if pod["metadata"]["name"] == name]
        self.pods[place] = {**self.pods[place], "status": {**self.pods[place]["status"], **body["status"]}}
        return msgspec.json.encode(self.pods[place])


def early_pods(client: KubeClient, templates: int = 1) -> EarlyPods:
    early = EarlyPods(client, JobTiming(), new_sender(), lambda: None)
    for number in range(templates):
        name = f"rct{number or ''}"
        early.put(("ml", name), Template("ml", name, f"t{number}", owner=None, deleting=False))
    return early


async def look_until_done(early: EarlyPods) -> None:
    """Look whenever that is due, until nothing is."""
    due: datetime.datetime | None = NOW
    for _ in range(100):
        if due is None:
            return
        due = await pods_looked_for(early, due)
    raise AssertionError("pods are looked for again and again")


async def test_every_waiting_pod_is_woken_once_on_whatever_page() -> None:
    pods = Pods([waiting_pod(number) for number in range(600)])
    await look_until_done(early_pods(pods))
    assert pods.patched == Counter(pod["metadata"]["name"] for pod in pods.pods)


async def test_rejected_pods_hide_none_behind_them() -> None:
    rejected = frozenset(f"p{number:05}" for number in range(300))
    pods = Pods([waiting_pod(number) for number in range(320)], rejected)
    await look_until_done(early_pods(pods))
    woken = {name for name, number in pods.patched.items() if number == 1}
    assert woken == {f"p{number:05}" for number in range(300, 320)}
    assert {pods.patched[name] for name in rejected} <= set(range(2, LOOKS + 2))


async def test_a_batch_that_is_only_rejected_is_followed_by_a_pause() -> None:
    names = frozenset(f"p{number:05}" for number in range(300))
    early = early_pods(Pods([waiting_pod(number) for number in range(300)], names))
    early.look(NOW, 1)
    due = NOW + datetime.timedelta(seconds=JobTiming().first_s)
    assert early.look(due, 1) is None
    await early._sender.send_all()
    again = early.look(due, 1)
    assert again is not None
    assert (again - due).total_seconds() == JobTiming().first_s


async def test_pages_are_read_one_at_a_time_and_a_slow_one_delays_no_other_namespace() -> None:
    """Twenty templates of one tenant are new; its lists get no answer."""

    class SlowPods(Pods):
        reading = 0
        most_reading = 0

        async def _send(self, method: str, path: str, *rest: Any, **options: Any) -> bytes:
            if "/namespaces/slow/" in path:
                await asyncio.Event().wait()
            if method != "GET":
                return await super()._send(method, path, *rest, **options)
            self.reading += 1
            self.most_reading = max(self.most_reading, self.reading)
            await asyncio.sleep(0)
            self.reading -= 1
            return await super()._send(method, path, *rest, **options)

    pods = SlowPods([waiting_pod(number, "rct9") for number in range(3)])
    early = early_pods(pods, templates=20)
    for number in range(20):
        template = Template("slow", f"rct{number}", f"slow{number}", owner=None, deleting=False)
        early.put(("slow", template.name), template)
    early.look(NOW, 1)
    early.look(NOW + datetime.timedelta(minutes=1), 1)
    sending = asyncio.create_task(early._sender.run())
    try:
        await eventually(lambda: len(pods.patched) == 3 and pods.pages == 20, what="the other pods are woken")
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert pods.most_reading == 1


async def test_template_that_goes_before_its_request_is_sent_is_left_out() -> None:
    pods = Pods([waiting_pod(0)])
    early = early_pods(pods)
    early.look(NOW, 1)
    early.look(NOW + datetime.timedelta(minutes=1), 1)
    request = early._sender._outbox.take(0.0)
    assert request is not None
    early.put(("ml", "rct"), None)
    answer = await request.wish.send(1)
    assert (answer, pods.pages) == (Answer.NOT_SENT, 0)


async def test_a_page_touches_so_many_pods_at_most() -> None:
    pods = Pods([waiting_pod(number) for number in range(600)])
    early = early_pods(pods)
    early.look(NOW, 1)
    early.look(NOW + datetime.timedelta(minutes=1), 1)
    await early._sender.send_all()
    assert pods.patched.total() == AT_ONCE


def test_projected_pods_are_woken_as_whole_ones() -> None:
    template = Template("ml", "rct", "t", owner=None, deleting=False)
    deleted = waiting_pod(1)
    deleted["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    has_claim = waiting_pod(2)
    has_claim["status"]["resourceClaimStatuses"] = [{"name": "n", "resourceClaimName": "x"}]
    whole = [waiting_pod(0, size_bytes=960), deleted, has_claim, waiting_pod(3, "another")]
    page = objects.page(msgspec.json.encode({"metadata": {}, "items": whole}))
    projected = projections.as_wire(page.decoded(projections.WaitingPod).objects)
    assert [waits_for(pod, template) for pod in whole] == [True, False, False, False]
    assert [waits_for(pod, template) for pod in projected] == [True, False, False, False]
    assert touched(projected[0], template, NOW) == touched(whole[0], template, NOW)
    assert "containers" not in projected[0]["spec"]


@pytest.mark.parametrize("is_control", [False, True])
async def test_ten_thousand_kilobytes_of_waiting_pods_need_little_memory(is_control: bool) -> None:
    """The control keeps the pods whole, which is what one tenant's pods ended the controller with."""
    pods = Pods([waiting_pod(number, "another", size_bytes=10_000) for number in range(1000)])
    early = early_pods(pods)
    tracemalloc.start()
    try:
        if is_control:
            kept: list[Any] = []
            async for page in pods.list(PODS, "ml"):
                kept += page.decoded(dict).objects
        else:
            await look_until_done(early)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pods.pages >= 4
    assert (peak_bytes > MOST_ABOVE_BYTES) == is_control
