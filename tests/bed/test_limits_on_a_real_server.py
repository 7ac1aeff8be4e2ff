"""16.3 and 16.5: the chart's policies about limits on a real API server: what a dry run of each row would store.

The control plane is enough: no pod is created. tests/unit/test_limits_policies.py has the same table.
"""

from __future__ import annotations

import copy
import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.bed.real_cluster import REPOSITORY, BedError, TestBed, eventually
from hack.oracle.limited import LABEL, NEURON, one, pod, sets
from neuron_dra.emulation.admission import pod_specs
from tests.support.limit_rows import ROWS, Row, on, refused, workload

CHART = REPOSITORY / "deploy/helm/neuron-dra"
RUN = "neuron-dra-test-run"


def labels(name: str) -> dict[str, str]:
    """Return the label of a namespace; those for quotas and ranges are labelled too."""
    return {LABEL: "true" if name in ("quota", "range") else name} if name else {}


class Server:
    """The API server, with the policies in force for three namespaces: labelled `true`, `yes`, and without a label."""

    def __init__(self, bed: TestBed, run: str) -> None:
        self._bed = bed
        self._run = run

    def namespace(self, label: str) -> str:
        return f"limits-{self._run}-{label or 'none'}"

    def create(self, item: dict[str, Any], label: str, *, verb: str = "create", dry: bool = True) -> Any:
        """Return the object that would be stored, or the message of the rejection."""
        words = ["--dry-run=server"] if dry else []
        words = [verb, "--namespace", self.namespace(label), *words, "-o", "json", "-f", "-"]
        try:
            return json.loads(self._bed.kubectl(*words, stdin=json.dumps(item)))
        except BedError as err:
            return str(err)

    def outcome(self, row: Row) -> Any:
        """Return limits and scheduler of what would be stored, or the message of the rejection."""
        item = {**row.item, "metadata": {**row.item["metadata"], **row.metadata}}
        stored = self.create(item, row.label)
        if isinstance(stored, str):
            return stored
        [spec] = pod_specs(stored)
        containers = [*spec.get("initContainers", ()), *spec["containers"]]
        resources = [each["resources"] for each in containers]  # a template has no default requests
        assert all(each.get("requests", each.get("limits")) == each.get("limits") for each in resources)
        return {each["name"]: each["resources"].get("limits", {}) for each in containers}, spec["schedulerName"]


def policies(helm: str, run: str) -> list[dict[str, Any]]:
    """Return the chart's policies and bindings, under separate names and for the namespaces of this run."""
    values = ("--set", "draDriver.image.repository=r", "--set", "scheduler.enabled=true")
    command = [helm, "template", "r", str(CHART), "--kube-version", "1.37.0", *values]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = []
    for item in yaml.safe_load_all(
        text.replace("name: neuron-dra-driver-", f"name: {run}-").replace(
            "policyName: neuron-dra-driver-", f"policyName: {run}-"
        )
    ):
        if item and item["metadata"]["name"] in (f"{run}-limits", f"{run}-numbers"):
            if "matchConstraints" in item["spec"]:
                selector = item["spec"]["matchConstraints"]["namespaceSelector"]
                selector["matchExpressions"].append({"key": RUN, "operator": "In", "values": [run]})
            found.append(item)
    return found


def adds_devices(run: str, place: str, index: int) -> list[dict[str, Any]]:
    """Return a policy that adds a limit to one container of pods with the label add-devices."""
    api = "admissionregistration.k8s.io/v1"
    path = f"/spec/containers/{index}/resources/limits"
    patch = f"[JSONPatch{{op: 'add', path: '{path}', value: {{'{NEURON}': '2'}}}}]"
    without = f"!has(object.spec.containers[{index}].resources.limits)"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": {"matchLabels": {RUN: run}}},
        "matchConditions": [
            {"name": "labelled", "expression": "'add-devices' in object.metadata.?labels.orValue({})"},
            {"name": "without-limits", "expression": without},
        ],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
    }
    name = {"name": f"{place}-{run}"}
    kind = "MutatingAdmissionPolicy"
    return [
        {"apiVersion": api, "kind": kind, "metadata": name, "spec": spec},
        {"apiVersion": api, "kind": f"{kind}Binding", "metadata": name, "spec": {"policyName": name["name"]}},
    ]


@pytest.fixture(scope="module")
def server(running_bed: TestBed) -> Iterator[Server]:
    path = running_bed.parts.plane.environment()["PATH"].split(":")
    helm = next(str(Path(each, "helm")) for each in path if Path(each, "helm").exists())
    run = f"t{uuid.uuid4().hex[:8]}"
    found = Server(running_bed, run)
    namespaces = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": found.namespace(label), "labels": {RUN: run, **labels(label)}},
        }
        for label in ("true", "yes", "", "quota", "range")
    ]
    items = [*namespaces, *policies(helm, run), *adds_devices(run, "a", 0), *adds_devices(run, "z", 1)]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    running_bed.kubectl("apply", "-f", "-", stdin=listed)
    try:
        probe = pod(one({NEURON: "1"}))
        eventually("the policies are in force", lambda: "connected-1." in json.dumps(found.create(probe, "true")), 120)
        denied = pod(one({sets(7): "1"}), **on("trn1.32xlarge"))
        eventually("rejections are in force", lambda: "device: 7" in json.dumps(found.create(denied, "")), 120)
        yield found
    finally:
        running_bed.kubectl("delete", "--wait=false", "--ignore-not-found", "-f", "-", stdin=listed)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_stored_limits_match_the_table(row: Row, server: Server) -> None:
    found = server.outcome(row)
    if row.denied:
        assert isinstance(found, str), found
        assert row.denied in found
        assert ("ValidatingAdmissionPolicy" in found) == (not row.invalid), found
        return
    [spec] = pod_specs(row.item)
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    unchanged = {each["name"]: each["resources"]["limits"] for each in containers}
    assert found == (row.limits if row.limits is not None else unchanged, row.scheduler)


def test_limits_of_other_policies_are_rewritten(server: Server) -> None:
    """One of the two other policies runs after ours, which then runs again."""
    item = pod({"name": "a", "image": "example.com/image"}, {"name": "b", "image": "example.com/image"})
    item["metadata"]["labels"] = {"add-devices": "true"}
    stored = server.create(item, "true")
    assert isinstance(stored, dict), stored
    assert [each["resources"]["limits"] for each in stored["spec"]["containers"]] == [{sets(2): "1"}] * 2


def test_existing_workload_can_be_scaled(server: Server) -> None:
    """Its template is not validated again until it changes."""
    before = workload("Deployment", pod(one({NEURON: "4"}), **on("trn1.32xlarge"))["spec"])
    before["spec"]["replicas"] = 0
    server.create(before, "true", dry=False)
    scaled = copy.deepcopy(before)
    scaled["spec"]["replicas"] = 1
    assert server.create(scaled, "true", verb="apply")["spec"]["replicas"] == 1
    scaled["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {NEURON: "7"}
    assert refused("trn1.32xlarge", "device", 7) in server.create(scaled, "true", verb="apply")


def quota(name: str, resource: str, most: int) -> dict[str, Any]:
    spec = {"hard": {f"requests.{resource}": str(most)}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec}


def test_a_quota_on_the_class_counts_and_one_on_the_old_name_does_not(server: Server) -> None:
    """(16.8) docs/connected-sets.md."""
    server.create(quota("old", NEURON, 0), "quota", dry=False)
    assert isinstance(server.create(pod(one({NEURON: "4"})), "quota"), dict)
    server.create(quota("new", sets(4), 0), "quota", dry=False)
    wanted = f"exceeded quota: new, requested: requests.{sets(4)}=1"
    eventually("the quota counts", lambda: wanted in str(server.create(pod(one({NEURON: "4"})), "quota")), 120)
    assert isinstance(server.create(pod(one({NEURON: "8"})), "quota"), dict)


def test_a_limit_range_on_the_old_name_is_named(server: Server) -> None:
    """(16.8) Kubernetes adds its maximum to each container again; docs/connected-sets.md."""
    spec = {"limits": [{"type": "Container", "max": {NEURON: "8"}}]}
    made = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "most"}, "spec": spec}
    server.create(made, "range", dry=False)
    wanted = f"delete LimitRanges on {NEURON}, which add it"
    eventually("the range is known", lambda: wanted in str(server.create(pod(one({NEURON: "4"})), "range")), 120)
