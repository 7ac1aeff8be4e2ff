"""The objects of tests: the workload, its pods, and the status of a qualification. Pure."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from typing import Any, Final

from controller.qualify.model import OF_TEST, GroupTest, Qualification
from controller.qualify.survey import ResultSurvey
from neuron_dra.core.qualification import NAMESPACE, TESTS, Target
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.observed.model import API_VERSION, Workload

KIND: Final = "NeuronUltraServerQualification"
GRACE_S: Final = 5
"""How long the program of a test may take to end: a waiting workload gets its nodes."""

TOLERATED: Final = ({"key": "aws.amazon.com/neuron", "operator": "Exists"},)
"""The taint that Neuron nodes usually have."""


def name_of_test(target: Target) -> str:
    """Return the name of a test's workload: the same for each test of a group."""
    digest = hashlib.sha256("/".join(map(str, target.group)).encode()).hexdigest()
    return f"{target.qualification[:40].rstrip('-.')}-{digest[:10]}"


def workload(qualification: Qualification, target: Target, instance_type: str) -> dict[str, Any]:
    """Return the workload of a test, owned by the qualification."""
    name = name_of_test(target)
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": qualification.name,
        "uid": qualification.uid,
        "controller": True,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "NeuronUltraServerWorkload",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {**objects.MANAGED},
            "annotations": {TESTS: target.text},
            "ownerReferences": [owner],
        },
        "spec": {
            "instanceType": instance_type,
            "topologySize": qualification.size,
            "serverCount": 1,
            "resourceClaimTemplate": {"name": name},
        },
    }


def pod_names(test: Workload) -> list[str]:
    """Return the names of a test's pods, one for each node. A pod's rank follows from its node."""
    return [f"{test.name}-{number}" for number in range(test.size)]


def pod(test: GroupTest, qualification: Qualification, name: str) -> dict[str, Any]:
    """Return a pod of a test. It has no token, and keeps to the baseline of pod security."""
    workload, pod_fields = test.workload, qualification.pod
    claims = [{"name": "neuron", "resourceClaimTemplateName": workload.template_name}]
    for number, template in enumerate(pod_fields.get("resourceClaimTemplates") or ()):
        claims.append({"name": f"more-{number}", "resourceClaimTemplateName": str(template)})
    container: dict[str, Any] = {
        "name": "test",
        "image": qualification.image,
        "resources": {"claims": [{"name": claim["name"]} for claim in claims]},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": [*(pod_fields.get("capabilities") or ())]},
        },
    }
    for field in ("command", "args", "env"):
        if pod_fields.get(field):
            container[field] = pod_fields[field]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [*(pod_fields.get("tolerations") or TOLERATED)],
        "containers": [container],
        "resourceClaims": claims,
    }
    if pod_fields.get("imagePullSecrets"):
        spec["imagePullSecrets"] = pod_fields["imagePullSecrets"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {**objects.MANAGED, OF_TEST: workload.name},
            "ownerReferences": [objects.owner_of(workload)],
        },
        "spec": spec,
    }


def status(
    qualification: Qualification,
    surveyed: ResultSurvey,
    testing: int,
    resting: tuple[str, str],
    refusal: str,
    now: datetime.datetime,
) -> dict[str, Any]:
    """Return the status of a qualification: counts of groups, and whether tests go on.

    `resting`: why none begins, as a reason and a message; `refusal`: why one could not.
    """
    counts = surveyed.counts
    reason, message = resting
    if not reason and refusal:
        reason, message = "TestsRejected", f"a test could not begin: {refusal}"
    value = not reason
    if value:
        reason, message = "Testing", "groups are tested when they are free and due"
    return {
        "fresh": counts.fresh,
        "failed": counts.failed,
        "unqualified": counts.unqualified,
        "testing": testing,
        "observedGeneration": qualification.generation,
        "conditions": [
            objects.new_condition(qualification.status, "Ready", value, reason, message, now, qualification.generation)
        ],
    }


def patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch of a status that results in exactly `after`."""
    return {**{name: None for name in before if name not in after}, **after}
