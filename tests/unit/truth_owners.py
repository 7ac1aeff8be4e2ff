"""A table: who writes what the controller reads as truth, and why nobody else can gain by it.

One row covers a field and everything below it. `denied` are users whose forged write of the field is rejected,
`allowed` untrusted users whose write is accepted: each has a row in `tests/bed/forged_writes.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.bed.forged_writes import ADMIN, EDITOR, KUBELET, LANDLORD, MASTER, NEIGHBOUR, PLUGIN, RESERVER, TENANT, User

ANY = "*"
SERVER = "the API server"
CONTROLLER = "the controller"
OWNER = "users with neuron-ultraserver-workloads-edit"


@dataclass(frozen=True, slots=True)
class Truth:
    """A field, who writes it, and why others cannot, or gain nothing."""

    kind: str
    path: str
    writer: str
    why: str
    denied: Sequence[User] = ()
    allowed: Sequence[User] = ()


TRUTHS: Sequence[Truth] = (
    # Every object. A label or an annotation is a field of its own kind.
    Truth(ANY, "metadata.name", SERVER, "no write changes it"),
    Truth(ANY, "metadata.namespace", SERVER, "no write changes it"),
    Truth(ANY, "metadata.uid", SERVER, "no write changes it"),
    Truth(ANY, "metadata.resourceVersion", SERVER, "a write must have the stored one"),
    Truth(ANY, "metadata.generation", SERVER, "writes of it are ignored"),
    Truth(ANY, "metadata.creationTimestamp", SERVER, "writes of it are ignored"),
    Truth(ANY, "metadata.deletionTimestamp", SERVER, "only DELETE sets it, and finalizers keep what is reserved"),
    # Nodes.
    Truth(
        *("Node", "metadata.labels", CONTROLLER),
        "a kubelet may label its own node; the controller puts its values back, and a policy keeps the capacity block",
        denied=(TENANT, ADMIN, PLUGIN),
        allowed=(KUBELET,),
    ),
    Truth(
        *("Node", "metadata.annotations", "users with the verb set-block-end"),
        "RBAC and a policy, also for kubelets",
        denied=(TENANT, EDITOR, ADMIN, PLUGIN, NEIGHBOUR, KUBELET),
    ),
    Truth("Node", "spec.providerID", "the cloud provider", "the API server lets nobody change it once it is set"),
    Truth("Node", "spec.unschedulable", "administrators", "RBAC, and a policy for the controller", (TENANT, ADMIN)),
    Truth("Node", "spec.taints", "administrators", "RBAC, and a policy for the controller", (TENANT, ADMIN, PLUGIN)),
    Truth(
        *("Node", "status.conditions", "the node's kubelet, and agents on it"),
        "RBAC; where many nodes are not Ready or reported, nothing is evicted",
        denied=(TENANT, EDITOR, ADMIN, PLUGIN, NEIGHBOUR),
    ),
    Truth("Node", "status.addresses", "the node's kubelet", "RBAC", (PLUGIN,)),
    # ResourceSlices.
    Truth(
        "ResourceSlice", "spec", "the plugin of the node", "a policy limits plugins to their node", (NEIGHBOUR, TENANT)
    ),
    Truth(
        *("ResourceSlice", "metadata.ownerReferences", "the plugin of the node"),
        "RBAC gives no patch, and a policy limits updates to the plugin's node",
        denied=(NEIGHBOUR, PLUGIN),
    ),
    # Claims.
    Truth(
        "ResourceClaim",
        "spec.devices",
        "whoever creates the claim",
        "it is immutable; a policy keeps the reserved class",
        (
            TENANT,
            EDITOR,
        ),
    ),
    Truth(
        *("ResourceClaim", "status.allocation", "the scheduler"),
        "RBAC: no default role may write it. Whoever may can take devices from the scheduler, too",
        denied=(EDITOR, ADMIN, RESERVER, PLUGIN),
    ),
    Truth(
        *("ResourceClaim", "status.reservedFor", "the scheduler"),
        "RBAC: no default role may write it. Only pods of the claim's own namespace can be evicted because of it",
        denied=(EDITOR, ADMIN, RESERVER, PLUGIN),
    ),
    # ResourceClaimTemplates.
    Truth(
        "ResourceClaimTemplate",
        "spec.spec",
        CONTROLLER,
        "it is immutable; a policy keeps the reserved class",
        (
            TENANT,
            EDITOR,
            ADMIN,
        ),
    ),
    Truth(
        *("ResourceClaimTemplate", "metadata.ownerReferences", CONTROLLER),
        "without it, the workload of that name in the same namespace says TemplateNameTaken",
        allowed=(EDITOR,),
    ),
    # NeuronUltraServers.
    Truth(
        *("NeuronUltraServer", "spec", CONTROLLER),
        "RBAC; it follows from Nodes and slices, and the controller corrects it",
        denied=(TENANT, EDITOR, ADMIN, RESERVER, PLUGIN),
    ),
    Truth(
        "NeuronUltraServer", "metadata.finalizers", CONTROLLER, "RBAC; lost reservations are restored", (ADMIN, PLUGIN)
    ),
    Truth(
        *("NeuronUltraServer", "status.qualifications", CONTROLLER),
        "RBAC, and a policy for administrators; a result counts only for Nodes with the UIDs that it names",
        denied=(TENANT, EDITOR, ADMIN, RESERVER, PLUGIN, NEIGHBOUR, KUBELET, MASTER, LANDLORD),
    ),
    Truth(
        *("NeuronUltraServer", "status.allocations", CONTROLLER),
        "the same, for reservations and the notice in each, which informs pods only; no plan reads which are spares",
        denied=(TENANT, EDITOR, ADMIN, RESERVER, PLUGIN, NEIGHBOUR, MASTER, LANDLORD),
    ),
    Truth(
        *("NeuronUltraServer", "status", CONTROLLER),
        "RBAC, and a policy for administrators",
        denied=(TENANT, EDITOR, ADMIN, RESERVER, PLUGIN, NEIGHBOUR, MASTER, LANDLORD),
    ),
    # Workloads.
    Truth(
        *("NeuronUltraServerWorkload", "spec", OWNER),
        "it is a request: limits, policies and the queue decide what it gets",
        denied=(EDITOR, ADMIN, PLUGIN),
        allowed=(RESERVER, TENANT),
    ),
    Truth(
        *("NeuronUltraServerWorkload", "metadata.annotations", OWNER),
        "they set how the workload's own pods find rank 0, and which job it is of",
        denied=(EDITOR, ADMIN, PLUGIN),
        allowed=(RESERVER, TENANT),
    ),
    Truth(
        *("NeuronUltraServerWorkload", "metadata.labels", OWNER),
        "they name the queue: Kueue decides what the workload gets, and a label of the namespace whether it needs one",
        denied=(EDITOR, ADMIN, PLUGIN),
        allowed=(RESERVER, TENANT),
    ),
    Truth(
        "NeuronUltraServerWorkload",
        "metadata.finalizers",
        CONTROLLER,
        ("RBAC; a workload without ours that is deleted is released as one that is gone"),
        (EDITOR, ADMIN, PLUGIN),
    ),
    Truth(
        *("NeuronUltraServerWorkload", "status", CONTROLLER),
        "RBAC, and a policy for users with every right",
        denied=(EDITOR, ADMIN, RESERVER, TENANT, MASTER),
    ),
    # Qualifications, and the pods of their tests.
    Truth(
        *("NeuronUltraServerQualification", "spec", "administrators"),
        "RBAC: no default role may write it. Its image runs on every free group",
        denied=(TENANT, EDITOR, ADMIN, RESERVER, PLUGIN, LANDLORD),
    ),
    Truth(
        *("NeuronUltraServerQualification", "metadata.annotations", "administrators"),
        "RBAC. They only let UltraServers be used whose tests failed",
        denied=(TENANT, EDITOR, ADMIN, RESERVER, PLUGIN, LANDLORD),
    ),
    Truth(
        *("NeuronUltraServerQualification", "status", CONTROLLER),
        "RBAC; it shows what was decided, and nothing is decided by it",
        denied=(TENANT, ADMIN, PLUGIN, LANDLORD),
    ),
    Truth(
        *("Pod", "metadata.labels", CONTROLLER),
        "RBAC, and a policy: only the controller creates pods in the namespace of tests",
        denied=(TENANT, EDITOR, ADMIN, PLUGIN, MASTER),
    ),
    Truth(
        *("Pod", "metadata.ownerReferences", CONTROLLER),
        "RBAC, and a policy: a pod counts for the test that controls it",
        denied=(TENANT, EDITOR, ADMIN, PLUGIN, MASTER),
    ),
    Truth("Pod", "spec.nodeName", "the scheduler", "it only names the node in messages"),
    Truth(
        *("Pod", "status", "the node's kubelet"),
        "RBAC, and a policy; a node can lie about itself, and passes a test then",
        denied=(TENANT, EDITOR, ADMIN, PLUGIN, MASTER),
    ),
    # Jobs that ask for UltraServers.
    *(
        Truth(
            *(kind, path, "whoever may write these jobs"),
            "it is a request: a label and the limit of the namespace decide what it gets",
            denied=(RESERVER, PLUGIN),
            allowed=(TENANT, EDITOR, ADMIN),
        )
        for kind in ("Job", "StatefulSet")
        for path in ("spec", "metadata.annotations", "metadata.labels")
    ),
    *(
        Truth(
            *(kind, "status", "Kubernetes' controllers of jobs"),
            "RBAC; it releases the job's own reservation, and no other",
            denied=(EDITOR, ADMIN, RESERVER, PLUGIN),
        )
        for kind in ("Job", "StatefulSet")
    ),
    *(
        Truth(
            *(kind, path, "whoever may write these jobs"),
            "it is a request: a label and the limit of the namespace decide what it gets",
            denied=(RESERVER, PLUGIN),
            allowed=(TENANT,),
        )
        for kind in ("JobSet", "LeaderWorkerSet")
        for path in ("spec", "metadata.annotations", "metadata.labels")
    ),
    *(
        Truth(
            *(kind, "status", "the project's controller"),
            "RBAC; it releases the job's own reservation, and no other",
            denied=(RESERVER, PLUGIN),
        )
        for kind in ("JobSet", "LeaderWorkerSet")
    ),
    Truth(
        *("TenantPod", "spec.resourceClaims", "whoever creates the pod"),
        "a pod that names a template may get one condition",
        denied=(PLUGIN,),
        allowed=(EDITOR,),
    ),
    Truth(
        *("TenantPod", "status", "Kubernetes, and the node's kubelet"),
        "RBAC; the pod is woken or it is not",
        denied=(EDITOR, ADMIN, RESERVER, PLUGIN),
    ),
    # Whether a label of a namespace counts, and how workloads are ordered.
    Truth(
        *("ValidatingAdmissionPolicy", "spec", "administrators"),
        "RBAC; without it jobs reserve nothing",
        denied=(TENANT, EDITOR, ADMIN, LANDLORD, PLUGIN),
    ),
    Truth(
        *("ValidatingAdmissionPolicyBinding", "spec", "administrators"),
        "RBAC; without it jobs reserve nothing",
        denied=(TENANT, EDITOR, ADMIN, LANDLORD, PLUGIN),
    ),
    Truth(
        *("PriorityClass", "value", "administrators"),
        "RBAC, and the API server lets nobody change it; a policy restricts who may use a class",
        denied=(TENANT, EDITOR, ADMIN, RESERVER, PLUGIN, LANDLORD),
    ),
    # Kueue's Workloads.
    *(
        Truth(
            *("Workload", path, CONTROLLER),
            "one counts for a workload only with the name, the owner and the pods that the controller writes",
            denied=(EDITOR, RESERVER, PLUGIN),
            allowed=(TENANT,),
        )
        for path in ("spec", "metadata.labels", "metadata.ownerReferences", "metadata.finalizers")
    ),
    Truth(
        *("Workload", "status", "Kueue"),
        "RBAC: whoever may write it gives out quota, and reserves within the limit of the namespace",
        denied=(EDITOR, ADMIN, RESERVER, PLUGIN),
        allowed=(TENANT,),
    ),
    # Namespaces.
    Truth(
        "Namespace", "metadata.annotations", "users with the verb limit", "RBAC and a policy", (TENANT, EDITOR, ADMIN)
    ),
    Truth(
        "Namespace", "metadata.labels", "users with the verb reserve-for-jobs", "RBAC and a policy", (TENANT, EDITOR)
    ),
)
