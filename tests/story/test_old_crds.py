"""The API server has another release's CRDs: it drops or rejects what the controller writes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller import settings as controller_settings
from controller.apply import published_schema, schema_check
from controller.apply.requests import Applier
from controller.observe.caches import Caches
from controller.program import NAME, Controller
from controller.timing import DEFAULT_TIMING, Timing
from neuron_dra.arguments import Parser
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi, InjectedFault, LoggedRequest
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.kube.requests import NEURON_ULTRASERVERS
from neuron_dra.planner.decisions.actions import CreateUltraServer, SetUltraServerFinalizers, WriteUltraServerStatus
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from tests.story.controller_cluster import Cluster
from tests.support.controller_passes import passes
from tests.support.controller_timings import QUICK
from tests.support.sending import new_sender
from tests.support.timings import quicker
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
OFFICIAL = ROOT / "tests/bed/manifests/official-crds.yaml"
KINDS = ("neuronultraservers", "neuronultraserverworkloads")


PATIENT = quicker(QUICK, writes={"first_s": 3600.0, "longest_s": 3600.0})
"""A controller that makes no rejected write twice."""
SOON = quicker(QUICK, writes={"crd_s": 0.3})
"""A controller that soon notices that a CRD was replaced."""
AT_ONCE = quicker(QUICK, writes={"crd_s": 0.001})
"""A controller that notices it in each pass."""


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with EmbeddedApi() as api:
        api.register_neuron_kinds()
        made = Cluster(api)

        async def plugins() -> None:
            while True:
                made.tag_nodes()
                await asyncio.sleep(0.02)

        task = asyncio.create_task(plugins())
        try:
            yield made
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.asynccontextmanager
async def controlling(cluster: Cluster, timing: Timing = QUICK) -> AsyncIterator[Controller]:
    parser = Parser()
    controller_settings.add_arguments(parser)
    words = ["--kube-api-server", cluster.api.url, "--health-probe-bind-address", "0"]
    parsed = parser.parse_args([*words, "--metrics-bind-address", "0", "--grpc-address", "0"])
    loaded = controller_settings.load(parsed, {}, "here")
    controller = Controller(loaded, KubeConfig(loaded.kube_api_server), timing=timing)
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        controller.stop()
        await task


def schema(text: str, kind: str) -> Obj:
    """The schema of one of the kinds in a manifest."""
    (crd,) = [item for item in yaml.safe_load_all(text) if item["spec"]["names"]["plural"] == kind]
    found: Obj = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def ours(kind: str) -> Obj:
    return schema((ROOT / f"deploy/crds/neuron.aws.com_{kind}.yaml").read_text(), kind)


def fields(node: Obj, path: str = "") -> Iterator[str]:
    """The paths of all fields of a schema."""
    for name, child in (node.get("properties") or {}).items():
        where = f"{path}.{name}" if path else name
        yield where
        yield from fields(child, where)
        if "items" in child:
            yield from fields(child["items"], f"{where}[*]")


def dropped_by_awss(kind: str) -> set[str]:
    """Return the fields that an API server with AWS's CRD drops and ours keeps."""
    return {*fields(ours(kind))} - {*fields(schema(OFFICIAL.read_text(), kind))}


def writes(cluster: Cluster) -> list[LoggedRequest]:
    """Return the controller's writes of its two kinds, without dry runs."""
    return [
        each
        for each in cluster.api.log
        if each.user_agent == NAME
        and each.verb in ("create", "patch", "delete")
        and each.resource.split("/")[0] in KINDS
        and "dryRun" not in each.query
    ]


# -- dry runs ----------------------------------------------------------------------------------------------------------


def names(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            where = f"{path}.{name}" if path else name
            yield where
            yield from names(each, where)
    elif isinstance(value, list):
        for each in value:
            yield from names(each, f"{path}[*]")


def test_schema_check_tries_every_field() -> None:
    """13.5. An unchecked field would be lost with the first reservation."""
    spec, status = schema_check.ultraserver_sample()
    tried = {"neuronultraservers": {*names(spec), *names(status)}, KINDS[1]: {*names(schema_check.workload_sample())}}
    untried = {"apiVersion", "kind", "metadata", "spec.instanceType"}
    assert tried[KINDS[0]] == {*fields(ours(KINDS[0]))} - untried
    assert tried[KINDS[1]] == {path for path in fields(ours(KINDS[1])) if path.startswith("status")}


def test_schema_check_tries_every_field_of_a_spec_that_awss_crd_drops() -> None:
    lost = {path for path in dropped_by_awss(KINDS[1]) if path.startswith("spec")}
    assert {*names(schema_check.spec_sample())} - {"spec", "spec.allocationPolicy"} == lost


@pytest.mark.parametrize(
    ("sent", "stored", "lost"),
    [
        ({"a": 1, "b": {"c": "x"}}, {"a": 1, "b": {"c": "x"}, "d": 2}, []),
        ({"a": None}, {}, []),
        ({"a": 1, "b": {"c": "x"}}, {"b": {}}, ["a", "b.c"]),
        ({"a": [{"b": 1, "c": 2}, {"b": 1}]}, {"a": [{"b": 1}, {"b": 1}]}, ["a[].c"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a"]),
        ({"a": []}, {"a": []}, []),
        ({"a": "x"}, {"a": "y"}, ["a"]),
        ({"a": {"b": 1}}, {"a": "b"}, ["a.b"]),
        ({"a": [1]}, {"a": 1}, ["a"]),
    ],
)
def test_dropped_field_is_named_by_path(sent: Obj, stored: Obj, lost: list[str]) -> None:
    """13.5."""
    assert list(schema_check.dropped(sent, stored)) == lost


# -- results -----------------------------------------------------------------------------------------------------------


async def test_aws_crds_stop_reservations_with_a_reason(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """13.5."""
    cluster.api.dropped_fields.update({kind: dropped_by_awss(kind) for kind in KINDS})
    with caplog.at_level(logging.ERROR):
        async with controlling(cluster) as controller:
            metric = controller.metrics.registry.get_sample_value
            await eventually(lambda: metric("neuron_ultraserver_crd_outdated", {"crd": KINDS[0]}) == 1)
            cluster.submit("job")
            await eventually(lambda: cluster.state("job") == "Pending")
            await eventually(lambda: cluster.reason("job")[0] == "CustomResourcesOutdated")
            cluster.api.log.clear()
            cluster.submit("other")
            await eventually(lambda: cluster.state("other") == "Pending")
            await passes(controller, cluster.api)
            assert len(writes(cluster)) == 1  # for the new workload
            assert metric("neuron_ultraserver_crd_outdated", {"crd": KINDS[1]}) == 1
    message = cluster.reason("job")[1]
    assert "CustomResourceDefinition neuronultraservers.neuron.aws.com is not of this release" in message
    assert "the API server drops" in message
    assert "apply the CRDs of this release (deploy/crds, or the chart" in message
    assert (cluster.allocations(), cluster.tags()) == ([], set())
    logged = [record for record in caplog.records if record.message == "the controller stops writing"]
    assert len(logged) == len(KINDS)


PLAIN = {"spec.priorityClassName", "spec.ttlSecondsUnused"}


def told(cluster: Cluster, name: str) -> str:
    """Return the message of the condition SpecIncomplete of a workload."""
    [item] = [each for each in cluster.api.objects(KINDS[1]) if each["metadata"]["name"] == name]
    status = item.get("status", {})
    found = [each for each in status.get("conditions", ()) if each["type"] == "SpecIncomplete"]
    return str(found[0]["message"]) if found else ""


async def test_workload_says_which_fields_of_its_spec_are_dropped(cluster: Cluster) -> None:
    cluster.api.dropped_fields[KINDS[1]] = PLAIN
    cluster.submit("job", count=1)
    async with controlling(cluster, SOON):
        await eventually(lambda: cluster.state("job") == "Allocated")
        await eventually(lambda: told(cluster, "job") != "")
        text = "the API server drops spec.priorityClassName, spec.ttlSecondsUnused, because its Custom"
        assert told(cluster, "job").startswith(text)
        cluster.api.dropped_fields.clear()
        await eventually(lambda: told(cluster, "job") == "")
        assert cluster.state("job") == "Allocated"


async def test_aws_crds_name_the_fields_of_the_spec_first(cluster: Cluster) -> None:
    cluster.api.dropped_fields.update({KINDS[1]: dropped_by_awss(KINDS[1])})
    cluster.submit("job", count=1)
    async with controlling(cluster, SOON):
        await eventually(lambda: cluster.state("job") == "Pending")
        await eventually(lambda: f"{KINDS[1]}.neuron.aws.com is not" in cluster.reason("job")[1])
        assert "drops spec.priorityClassName" in cluster.reason("job")[1]


WITHOUT_BOUND = {
    KINDS[0]: {"status.allocations[].phase": ["Pending", "Draining"]},
    KINDS[1]: {"status.state": ["Pending"]},
}


def reject(cluster: Cluster, kind: str) -> None:
    """Serve a CRD with an enum that lacks a value which the controller writes."""
    cluster.api.published_enums[kind] = WITHOUT_BOUND[kind]


@pytest.mark.parametrize("kind", KINDS)
async def test_rejecting_crd_stops_reservations(cluster: Cluster, kind: str) -> None:
    """13.5."""
    reject(cluster, kind)
    cluster.submit("job")
    async with controlling(cluster, PATIENT) as controller:
        await eventually(lambda: cluster.state("job") == "Pending")
        await eventually(lambda: cluster.reason("job")[0] == "CustomResourcesOutdated")
        await passes(controller, cluster.api)
        assert cluster.allocations() == []
        assert "the API server rejects what this release writes (status." in cluster.reason("job")[1]


async def test_schema_check_writes_nothing(cluster: Cluster) -> None:
    """4.02: a dry run on a tenant's object asks that tenant's policies and webhooks."""
    cluster.submit("job", count=1)
    async with controlling(cluster):
        await eventually(lambda: cluster.state("job") == "Allocated")
    assert [each for each in cluster.api.log if "dryRun" in each.query] == []


@pytest.mark.parametrize("kind", KINDS)
async def test_policy_on_a_namespace_stops_no_other(cluster: Cluster, kind: str) -> None:
    """4.02: its answer is 422, as that of a CRD which rejects a value."""
    for resource in (kind, f"{kind}/status"):
        text = "ValidatingAdmissionPolicy 'frozen' denied request: namespace archive is frozen"
        fault = InjectedFault(
            resource=resource, namespace="archive", verb="patch", status=422, message=text, times=None
        )
        cluster.api.faults.add(fault)
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "archive"}})
    for number in range(3):
        cluster.submit(f"w{number}", size=1, count=1, namespace="archive")
    async with controlling(cluster):
        cluster.submit("job", count=1)
        await eventually(lambda: cluster.state("job") == "Allocated")


async def test_upgraded_crd_lets_the_controller_continue(cluster: Cluster) -> None:
    """13.5."""
    cluster.api.dropped_fields["neuronultraservers"] = dropped_by_awss("neuronultraservers")
    cluster.submit("job")
    async with controlling(cluster, SOON):
        await eventually(lambda: cluster.state("job") == "Pending")
        await eventually(lambda: cluster.reason("job")[0] == "CustomResourcesOutdated")
        del cluster.api.dropped_fields["neuronultraservers"]
        await eventually(lambda: cluster.state("job") == "Allocated")


async def test_downgraded_crd_loses_no_reservation(cluster: Cluster) -> None:
    """13.5, 13.3. The ids come back from the nodes when the CRD is ours again."""
    cluster.submit("job", count=1)
    async with controlling(cluster, SOON) as controller:
        await eventually(lambda: cluster.state("job") == "Allocated")
        before = cluster.allocations()
        cluster.api.dropped_fields.update({kind: dropped_by_awss(kind) for kind in KINDS})
        cluster.submit("other", count=1)
        await eventually(lambda: cluster.reason("job")[0] == "CustomResourcesOutdated")
        await passes(controller, cluster.api)
        assert len(cluster.tags()) == 4
        cluster.api.dropped_fields.clear()
        await eventually(lambda: cluster.state("other") == "Allocated")
        assert [each for each in cluster.allocations() if each["workloadRef"] == "ml/job"] == before


async def test_crd_that_begins_to_reject_stops_the_controller(cluster: Cluster) -> None:
    """13.5: it was downgraded."""
    cluster.submit("job", count=1)
    async with controlling(cluster, AT_ONCE):
        await eventually(lambda: cluster.state("job") == "Allocated")
        reject(cluster, KINDS[0])
        cluster.submit("other", count=1)
        await eventually(lambda: cluster.state("other") == "Pending")
        await eventually(lambda: cluster.reason("other")[0] == "CustomResourcesOutdated")
        assert "the API server rejects" in cluster.reason("other")[1]


async def test_dropped_field_stops_the_rest_of_the_plan(cluster: Cluster) -> None:
    """13.5."""
    async with cluster.api.client(NAME) as client:
        caches = Caches(client, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
        applier = Applier(client, caches, EventRecorder(client, "here"), DEFAULT_TIMING)
        applier.schemas.check(NEURON_ULTRASERVERS, {"status": {"allocations": []}}, {"status": {}})
        now = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
        for action in (
            CreateUltraServer({"metadata": {"name": "us-u0"}}),
            SetUltraServerFinalizers("us-u0", "1", ()),
            WriteUltraServerStatus("us-u0", "1", {}, {"allocations": []}),
        ):
            with pytest.raises(schema_check.Outdated, match=r"drops status\.allocations"):
                await applier.perform(action, now)
    assert writes(cluster) == []


async def test_document_is_read_once_a_minute(cluster: Cluster) -> None:
    """13.16."""
    now = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
    reads = InjectedFault(verb="get", resource="/openapi/v3/apis/neuron.aws.com/v1beta1", status=500, times=None)
    cluster.api.faults.add(reads)
    async with KubeClient(KubeConfig(cluster.api.url)) as client:
        sender = new_sender()
        schemas = schema_check.Schemas(client, DEFAULT_TIMING.writes, sender)
        await schemas.begin(now)
        hits = [reads.hits]
        for seconds in (0, 59, 60, 61):
            schemas.look(now + datetime.timedelta(seconds=seconds))
            await sender.send_all()
            hits.append(reads.hits)
        await schemas.begin(now + datetime.timedelta(seconds=62))
        hits.append(reads.hits)
    assert hits == [1, 1, 1, 2, 2, 3]


# -- the document ------------------------------------------------------------------------------------------------------

VALUE: Obj = {"status": {"phase": "Bound", "nodes": [{"name": "a", "id": 3}], "labels": {"a": "b"}}}


def schema_with(**properties: Any) -> Obj:
    nodes = {"type": "array", "items": {"properties": {"name": {"type": "string"}, "id": {"type": "integer"}}}}
    labels = {"type": "object", "additionalProperties": {"type": "string"}}
    status = {"phase": {"type": "string", "enum": ["Bound"]}, "nodes": nodes, "labels": labels, **properties}
    return {"properties": {"status": {"type": "object", "properties": status}}}


@pytest.mark.parametrize(
    ("schema", "dropped", "rejected"),
    [
        (schema_with(), [], []),
        ({}, ["status"], []),
        ({"x-kubernetes-preserve-unknown-fields": True}, [], []),
        (schema_with(labels={"type": "object"}), ["status.labels.a"], []),
        (schema_with(nodes={"items": {"properties": {"name": {}}}}), ["status.nodes[].id"], []),
        (schema_with(phase={"enum": ["Pending"]}), [], ["status.phase: 'Bound' is not one of Pending"]),
        (schema_with(phase={"maxLength": 4}), [], ["status.phase: 'Bound' has more than 4 characters"]),
        (schema_with(phase={"pattern": "^x"}), [], ["status.phase: 'Bound' does not match ^x"]),
        (schema_with(phase={"type": "integer"}), [], ["status.phase: 'Bound' is not of type integer"]),
        (
            schema_with(nodes={"maxItems": 0, "items": {"x-kubernetes-preserve-unknown-fields": True}}),
            [],
            ["status.nodes: it has more than 0 entries"],
        ),
    ],
)
def test_schema_says_what_becomes_of_a_value(schema: Obj, dropped: list[str], rejected: list[str]) -> None:
    found = [*published_schema.dropped(schema, VALUE)], [*published_schema.rejected(schema, VALUE)]
    assert found == (dropped, rejected)


@pytest.mark.parametrize(
    ("kind", "sample"),
    [
        (KINDS[0], {**schema_check.ultraserver_sample()[0], **schema_check.ultraserver_sample()[1]}),
        (KINDS[1], schema_check.workload_sample()),
        (KINDS[1], schema_check.spec_sample()),
    ],
)
def test_our_crds_keep_what_is_written(kind: str, sample: Obj) -> None:
    assert schema_check.published(ours(kind), sample) == ""
    assert schema_check.published(schema(OFFICIAL.read_text(), kind), sample).startswith("drops ")
