"""Rows for the chart's template library: who may create what, and the message of the rejection.

The unit test evaluates the rendered policies; the test on the test bed sends the same rows to a real API server.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.core import names
from neuron_dra.core.wire import Obj

LABEL: Final = "neuron.aws.com/template-library"
POLICIES: Final = tuple(f"neuron-dra-driver-library-{kind}" for kind in ("templates", "claims", "pods"))
TEAM: Final = "platform-team"
"""A group that may create templates."""
CONTROLLER: Final = "system:serviceaccount:kube-system:resource-claim-controller"
RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
API: Final = "resource.k8s.io/v1"

TEMPLATE_DENIED: Final = "ResourceClaimTemplates for Neuron devices are the platform team's here"
LABEL_MISSING: Final = "spec.metadata.labels of this ResourceClaimTemplate has no neuron.aws.com/template-library=true"
CLAIM_DENIED: Final = "ResourceClaims for Neuron devices are made from the platform team's ResourceClaimTemplates here"
POD_DENIED: Final = "Neuron devices cannot be requested as a resource of a container here"


@dataclass(frozen=True)
class Row:
    """A request to create an object."""

    name: str
    item: Obj
    user: str = "jane"
    groups: tuple[str, ...] = ()
    denied: str = ""


def exactly(cls: str, **more: Any) -> Obj:
    return {"name": "r", "exactly": {"deviceClassName": cls, "allocationMode": "ExactCount", "count": 1, **more}}


def first_of(*classes: str) -> Obj:
    return {
        "name": "r",
        "firstAvailable": [
            {"name": f"s{number}", "deviceClassName": cls, "allocationMode": "ExactCount", "count": 1}
            for number, cls in enumerate(classes)
        ],
    }


def claim(request: Obj, value: str = "") -> Obj:
    meta = {"name": "c", "labels": {LABEL: value} if value else {}}
    return {"apiVersion": API, "kind": "ResourceClaim", "metadata": meta, "spec": {"devices": {"requests": [request]}}}


def template(request: Obj, value: str = "", outer: str = "") -> Obj:
    """Return a template; `value` is the label that its claims get, `outer` its own."""
    inner: Obj = {"spec": copy.deepcopy(claim(request)["spec"])}
    if value:
        inner["metadata"] = {"labels": {LABEL: value}}
    meta = {"name": "t", "labels": {LABEL: outer} if outer else {}}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": meta, "spec": inner}


def pod(resource: str = "", **spec: Any) -> Obj:
    container: Obj = {"name": "a", "image": "example.com/image"}
    if resource:
        container["resources"] = {"limits": {resource: "1"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}


OURS, SETS, RESERVED = names.DRIVER, f"connected-4.{names.DRIVER}", names.WORKLOAD_CLASS
[LIMITED] = pod(f"{RESOURCE}{OURS}")["spec"]["containers"]
TEAM_: Any = {"user": "ann", "groups": (TEAM,)}
ROWS = (
    Row("the team's template", template(exactly(OURS), "true", "true"), **TEAM_),
    Row(
        "the team's template without the inner label",
        template(exactly(OURS), "", "true"),
        **TEAM_,
        denied=LABEL_MISSING,
    ),
    Row("the team's template with another value", template(exactly(OURS), "no"), **TEAM_, denied=LABEL_MISSING),
    Row("a user's template", template(exactly(OURS)), denied=TEMPLATE_DENIED),
    Row("a user's template with the label", template(exactly(OURS), "true", "true"), denied=TEMPLATE_DENIED),
    Row("a user's template for sets", template(exactly(SETS)), denied=TEMPLATE_DENIED),
    Row("a user's template with an alternative", template(first_of("gpu", OURS)), denied=TEMPLATE_DENIED),
    Row("a user's template for another driver", template(exactly("gpu.example.com"))),
    Row("a user's template for a similar class", template(exactly("notneuron.aws.com"))),
    Row("a user's claim", claim(exactly(OURS)), denied=CLAIM_DENIED),
    Row("a user's claim with the label", claim(exactly(OURS), "true"), denied=CLAIM_DENIED),
    Row("a user's claim with an alternative", claim(first_of(OURS, "gpu"), "true"), denied=CLAIM_DENIED),
    Row("a user's claim for another driver", claim(exactly("gpu.example.com"))),
    Row("the team's claim", claim(exactly(OURS)), **TEAM_),
    Row("a claim from the team's template", claim(exactly(OURS), "true"), CONTROLLER),
    Row("a claim from an older template", claim(exactly(OURS)), CONTROLLER, denied=CLAIM_DENIED),
    Row("the scheduler's claim", claim(exactly(OURS)), "system:kube-scheduler", denied=CLAIM_DENIED),
    Row("a claim for reserved devices", claim(exactly(RESERVED)), CONTROLLER),
    Row("a pod with a limit", pod(f"{RESOURCE}{OURS}"), denied=POD_DENIED),
    Row("a pod with a limit of sets", pod(f"{RESOURCE}{SETS}"), denied=POD_DENIED),
    Row("a pod with a limit of another class", pod(f"{RESOURCE}gpu.example.com")),
    Row("a pod without limits", pod()),
    Row(
        "a pod with an init container with a limit",
        pod(initContainers=[{**LIMITED, "name": "i"}]),
        denied=POD_DENIED,
    ),
)
