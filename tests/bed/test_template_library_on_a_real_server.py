"""18.3: the chart's template library on a real API server, by dry runs of impersonated users. No kubelet is needed.

tests/unit/test_template_library.py has the same rows.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.bed.real_cluster import REPOSITORY, BedError, TestBed, eventually
from tests.support.library_rows import LABEL, POLICIES, ROWS, TEAM, Row, exactly, pod, template

CHART = REPOSITORY / "deploy/helm/neuron-dra"


class Server:
    """The API server, with the policies in force for one namespace, in which all users of the rows have all rights."""

    def __init__(self, bed: TestBed, run: str) -> None:
        self.bed = bed
        self.namespace = self.users = f"library-{run}"

    def create(self, row: Row, *, dry: bool = True) -> str:
        """Return the message of the rejection, an empty string without."""
        groups = [f"--as-group={name}" for name in (*row.groups, self.users, "system:authenticated")]
        words = ["create", "--namespace", self.namespace, f"--as={row.user}", *groups, "-f", "-"]
        words += ["--dry-run=server"] if dry else []
        try:
            self.bed.kubectl(*words, stdin=json.dumps(row.item))
        except BedError as err:
            return str(err)
        return ""


def objects(helm: str, run: str, namespace: str) -> list[dict[str, Any]]:
    """Return the namespace, the rights of its users, and the chart's policies for it alone."""
    values = ["draDriver.image.repository=r", "templateLibrary.required=true", f"templateLibrary.groups={{{TEAM}}}"]
    words = [word for value in values for word in ("--set", value)]
    command = [helm, "template", "r", str(CHART), "--kube-version", "1.34.0", *words]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = [item for item in yaml.safe_load_all(text) if item and item["metadata"]["name"] in POLICIES]
    for item in found:
        item["metadata"]["name"] += f"-{run}"
        if "policyName" in item["spec"]:
            item["spec"]["policyName"] = item["metadata"]["name"]
        else:
            labels = {"kubernetes.io/metadata.name": namespace}
            item["spec"]["matchConstraints"]["namespaceSelector"] = {"matchLabels": labels}
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "everything", "namespace": namespace},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": namespace}],
    }
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, binding, *found]


def claims(server: Server) -> list[dict[str, Any]]:
    """Return the claims of the namespace."""
    found = json.loads(server.bed.kubectl("get", "resourceclaims", "--namespace", server.namespace, "-o", "json"))
    return list(found["items"])


@pytest.fixture(scope="module")
def server(running_bed: TestBed) -> Iterator[Server]:
    path = running_bed.parts.plane.environment()["PATH"].split(":")
    helm = next(str(Path(each, "helm")) for each in path if Path(each, "helm").exists())
    run = uuid.uuid4().hex[:8]
    found = Server(running_bed, run)
    items = objects(helm, run, found.namespace)
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    running_bed.kubectl("apply", "-f", "-", stdin=listed)
    try:
        wait_in_force(found)
        yield found
    finally:
        running_bed.kubectl("delete", "--wait=false", "--ignore-not-found", "-f", "-", stdin=listed)


def wait_in_force(server: Server) -> None:
    """Wait until each policy rejects, and pods can be created."""
    for kind in ("ResourceClaimTemplate", "ResourceClaim", "Pod"):
        denied = next(row for row in ROWS if row.denied and row.item["kind"] == kind)
        eventually(f"{kind}s are checked", lambda row=denied: row.denied in server.create(row), 120)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_stored_objects_match_the_table(row: Row, server: Server) -> None:
    found = server.create(row)
    assert row.denied in found
    assert bool(found) == bool(row.denied), found
    assert "resulted in error" not in found


def test_a_user_gets_a_claim_from_the_teams_template(server: Server) -> None:
    """(18.3) Kubernetes' claim controller copies the label from the template to the claim."""
    made = template(exactly("neuron.aws.com"), "true", "true")
    assert server.create(Row("", made, user="ann", groups=(TEAM,)), dry=False) == ""
    uses = pod(resourceClaims=[{"name": "neurons", "resourceClaimTemplateName": made["metadata"]["name"]}])
    assert server.create(Row("", uses), dry=False) == ""
    eventually("the claim is made", lambda: claims(server), 120)
    assert [each["metadata"]["labels"][LABEL] for each in claims(server)] == ["true"]
