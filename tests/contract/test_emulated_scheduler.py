"""The demo's scheduler: limits, Events, and an API server that fails now and then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from hack.oracle import limited, random_clusters
from hack.oracle.connected_slices import partitions_of, slices_of
from neuron_dra.core.slices import Pool
from neuron_dra.core.wire import Obj
from neuron_dra.demo.pod_scheduler import PodScheduler
from neuron_dra.demo.scheduler_events import MOST_OF_A_POD, SchedulerEvents
from neuron_dra.emulation.admission import MUTATING, MutatingPolicies
from neuron_dra.emulation.embedded_api import Do, InjectedFault
from neuron_dra.emulation.embedded_api.server import EmbeddedApi
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from tests.support import small_clusters as small
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
POLICIES = ROOT / "deploy/manifests/connected-sets/35-limits-policies.yaml"


@asynccontextmanager
async def scheduled(api: EmbeddedApi, *, posts_events: bool = False) -> AsyncIterator[None]:
    task = asyncio.create_task(PodScheduler(KubeClient(KubeConfig(api.url)), posts_events=posts_events).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def with_sets(name: str) -> list[Obj]:
    """Return a node that publishes connected sets, and the classes for them."""
    made = slices_of(partitions_of(small.TYPE), Pool(name, "node-uid"))
    for item in made:
        del item["metadata"]["ownerReferences"]  # the UID is not that of the node
    return [*random_clusters.classes(), small.node(name), *made]


def create_with_limit(api: EmbeddedApi) -> None:
    """Create the node and a pod `p` that requests a set of four devices by its limits."""
    for item in with_sets("a"):
        api.create(item)
    api.create(limited.pod(limited.one({limited.sets(4): "1"})))


async def node_of(api: EmbeddedApi, pod: str) -> Obj:
    """Return a pod that the scheduler has bound."""
    await eventually(lambda: api.get("pods", pod, "default")["spec"].get("nodeName"), what=f"a node for {pod}")
    return api.get("pods", pod, "default")


async def refusal_of(api: EmbeddedApi, pod: str) -> str:
    """Return the scheduler's message about a pod that it has rejected."""

    def message() -> str:
        conditions = (api.get("pods", pod, "default").get("status") or {}).get("conditions") or ()
        return next((str(each.get("message")) for each in conditions if each["status"] == "False"), "")

    return str(await eventually(message, what=f"a refusal of {pod}"))


async def test_failed_binding_is_repeated() -> None:
    """It added the pod to reservedFor a second time, which the server rejects: the pod never started."""
    async with EmbeddedApi() as api:
        failed = api.faults.add(InjectedFault(Do.RESPOND, verb="create", resource="pods/binding", status=503, times=1))
        for item in [*small.base("a"), small.template("one"), small.pod("p", "one")]:
            api.create(item)
        async with scheduled(api):
            assert (await node_of(api, "p"))["spec"]["nodeName"] == "a"
        (claim,) = api.objects("resourceclaims")
        assert failed.hits == 1
        assert [each["name"] for each in claim["status"]["reservedFor"]] == ["p"]


async def test_limit_of_a_class_gets_a_claim() -> None:
    async with EmbeddedApi() as api:
        create_with_limit(api)
        async with scheduled(api):
            pod = await node_of(api, "p")
        (claim,) = api.objects("resourceclaims")
        written = pod["status"]["extendedResourceClaimStatus"]
        assert written == {
            "resourceClaimName": claim["metadata"]["name"],
            "requestMappings": [
                {"containerName": "a", "resourceName": limited.sets(4), "requestName": "container-0-request-0"}
            ],
        }
        assert claim["metadata"]["name"].startswith("p-extended-resources-")
        assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
        assert [owner["uid"] for owner in claim["metadata"]["ownerReferences"]] == [pod["metadata"]["uid"]]
        assert [each["uid"] for each in claim["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
        [result] = claim["status"]["allocation"]["devices"]["results"]
        assert result["device"].startswith("neuron-set-4-")


async def test_failed_binding_keeps_the_claim_of_limits() -> None:
    async with EmbeddedApi() as api:
        api.faults.add(InjectedFault(Do.RESPOND, verb="create", resource="pods/binding", status=503, times=2))
        create_with_limit(api)
        async with scheduled(api):
            pod = await node_of(api, "p")
        (claim,) = api.objects("resourceclaims")
        assert pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == claim["metadata"]["name"]


async def test_limit_that_nothing_serves_keeps_the_pod_waiting() -> None:
    async with EmbeddedApi() as api:
        for item in with_sets("a"):
            api.create(item)
        api.create(limited.pod(limited.one({limited.NEURON: "1"})))
        async with scheduled(api):
            assert await refusal_of(api, "p") == f"0/1 nodes are available: 1 Insufficient {limited.NEURON}."


async def test_claim_of_limits_ends_with_its_pod() -> None:
    async with EmbeddedApi() as api:
        for item in with_sets("a"):
            api.create(item)
        api.create(limited.pod(limited.one({limited.sets(16): "1"})))
        api.create({**limited.pod(limited.one({limited.sets(16): "1"})), "metadata": {"name": "q"}})
        async with scheduled(api):
            await node_of(api, "p")
            assert "cannot allocate all claims" in await refusal_of(api, "q")
            api.delete("pods", "p", "default", grace_s=0)
            await node_of(api, "q")
        assert len(api.objects("resourceclaims")) == 1


async def test_stored_policy_rewrites_limits_of_new_pods() -> None:
    async with EmbeddedApi() as api:
        for kind in (MUTATING, f"{MUTATING}Binding"):
            plural = f"{kind.lower().removesuffix('y')}ies" if kind == MUTATING else f"{kind.lower()}s"
            api.register("admissionregistration.k8s.io", ("v1",), kind, plural, namespaced=False)
        api.store.mutators.append(MutatingPolicies(api.store))
        for item in [*yaml.safe_load_all(POLICIES.read_text()), *with_sets("a")]:
            if item and not item["kind"].startswith("Validating"):
                api.apply(item)
        api.create(limited.pod(limited.one({limited.NEURON: "4"})))
        api.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": "default", "labels": {limited.LABEL: "true"}},
            }
        )
        api.create({**limited.pod(limited.one({limited.NEURON: 4})), "metadata": {"name": "rewritten"}})
        resources = {
            name: api.get("pods", name, "default")["spec"]["containers"][0]["resources"]["limits"]
            for name in ("p", "rewritten")
        }
    assert resources == {"p": {limited.NEURON: "4"}, "rewritten": {limited.sets(4): "1"}}


async def test_cpu_that_a_node_lacks_keeps_the_pod_waiting() -> None:
    async with EmbeddedApi() as api:
        for item in [*small.base("a"), small.template("one"), small.pod("p", "one", cpu="500")]:
            api.create(item)
        async with scheduled(api):
            assert await refusal_of(api, "p") == "0/1 nodes are available: 1 Insufficient cpu."


async def test_tainted_devices_are_not_allocated() -> None:
    async with EmbeddedApi() as api:
        api.register("resource.k8s.io", ("v1",), "DeviceTaintRule", "devicetaintrules", namespaced=False)
        spec = {"deviceSelector": {"pool": "a"}, "taint": {"key": "example.com/out", "effect": "NoSchedule"}}
        api.create({"apiVersion": small.API, "kind": "DeviceTaintRule", "metadata": {"name": "out"}, "spec": spec})
        for item in [*small.base("a"), small.template("one"), small.pod("p", "one")]:
            api.create(item)
        async with scheduled(api):
            assert "cannot allocate all claims" in await refusal_of(api, "p")
            api.delete("devicetaintrules", "out")
            await node_of(api, "p")


# Events


async def test_waiting_pod_has_an_event_and_a_placed_one_another() -> None:
    async with EmbeddedApi() as api:
        for item in [*small.base("a"), small.template("one"), small.pod("p", "one", cpu="500")]:
            api.create(item)
        async with scheduled(api, posts_events=True):
            message = await refusal_of(api, "p")
            api.patch("nodes", "a", {"status": {"allocatable": {"cpu": "600"}}})
            await eventually(lambda: len(api.objects("events")) == 2, what="two Events")
        shown = [(each["type"], each["reason"], each["message"]) for each in api.objects("events")]
        assert sorted(shown) == [
            ("Normal", "Scheduled", "Successfully assigned default/p to a"),
            ("Warning", "FailedScheduling", message),
        ]
        assert {each["reportingComponent"] for each in api.objects("events")} == {"default-scheduler"}


async def test_repeated_event_becomes_a_series_that_is_written_seldom() -> None:
    async with EmbeddedApi() as api:
        pod, now = api.create(small.pod("p")), [0.0]
        async with KubeClient(KubeConfig(api.url)) as client:
            events = SchedulerEvents(client, lambda: now[0])
            for _ in range(50):
                await events.failed(pod, "no room")
            written = len(api.requests("patch", "events"))
            now[0] = 1800.0
            await events.failed(pod, "no room")
        (event,) = api.objects("events")
        assert (written, event["series"]["count"]) == (1, 51)


async def test_pod_gets_few_events_at_once() -> None:
    async with EmbeddedApi() as api:
        pod = api.create(small.pod("p"))
        async with KubeClient(KubeConfig(api.url)) as client:
            events = SchedulerEvents(client)
            for number in range(100):
                await events.failed(pod, f"{number} nodes")
        assert len(api.objects("events")) == MOST_OF_A_POD


async def test_pod_that_cannot_be_decoded_does_not_stop_the_scheduler() -> None:
    """`image: n` is a boolean in YAML. The message names the field, and other pods get their devices."""
    async with EmbeddedApi() as api:
        wrong = small.pod("wrong", "one")
        wrong["spec"]["containers"][0]["image"] = False
        for item in [*small.base("a"), small.template("one"), wrong]:
            api.create(item)
        async with scheduled(api):
            assert "spec.containers[0].image is False: it must be a string" in await refusal_of(api, "wrong")
            api.create(small.pod("p", "one"))
            assert (await node_of(api, "p"))["spec"]["nodeName"] == "a"
