"""Objects, versions, lists, watches and patches on a real API server and on the embedded one.

One suite, two servers. A difference is a bug of the embedded server.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from neuron_dra.core.wire import Obj
from tests.contract.api_client import SLICES, THINGS_GROUP, Server


def config_map(name: str, **data: str) -> Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def thing(name: str, version: str = "v1beta1", **spec: Any) -> Obj:
    return {"apiVersion": f"{THINGS_GROUP}/{version}", "kind": "Thing", "metadata": {"name": name}, "spec": spec}


def without_bookkeeping(obj: Obj) -> Obj:
    meta = {key: value for key, value in obj["metadata"].items() if key not in ("managedFields", "resourceVersion")}
    return {**obj, "metadata": meta}


# Discovery


async def test_discovery_lists_resource_group_versions(server: Server) -> None:
    answer = await server.get("/apis/resource.k8s.io")
    assert {entry["version"] for entry in answer.body["versions"]} >= {"v1"}
    assert answer.body["preferredVersion"] == {"groupVersion": "resource.k8s.io/v1", "version": "v1"}
    listed = await server.get("/apis/resource.k8s.io/v1")
    slices = next(entry for entry in listed.body["resources"] if entry["name"] == "resourceslices")
    assert (slices["namespaced"], slices["kind"]) == (False, "ResourceSlice")
    assert set(slices["verbs"]) == {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
    groups = {entry["name"] for entry in (await server.get("/apis")).body["groups"]}
    assert {"apps", "coordination.k8s.io", "policy", "resource.k8s.io"} <= groups
    assert (await server.get("/api")).body["versions"] == ["v1"]


async def test_server_reports_version_and_readiness(server: Server) -> None:
    version = (await server.get("/version")).body
    assert version["major"] == "1"
    assert version["gitVersion"].startswith("v1.")
    assert (await server.get("/readyz")).body == {"raw": "ok"}


@pytest.mark.parametrize("path", ["/apis/no.such.group", "/apis/no.such.group/v1/x", "/x"])
async def test_an_unknown_path_is_404_without_a_status(server: Server, path: str) -> None:
    answer = await server.get(path)
    assert (answer.status, answer.body) == (404, {"raw": "404 page not found\n"})


@pytest.mark.parametrize("path", ["/apis/resource.k8s.io/v7", "/apis/resource.k8s.io/v7/x", "/api/v1/nosuch"])
async def test_an_unknown_kind_of_a_built_in_group_is_a_status_without_a_name(server: Server, path: str) -> None:
    answer = await server.get(path)
    assert (answer.status, answer.reason) == (404, "NotFound")
    assert "name" not in answer.body.get("details", {})


# Create and read


async def test_create_sets_metadata(server: Server) -> None:
    made = await server.made(server.place("configmaps"), config_map("a", x="1"))
    meta = made["metadata"]
    assert {"uid", "resourceVersion", "creationTimestamp"} <= set(meta)
    assert meta["creationTimestamp"].endswith("Z")
    assert (meta["name"], meta["namespace"]) == ("a", server.namespace)
    assert "generation" not in meta
    got = await server.get(f"{server.place('configmaps')}/a")
    assert without_bookkeeping(got.body) == without_bookkeeping(made)


async def test_creating_twice_is_409_already_exists(server: Server) -> None:
    await server.made(server.place("configmaps"), config_map("a"))
    answer = await server.post(server.place("configmaps"), config_map("a"))
    assert (answer.status, answer.reason) == (409, "AlreadyExists")
    assert answer.body["message"] == 'configmaps "a" already exists'
    assert answer.body["details"] == {"name": "a", "kind": "configmaps"}


async def test_a_missing_object_is_404_with_its_name(server: Server) -> None:
    answer = await server.get(f"{SLICES}/no-such-slice")
    assert (answer.status, answer.reason) == (404, "NotFound")
    assert answer.body["message"] == 'resourceslices.resource.k8s.io "no-such-slice" not found'
    assert answer.body["details"] == {"name": "no-such-slice", "group": "resource.k8s.io", "kind": "resourceslices"}


async def test_a_namespace_must_exist(server: Server) -> None:
    answer = await server.post(f"/api/v1/namespaces/{server.namespace}-x/configmaps", config_map("a"))
    assert (answer.status, answer.reason) == (404, "NotFound")
    assert answer.body["message"] == f'namespaces "{server.namespace}-x" not found'


async def test_generate_name_makes_names(server: Server) -> None:
    body = config_map("")
    body["metadata"] = {"generateName": "job-"}
    names = [(await server.made(server.place("configmaps"), body))["metadata"]["name"] for _ in range(3)]
    assert len(set(names)) == 3
    assert all(name.startswith("job-") and len(name) == len("job-") + 5 for name in names)


async def test_a_long_generate_name_is_cut(server: Server) -> None:
    body = config_map("")
    body["metadata"] = {"generateName": "x" * 70}
    assert len((await server.made(server.place("configmaps"), body))["metadata"]["name"]) == 63


@pytest.mark.parametrize(
    ("meta", "cause"),
    [
        ({}, ("FieldValueRequired", "metadata.name")),
        ({"name": "Upper"}, ("FieldValueInvalid", "metadata.name")),
        ({"name": "a_b"}, ("FieldValueInvalid", "metadata.name")),
    ],
)
async def test_a_bad_name_is_422_with_the_field(server: Server, meta: Obj, cause: tuple[str, str]) -> None:
    body = config_map("")
    body["metadata"] = meta
    answer = await server.post(server.place("configmaps"), body)
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert cause in answer.causes


async def test_a_body_of_another_kind_is_400(server: Server) -> None:
    answer = await server.post(server.place("configmaps"), {**config_map("a"), "kind": "Secret"})
    assert (answer.status, answer.reason) == (400, "BadRequest")


async def test_namespace_of_body_and_path_must_match(server: Server) -> None:
    body = config_map("a")
    body["metadata"]["namespace"] = "default"
    answer = await server.post(server.place("configmaps"), body)
    assert (answer.status, answer.reason) == (400, "BadRequest")


async def test_malformed_json_is_400(server: Server) -> None:
    answer = await server.call("POST", server.place("configmaps"), b"{not json")
    assert (answer.status, answer.reason) == (400, "BadRequest")


async def test_yaml_is_understood(server: Server) -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {when: '2026-01-01'}\n"
    answer = await server.call("POST", server.place("configmaps"), text, content_type="application/yaml")
    assert (answer.status, answer.body["data"]) == (201, {"when": "2026-01-01"})


async def test_a_dry_run_checks_and_changes_nothing(server: Server) -> None:
    answer = await server.post(server.place("configmaps"), config_map("a"), dryRun="All")
    assert answer.status == 201
    assert (await server.get(f"{server.place('configmaps')}/a")).status == 404
    await server.made(server.place("configmaps"), config_map("a", x="1"))
    changed = await server.put(f"{server.place('configmaps')}/a", config_map("a", x="2"), dryRun="All")
    assert (changed.status, changed.body["data"]) == (200, {"x": "2"})
    assert (await server.delete(f"{server.place('configmaps')}/a", dryRun="All")).status == 200
    assert (await server.get(f"{server.place('configmaps')}/a")).body["data"] == {"x": "1"}


# Update


async def test_stale_resource_version_is_a_conflict(server: Server) -> None:
    path = f"{server.place('configmaps')}/a"
    first = await server.made(server.place("configmaps"), config_map("a", x="1"))
    changed = {**copy.deepcopy(first), "data": {"x": "2"}}
    assert (await server.put(path, changed)).status == 200
    answer = await server.put(path, changed)
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert answer.body["message"] == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


async def test_put_without_version_overwrites_builtin_kinds(server: Server) -> None:
    await server.made(server.place("configmaps"), config_map("a", x="1"))
    answer = await server.put(f"{server.place('configmaps')}/a", config_map("a", y="2"))
    assert (answer.status, answer.body["data"]) == (200, {"y": "2"})


async def test_put_without_version_fails_for_crs_and_leases(things: Server) -> None:
    await things.made(things.place("things"), thing("a"))
    answer = await things.put(f"{things.place('things')}/a", thing("a", x=1))
    assert (answer.status, answer.causes) == (422, {("FieldValueInvalid", "metadata.resourceVersion")})
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {}}
    await things.made(things.place("leases"), lease)
    answer = await things.put(f"{things.place('leases')}/l", {**lease, "spec": {"holderIdentity": "x"}})
    assert (answer.status, answer.causes) == (422, {("FieldValueInvalid", "metadata.resourceVersion")})


async def test_a_put_of_a_missing_object_is_404(server: Server) -> None:
    answer = await server.put(f"{server.place('configmaps')}/a", config_map("a"))
    assert (answer.status, answer.reason) == (404, "NotFound")


async def test_a_put_must_name_the_object_of_the_path(server: Server) -> None:
    await server.made(server.place("configmaps"), config_map("a"))
    answer = await server.put(f"{server.place('configmaps')}/a", config_map("b"))
    assert (answer.status, answer.reason) == (400, "BadRequest")


async def test_a_put_with_another_uid_is_409(server: Server) -> None:
    made = await server.made(server.place("configmaps"), config_map("a"))
    made["metadata"]["uid"] = "11111111-2222-4333-8444-555555555555"
    answer = await server.put(f"{server.place('configmaps')}/a", made)
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_an_equal_put_is_no_write(server: Server) -> None:
    made = await server.made(server.place("configmaps"), config_map("a", x="1"))
    answer = await server.put(f"{server.place('configmaps')}/a", made)
    assert answer.body["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


# Patch


async def test_a_merge_patch_sets_and_removes_fields(server: Server) -> None:
    await server.made(server.place("configmaps"), config_map("a", x="1", y="2"))
    patch = {"data": {"x": None, "z": "3"}, "metadata": {"labels": {"app": "a"}}}
    answer = await server.patch(f"{server.place('configmaps')}/a", patch)
    assert (answer.status, answer.body["data"]) == (200, {"y": "2", "z": "3"})
    assert answer.body["metadata"]["labels"] == {"app": "a"}


async def test_a_merge_patch_replaces_lists(things: Server) -> None:
    await things.made(things.place("things"), thing("a", items=[1, 2, 3]))
    answer = await things.patch(f"{things.place('things')}/a", {"spec": {"items": [4]}})
    assert answer.body["spec"] == {"items": [4]}


async def test_patch_with_stale_version_is_a_conflict(server: Server) -> None:
    made = await server.made(server.place("configmaps"), config_map("a"))
    path = f"{server.place('configmaps')}/a"
    patch = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"x": "1"}}
    assert (await server.patch(path, patch)).status == 200
    answer = await server.patch(path, {**patch, "data": {"x": "2"}})
    assert (answer.status, answer.reason) == (409, "Conflict")


async def test_a_patch_of_a_missing_object_is_404(server: Server) -> None:
    answer = await server.patch(f"{server.place('configmaps')}/a", {"data": {"x": "1"}})
    assert (answer.status, answer.reason) == (404, "NotFound")


async def test_a_patch_in_an_unknown_format_is_415(server: Server) -> None:
    await server.made(server.place("configmaps"), config_map("a"))
    answer = await server.patch(f"{server.place('configmaps')}/a", {"data": {}}, "application/json")
    assert (answer.status, answer.reason) == (415, "UnsupportedMediaType")


# Status and generation


async def test_status_and_spec_are_written_apart(things: Server) -> None:
    path = f"{things.place('things')}/a"
    made = await things.made(things.place("things"), {**thing("a", size=1), "status": {"state": "Made"}})
    assert "status" not in made
    assert made["metadata"]["generation"] == 1

    made = (await things.patch(f"{path}/status", {"spec": {"size": 9}, "status": {"state": "Pending"}})).body
    assert (made["spec"], made["status"], made["metadata"]["generation"]) == ({"size": 1}, {"state": "Pending"}, 1)

    made = (await things.patch(path, {"spec": {"size": 2}, "status": {"state": "Lost"}})).body
    assert (made["spec"], made["status"], made["metadata"]["generation"]) == ({"size": 2}, {"state": "Pending"}, 2)

    made = (await things.patch(path, {"metadata": {"labels": {"app": "a"}}})).body
    assert made["metadata"]["generation"] == 2


async def test_a_status_write_changes_no_labels(things: Server) -> None:
    made = await things.made(things.place("things"), thing("a"))
    made["metadata"]["labels"] = {"app": "a"}
    made["status"] = {"state": "Pending"}
    answer = await things.put(f"{things.place('things')}/a/status", made)
    assert (answer.status, answer.body["status"]) == (200, {"state": "Pending"})
    assert "labels" not in answer.body["metadata"]


async def test_custom_object_is_served_in_both_versions(things: Server) -> None:
    await things.made(things.place("things"), thing("a", size=1))
    other = things.place("things").replace("v1beta1", "v1") + "/a"
    answer = await things.get(other)
    assert (answer.body["apiVersion"], answer.body["spec"]) == (f"{THINGS_GROUP}/v1", {"size": 1})
    changed = await things.patch(other, {"spec": {"size": 2}})
    assert changed.status == 200
    stored = (await things.get(f"{things.place('things')}/a")).body
    assert (stored["apiVersion"], stored["spec"]) == (f"{THINGS_GROUP}/v1beta1", {"size": 2})


async def test_node_is_created_with_its_status(server: Server) -> None:
    body = {"metadata": {"name": f"{server.namespace}-n"}, "status": {"capacity": {"cpu": "4"}}}
    assert (await server.made("/api/v1/nodes", body))["status"]["capacity"] == {"cpu": "4"}


# Delete


async def test_deleted_object_is_not_found(server: Server) -> None:
    made = await server.made(server.place("configmaps"), config_map("a"))
    answer = await server.delete(f"{server.place('configmaps')}/a")
    assert (answer.status, answer.body["kind"], answer.body["status"]) == (200, "Status", "Success")
    assert answer.body["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert (await server.get(f"{server.place('configmaps')}/a")).status == 404
    assert (await server.delete(f"{server.place('configmaps')}/a")).status == 404


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
async def test_delete_with_wrong_precondition_is_409(server: Server, field: str) -> None:
    made = await server.made(server.place("configmaps"), config_map("a"))
    path = f"{server.place('configmaps')}/a"
    wrong = {"uid": "11111111-2222-4333-8444-555555555555", "resourceVersion": "1"}[field]
    answer = await server.delete(path, {"preconditions": {field: wrong}})
    assert (answer.status, answer.reason) == (409, "Conflict")
    answer = await server.delete(path, {"preconditions": {field: made["metadata"][field]}})
    assert answer.status == 200


async def test_a_finalizer_holds_a_deleted_object(things: Server) -> None:
    path = f"{things.place('things')}/a"
    body = thing("a")
    body["metadata"]["finalizers"] = ["neuron.aws.com/keep"]
    await things.made(things.place("things"), body)

    deleted = await things.delete(path)
    assert deleted.status == 200
    held = (await things.get(path)).body
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["deletionGracePeriodSeconds"] == 0
    assert held["metadata"]["generation"] == 2
    assert (await things.delete(path)).status == 200

    added = await things.patch(path, {"metadata": {"finalizers": ["neuron.aws.com/keep", "neuron.aws.com/new"]}})
    assert (added.status, added.causes) == (422, {("FieldValueForbidden", "metadata.finalizers")})
    assert (await things.post(things.place("things"), body)).reason == "AlreadyExists"

    freed = await things.patch(path, {"metadata": {"finalizers": None}})
    assert freed.status == 200
    assert (await things.get(path)).status == 404


async def test_delete_collection_uses_selectors(server: Server) -> None:
    for name, label in (("a", "x"), ("b", "x"), ("c", "y")):
        body = config_map(name)
        body["metadata"]["labels"] = {"app": label}
        await server.made(server.place("configmaps"), body)
    answer = await server.delete(server.place("configmaps"), labelSelector="app=x")
    assert (answer.status, answer.body["kind"]) == (200, "ConfigMapList")
    left = (await server.get(server.place("configmaps"), labelSelector="app")).body["items"]
    assert [entry["metadata"]["name"] for entry in left] == ["c"]


# Lists and selectors


async def test_list_has_kind_and_version_in_order(server: Server) -> None:
    for name in ("b", "a-2", "a"):
        await server.made(server.place("configmaps"), config_map(name))
    body = (await server.get(server.place("configmaps"))).body
    names = [entry["metadata"]["name"] for entry in body["items"] if not entry["metadata"]["name"].startswith("kube-")]
    assert (body["kind"], body["apiVersion"]) == ("ConfigMapList", "v1")
    assert int(body["metadata"]["resourceVersion"]) > 0
    assert names == ["a", "a-2", "b"]


async def test_a_list_in_pages_is_one_moment(things: Server) -> None:
    place = things.place("things")
    for name in ("a", "b", "c", "d", "e"):
        await things.made(place, thing(name))
    first = (await things.get(place, limit="2")).body
    assert [entry["metadata"]["name"] for entry in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    await things.made(place, thing("c2"))
    await things.delete(f"{place}/d")

    second = (await things.get(place, limit="2", **{"continue": first["metadata"]["continue"]})).body
    third = (await things.get(place, limit="2", **{"continue": second["metadata"]["continue"]})).body

    assert [entry["metadata"]["name"] for entry in second["items"] + third["items"]] == ["c", "d", "e"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert not third["metadata"].get("continue")


async def test_malformed_continue_token_is_400(server: Server) -> None:
    answer = await server.get(server.place("configmaps"), limit="2", **{"continue": "nonsense"})
    assert (answer.status, answer.reason) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=x", ["a"]),
        ("app!=x", ["b", "c"]),
        ("app in (x, y)", ["a", "b"]),
        ("app notin (x)", ["b", "c"]),
        ("app", ["a", "b"]),
        ("!app", ["c"]),
        ("app,tier=1", ["a"]),
        ("tier==1", ["a"]),
    ],
)
async def test_label_selectors(things: Server, selector: str, names: list[str]) -> None:
    for name, labels in (("a", {"app": "x", "tier": "1"}), ("b", {"app": "y"}), ("c", {})):
        body = thing(name)
        body["metadata"]["labels"] = labels
        await things.made(things.place("things"), body)
    found = (await things.get(things.place("things"), labelSelector=selector)).body["items"]
    assert [entry["metadata"]["name"] for entry in found] == names


async def test_field_selectors(things: Server) -> None:
    for name in ("a", "b"):
        await things.made(things.place("things"), thing(name))
    found = (await things.get(things.place("things"), fieldSelector="metadata.name=b")).body["items"]
    assert [entry["metadata"]["name"] for entry in found] == ["b"]
    found = (await things.get(things.place("things"), fieldSelector="metadata.name!=b")).body["items"]
    assert [entry["metadata"]["name"] for entry in found] == ["a"]
    answer = await things.get(things.place("things"), fieldSelector="spec.size=1")
    assert (answer.status, answer.reason) == (400, "BadRequest")


# Watches


async def test_watch_from_a_list_sees_all_later_changes(things: Server) -> None:
    place = things.place("things")
    await things.made(place, thing("old"))
    version = (await things.get(place)).body["metadata"]["resourceVersion"]
    await things.made(place, thing("a", size=1))
    async with things.watch(place, resourceVersion=version) as watch:
        await things.patch(f"{place}/a", {"spec": {"size": 2}})
        await things.delete(f"{place}/a")
        events = [await watch.next() for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert [event["object"]["spec"]["size"] for event in events] == [1, 2, 2]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))


async def test_watch_without_version_begins_with_objects(things: Server) -> None:
    place = things.place("things")
    await things.made(place, thing("a"))
    async with things.watch(place) as watch:
        assert (await watch.next())["object"]["metadata"]["name"] == "a"
        await things.made(place, thing("b"))
        event = await watch.next()
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "b")


async def test_a_watch_resumes_where_another_ended(things: Server) -> None:
    place = things.place("things")
    version = (await things.get(place)).body["metadata"]["resourceVersion"]
    for name in ("a", "b", "c"):
        await things.made(place, thing(name))
    async with things.watch(place, resourceVersion=version) as watch:
        version = (await watch.next())["object"]["metadata"]["resourceVersion"]
    async with things.watch(place, resourceVersion=version) as watch:
        names = [(await watch.next())["object"]["metadata"]["name"] for _ in range(2)]
    assert names == ["b", "c"]


async def test_a_watch_ends_after_its_timeout(things: Server) -> None:
    async with things.watch(things.place("things"), timeoutSeconds="1") as watch:
        assert await watch.rest() == []


async def test_a_watch_from_too_long_ago_gets_410(things: Server) -> None:
    if things.embedded:
        await things.made(things.place("things"), thing("a"))
        things.embedded.compact()
    async with things.watch(things.place("things"), resourceVersion="1") as watch:
        event = await watch.next()
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert event["object"]["kind"] == "Status"


async def test_a_watch_from_the_future_is_silent(things: Server) -> None:
    """After a restore of etcd, the resourceVersions that clients have reached are of the future."""
    place = things.place("things")
    version = int((await things.get(place)).body["metadata"]["resourceVersion"])
    future = {"resourceVersion": str(version + 1_000_000), "allowWatchBookmarks": "true", "timeoutSeconds": "2"}
    async with things.watch(place, **future) as ahead, things.watch(place, resourceVersion=str(version)) as watch:
        await things.made(place, thing("a"))
        assert (await watch.next())["object"]["metadata"]["name"] == "a"
        assert await ahead.rest() == []


async def test_a_streaming_list_from_the_future_ends_with_504(things: Server) -> None:
    place = things.place("things")
    version = int((await things.get(place)).body["metadata"]["resourceVersion"])
    streaming = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "timeoutSeconds": "10"}
    async with things.watch(place, resourceVersion=str(version + 1_000_000), **streaming) as watch:
        event = await watch.next()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 504)
    assert event["object"]["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_a_list_from_the_future_is_504(things: Server) -> None:
    place = things.place("things")
    version = int((await things.get(place)).body["metadata"]["resourceVersion"])
    answer = await things.get(place, resourceVersion=str(version + 1_000_000))
    assert (answer.status, answer.reason) == (504, "Timeout")
    assert answer.causes == {("ResourceVersionTooLarge", "")}
    assert answer.body["details"]["retryAfterSeconds"] == 1


async def test_object_leaving_the_selection_is_deleted(things: Server) -> None:
    place = things.place("things")
    body = thing("a")
    body["metadata"]["labels"] = {"app": "x"}
    version = (await things.get(place)).body["metadata"]["resourceVersion"]
    async with things.watch(place, labelSelector="app=x", resourceVersion=version) as watch:
        await things.made(place, thing("never"))
        await things.made(place, body)
        left = (await things.patch(f"{place}/a", {"metadata": {"labels": {"app": "y"}}})).body
        await things.patch(f"{place}/a", {"metadata": {"labels": {"app": "x"}}})
        events = [await watch.next() for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "DELETED", "ADDED"]
    assert events[1]["object"]["metadata"]["labels"] == {"app": "x"}
    assert events[1]["object"]["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]


async def test_a_watch_by_name_sees_one_object(things: Server) -> None:
    place = things.place("things")
    async with things.watch(place, fieldSelector="metadata.name=b", resourceVersion="0") as watch:
        await things.made(place, thing("a"))
        await things.made(place, thing("b"))
        assert (await watch.next())["object"]["metadata"]["name"] == "b"


async def test_streaming_list_ends_with_a_bookmark(things: Server) -> None:
    place = things.place("things")
    await things.made(place, thing("a"))
    params = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with things.watch(place, **params) as watch:
        first, second = await watch.line(), await watch.line()
    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "a")
    assert second["type"] == "BOOKMARK"
    assert second["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert int(second["object"]["metadata"]["resourceVersion"]) >= int(first["object"]["metadata"]["resourceVersion"])


async def test_a_streaming_list_needs_the_match_rule(things: Server) -> None:
    answer = await things.get(things.place("things"), watch="true", sendInitialEvents="true")
    assert (answer.status, answer.causes) == (422, {("FieldValueForbidden", "resourceVersionMatch")})


async def test_a_bookmark_carries_only_the_version(things: Server) -> None:
    place = things.place("things")
    version = (await things.get(place)).body["metadata"]["resourceVersion"]
    async with things.watch(place, resourceVersion=version, allowWatchBookmarks="true", timeoutSeconds="4") as watch:
        await things.made(place, thing("a"))
        if things.embedded:
            await asyncio.sleep(0.05)
            things.embedded.watches.bookmark("things")
        events = await watch.rest()
    bookmarks = [event["object"] for event in events if event["type"] == "BOOKMARK"]
    assert bookmarks
    assert bookmarks[-1]["kind"] == "Thing"
    assert "spec" not in bookmarks[-1] or not bookmarks[-1]["spec"]
    assert int(bookmarks[-1]["metadata"]["resourceVersion"]) >= int(events[0]["object"]["metadata"]["resourceVersion"])
