"""status.devices of claims, with the rights that Kubernetes 1.36 and later ask for. 18.6."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hack.bed.deployed import lnc, neurons, pod, template
from hack.bed.real_cluster import BedError, BedNode, Namespace, TestBed, eventually
from tests.bed.deployed import NAMESPACE, plugin_pod, settled, with_setting

ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "claim-status"},
    "rules": [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["update"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims/driver"],
            "resourceNames": ["neuron.aws.com"],
            "verbs": ["associated-node:update"],
        },
    ],
}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "claim-status"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "claim-status"},
    "subjects": [{"kind": "ServiceAccount", "name": "neuron-dra-driver-sa", "namespace": NAMESPACE}],
}
"""What the chart adds to the driver's role with draDriver.claimStatus (tests/unit/test_chart.py)."""


@pytest.fixture
def on(trn2: BedNode, driver: TestBed) -> Iterator[BedNode]:
    """A trn2.48xlarge whose driver writes the status of claims."""
    driver.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, (ROLE, BINDING))))
    with_setting(driver, "CLAIM_STATUS=true")
    try:
        plugin_pod(driver, trn2.name)
        yield trn2
    finally:
        with_setting(driver, "CLAIM_STATUS-")
        driver.kubectl("delete", "clusterrole,clusterrolebinding", "claim-status")
        settled(trn2)


@pytest.mark.contract("D1")
def test_claim_shows_what_its_containers_have(
    on: BedNode, node: Callable[[str], BedNode], namespace: Namespace
) -> None:
    """(18.6) A node's plugin may write entries of its own driver and node only."""
    namespace.apply(template("four", 4, group=4, config=lnc(1)))
    namespace.apply(pod("reader", "four", node=on.name))
    namespace.wait_ready("reader")

    def entries() -> list[dict[str, Any]]:
        [claim] = namespace.get("resourceclaims")["items"]
        listed: list[dict[str, Any]] = claim["status"].get("devices", [])
        return listed

    found = eventually("four entries", lambda: entries() if len(entries()) == 4 else [], 60)
    assert {entry["pool"] for entry in found} == {on.name}
    assert sorted(entry["data"]["deviceIds"][0] for entry in found) == neurons(namespace, "reader")
    assert {entry["data"]["environment"]["NEURON_LOGICAL_NC_CONFIG"] for entry in found} == {"1"}

    elsewhere = node("trn1.2xlarge")
    bound = ("--bound-object-kind=Node", f"--bound-object-name={elsewhere.name}")
    token = on.bed.kubectl("create", "token", "neuron-dra-driver-sa", "--namespace", NAMESPACE, *bound).strip()
    [claim] = namespace.get("resourceclaims")["items"]
    claim |= {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}  # items of a list have none
    claim["status"]["devices"][0]["data"] = {"forged": True}
    with pytest.raises(BedError, match=r"(F|f)orbidden"):
        namespace.kubectl(f"--token={token}", "replace", "--subresource=status", "-f", "-", stdin=json.dumps(claim))
