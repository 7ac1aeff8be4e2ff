"""Device slices, claims, pods and budgets on a real API server and on the embedded one."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from neuron_dra.core.wire import Obj
from tests.contract.api_client import DRA, SLICES, Answer, Server

DRIVER = "neuron.aws.com"
CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
TAINT = {"key": "k", "effect": "NoSchedule"}
PROTECTION = "resource.kubernetes.io/delete-protection"


def device(name: str = "neuron-device-0", **fields: Any) -> Obj:
    return {"name": name, "attributes": {"instanceType": {"string": "trn2.48xlarge"}}, **fields}


def attributes(values: Obj) -> Obj:
    """The spec of a slice with one device that has these attributes."""
    return {"devices": [device(attributes=values)]}


def device_slice(server: Server, name: str = "s", **spec: Any) -> Obj:
    """A slice whose name, node and pool belong to this test."""
    own = f"{server.namespace}-{name}"
    pool = {"name": own, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": own},
        "spec": {"driver": DRIVER, "nodeName": own, "pool": pool, "devices": [device()], **spec},
    }


def claim_spec(*requests: Obj, **devices: Any) -> Obj:
    chosen = list(requests) or [{"name": "neurons", "exactly": {"deviceClassName": DRIVER, "count": 4}}]
    return {"devices": {"requests": chosen, **devices}}


def claim(name: str = "c", **spec: Any) -> Obj:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": claim_spec(**spec)}  # fmt: skip


def allocation(*devices: str, request: str = "neurons") -> Obj:
    results = [{"request": request, "driver": DRIVER, "pool": "a", "device": name} for name in devices]
    return {"devices": {"results": results}}


def pod(name: str = "p", *, labels: Obj | None = None, **spec: Any) -> Obj:
    """A pod without a scheduler."""
    body = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "app"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": body}


def pod_with_claim(name: str = "p", **source: str) -> Obj:
    container = {"name": "c", "image": "app", "resources": {"claims": [{"name": "devices"}]}}
    return pod(name, containers=[container], resourceClaims=[{"name": "devices", **source}])


async def node(server: Server) -> str:
    name = f"{server.namespace}-node"
    await server.made("/api/v1/nodes", {"metadata": {"name": name}})
    return name


async def bind(server: Server, pod_name: str, node_name: str) -> Answer:
    body = {"metadata": {"name": pod_name}, "target": {"kind": "Node", "name": node_name}}
    return await server.post(f"{server.place('pods')}/{pod_name}/binding", body)


# ResourceSlices


async def test_slice_generation_follows_its_spec(server: Server) -> None:
    made = await server.made(SLICES, device_slice(server))
    path = f"{SLICES}/{made['metadata']['name']}"
    assert made["metadata"]["generation"] == 1

    relabelled = (await server.patch(path, {"metadata": {"labels": {"app": "a"}}})).body
    assert relabelled["metadata"]["generation"] == 1
    changed = {**relabelled, "spec": {**relabelled["spec"], "devices": [device("neuron-device-1")]}}
    assert (await server.put(path, changed)).body["metadata"]["generation"] == 2


async def test_slice_is_stored_as_sent(server: Server) -> None:
    body = device_slice(server, devices=[device(capacity={"memory": {"value": "98304Mi"}, "cores": {"value": 8}})])
    body["spec"]["surprise"] = 1
    answer = await server.post(SLICES, body)
    assert answer.status == 201
    assert answer.headers["Warning"] == '299 - "unknown field \\"spec.surprise\\""'
    wanted = {**body["spec"], "devices": [device(capacity={"memory": {"value": "96Gi"}, "cores": {"value": "8"}})]}
    del wanted["surprise"]
    assert answer.body["spec"] == wanted


@pytest.mark.usefixtures("newest")
async def test_an_empty_list_of_devices_is_not_stored(server: Server) -> None:
    made = await server.made(SLICES, device_slice(server, devices=[]))
    assert "devices" not in made["spec"]
    again = await server.put(f"{SLICES}/{made['metadata']['name']}", device_slice(server, devices=[]))
    assert again.body["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_strict_validation_names_unknown_fields(server: Server) -> None:
    body = device_slice(server, devices=[device(colour="red")])
    answer = await server.post(SLICES, body, fieldValidation="Strict")
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.devices[0].colour"' in answer.body["message"]


@pytest.mark.contract("S11")
async def test_dry_run_shows_if_taints_are_kept(server: Server) -> None:
    """Two taints of one key are both kept; a server that drops taints returns none. SlicePublisher.learn_taints relies
    on it.
    """
    minor = int((await server.get("/version")).body["minor"].rstrip("+"))
    taints = [{"key": "neuron.aws.com/unhealthy", "value": v, "effect": "NoSchedule"} for v in ("invalid", "hbm_ecc")]
    wanted = device_slice(server, devices=[device(taints=taints)])

    async def kept(**query: str) -> list[str]:
        answer = await server.post(SLICES, wanted, **query)
        assert answer.status == 201
        return [taint["value"] for taint in answer.body["spec"]["devices"][0].get("taints", [])]

    assert await kept(dryRun="All") == await kept() == (["invalid", "hbm_ecc"] if minor >= 36 else [])


@pytest.mark.usefixtures("newest")
async def test_each_put_sets_missing_taint_times(server: Server) -> None:
    taints = [{"key": "neuron.aws.com/unhealthy", "effect": "NoSchedule"}]
    made = await server.made(SLICES, device_slice(server, devices=[device(taints=taints)]))
    added = made["spec"]["devices"][0]["taints"][0]["timeAdded"]
    assert added.endswith("Z")
    path = f"{SLICES}/{made['metadata']['name']}"
    kept = await server.put(path, made)
    assert kept.body["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]

    await asyncio.sleep(1.1)  # times have whole seconds
    again = await server.put(path, device_slice(server, devices=[device(taints=taints)]))
    assert again.body["spec"]["devices"][0]["taints"][0]["timeAdded"] > added
    assert again.body["metadata"]["generation"] == 2


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({"driver": ""}, {("FieldValueRequired", "spec.driver")}),
        ({"driver": "Neuron_x"}, {("FieldValueInvalid", "spec.driver")}),
        ({"nodeName": None}, {("FieldValueRequired", "spec")}),
        ({"allNodes": True}, {("FieldValueInvalid", "spec")}),
        ({"nodeName": "A_b"}, {("FieldValueInvalid", "spec.nodeName")}),
        ({"pool": {"name": "", "generation": 1, "resourceSliceCount": 1}}, {("FieldValueRequired", "spec.pool.name")}),
        (
            {"pool": {"name": "a", "generation": -1, "resourceSliceCount": 0}},
            {("FieldValueInvalid", "spec.pool.generation"), ("FieldValueInvalid", "spec.pool.resourceSliceCount")},
        ),
        ({"devices": [device("a_b")]}, {("FieldValueInvalid", "spec.devices[0].name")}),
        ({"devices": [device("a"), device("a")]}, {("FieldValueDuplicate", "spec.devices[1]")}),
        ({"devices": [device(f"d{i}") for i in range(129)]}, {("FieldValueTooMany", "spec.devices")}),
        (
            {"devices": [device("t", taints=[TAINT]), *(device(f"d{i}") for i in range(64))]},
            {("FieldValueTooMany", "spec.devices")},
        ),
        (attributes({"numa-1": {"int": 1}}), {("FieldValueInvalid", "spec.devices[0].attributes")}),
        (attributes({"x" * 33: {"int": 1}}), {("FieldValueTooLong", "spec.devices[0].attributes")}),
        ({"devices": [device(attributes={"x": {}})]}, {("FieldValueInvalid", "spec.devices[0].attributes[x]")}),
        (
            {"devices": [device(attributes={"x": {"int": 1, "string": "a"}})]},
            {("FieldValueInvalid", "spec.devices[0].attributes[x]")},
        ),
        (
            {"devices": [device(attributes={"x": {"string": "s" * 65}})]},
            {("FieldValueTooLong", "spec.devices[0].attributes[x].string")},
        ),
        (
            {"devices": [device(attributes={"x": {"version": "6.19.14.3140"}})]},
            {("FieldValueInvalid", "spec.devices[0].attributes[x].version")},
        ),
        (attributes({f"a{i}": {"int": i} for i in range(33)}), {("FieldValueInvalid", "spec.devices[0]")}),
        (
            {"devices": [device(taints=[{"key": "k", "effect": "Foo"}])]},
            {("FieldValueNotSupported", "spec.devices[0].taints[0].effect")},
        ),
        ({"devices": [device()], "sharedCounters": []}, {("FieldValueInvalid", "spec")}),
        (
            {"devices": [device(bindingConditions=["a"])]},
            {("FieldValueInvalid", "spec.devices[0].bindingFailureConditions")},
        ),
    ],
)  # fmt: skip
async def test_invalid_slice_is_422_with_the_field(server: Server, spec: Obj, causes: set[tuple[str, str]]) -> None:
    answer = await server.post(SLICES, device_slice(server, **spec), dryRun="All")
    assert (answer.status, answer.reason, answer.causes) == (422, "Invalid", causes)
    assert answer.body["details"]["kind"] == "ResourceSlice"


@pytest.mark.parametrize(
    "spec",
    [
        {"driver": 1},
        {"allNodes": "yes"},
        {"pool": {"name": "a", "generation": "1", "resourceSliceCount": 1}},
        {"devices": {"name": "a"}},
        {"devices": [device(attributes={"x": {"int": "1"}})]},
        {"devices": [device(attributes={"x": {"int": 2**63}})]},
        {"devices": [device(capacity={"memory": {"value": "96GiB"}})]},
    ],
)
async def test_a_value_of_a_wrong_type_is_400(server: Server, spec: Obj) -> None:
    answer = await server.post(SLICES, device_slice(server, **spec), dryRun="All")
    assert (answer.status, answer.reason) == (400, "BadRequest")


@pytest.mark.parametrize(("field", "value"), [("driver", "dra.net"), ("nodeName", "b"), ("pool", "b")])
async def test_slice_driver_node_and_pool_are_immutable(server: Server, field: str, value: str) -> None:
    made = await server.made(SLICES, device_slice(server))
    changed = copy.deepcopy(made)
    if field == "pool":
        changed["spec"]["pool"]["name"] = value
    else:
        changed["spec"][field] = value
    answer = await server.put(f"{SLICES}/{made['metadata']['name']}", changed)
    path = "spec.pool.name" if field == "pool" else f"spec.{field}"
    assert (answer.status, answer.causes) == (422, {("FieldValueInvalid", path)})


async def test_slices_are_selected_by_node_and_driver(server: Server) -> None:
    for name, driver in (("a", DRIVER), ("b", "dra.net")):
        await server.made(SLICES, device_slice(server, name, driver=driver))
    own = f"{server.namespace}-a"
    found = (await server.get(SLICES, fieldSelector=f"spec.nodeName={own},spec.driver={DRIVER}")).body["items"]
    assert [entry["metadata"]["name"] for entry in found] == [own]
    none = await server.get(SLICES, fieldSelector=f"spec.nodeName={own},spec.driver=dra.net")
    assert none.body["items"] == []
    assert (await server.get(SLICES, fieldSelector="spec.pool.name=x")).status in (200, 400)  # 1.37 added this one
    assert (await server.get(SLICES, fieldSelector="spec.devices=x")).status == 400


async def test_slices_of_a_node_are_deleted_together(server: Server) -> None:
    for name in ("a", "b"):
        await server.made(SLICES, device_slice(server, name))
    answer = await server.delete(SLICES, fieldSelector=f"spec.nodeName={server.namespace}-a")
    assert answer.status == 200
    assert (await server.get(f"{SLICES}/{server.namespace}-a")).status == 404
    assert (await server.get(f"{SLICES}/{server.namespace}-b")).status == 200


async def test_slice_watch_by_node_sees_only_that_node(server: Server) -> None:
    version = (await server.get(SLICES)).body["metadata"]["resourceVersion"]
    selector = f"spec.nodeName={server.namespace}-b"
    async with server.watch(SLICES, fieldSelector=selector, resourceVersion=version) as watch:
        await server.made(SLICES, device_slice(server, "a"))
        await server.made(SLICES, device_slice(server, "b"))
        await server.delete(f"{SLICES}/{server.namespace}-b")
        events = [await watch.next() for _ in range(2)]
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [
        ("ADDED", f"{server.namespace}-b"),
        ("DELETED", f"{server.namespace}-b"),
    ]


async def test_a_deleted_slice_is_returned(server: Server) -> None:
    made = await server.made(SLICES, device_slice(server))
    answer = await server.delete(f"{SLICES}/{made['metadata']['name']}")
    assert (answer.body["kind"], answer.body["metadata"]["uid"]) == ("ResourceSlice", made["metadata"]["uid"])


# Claims


async def test_a_claim_gets_defaults_and_no_status(server: Server) -> None:
    request = {"name": "neurons", "exactly": {"deviceClassName": DRIVER}}
    body = {**claim(), "spec": claim_spec(request), "status": {"allocation": allocation("neuron-device-0")}}
    made = await server.made(server.place("resourceclaims"), body)
    exact = made["spec"]["devices"]["requests"][0]["exactly"]
    assert exact == {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1}
    assert made["status"] == {}
    assert "generation" not in made["metadata"]


async def test_the_spec_of_a_claim_is_immutable(server: Server) -> None:
    await server.made(server.place("resourceclaims"), claim())
    patch: dict[str, Any] = {"spec": {"devices": {"requests": []}}}
    answer = await server.patch(f"{server.place('resourceclaims')}/c", patch)
    assert (answer.status, answer.causes) == (422, {("FieldValueInvalid", "spec")})
    labelled = await server.patch(f"{server.place('resourceclaims')}/c", {"metadata": {"labels": {"a": "b"}}})
    assert labelled.status == 200


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        (
            claim_spec({"name": "A", "exactly": {"deviceClassName": DRIVER}}),
            {("FieldValueInvalid", "requests[0].name")},
        ),
        (claim_spec({"name": "r"}), {("FieldValueRequired", "requests[0]")}),
        (claim_spec({"name": "r", "exactly": {}}), {("FieldValueRequired", "requests[0].exactly.deviceClassName")}),
        (
            claim_spec({"name": "r", "exactly": {"deviceClassName": DRIVER, "count": -1}}),
            {("FieldValueInvalid", "requests[0].exactly.count")},
        ),
        (claim_spec(constraints=[{"matchAttribute": "row"}]), {("FieldValueInvalid", "constraints[0].matchAttribute")}),
        (
            claim_spec(constraints=[{"requests": ["x"], "matchAttribute": f"{DRIVER}/row"}]),
            {("FieldValueInvalid", "constraints[0].requests[0]")},
        ),
        (
            claim_spec(config=[{"opaque": {"driver": DRIVER, "parameters": "lnc"}}]),
            {("FieldValueInvalid", "config[0].opaque.parameters")},
        ),
        (
            claim_spec({"name": "r", "exactly": {"deviceClassName": DRIVER, "adminAccess": True}}),
            {("FieldValueForbidden", "requests[0].adminAccess")},
        ),
    ],
)
async def test_invalid_claim_is_422_with_the_field(server: Server, spec: Obj, causes: set[tuple[str, str]]) -> None:
    answer = await server.post(server.place("resourceclaims"), {**claim(), "spec": spec}, dryRun="All")
    assert (answer.status, answer.causes) == (422, {(reason, f"spec.devices.{path}") for reason, path in causes})


async def test_admin_access_needs_a_labelled_namespace(server: Server) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    assert (await server.patch(f"/api/v1/namespaces/{server.namespace}", label)).status == 200
    request = {"name": "r", "exactly": {"deviceClassName": DRIVER, "adminAccess": True}}
    made = await server.made(server.place("resourceclaims"), {**claim(), "spec": claim_spec(request)})
    assert made["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] is True


async def test_the_status_of_a_claim_follows_rules(server: Server) -> None:
    path = f"{server.place('resourceclaims')}/c/status"
    await server.made(server.place("resourceclaims"), claim())
    me = {"resource": "pods", "name": "p", "uid": "11111111-2222-4333-8444-555555555555"}

    early = await server.patch(path, {"status": {"reservedFor": [me]}})
    assert (early.status, early.causes) == (422, {("FieldValueForbidden", "status.reservedFor")})
    allocated = await server.patch(path, {"status": {"allocation": allocation("neuron-device-0")}})
    assert allocated.body["status"]["allocation"] == allocation("neuron-device-0")
    other = await server.patch(path, {"status": {"allocation": allocation("neuron-device-1")}})
    assert (other.status, other.causes) == (422, {("FieldValueInvalid", "status.allocation")})
    foreign = [{"driver": DRIVER, "pool": "a", "device": "neuron-device-7"}]
    answer = await server.patch(path, {"status": {"devices": foreign}})
    assert (answer.status, answer.causes) == (422, {("FieldValueInvalid", "status.devices[0]")})
    own = [{"driver": DRIVER, "pool": "a", "device": "neuron-device-0", "data": {"serial": "7"}}]
    assert (await server.patch(path, {"status": {"devices": own}})).body["status"]["devices"] == [
        {**own[0], "conditions": None}
    ]
    freed = await server.patch(path, {"status": {"allocation": None, "devices": None}})
    assert freed.body["status"] == {}


async def test_class_has_a_generation_and_is_mutable(server: Server) -> None:
    path, name = f"{DRA}/deviceclasses", f"{server.namespace}-class"
    body = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}
    assert (await server.made(path, body))["metadata"]["generation"] == 1
    changed = await server.patch(f"{path}/{name}", {"spec": {"selectors": None}})
    assert (changed.body["metadata"]["generation"], changed.body["spec"]) == (2, {})


# Claims for pods


def template(name: str = "t") -> Obj:
    meta = {"labels": {"team": "ml"}, "annotations": {"note": "x"}}
    return {"metadata": {"name": name}, "spec": {"metadata": meta, "spec": claim_spec()}}


async def generated(server: Server, name: str = "p") -> Obj:
    """Return the generated claim of a pod."""
    answer = await server.until(
        f"{server.place('pods')}/{name}", lambda found: found.body["status"].get("resourceClaimStatuses")
    )
    (entry,) = answer.body["status"]["resourceClaimStatuses"]
    assert entry["name"] == "devices"
    return dict((await server.get(f"{server.place('resourceclaims')}/{entry['resourceClaimName']}")).body)


@pytest.mark.usefixtures("newest")
async def test_a_pod_gets_a_claim_from_its_template(server: Server) -> None:
    await server.made(server.place("resourceclaimtemplates"), template())
    owner = await server.made(server.place("pods"), pod_with_claim(resourceClaimTemplateName="t"))
    found = await generated(server)
    assert found["metadata"]["name"].startswith("p-devices-")
    assert len(found["metadata"]["name"]) == len("p-devices-") + 5
    assert found["metadata"]["annotations"] == {"note": "x", CLAIM_NAME: "devices"}
    assert found["metadata"]["labels"] == {"team": "ml"}
    assert found["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "p",
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
    ]
    assert found["spec"]["devices"]["requests"][0]["exactly"]["count"] == 4


async def test_late_template_is_found(server: Server) -> None:
    await server.made(server.place("pods"), pod_with_claim(resourceClaimTemplateName="t"))
    await server.made(server.place("resourceclaimtemplates"), template())
    # The controller syncs the pod again after a pause, or when the pod changes.
    await server.patch(f"{server.place('pods')}/p", {"metadata": {"labels": {"touched": "yes"}}})
    assert (await generated(server))["spec"]["devices"]["requests"]


async def test_claim_of_a_deleted_pod_is_deleted(server: Server) -> None:
    await server.made(server.place("resourceclaimtemplates"), template())
    await server.made(server.place("pods"), pod_with_claim(resourceClaimTemplateName="t"))
    name = (await generated(server))["metadata"]["name"]
    assert (await server.delete(f"{server.place('pods')}/p")).status == 200
    await server.until(f"{server.place('resourceclaims')}/{name}", lambda answer: answer.status == 404)


async def allocate(server: Server, name: str, *pods: Obj) -> None:
    """Allocate a claim and reserve it, as a scheduler does: the finalizer first."""
    path = f"{server.place('resourceclaims')}/{name}"
    assert (await server.patch(path, {"metadata": {"finalizers": [PROTECTION]}})).status == 200
    users = [{"resource": "pods", "name": p["metadata"]["name"], "uid": p["metadata"]["uid"]} for p in pods]
    status = {"allocation": allocation("neuron-device-0"), "reservedFor": users or None}
    answer = await server.patch(f"{path}/status", {"status": status})
    assert answer.status == 200, answer.body


async def test_claim_of_a_finished_pod_is_deallocated(server: Server) -> None:
    await server.made(server.place("resourceclaims"), claim())
    made = await server.made(server.place("pods"), pod_with_claim(resourceClaimName="c"))
    await allocate(server, "c", made)
    assert (await bind(server, "p", await node(server))).status == 201

    await server.patch(f"{server.place('pods')}/p/status", {"status": {"phase": "Succeeded"}})

    freed = await server.until(
        f"{server.place('resourceclaims')}/c", lambda answer: "finalizers" not in answer.body["metadata"]
    )
    assert freed.body["status"] == {}


async def test_claim_stays_allocated_while_a_pod_runs(server: Server) -> None:
    await server.made(server.place("resourceclaims"), claim())
    first = await server.made(server.place("pods"), pod_with_claim("p", resourceClaimName="c"))
    second = await server.made(server.place("pods"), pod_with_claim("q", resourceClaimName="c"))
    await allocate(server, "c", first, second)

    await server.delete(f"{server.place('pods')}/p")

    kept = await server.until(
        f"{server.place('resourceclaims')}/c", lambda answer: len(answer.body["status"]["reservedFor"]) == 1
    )
    assert kept.body["status"]["reservedFor"][0]["name"] == "q"
    assert kept.body["status"]["allocation"] == allocation("neuron-device-0")


async def test_claim_in_use_is_deleted_when_free(server: Server) -> None:
    await server.made(server.place("resourceclaims"), claim())
    made = await server.made(server.place("pods"), pod_with_claim(resourceClaimName="c"))
    await allocate(server, "c", made)
    assert (await server.delete(f"{server.place('resourceclaims')}/c")).status == 200
    held = (await server.get(f"{server.place('resourceclaims')}/c")).body
    assert held["metadata"]["deletionTimestamp"]
    assert held["status"]["allocation"]
    await server.delete(f"{server.place('pods')}/p")
    await server.until(f"{server.place('resourceclaims')}/c", lambda answer: answer.status == 404)


async def test_generated_claim_of_finished_pod_is_deleted(server: Server) -> None:
    await server.made(server.place("resourceclaimtemplates"), template())
    made = await server.made(server.place("pods"), pod_with_claim(resourceClaimTemplateName="t"))
    name = (await generated(server))["metadata"]["name"]
    await allocate(server, name, made)
    assert (await bind(server, "p", await node(server))).status == 201
    await server.patch(f"{server.place('pods')}/p/status", {"status": {"phase": "Failed"}})
    await server.until(f"{server.place('resourceclaims')}/{name}", lambda answer: answer.status == 404)


async def test_claim_is_reserved_for_a_manually_bound_pod(server: Server) -> None:
    await server.made(server.place("resourceclaims"), claim())
    made = await server.made(server.place("pods"), pod_with_claim(resourceClaimName="c"))
    await allocate(server, "c")
    assert (await bind(server, "p", await node(server))).status == 201
    found = await server.until(
        f"{server.place('resourceclaims')}/c", lambda answer: answer.body["status"].get("reservedFor")
    )
    mine = {"resource": "pods", "name": "p", "uid": made["metadata"]["uid"]}
    assert found.body["status"]["reservedFor"] == [mine]


# Owners


async def test_object_is_deleted_with_its_owner(server: Server) -> None:
    owner = await server.made(server.place("configmaps"), {"metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    for name in ("a", "b"):
        await server.made(server.place("configmaps"), {"metadata": {"name": name, "ownerReferences": [reference]}})
    await server.delete(f"{server.place('configmaps')}/owner")
    for name in ("a", "b"):
        await server.until(f"{server.place('configmaps')}/{name}", lambda answer: answer.status == 404)


async def test_slice_is_deleted_with_its_node(server: Server) -> None:
    name = await node(server)
    uid = (await server.get(f"/api/v1/nodes/{name}")).body["metadata"]["uid"]
    body = device_slice(server)
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": True}
    ]
    made = await server.made(SLICES, body)
    await server.delete(f"/api/v1/nodes/{name}")
    await server.until(f"{SLICES}/{made['metadata']['name']}", lambda answer: answer.status == 404)


async def test_object_with_unknown_owner_is_deleted(server: Server) -> None:
    name = await node(server)
    body = device_slice(server)
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": name, "uid": "11111111-2222-4333-8444-555555555555"}
    ]
    made = await server.made(SLICES, body)
    await server.until(f"{SLICES}/{made['metadata']['name']}", lambda answer: answer.status == 404)


async def test_one_existing_owner_keeps_an_object(server: Server) -> None:
    references = []
    for name in ("x", "y"):
        owner = await server.made(server.place("configmaps"), {"metadata": {"name": name}})
        references.append({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner["metadata"]["uid"]})
    await server.made(server.place("configmaps"), {"metadata": {"name": "a", "ownerReferences": references}})
    await server.delete(f"{server.place('configmaps')}/x")
    left = await server.until(
        f"{server.place('configmaps')}/a", lambda answer: len(answer.body["metadata"]["ownerReferences"]) == 1
    )
    assert left.body["metadata"]["ownerReferences"] == references[1:]


async def test_orphan_policy_keeps_dependents(server: Server) -> None:
    owner = await server.made(server.place("configmaps"), {"metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    await server.made(server.place("configmaps"), {"metadata": {"name": "a", "ownerReferences": [reference]}})
    await server.delete(f"{server.place('configmaps')}/owner", propagationPolicy="Orphan")
    await server.until(f"{server.place('configmaps')}/owner", lambda answer: answer.status == 404)
    kept = await server.get(f"{server.place('configmaps')}/a")
    assert "ownerReferences" not in kept.body["metadata"]


async def test_foreground_deletion_waits_for_dependents(server: Server) -> None:
    place = server.place("configmaps")
    owner = await server.made(place, {"metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"],
                 "blockOwnerDeletion": True}  # fmt: skip
    owned = {"name": "a", "ownerReferences": [reference], "finalizers": ["neuron.aws.com/keep"]}
    await server.made(place, {"metadata": owned})
    await server.delete(f"{place}/owner", propagationPolicy="Foreground")
    await server.until(f"{place}/a", lambda answer: answer.body["metadata"].get("deletionTimestamp"))
    held = (await server.get(f"{place}/owner")).body
    assert held["metadata"]["finalizers"] == ["foregroundDeletion"]
    await server.patch(f"{place}/a", {"metadata": {"finalizers": None}})
    await server.until(f"{place}/owner", lambda answer: answer.status == 404)


# Pods


async def test_a_pod_is_bound_once(server: Server) -> None:
    name = await node(server)
    await server.made(server.place("pods"), pod())
    assert (await bind(server, "p", name)).status == 201
    bound = (await server.get(f"{server.place('pods')}/p")).body
    assert bound["spec"]["nodeName"] == name
    scheduled = [entry for entry in bound["status"]["conditions"] if entry["type"] == "PodScheduled"]
    assert [entry["status"] for entry in scheduled] == ["True"]
    answer = await bind(server, "p", name)
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_pods_are_selected_by_node_and_phase(server: Server) -> None:
    name = await node(server)
    for pod_name in ("p", "q"):
        await server.made(server.place("pods"), pod(pod_name))
    await bind(server, "q", name)
    await server.patch(f"{server.place('pods')}/q/status", {"status": {"phase": "Running"}})
    for selector, names in (
        (f"spec.nodeName={name}", ["q"]),
        ("spec.nodeName=", ["p"]),
        ("status.phase=Pending", ["p"]),
        ("status.phase!=Pending,spec.nodeName!=", ["q"]),
    ):
        found = (await server.get(server.place("pods"), fieldSelector=selector)).body["items"]
        assert [entry["metadata"]["name"] for entry in found] == names


async def test_bound_pod_is_deleted_by_its_kubelet(server: Server) -> None:
    name = await node(server)
    await server.made(server.place("pods"), pod("p"))
    await server.delete(f"{server.place('pods')}/p")
    assert (await server.get(f"{server.place('pods')}/p")).status == 404

    await server.made(server.place("pods"), pod("q"))
    await bind(server, "q", name)
    await server.delete(f"{server.place('pods')}/q")
    ending = (await server.get(f"{server.place('pods')}/q")).body
    assert ending["metadata"]["deletionTimestamp"]
    assert ending["metadata"]["deletionGracePeriodSeconds"] == 30
    await server.delete(f"{server.place('pods')}/q", {"gracePeriodSeconds": 0})
    assert (await server.get(f"{server.place('pods')}/q")).status == 404


async def test_the_spec_of_a_pod_cannot_change(server: Server) -> None:
    await server.made(server.place("pods"), pod())
    answer = await server.patch(f"{server.place('pods')}/p", {"spec": {"nodeName": "elsewhere"}})
    assert (answer.status, answer.causes) == (422, {("FieldValueForbidden", "spec")})


@pytest.mark.parametrize(
    ("claims", "cause"),
    [
        ([{"name": "devices"}], ("FieldValueInvalid", "spec.resourceClaims[0]")),
        (
            [{"name": "other", "resourceClaimName": "c"}],
            ("FieldValueNotFound", "spec.containers[0].resources.claims[0]"),
        ),
        ([{"name": "devices", "resourceClaimName": "c"}] * 2, ("FieldValueDuplicate", "spec.resourceClaims[1].name")),
    ],
)  # fmt: skip
async def test_invalid_pod_claims_are_rejected(server: Server, claims: list[Obj], cause: tuple[str, str]) -> None:
    body = pod_with_claim(resourceClaimName="c")
    body["spec"]["resourceClaims"] = claims
    answer = await server.post(server.place("pods"), body, dryRun="All")
    assert (answer.status, answer.causes) == (422, {cause})


# Evictions


async def running(server: Server, name: str) -> None:
    """A pod that is ready, on a node without kubelet."""
    await server.made(server.place("pods"), pod(name, labels={"app": "job"}))
    assert (await bind(server, name, f"{server.namespace}-node")).status == 201
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    assert (await server.patch(f"{server.place('pods')}/{name}/status", {"status": status})).status == 200


async def budget(server: Server, allowed: int, healthy: int, **spec: Any) -> None:
    """Create a budget for the pods of `running`, and wait until its status counts `healthy` of them.

    The first status may be from before the pods, because the server's controller has caches of its own.
    """
    body = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "job"}}, **spec}}
    await server.made(server.place("poddisruptionbudgets"), body)

    def counted(answer: Answer) -> bool:
        status = answer.body.get("status") or {}
        counts = tuple(status.get(name) for name in ("observedGeneration", "disruptionsAllowed", "currentHealthy"))
        return counts == (1, allowed, healthy)

    await server.until(f"{server.place('poddisruptionbudgets')}/b", counted)


async def evict(server: Server, name: str, **options: Any) -> Answer:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": server.namespace}}
    return await server.post(f"{server.place('pods')}/{name}/eviction", {**body, **options})


async def test_an_eviction_deletes_the_pod(server: Server) -> None:
    await node(server)
    await running(server, "p")
    answer = await evict(server, "p")
    assert (answer.status, answer.body["status"]) == (201, "Success")
    assert (await server.get(f"{server.place('pods')}/p")).body["metadata"]["deletionTimestamp"]
    assert (await evict(server, "none")).status == 404


async def test_eviction_error_names_the_budget(server: Server) -> None:
    await node(server)
    await running(server, "p")
    await budget(server, 0, 1, minAvailable=1)
    answer = await evict(server, "p")
    assert (answer.status, answer.reason) == (429, "TooManyRequests")
    assert answer.body["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    (cause,) = answer.body["details"]["causes"]
    assert cause["reason"] == "DisruptionBudget"
    assert cause["message"] == "The disruption budget b needs 1 healthy pods and has 1 currently"
    assert "deletionTimestamp" not in (await server.get(f"{server.place('pods')}/p")).body["metadata"]


async def test_a_budget_is_spent_by_evictions(server: Server) -> None:
    await node(server)
    for name in ("p", "q"):
        await running(server, name)
    await budget(server, 1, 2, minAvailable=1)
    assert (await evict(server, "p", deleteOptions={"dryRun": ["All"]})).status == 201
    assert (await evict(server, "p")).status == 201
    assert (await evict(server, "q")).status == 429


async def test_eviction_of_a_pending_pod_needs_no_budget(server: Server) -> None:
    await server.made(server.place("pods"), pod("p", labels={"app": "job"}))
    await budget(server, 0, 0, minAvailable=1)
    assert (await evict(server, "p")).status == 201
    assert (await server.get(f"{server.place('pods')}/p")).status == 404


# Namespaces


async def test_namespace_deletion_deletes_its_objects(server: Server) -> None:
    name = f"{server.namespace}-2"
    await server.made("/api/v1/namespaces", {"metadata": {"name": name}})
    place = f"/api/v1/namespaces/{name}/configmaps"
    body = {"metadata": {"name": "a", "finalizers": ["neuron.aws.com/keep"]}}
    await server.made(place, body)
    await server.delete(f"/api/v1/namespaces/{name}")
    ending = await server.until(f"{place}/a", lambda answer: answer.body.get("metadata", {}).get("deletionTimestamp"))
    assert ending.status == 200
    refused = await server.post(place, {"metadata": {"name": "b"}})
    assert (refused.status, refused.reason) == (403, "Forbidden")
    assert ("NamespaceTerminating", "metadata.namespace") in refused.causes
    await server.patch(f"{place}/a", {"metadata": {"finalizers": None}})
    await server.until(f"/api/v1/namespaces/{name}", lambda answer: answer.status == 404)
