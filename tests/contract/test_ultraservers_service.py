"""The gRPC service UltraServers over real sockets: the controller runs against the embedded API server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from controller import settings as controller_settings
from controller.program import Controller
from controller.query import grpc_server as service_module
from controller.timing import ServiceTiming
from hack.bench.ultraservers import ultraserver
from neuron_dra.arguments import Parser
from neuron_dra.core.capacity_block import ANNOTATION
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.gen.neuron.ultraserver.v1 import ultraservers_pb2 as pb
from neuron_dra.gen.neuron.ultraserver.v1 import ultraservers_pb2_grpc
from neuron_dra.kube.config import KubeConfig
from neuron_dra.planner.rehearsal import tagged_slice
from tests.support.built_tools import GRPCURL, needs
from tests.support.controller_passes import passes
from tests.support.waiting import eventually

SERVICE = "neuron.ultraserver.v1.UltraServers"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    """Two UltraServers of four nodes, u0 and u1."""
    async with EmbeddedApi() as made:
        made.register_neuron_kinds()
        for name in ("ml", NAMESPACE):
            made.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for block in ("u0", "u1"):
            for item in ultraserver(block):
                if item["kind"] == "ResourceSlice":
                    node = made.get("nodes", item["spec"]["nodeName"])
                    item["metadata"]["ownerReferences"][0]["uid"] = node["metadata"]["uid"]
                made.create(item)
        yield made


@contextlib.asynccontextmanager
async def controlling(
    api: EmbeddedApi, address: str = "127.0.0.1:0", *flags: str, api_url: str = ""
) -> AsyncIterator[Controller]:
    parser = Parser()
    controller_settings.add_arguments(parser)
    words = ["--kube-api-server", api_url or api.url, "--grpc-address", address]
    parsed = parser.parse_args([*words, "--health-probe-bind-address", "0", "--metrics-bind-address", "0", *flags])
    loaded = controller_settings.load(parsed, {}, "here")
    controller = Controller(loaded, KubeConfig(loaded.kube_api_server))
    task = asyncio.create_task(controller.run())
    try:
        await eventually(lambda: controller.grpc is not None and controller.grpc.target, what="gRPC is served")
        yield controller
    finally:
        controller.stop()
        await task


@pytest.fixture
async def controller(api: EmbeddedApi) -> AsyncIterator[Controller]:
    """A controller that has discovered both UltraServers."""
    async with controlling(api) as made:
        found = api.objects
        await eventually(
            lambda: [o for o in found("neuronultraservers") if o.get("status")][1:], what="two UltraServers"
        )
        await eventually(lambda: not made.ready(), what="the controller is ready")
        yield made


@contextlib.asynccontextmanager
async def dialled(controller: Controller) -> AsyncIterator[grpc.aio.Channel]:
    assert controller.grpc is not None
    async with grpc.aio.insecure_channel(controller.grpc.target) as channel:
        yield channel


@contextlib.asynccontextmanager
async def asking(controller: Controller) -> AsyncIterator[ultraservers_pb2_grpc.UltraServersAsyncStub]:
    async with dialled(controller) as channel:
        yield ultraservers_pb2_grpc.UltraServersStub(channel)


def submit(api: EmbeddedApi, name: str, *, size: int = 4, count: int = 1) -> Obj:
    return api.create(
        {
            "apiVersion": "neuron.aws.com/v1beta1",
            "kind": "NeuronUltraServerWorkload",
            "metadata": {"name": name, "namespace": "ml"},
            "spec": {"instanceType": "trn3.48xlarge", "topologySize": size, "serverCount": count},
        }
    )


def tag_slices(api: EmbeddedApi) -> None:
    """Tag every slice according to its NeuronUltraServer."""
    members = {e["nodeName"]: item for item in api.objects("neuronultraservers") for e in item["spec"]["topology"]}
    for item in api.objects("resourceslices"):
        new = tagged_slice(item, members.get(item["spec"]["nodeName"]))
        if new["spec"] != item["spec"]:
            api.replace(dict(new))


def state(api: EmbeddedApi, name: str) -> str:
    return str((api.get("neuronultraserverworkloads", name, "ml").get("status") or {}).get("state"))


async def allocated(api: EmbeddedApi, name: str) -> None:
    def done() -> bool:
        tag_slices(api)
        return state(api, name) == "Allocated"

    await eventually(done, what=f"{name} is Allocated")


async def test_services_support_reflection(controller: Controller) -> None:
    async def ask(channel: grpc.aio.Channel, request: Any) -> Any:
        stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]), timeout=60)
        (answer,) = [each async for each in stream]
        return answer

    async with dialled(controller) as channel:
        listed = await ask(channel, reflection_pb2.ServerReflectionRequest(list_services=""))
        services = {each.name for each in listed.list_services_response.service}
        assert services == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        for name in services:
            described = await ask(channel, reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
            assert described.file_descriptor_response.file_descriptor_proto, name


async def test_list_shows_nodes_reservations_and_free_slots(api: EmbeddedApi, controller: Controller) -> None:
    submit(api, "pair", size=2)
    await allocated(api, "pair")
    async with asking(controller) as stub:
        await eventually(lambda: not controller.ready())
        everything = (await stub.ListUltraServers(pb.ListUltraServersRequest(), timeout=60)).ultraservers
        none = await stub.ListUltraServers(pb.ListUltraServersRequest(instance_type="trn2u.48xlarge"), timeout=60)
    assert [each.name for each in everything] == ["us-u0", "us-u1"]
    assert list(none.ultraservers) == []
    used, free = everything
    assert (used.instance_type, list(used.topology_sizes), list(used.problems)) == ("trn3.48xlarge", [1, 2, 4], [])
    assert [(n.name, n.node_id, pb.NodeState.Name(n.state), n.holder) for n in used.nodes] == [
        ("u0-0", 0, "NODE_STATE_RESERVED", "ml/pair"),
        ("u0-1", 1, "NODE_STATE_RESERVED", "ml/pair"),
        ("u0-2", 2, "NODE_STATE_FREE", ""),
        ("u0-3", 3, "NODE_STATE_FREE", ""),
    ]
    assert {(n.vertical, n.horizontal) for n in used.nodes} == {(pb.LINK_UP, pb.LINK_UP)}
    (reservation,) = used.reservations
    assert (reservation.workload, reservation.phase, list(reservation.nodes)) == ("ml/pair", "Bound", ["u0-0", "u0-1"])
    assert (used.free_nodes, [(each.topology_size, each.count) for each in used.free_groups]) == (
        2,
        [(1, 2), (2, 1), (4, 0)],
    )
    assert (free.free_nodes, [(each.topology_size, each.count) for each in free.free_groups]) == (
        4,
        [(1, 4), (2, 2), (4, 1)],
    )


async def test_dry_run_of_a_new_workload_writes_nothing(api: EmbeddedApi, controller: Controller) -> None:
    before = [len(api.objects(kind)) for kind in ("neuronultraserverworkloads", "resourceclaimtemplates")]
    tried = pb.Workload(instance_type="trn3.48xlarge", topology_size=4, server_count=2)
    async with asking(controller) as stub:
        answer = await stub.Plan(pb.PlanRequest(workload=tried), timeout=60)
    (planned,) = answer.workloads
    assert (planned.namespace, planned.name, planned.fits) == ("default", "dry-run", True)
    assert not planned.HasField("shortage")
    assert [(each.ultraserver, each.ultraserver_index, list(each.nodes)) for each in planned.reservations] == [
        ("us-u0", 0, ["u0-0", "u0-1", "u0-2", "u0-3"]),
        ("us-u1", 1, ["u1-0", "u1-1", "u1-2", "u1-3"]),
    ]
    assert list(answer.writes) == [
        "set the finalizers of workload default/dry-run: neuron.aws.com/ultraserver-release",
        "write the status of NeuronUltraServer us-u0: Ready, default/dry-run Pending",
        "write the status of NeuronUltraServer us-u1: Ready, default/dry-run Pending",
        "write the status of workload default/dry-run: Allocating, "
        "waiting for all nodes to show the reservation on their devices",
    ]
    await passes(controller, api)
    assert [len(api.objects(kind)) for kind in ("neuronultraserverworkloads", "resourceclaimtemplates")] == before
    assert all(not item["status"].get("allocations") for item in api.objects("neuronultraservers"))


async def test_dry_run_shows_the_shortage_in_numbers(api: EmbeddedApi, controller: Controller) -> None:
    submit(api, "pair", size=2)
    await allocated(api, "pair")
    tried = pb.Workload(name="big", namespace="ml", instance_type="trn3.48xlarge", topology_size=4, server_count=3)
    async with asking(controller) as stub:
        (planned,) = (await stub.Plan(pb.PlanRequest(workload=tried), timeout=60)).workloads
    assert (planned.fits, planned.state, planned.reason) == (False, "Pending", "ExceedsFleet")
    assert planned.message == (
        "needs 3 x 4 trn3.48xlarge nodes; 1 of 3 groups of 4 are free: short of 8 nodes; 6 of 8 nodes are free; all "
        "healthy UltraServers together have 2 groups of 4: set spec.serverCount to at most 2, or add or repair "
        "nodes; it holds no other workload back"
    )
    assert planned.shortage == pb.Shortage(groups_missing=3, groups_free=1, nodes_short=8, nodes_free=6, nodes_total=8)


async def test_dry_run_of_a_larger_workload(api: EmbeddedApi, controller: Controller) -> None:
    submit(api, "pair", size=2, count=1)
    await allocated(api, "pair")
    async with asking(controller) as stub:
        tried = pb.Workload(namespace="ml", name="pair", instance_type="trn3.48xlarge", topology_size=2, server_count=2)
        (grown,) = (await stub.Plan(pb.PlanRequest(workload=tried), timeout=60)).workloads
        tried.server_count = 5
        (too_big,) = (await stub.Plan(pb.PlanRequest(workload=tried), timeout=60)).workloads
    assert [(each.phase, list(each.nodes)) for each in grown.reservations] == [
        ("Bound", ["u0-0", "u0-1"]),
        ("Pending", ["u0-2", "u0-3"]),
    ]
    assert (too_big.fits, too_big.shortage.groups_missing, too_big.shortage.groups_free) == (False, 4, 3)
    assert [list(each.nodes) for each in too_big.reservations] == [["u0-0", "u0-1"]]


async def test_plan_answers_whether_a_job_ends_before_its_block(api: EmbeddedApi, controller: Controller) -> None:
    for node in api.objects("nodes"):
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=30)
        notes = {ANNOTATION: end.strftime("%Y-%m-%dT%H:%M:%SZ")}
        api.patch("nodes", node["metadata"]["name"], {"metadata": {"annotations": notes}})

    async def reason(expected_duration: str = "") -> tuple[bool, str]:
        async with asking(controller) as stub:
            wanted = pb.Workload(
                instance_type="trn3.48xlarge", topology_size=4, server_count=1, expected_duration=expected_duration
            )
            request = pb.PlanRequest(workload=wanted)
            [planned] = (await stub.Plan(request, timeout=60)).workloads
            return planned.fits, planned.reason

    until = asyncio.get_running_loop().time() + 60
    while (found := await reason(expected_duration="36h")) != (False, "BlockEndsTooSoon"):
        assert asyncio.get_running_loop().time() < until, found
        await asyncio.sleep(0.1)
    assert (await reason(expected_duration="24h"))[0]
    assert (await reason())[0]


async def test_plan_has_every_workload(api: EmbeddedApi, controller: Controller) -> None:
    submit(api, "fits", size=4, count=1)
    await allocated(api, "fits")
    submit(api, "waits", size=4, count=2)
    await eventually(lambda: state(api, "waits") == "Pending")
    async with asking(controller) as stub:
        planned = {each.name: each for each in (await stub.Plan(pb.PlanRequest(), timeout=60)).workloads}
    assert {name: (each.fits, each.state) for name, each in planned.items()} == {
        "fits": (True, "Allocated"),
        "waits": (False, "Pending"),
    }
    assert planned["waits"].shortage.nodes_short == 4


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"topology_size": 3}, "workload.topology_size 3: write 1, 2 or 4, the number of nodes that work together"),
        ({"topology_size": 0}, "workload.topology_size 0: write 1, 2 or 4"),
        ({"server_count": 0}, "workload.server_count 0: write how many groups of 4 nodes, 1 to 1024"),
        ({"server_count": 2000}, "workload.server_count 2000: write how many groups"),
        (
            {"instance_type": "trn9.48xlarge"},
            "workload.instance_type trn9.48xlarge is not known: write the type of UltraServer nodes, such as "
            "trn3.48xlarge, which are here",
        ),
        ({"instance_type": "trn1.2xlarge"}, "workload.instance_type trn1.2xlarge has no UltraServers: write"),
        ({"instance_type": ""}, "workload.instance_type is missing: write the type of UltraServer nodes, such as"),
        ({"expected_duration": "Friday"}, "workload.expected_duration 'Friday': write a duration such as 90s, 1m30s"),
        ({"name": "My Job"}, "workload.name 'My Job': write a name of at most 63 lower-case letters, digits and '-'"),
        (
            {"namespace": "ml", "name": "job"},
            "workload ml/job exists with 2 x trn3.48xlarge: only its server_count and expected_duration can change; "
            "write another name",
        ),
    ],
)
async def test_invalid_request_error_names_the_remedy(
    api: EmbeddedApi, controller: Controller, changes: dict[str, Any], text: str
) -> None:
    submit(api, "job", size=2)
    await eventually(lambda: state(api, "job") != "None")
    fields = {"instance_type": "trn3.48xlarge", "topology_size": 4, "server_count": 1, **changes}
    async with asking(controller) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Plan(pb.PlanRequest(workload=pb.Workload(**fields)), timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in (caught.value.details() or "")


async def test_unavailable_until_the_cluster_is_read(api: EmbeddedApi) -> None:
    async with controlling(api, api_url="http://127.0.0.1:1") as controller, dialled(controller) as channel:
        stub = ultraservers_pb2_grpc.UltraServersStub(channel)
        for call in (stub.Plan(pb.PlanRequest(), timeout=60), stub.ListUltraServers(pb.ListUltraServersRequest())):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "this replica has not read the cluster yet: not listed yet: nodes," in (caught.value.details() or "")
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert health.status == NOT_SERVING


async def test_follower_serves_queries(api: EmbeddedApi, controller: Controller) -> None:
    name = {"name": "neuron-ultraserver-controller", "namespace": NAMESPACE}
    held = {"holderIdentity": "other", "leaseDurationSeconds": 3600, "renewTime": "2026-03-01T12:00:00.000000Z"}
    api.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": name, "spec": held})
    async with controlling(api, "127.0.0.1:0", "--leader-elect") as follower, asking(follower) as stub:
        await eventually(lambda: not follower.ready(), what="the follower has read everything")
        listed = await stub.ListUltraServers(pb.ListUltraServersRequest(), timeout=60)
        assert not follower.leadership.holds()
    assert [each.name for each in listed.ultraservers] == ["us-u0", "us-u1"]


async def test_health_follows_the_caches(controller: Controller) -> None:
    async with dialled(controller) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60)).status == SERVING
        async for answer in stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=60):
            assert answer.status == SERVING
            break
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=60)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_unix_socket_is_for_its_owner_only(api: EmbeddedApi, tmp_path: Path) -> None:
    path = tmp_path / "us.sock"
    async with controlling(api, f"unix:{path}") as controller, asking(controller) as stub:
        await eventually(lambda: not controller.ready())
        assert (path.stat().st_mode & 0o777) == 0o600
        assert (await stub.Plan(pb.PlanRequest(), timeout=60)).workloads == []


async def test_busy_port_is_taken_when_free(api: EmbeddedApi, caplog: pytest.LogCaptureFixture) -> None:
    async with controlling(api) as first:
        assert first.grpc is not None
        address = first.grpc.target
        sources = service_module.Sources(lambda: None, lambda: None, lambda: None, str, None, first.metrics)  # type: ignore[arg-type,return-value]  # it never answers
        second = service_module.QueryServer(address, sources, ServiceTiming(retry_s=0.05))
        waiting = asyncio.create_task(second.run())
        await eventually(lambda: "gRPC is not served yet" in caplog.text, what="the port is in use")
        assert second.target == ""
    try:
        await eventually(lambda: second.target == address, what="the second server has the port")
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@needs("grpcurl")
async def test_grpcurl_needs_no_proto_file(controller: Controller) -> None:
    async def run(*words: str) -> str:
        command = [str(GRPCURL), "-plaintext", *words]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    assert controller.grpc is not None
    target = controller.grpc.target
    assert SERVICE in (await run(target, "list")).splitlines()
    assert "rpc Plan" in await run(target, "describe", SERVICE)
    asked = '{"workload": {"instance_type": "trn3.48xlarge", "topology_size": 1, "server_count": 9}}'
    (planned,) = json.loads(await run("-d", asked, target, f"{SERVICE}/Plan"))["workloads"]
    assert planned["shortage"] == {
        "groups_missing": 9,
        "groups_free": 8,
        "nodes_short": 1,
        "nodes_free": 8,
        "nodes_total": 8,
    }
    refused = await run("-d", asked.replace("1,", "3,"), target, f"{SERVICE}/Plan")
    assert "Code: InvalidArgument" in refused
    assert "write 1, 2 or 4" in refused
