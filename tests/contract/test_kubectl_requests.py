"""What kubectl asks of an API server: tables, strategic merge patches, and what the server says of its fields.

One suite, two servers. A difference is a bug of the embedded server.
"""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dra.core.wire import Obj
from tests.contract.api_client import THINGS_GROUP, Server

TABLE = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)
STRATEGIC = "application/strategic-merge-patch+json"


def config_map(name: str, **data: str) -> Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"of": "test"}}, "data": data}


def account(*secrets: str) -> Obj:
    listed = [{"name": each} for each in secrets]
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}, "secrets": listed}


def titles(table: Obj) -> list[tuple[str, int]]:
    return [(each["name"], each["priority"]) for each in table["columnDefinitions"]]


async def test_a_list_is_a_table_if_asked(server: Server) -> None:
    maps = server.place("configmaps")
    await server.made(maps, config_map("a", x="1", y="2"))
    await server.made(maps, config_map("b"))
    answer = await server.call("GET", maps, accept=TABLE, labelSelector="of=test")
    table = answer.body
    assert (answer.status, table["kind"], table["apiVersion"]) == (200, "Table", "meta.k8s.io/v1")
    assert titles(table) == [("Name", 0), ("Data", 0), ("Age", 0)]
    assert [row["cells"][:2] for row in table["rows"]] == [["a", 2], ["b", 0]]
    assert all(row["cells"][2].endswith("s") for row in table["rows"])
    first = table["rows"][0]["object"]
    assert (first["kind"], first["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert first["metadata"]["namespace"] == server.namespace
    assert "data" not in first


async def test_pages_of_a_table_continue(server: Server) -> None:
    maps = server.place("configmaps")
    for name in ("a", "b", "c"):
        await server.made(maps, config_map(name))
    first = (await server.call("GET", maps, accept=TABLE, labelSelector="of=test", limit="2")).body
    token = first["metadata"]["continue"]
    second = (await server.call("GET", maps, accept=TABLE, labelSelector="of=test", **{"continue": token})).body
    rows = [row["cells"][0] for table in (first, second) for row in table["rows"]]
    assert rows == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("include", "kind"), [("None", None), ("Metadata", "PartialObjectMetadata"), ("Object", "ConfigMap")]
)
async def test_rows_have_the_object_that_is_asked_for(server: Server, include: str, kind: str | None) -> None:
    await server.made(server.place("configmaps"), config_map("a", x="1"))
    path = f"{server.place('configmaps')}/a"
    table = (await server.call("GET", path, accept=TABLE, includeObject=include)).body
    [row] = table["rows"]
    assert row["cells"][:2] == ["a", 1]
    assert (row.get("object") or {}).get("kind") == kind


async def test_an_unknown_inclusion_is_400(server: Server) -> None:
    answer = await server.call("GET", server.place("configmaps"), accept=TABLE, includeObject="All")
    assert (answer.status, answer.reason) == (400, "BadRequest")


async def test_only_the_first_table_of_a_watch_has_columns(server: Server) -> None:
    maps = server.place("configmaps")
    await server.made(maps, config_map("a"))
    async with server.watch(maps, accept=TABLE, labelSelector="of=test") as watch:
        first = await watch.line()
        await server.made(maps, config_map("b"))
        second = await watch.line()
    assert [first["type"], second["type"]] == ["ADDED", "ADDED"]
    assert [row["cells"][0] for table in (first, second) for row in table["object"]["rows"]] == ["a", "b"]
    assert titles(first["object"]) == [("Name", 0), ("Data", 0), ("Age", 0)]
    assert not second["object"].get("columnDefinitions")


@pytest.mark.parametrize(
    ("path", "columns"),
    [
        ("/api/v1/pods", "Name Ready Status Restarts Age IP Node Nominated_Node Readiness_Gates"),
        (
            "/api/v1/nodes",
            "Name Status Roles Age Version Internal-IP External-IP OS-Image Kernel-Version Container-Runtime",
        ),
        ("/api/v1/namespaces", "Name Status Age"),
        ("/apis/coordination.k8s.io/v1/leases", "Name Holder Age"),
        ("/apis/resource.k8s.io/v1/resourceslices", "Name Node Driver Pool Age"),
        ("/apis/resource.k8s.io/v1/resourceclaims", "Name State Age"),
        ("/apis/resource.k8s.io/v1/resourceclaimtemplates", "Name Age"),
        ("/apis/resource.k8s.io/v1/deviceclasses", "Name Age"),
    ],
)
async def test_kinds_have_the_columns_of_kubernetes(server: Server, path: str, columns: str) -> None:
    table = (await server.call("GET", path, accept=TABLE, limit="1")).body
    assert [each["name"] for each in table["columnDefinitions"]] == [each.replace("_", " ") for each in columns.split()]


async def test_a_strategic_patch_merges_lists_by_key(server: Server) -> None:
    await server.made(server.place("serviceaccounts"), account("a", "b"))
    changes: Any = {
        "$setElementOrder/secrets": [{"name": "c"}, {"name": "a"}],
        "secrets": [{"name": "c"}, {"$patch": "delete", "name": "b"}],
    }
    answer = await server.patch(f"{server.place('serviceaccounts')}/a", changes, STRATEGIC)
    assert (answer.status, answer.body["secrets"]) == (200, [{"name": "c"}, {"name": "a"}])


async def test_a_strategic_patch_replaces_a_list_without_a_key(server: Server) -> None:
    pulled = {**account(), "imagePullSecrets": [{"name": "a"}]}
    await server.made(server.place("serviceaccounts"), pulled)
    changes: Any = {"imagePullSecrets": [{"name": "b"}]}
    answer = await server.patch(f"{server.place('serviceaccounts')}/a", changes, STRATEGIC)
    assert (answer.status, answer.body["imagePullSecrets"]) == (200, [{"name": "b"}])


@pytest.mark.parametrize("kind", ["resourceclaims", "resourceclaimtemplates"])
async def test_the_same_manifest_may_be_applied_twice(server: Server, kind: str) -> None:
    """kubectl sends lists without a key as the manifest has them: the server sets its defaults, then it compares."""
    devices = {"requests": [{"name": "neurons", "exactly": {"deviceClassName": "neuron.aws.com"}}]}
    is_template = kind == "resourceclaimtemplates"
    spec = {"spec": {"devices": devices}} if is_template else {"devices": devices}
    named = "ResourceClaimTemplate" if is_template else "ResourceClaim"
    manifest = {"apiVersion": "resource.k8s.io/v1", "kind": named, "metadata": {"name": "a"}, "spec": spec}
    made = await server.made(server.place(kind), manifest)
    answer = await server.patch(f"{server.place(kind)}/a", {"spec": spec}, STRATEGIC)
    assert (answer.status, answer.body["spec"]) == (200, made["spec"])


async def test_a_strategic_patch_removes_a_field(server: Server) -> None:
    await server.made(server.place("configmaps"), config_map("a", x="1", y="2"))
    answer = await server.patch(f"{server.place('configmaps')}/a", {"data": {"x": None, "z": "3"}}, STRATEGIC)
    assert (answer.status, answer.body["data"]) == (200, {"y": "2", "z": "3"})


async def test_custom_kinds_take_no_strategic_patch(things: Server) -> None:
    thing = {"apiVersion": f"{THINGS_GROUP}/v1beta1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {}}
    await things.made(things.place("things"), thing)
    answer = await things.patch(f"{things.place('things')}/a", {"spec": {"x": 1}}, STRATEGIC)
    assert (answer.status, answer.reason) == (415, "UnsupportedMediaType")


async def test_the_server_says_that_it_checks_fields(server: Server) -> None:
    """`kubectl apply` reads this to leave the check of unknown fields to the server."""
    index = (await server.get("/openapi/v3")).body["paths"]
    url = index["apis/resource.k8s.io/v1"]["serverRelativeURL"]
    path, _, query = url.partition("?")
    params = dict([query.split("=", 1)]) if query else {}
    document = (await server.get(path, **params)).body
    patch = document["paths"]["/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"]["patch"]
    kind = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}
    assert patch["x-kubernetes-group-version-kind"] == kind
    assert "fieldValidation" in {each["name"] for each in patch["parameters"]}
    assert "application/merge-patch+json" in patch["requestBody"]["content"]


async def test_unknown_versions_have_no_document(server: Server) -> None:
    assert (await server.get("/openapi/v3/apis/no.such.group/v1")).status == 404
