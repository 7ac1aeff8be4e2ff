"""The Service of a workload follows its pod with rank 0, with the embedded API server. Issue 18, item 2."""

from __future__ import annotations

import asyncio
import datetime
import logging
from dataclasses import replace
from typing import Any

import pytest

from controller.apply import rendezvous_service
from controller.apply.rendezvous_service import RendezvousServices
from controller.program import NAME
from controller.timing import RendezvousTiming
from neuron_dra.core.rendezvous import ANNOTATION
from neuron_dra.emulation.embedded_api import Do, InjectedFault
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.planner.observed.model import Meeting
from neuron_dra.planner.plan import rendezvous as plan
from tests.story.controller_cluster import Cluster
from tests.story.test_ultraserver_controller import cluster, controlling  # noqa: F401
from tests.support.controller_timings import QUICK
from tests.support.sending import looked, new_sender
from tests.support.sent_events import send_events
from tests.support.timings import quicker
from tests.support.waiting import eventually

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
SERVICE = "job-rank0"
SLICE = "job-rank0-ipv4"


SHORT = RendezvousTiming(first_s=0.02, longest_s=0.1, verify_s=0.2, forbidden_s=0.2, workload_s=0.0)
TIMING = quicker(QUICK, rendezvous=SHORT)


def addresses(cluster: Cluster, name: str = SLICE) -> list[str] | None:  # noqa: F811
    """Return the addresses in an EndpointSlice; None without one."""
    found = cluster.api.find("endpointslices", name, "ml")
    return None if found is None else [text for each in found["endpoints"] for text in each["addresses"]]


def start(cluster: Cluster, pod: str, node: str, workload: dict[str, Any], address: str) -> None:  # noqa: F811
    cluster.pod_with_claim(pod, node, workload)
    cluster.api.patch("pods", pod, {"status": {"podIP": address}}, "ml")


def met(cluster: Cluster, address: str = "10.1.0.7") -> Meeting:  # noqa: F811
    """Create a workload and its pod with rank 0."""
    workload = cluster.submit("job")
    start(cluster, "job-0", "u0-0", workload, address)
    pod = cluster.api.get("pods", "job-0", "ml")["metadata"]
    return Meeting("ml", "job", workload["metadata"]["uid"], "", (pod["name"], pod["uid"]))


def rank0(cluster: Cluster) -> str:  # noqa: F811
    return str(next(each["rank0Node"] for each in cluster.allocations()))


OLD = {"podIP": "10.1.0.1"}


def slices(cluster: Cluster) -> list[dict[str, Any]]:  # noqa: F811
    return cluster.api.objects("endpointslices")


def events(cluster: Cluster, reason: str) -> list[str]:  # noqa: F811
    return [each["message"] for each in cluster.api.objects("events") if each["reason"] == reason]


def writes(cluster: Cluster) -> list[str]:  # noqa: F811
    """Return the controller's writes of Services and EndpointSlices."""
    kinds = ("services", "endpointslices")
    own = [each for each in cluster.api.log if each.user_agent == NAME and each.resource in kinds]
    return [f"{each.verb} {each.resource}" for each in own if each.verb != "get"]


def created(cluster: Cluster, kind: str) -> list[str]:  # noqa: F811
    """Return the namespaces of the requests to create an object."""
    return [each.namespace for each in cluster.api.log if (each.verb, each.resource) == ("create", kind)]


async def test_service_follows_rank_0(cluster: Cluster) -> None:  # noqa: F811
    """18.2: a pod that starts, gets another address, and is replaced by one on the same node."""
    async with controlling(cluster, timing=TIMING):
        workload = cluster.submit("job")
        await eventually(lambda: cluster.api.find("services", SERVICE, "ml"), what="the Service exists")
        service = cluster.api.get("services", SERVICE, "ml")
        assert service["spec"] == {"clusterIP": "None", "publishNotReadyAddresses": True}
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        node = rank0(cluster)
        cluster.pod_with_claim("job-0", node, workload)
        cluster.api.patch("pods", "job-0", {"status": {"podIP": "10.1.0.7"}}, "ml")
        await eventually(lambda: addresses(cluster) == ["10.1.0.7"], what="it has the pod's address")
        cluster.api.patch("pods", "job-0", {"status": {"podIP": "10.1.0.8"}}, "ml")
        await eventually(lambda: addresses(cluster) == ["10.1.0.8"], what="it has the new sandbox's address")
        cluster.api.delete("resourceclaims", "job-0", "ml")
        await eventually(lambda: addresses(cluster) == [], what="it has no address without a pod")
        start(cluster, "job-1", node, workload, "10.1.0.9")
        await eventually(lambda: addresses(cluster) == ["10.1.0.9"], what="it has the next pod's address")
        cluster.api.delete("neuronultraserverworkloads", "job", "ml")
        await eventually(lambda: cluster.api.find("services", SERVICE, "ml") is None, what="the Service is gone")
        await eventually(lambda: addresses(cluster) is None, what="the EndpointSlice is gone")


async def test_address_of_another_family_gets_a_slice_of_its_own(cluster: Cluster) -> None:  # noqa: F811
    """addressType of an EndpointSlice cannot change; a job in an IPv6 pod network never found rank 0."""
    async with controlling(cluster, timing=TIMING):
        workload = cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        start(cluster, "job-0", rank0(cluster), workload, "fd00::7")
        await eventually(lambda: addresses(cluster, "job-rank0-ipv6") == ["fd00::7"], what="it has the pod's address")
        assert addresses(cluster) is None
        cluster.api.delete("resourceclaims", "job-0", "ml")
        start(cluster, "job-1", rank0(cluster), workload, "10.1.0.9")
        await eventually(lambda: addresses(cluster) == ["10.1.0.9"], what="it has the next pod's address")
        await eventually(lambda: addresses(cluster, "job-rank0-ipv6") == [], what="the former address is gone")
    found = {each["metadata"]["name"]: each["addressType"] for each in cluster.api.objects("endpointslices")}
    assert found == {"job-rank0-ipv4": "IPv4", "job-rank0-ipv6": "IPv6"}


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.1.0.9", {"job-rank0": ["10.1.0.9"]}), ("fd00::7", {"job-rank0": [], "job-rank0-ipv6": ["fd00::7"]})],
)
async def test_slice_of_an_earlier_release_is_taken_over(
    cluster: Cluster,  # noqa: F811
    address: str,
    expected: dict[str, list[str]],
) -> None:
    """It has no family in its name, and its addressType is IPv4."""
    job = met(cluster, address)
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        services = RendezvousServices(client, EventRecorder(client, "here"), SHORT, new_sender())
        await looked(services, [replace(job, pod=None)], NOW)
        service = cluster.api.get("services", SERVICE, "ml")
        made = plan.endpoint_slice(service, {"metadata": {"namespace": "ml", "name": "p", "uid": "1"}, "status": OLD})
        assert made is not None
        cluster.api.create({**made, "metadata": {**made["metadata"], "name": SERVICE}})
        await looked(services, [job], NOW + datetime.timedelta(seconds=1))
    names = [each["metadata"]["name"] for each in slices(cluster)]
    assert {name: addresses(cluster, name) for name in names} == expected


async def test_slow_reads_take_no_address_from_a_pod_that_runs_meanwhile(cluster: Cluster) -> None:  # noqa: F811
    """Two replicas at once: the name stopped leading to rank 0 when the slow one had begun before its pod ran."""
    meeting = met(cluster)
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        recorder = EventRecorder(client, "here")
        await looked(RendezvousServices(client, recorder, SHORT, new_sender()), [meeting], NOW)
        slow_sender = new_sender()
        slow_replica = RendezvousServices(client, recorder, SHORT, slow_sender)
        slow_replica.look([replace(meeting, pod=None)], NOW)
        late_answer = cluster.api.faults.add(InjectedFault(Do.ANSWER_LATE, verb="get", resource="endpointslices"))
        sending = asyncio.create_task(slow_sender.send_all())
        await eventually(lambda: late_answer.hits, what="the slow replica reads the EndpointSlice")
        slow_replica.look([meeting], NOW)
        late_answer.release()
        await sending
    assert addresses(cluster) == ["10.1.0.7"]
    assert "update endpointslices" not in writes(cluster)


async def test_next_controller_writes_nothing(cluster: Cluster) -> None:  # noqa: F811
    """18.2: it reads the Service and its EndpointSlice, and does not write a correct address again."""
    async with controlling(cluster, timing=TIMING):
        workload = cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        start(cluster, "job-0", rank0(cluster), workload, "10.1.0.7")
        await eventually(lambda: addresses(cluster) == ["10.1.0.7"], what="it has the pod's address")
    before = writes(cluster)
    seen = len(cluster.api.log)
    async with controlling(cluster, timing=TIMING):

        def read() -> bool:
            return sum(each.resource == "endpointslices" for each in cluster.api.log[seen:]) >= 2

        await eventually(read, what="the EndpointSlice is read again")
    assert writes(cluster) == before
    assert before[:2] == ["create services", "create endpointslices"]


async def test_users_service_is_never_changed(cluster: Cluster) -> None:  # noqa: F811
    """18.2: an Event names it; once it is gone, the workload gets its own."""
    meta = {"name": SERVICE, "namespace": "ml", "labels": {"app.kubernetes.io/managed-by": NAME}}
    mine = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selector": {"app": "web"}}}
    stored = cluster.api.create(mine)
    async with controlling(cluster, timing=TIMING):
        cluster.submit("job")
        await eventually(lambda: events(cluster, "ServiceNameTaken"), what="an Event names the Service")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        assert cluster.api.get("services", SERVICE, "ml") == stored
        assert addresses(cluster) is None
        (text,) = events(cluster, "ServiceNameTaken")
        assert text.startswith("Service ml/job-rank0 exists and is not this workload's, so NEURON_DRA_RANK0_ADDR does")
        cluster.api.delete("services", SERVICE, "ml")
        await eventually(lambda: cluster.api.find("services", SERVICE, "ml"), what="the workload has its own Service")


async def test_users_endpointslice_is_never_changed(cluster: Cluster) -> None:  # noqa: F811
    """18.2."""
    kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    stored = cluster.api.create({**kind, "metadata": {"name": SLICE, "namespace": "ml"}, "endpoints": []})
    job = met(cluster)
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        recorder = EventRecorder(client, "here")
        await looked(RendezvousServices(client, recorder, SHORT, new_sender()), [job], NOW)
        await send_events(recorder)
    (text,) = events(cluster, "ServiceNameTaken")
    assert text.startswith("EndpointSlice ml/job-rank0-ipv4 exists and is not this workload's")
    assert cluster.api.get("endpointslices", SLICE, "ml") == stored


async def test_service_of_an_earlier_workload_is_awaited(cluster: Cluster) -> None:  # noqa: F811
    """18.2: a workload that is created again, before the garbage collector has deleted the old Service."""
    old = cluster.submit("job")["metadata"]
    owner = {"apiVersion": "neuron.aws.com/v1beta1", "kind": "NeuronUltraServerWorkload", "name": "job"}
    meta = {"name": SERVICE, "namespace": "ml", "ownerReferences": [{**owner, "uid": old["uid"], "controller": True}]}
    stored = cluster.api.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {}})
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        recorder = EventRecorder(client, "here")
        services = RendezvousServices(client, recorder, SHORT, new_sender())
        again = await looked(services, [Meeting("ml", "job", "uid-new", "", None)], NOW)
        await send_events(recorder)
    assert again == NOW + datetime.timedelta(seconds=SHORT.first_s)
    assert cluster.api.get("services", SERVICE, "ml") == stored
    assert (events(cluster, "ServiceNameTaken"), addresses(cluster)) == ([], None)


def owner(cluster: Cluster) -> dict[str, Any]:  # noqa: F811
    """Create another Service, and return a reference to it."""
    meta = {"name": "old", "namespace": "ml"}
    old = cluster.api.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {}})
    return {"apiVersion": "v1", "kind": "Service", "name": "old", "uid": old["metadata"]["uid"], "controller": True}


async def test_endpointslice_of_an_earlier_service_is_awaited(cluster: Cluster) -> None:  # noqa: F811
    """18.2: the garbage collector deletes it after the Service. No Event asks the user to delete it."""
    meta = {"name": SLICE, "namespace": "ml", "ownerReferences": [owner(cluster)]}
    kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    stored = cluster.api.create({**kind, "metadata": meta, "endpoints": []})
    job = [met(cluster)]
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        services = RendezvousServices(client, EventRecorder(client, "here"), SHORT, new_sender())
        again = await looked(services, job, NOW)
        assert again == NOW + datetime.timedelta(seconds=SHORT.first_s)
        assert cluster.api.get("endpointslices", SLICE, "ml") == stored
        assert events(cluster, "ServiceNameTaken") == []
        cluster.api.delete("services", "old", "ml")
        await eventually(lambda: addresses(cluster) is None, what="the old EndpointSlice is gone")
        await looked(services, job, again)
    [made] = cluster.api.get("endpointslices", SLICE, "ml")["metadata"]["ownerReferences"]
    assert made["uid"] == cluster.api.get("services", SERVICE, "ml")["metadata"]["uid"]


async def test_endpointslice_that_another_service_keeps_is_an_event(cluster: Cluster) -> None:  # noqa: F811
    """18.2: the garbage collector deletes it only after that Service."""
    meta = {"name": SLICE, "namespace": "ml", "ownerReferences": [owner(cluster)]}
    kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    stored = cluster.api.create({**kind, "metadata": meta, "endpoints": []})
    job = [met(cluster)]
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        recorder, now = EventRecorder(client, "here"), NOW
        services = RendezvousServices(client, recorder, SHORT, new_sender())
        for _ in range(rendezvous_service.PATIENCE):
            assert events(cluster, "ServiceNameTaken") == []
            again = await looked(services, job, now)
            await send_events(recorder)
            assert again is not None
            assert again < now + datetime.timedelta(minutes=1)
            now = again
    (text,) = events(cluster, "ServiceNameTaken")
    assert text == rendezvous_service.taken("EndpointSlice", "ml", SLICE)
    assert cluster.api.get("endpointslices", SLICE, "ml") == stored


async def test_missing_rights_are_logged_once(
    cluster: Cluster,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """18.2: AWS's chart grants none. No container gets a name that leads nowhere, and allocation continues."""
    refused = cluster.api.faults.add(InjectedFault(Do.RESPOND, verb="get", resource="services", status=403, times=None))
    async with controlling(cluster, timing=TIMING):
        cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        await eventually(lambda: refused.hits >= 3, what="the Service is tried again")
        assert [each.get("rendezvous") for each in cluster.allocations()] == [None] * 2
        cluster.api.faults.clear()
        await eventually(lambda: cluster.api.find("services", SERVICE, "ml"), what="the Service exists")
        expected = [{"address": "job-rank0.ml.svc"}] * 2
        await eventually(lambda: [each.get("rendezvous") for each in cluster.allocations()] == expected, what="a name")
    lines = [each for each in caplog.records if each.message.startswith("workloads have no Service for rank 0")]
    assert [each.levelno for each in lines] == [logging.WARNING]


async def test_quota_of_one_namespace_concerns_no_other(cluster: Cluster) -> None:  # noqa: F811
    """18.2: a tenant's quota, or a namespace that is being deleted, is a 403 as well."""
    cluster.api.faults.add(
        InjectedFault(Do.RESPOND, verb="create", resource="services", status=403, namespace="ml", times=None)
    )
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        recorder = EventRecorder(client, "here")
        services = RendezvousServices(client, recorder, SHORT, new_sender())
        both = [Meeting(name, "job", f"uid-{name}", "", None) for name in ("ml", "default")]
        await looked(services, both, NOW)
        await send_events(recorder)
    assert not services.forbidden
    assert sorted(created(cluster, "services")) == ["default", "ml"]
    (text,) = events(cluster, "ServiceRejected")
    assert text.startswith("the Service for rank 0 was rejected: ")


async def test_invalid_annotation_is_an_event(cluster: Cluster) -> None:  # noqa: F811
    """18.2."""
    async with controlling(cluster, timing=TIMING):
        cluster.submit("job")
        cluster.api.patch("neuronultraserverworkloads", "job", {"metadata": {"annotations": {ANNOTATION: "Pod"}}}, "ml")
        await eventually(lambda: events(cluster, "InvalidRendezvous"), what="an Event names the value")
    assert events(cluster, "InvalidRendezvous") == [
        'annotation neuron.aws.com/rendezvous is "Pod": write "pod" or "host"; it has no effect'
    ]


async def test_address_after_a_reboot_is_read_several_times(cluster: Cluster) -> None:  # noqa: F811
    """18.2: the Node is Ready before the kubelet has started the pod's sandbox again."""
    timing = quicker(SHORT, first_s=1.0, verify_s=300.0)
    down, up = (Meeting("ml", "job", "uid-1", "", None, node_ready=ready) for ready in (False, True))
    waits, now = [], NOW
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        services = RendezvousServices(client, EventRecorder(client, "here"), timing, new_sender())
        for meeting in (down, up, up, up, up, up, up, up):
            found = await looked(services, [meeting], now)
            assert found is not None
            waits.append((found - now).total_seconds())
            now = found
    assert waits == [300, 1, 3, 9, 27, 81, 243, 300]


async def test_large_fleet_is_read_in_parts(cluster: Cluster) -> None:  # noqa: F811
    """18.2: a new leader does not read the pods of all workloads at once, and later fewer in a second."""
    timing = quicker(SHORT, verify_s=60.0, workload_s=5.0)
    hangs = cluster.api.faults.add(InjectedFault(Do.ANSWER_LATE, verb="get", resource="services", times=None))
    many = [Meeting("ml", f"job-{number}", f"uid-{number}", "", None) for number in range(40)]
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        sender = new_sender(slow_s=600.0)  # a slow request leaves its place to another one
        services = RendezvousServices(client, EventRecorder(client, "here"), timing, sender)
        services.look(many, NOW)
        sending = asyncio.create_task(sender.send_all())
        await eventually(lambda: hangs.hits >= rendezvous_service.AT_ONCE, what="some are read")
        await asyncio.sleep(0.1)
        assert hangs.hits == rendezvous_service.AT_ONCE
        cluster.api.faults.clear()
        hangs.release()
        await sending
        assert len(created(cluster, "services")) == 40
        assert services.look(many, NOW) == NOW + datetime.timedelta(seconds=200)


async def test_missing_address_is_read_again_soon(cluster: Cluster) -> None:  # noqa: F811
    """18.2: the wait does not grow with the number of workloads whose address is known."""
    timing = quicker(SHORT, workload_s=5.0)
    many = [Meeting("ml", f"job-{number}", f"uid-{number}", "", None) for number in range(12)]
    many.append(Meeting("ml", "late", "uid-late", "", ("late-0", "uid-pod")))
    now, waits = NOW, []
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        services = RendezvousServices(client, EventRecorder(client, "here"), timing, new_sender())
        for _ in range(8):
            due = await looked(services, many, now)
            assert due is not None
            waits.append((due - now).total_seconds())
            now = due
    assert max(waits) == timing.longest_s


async def test_nothing_is_read_before_it_is_due(cluster: Cluster) -> None:  # noqa: F811
    """18.2: every plan of a large fleet comes by here."""
    both = [Meeting("ml", name, f"uid-{name}", "", None) for name in ("job", "other")]
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        services = RendezvousServices(client, EventRecorder(client, "here"), SHORT, new_sender())
        due = await looked(services, both, NOW)
        assert due is not None
        seen = len(cluster.api.log)
        almost = due - datetime.timedelta(microseconds=1)
        assert await looked(services, both, NOW) == await looked(services, list(both), almost) == due
        assert len(cluster.api.log) == seen
        moved = [both[0], Meeting("ml", "other", "uid-other", "", ("other-0", "uid-pod"))]
        await looked(services, moved, NOW)
        assert {each.resource for each in cluster.api.log[seen:]} == {"services", "endpointslices", "pods"}
