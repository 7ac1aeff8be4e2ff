"""A table of forged writes: one row for each attempt, with the user, the write, and the expected result.

Every attempt is a dry run of a real request by an impersonated user, so rows do not depend on one another. `ends` is
empty if the write is accepted, the name of the policy that rejects it, or RBAC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuron_dra.core.wire import Obj

DRIVER_NAMESPACE = "neuron-dra-driver"
OURS, ELSEWHERE, WATCHED = "forged-tenant", "forged-other", "forged-watch"  # namespaces
NODE, OTHER = "forged-node-a", "forged-node-b"
LONG = "forged." + "n" * 239  # a node name that is too long for the names of its slices
RBAC = "rbac"
PLAIN, RESERVED = "neuron.aws.com", "workload.neuron.aws.com"
IMPLICIT = f"deviceclass.resource.kubernetes.io/{RESERVED}"
LIMIT = "neuron.aws.com/max-reserved-nodes"
JOBS_LABEL = "neuron.aws.com/reserve-for-jobs"
MADE_FOR = "neuron.aws.com/made-for"
TARGET = "neuron.aws.com/tests"
LABEL = "neuron.amazonaws.com/ultraserver-server-id-4"
BLOCK = "topology.k8s.aws/capacity-block-id"
BLOCK_END, FRIDAY = "neuron.aws.com/capacity-block-end", "2026-12-04T11:30:00Z"

# The policies of the chart.
SLICES = "neuron-dra-driver-own-resourceslices"
BLOCKS = "neuron-dra-driver-capacity-block-label"
TEMPLATES = "neuron-dra-driver-reserved-templates"
CLAIMS = "neuron-dra-driver-reserved-claims"
PODS = "neuron-dra-driver-reserved-pods"
STATUS = "neuron-dra-driver-ultraserver-status"
WORKLOAD_STATUS = "neuron-dra-driver-workload-status"
NODES = "neuron-dra-driver-controller-nodes"
LIMITS = "neuron-dra-driver-namespace-limits"
ENDS = "neuron-dra-driver-block-ends"
JOBS = "neuron-dra-driver-jobs-reserve"
PRIORITY = "neuron-dra-driver-workload-priority"
WOKEN = "neuron-dra-driver-controller-pods"
SERVICES = "neuron-dra-driver-controller-services"
ENDPOINTS = "neuron-dra-driver-controller-endpointslices"
QUEUES = "neuron-dra-driver-controller-queues"
TESTS = "neuron-dra-driver-qualification"
MAKES_PODS = "neuron-dra-driver-controller-makes-pods"


@dataclass(frozen=True, slots=True)
class User:
    """A user, as the API server identifies it."""

    name: str
    groups: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)


def account(namespace: str, name: str, node: str = "") -> User:
    """A service account; `node` is the node of its pod, which tokens of pods contain."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    extra = {"authentication.kubernetes.io/node-name": node} if node else {}
    return User(f"system:serviceaccount:{namespace}:{name}", groups, extra)


TENANT = User("forged-tenant")  # every verb on everything in OURS, as some platforms grant
EDITOR, ADMIN = User("forged-editor"), User("forged-admin")  # ClusterRoles edit and admin, in OURS
RESERVER = User("forged-reserver")  # neuron-ultraserver-workloads-edit in OURS
RESCUE = User("forged-rescue", ("forged-masters",))  # every right in the cluster, and in breakGlass.users
RESCUERS = User("forged-somebody", ("forged-masters", "forged-rescuers"))  # the same, by a group in breakGlass.groups
MASTER = User("forged-master", ("system:masters",))
PATCHER, LIMITER = User("forged-patcher"), User("forged-limiter")  # may write Namespaces; the second may limit, too
LANDLORD = User("forged-landlord")  # every verb on everything in the driver's namespace
PLUGIN = account(DRIVER_NAMESPACE, "neuron-dra-driver-sa", NODE)
NEIGHBOUR = account(DRIVER_NAMESPACE, "neuron-dra-driver-sa", OTHER)
NOWHERE = account(DRIVER_NAMESPACE, "neuron-dra-driver-sa")
FAR = account(DRIVER_NAMESPACE, "neuron-dra-driver-sa", LONG)
CONTROLLER = account(DRIVER_NAMESPACE, "neuron-ultraserver-controller")
CLAIM_CONTROLLER = account("kube-system", "resource-claim-controller")
MANAGER = User("system:kube-controller-manager")  # the claim controller, where all controllers share one identity
SCHEDULER = User("system:kube-scheduler")
COLLECTOR = account("kube-system", "generic-garbage-collector")
REPLICAS = account("kube-system", "replicaset-controller")
KUBELET = User(f"system:node:{NODE}", ("system:nodes",))

DRA = "/apis/resource.k8s.io/v1"
TEMPLATE_PLACE = f"{DRA}/namespaces/{OURS}/resourceclaimtemplates"
CLAIM_PLACE = f"{DRA}/namespaces/{OURS}/resourceclaims"
POD_PLACE = f"/api/v1/namespaces/{OURS}/pods"
SLICE_PLACE = f"{DRA}/resourceslices"
US_PLACE = f"/apis/neuron.aws.com/v1/namespaces/{DRIVER_NAMESPACE}/neuronultraservers"
ULTRASERVER = f"{US_PLACE}/us-forged"
SERVICE_PLACE = f"/api/v1/namespaces/{OURS}/services"
ENDPOINT_PLACE = f"/apis/discovery.k8s.io/v1/namespaces/{OURS}/endpointslices"
WORKLOAD_PLACE = f"/apis/neuron.aws.com/v1/namespaces/{OURS}/neuronultraserverworkloads"
WATCHED_WORKLOADS = WORKLOAD_PLACE.replace(OURS, WATCHED)
JOB_PLACE = f"/apis/batch/v1/namespaces/{OURS}/jobs"
STATEFUL_SET_PLACE = f"/apis/apps/v1/namespaces/{OURS}/statefulsets"
JOB_SET_PLACE = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{OURS}/jobsets"
LEADER_WORKER_PLACE = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{OURS}/leaderworkersets"
CLASS_PLACE = "/apis/scheduling.k8s.io/v1/priorityclasses"
KUEUE_PLACE = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{OURS}/workloads"
TEST_PODS = "/api/v1/namespaces/neuron-qualification/pods"
TEST_WORKLOADS = "/apis/neuron.aws.com/v1/namespaces/neuron-qualification/neuronultraserverworkloads"
QUALIFICATION_PLACE = "/apis/neuron.aws.com/v1beta1/neuronultraserverqualifications"
POLICY_PLACE = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
RULE_PLACE = POLICY_PLACE.replace("policybindings", "policies")


def meta(name: str, **more: Any) -> Obj:
    return {"metadata": {"name": name, **more}}


def exactly(device_class: str, **more: Any) -> Obj:
    return {"name": "r", "exactly": {"deviceClassName": device_class, **more}}


def first(*classes: str) -> Obj:
    return {"name": "f", "firstAvailable": [{"name": f"a{n}", "deviceClassName": c} for n, c in enumerate(classes)]}


def claim(*requests: Obj, **more: Any) -> Obj:
    return {**meta("forged", **more), "spec": {"devices": {"requests": list(requests)}}}


def template(*requests: Obj, **more: Any) -> Obj:
    return {**meta("forged", **more), "spec": {"spec": {"devices": {"requests": list(requests)}}}}


def versioned(version: str, body: Obj) -> Obj:
    return {**body, "apiVersion": f"resource.k8s.io/{version}"}


def pod(resources: Obj | None = None, *, init: bool = False, template_name: str = "") -> Obj:
    def made(name: str, more: Obj | None) -> Obj:
        return {"name": name, "image": "i", **({"resources": more} if more else {})}

    spec: Obj = {"containers": [made("c", None if init else resources)]}
    if init:
        spec["initContainers"] = [made("i", resources)]
    if template_name:
        spec["resourceClaims"] = [{"name": "neuron", "resourceClaimTemplateName": template_name}]
        spec["containers"][0]["resources"] = {"claims": [{"name": "neuron"}]}
    return {**meta("forged"), "spec": spec}


def amount(name: str = IMPLICIT) -> Obj:
    return {"limits": {name: "1"}, "requests": {name: "1"}}


def slice_(name: str, node: str = NODE, *, driver: str = PLAIN, pool: str = "") -> Obj:
    where = {"pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1}, "nodeName": node}
    return {**meta(name), "spec": {"driver": driver, **where}}


def annotated(value: str | None, name: str = LIMIT) -> Obj:
    return {"metadata": {"annotations": {name: value}}}


QUEUED = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "batch"}}}
TEMPLATE_EXISTS = "neuron.aws.com/TemplateExists"


def conditions(kind: str) -> Obj:
    return {"status": {"conditions": [{"type": kind, "status": "True"}]}}


def labelled(value: str) -> Obj:
    return {"metadata": {"labels": {JOBS_LABEL: value}}}


def service(name: str = "forged-rank0", **more: Any) -> Obj:
    """A headless Service."""
    return {**meta(name), "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, **more}}


def endpoints(name: str, of: str) -> Obj:
    """An EndpointSlice of the Service `of`."""
    addresses = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.7"]}]}
    return {**meta(name, labels={"kubernetes.io/service-name": of}), **addresses}


def workload(**more: Any) -> Obj:
    spec = {"instanceType": "trn3.48xlarge", "topologySize": 4, "serverCount": 1, **more}
    return {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronUltraServerWorkload", **meta("forged"), "spec": spec}


def kueue_workload(name: str = "forged", *, of_a_reservation: bool) -> Obj:
    """A Workload of Kueue: one that the controller makes for a reservation, or that of a job."""
    labels = {"labels": {"neuron.aws.com/workload-uid": "forged"}} if of_a_reservation else {}
    pod_set = {"name": "nodes", "count": 1, "template": {"spec": pod()["spec"]}}
    spec = {"queueName": "forged", "podSets": [pod_set]}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", **meta(name, **labels), "spec": spec}


def qualification() -> Obj:
    """A qualification that exempts an UltraServer."""
    exempt = {"neuron.aws.com/exempt-ultraservers": "us-forged"}
    spec = {"instanceTypes": ["trn3.48xlarge"], "image": "i"}
    kind = "NeuronUltraServerQualification"
    return {"apiVersion": "neuron.aws.com/v1beta1", "kind": kind, **meta("forged", annotations=exempt), "spec": spec}


ASKS = {"neuron.aws.com/ultraservers": "topologySize=4, instanceType=trn3.48xlarge"}


def pods_of_job() -> Obj:
    """The template of a job's pods."""
    spec = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    return {"metadata": {"labels": {"app": "forged"}}, "spec": spec}


def asking(spec: Obj) -> Obj:
    """A job of any kind that asks for UltraServers."""
    return {**meta("forged", annotations=ASKS, labels={"app": "forged"}), "spec": spec}


def job_set() -> Obj:
    part = {"name": "w", "replicas": 1, "template": {"spec": {"template": pods_of_job()}}}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", **asking({"replicatedJobs": [part]})}


def leader_workers() -> Obj:
    pods = pods_of_job()
    pods["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 4, "workerTemplate": pods}}
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", **asking(spec)}


def stateful_set() -> Obj:
    pods = pods_of_job()
    pods["spec"]["restartPolicy"] = "Always"
    return asking({"serviceName": "s", "selector": {"matchLabels": {"app": "forged"}}, "template": pods})


def tokenless() -> Obj:
    """A pod without a service account token."""
    made = pod()
    made["spec"]["automountServiceAccountToken"] = False
    return made


PHASE = {"status": {"phase": "Succeeded"}}
OF_TEST = {"neuron.aws.com/test": "forged"}
INTRUDER = {"spec": {"ephemeralContainers": [{"name": "intruder", "image": "i"}]}}
EVICTS = {"apiVersion": "policy/v1", "kind": "Eviction", **meta("older")}
ANOTHER = {"apiVersion": "neuron.aws.com/v1beta1", "kind": "NeuronUltraServerWorkload", "name": "f", "uid": "forged"}
OWNED_BY_ANOTHER = {"metadata": {"ownerReferences": [{**ANOTHER, "controller": True}]}}
DONE = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
EVICTED = {"type": "Evicted", "status": "True", "reason": "Forged", "message": "m"}
EVICTION = {"status": {"conditions": [{**EVICTED, "lastTransitionTime": "2026-11-26T08:00:00Z"}]}}
APPLIED = {"kind": "ResourceClaimTemplate", **versioned("v1", template(exactly(RESERVED)))}
ALLOCATED = {"status": {"state": "Ready", "allocations": []}}
NOTICED = {
    "status": {
        "allocations": [
            {
                "workloadRef": f"{OURS}/older",
                "workloadUid": "forged",
                "allocationId": "forged",
                "phase": "Bound",
                "nodeCount": 1,
                "allocatedNodes": [OTHER],
                "leaderNodeName": OTHER,
                "ultraserverIndex": 0,
                "allocatedAt": "2026-01-02T03:04:05Z",
                "notice": {"reason": "Releasing", "time": "2026-01-02T03:04:05Z"},
            }
        ]
    }
}
COPY = {"ultraserverIndex": 0, "ultraserver": "us-gone", "allocationId": "0123456789abcdef", "nodes": [OTHER]}
COPIED = {"status": {"state": "Allocated", "groups": [COPY]}}
LABELLED = {"metadata": {"labels": {LABEL: "x"}}}
TAINTED = {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}
OWNED: Obj = {"metadata": {"ownerReferences": []}}
RENDEZVOUS = "neuron.aws.com/rendezvous"
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
REPORTED = {"status": {"conditions": [{"type": "AcceleratedHardwareReady", "status": "False", "reason": "Forged"}]}}
ADDRESSES = {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}
FOUND: Obj = {"qualification": "forged", "generation": 1, "nodes": [OTHER], "nodeUids": ["forged"], "verdict": "Failed"}
FOUND |= {"failures": 2, "testedAt": "2026-11-26T08:00:00Z", "unqualified": True}
TESTED = {"status": {"qualifications": [FOUND]}}
TOPOLOGY = {"spec": {"topology": [{"nodeName": OTHER, "nodeId": 0}]}}
RESULT = {"request": "r", "driver": PLAIN, "pool": OTHER, "device": "neuron-node-0"}
CONSUMER = {"resource": "pods", "name": "forged", "uid": "forged"}
HELD = {"status": {"allocation": {"devices": {"results": [RESULT]}}, "reservedFor": [CONSUMER]}}


@dataclass(frozen=True, slots=True)
class Row:
    """One attempt. A PATCH is a merge patch, an APPLY is kubectl's server-side apply."""

    who: User
    verb: str
    path: str
    body: Obj | None
    ends: str
    since: int = 0  # the first minor version of Kubernetes in which the request is a valid one
    query: Mapping[str, str] = field(default_factory=dict)
    is_session: bool = False  # such as exec

    @property
    def text(self) -> str:
        """Return a description of the row, for failure messages."""
        return f"{self.who.name}{dict(self.who.extra) or ''} {self.verb} {self.path} {self.body}"


def creates(place: str, body: Obj, ends: str, *users: User, since: int = 0) -> list[Row]:
    return [Row(user, "POST", place, body, ends, since) for user in users]


def patches(path: str, body: Obj, ends: str, *users: User) -> list[Row]:
    return [Row(user, "PATCH", path, body, ends) for user in users]


def connects(path: str, ends: str, *users: User, **query: str) -> list[Row]:
    """Open a session in a pod. The API server asks the policies before it looks for the pod's node, which has none."""
    verbs = ("GET", "POST")
    return [Row(user, verb, path, None, ends, query=query, is_session=True) for user in users for verb in verbs]


def deletes(path: str, ends: str, *users: User) -> list[Row]:
    return [Row(user, "DELETE", path, None, ends) for user in users]


def replaces(place: str, body: Obj, ends: str, *users: User) -> list[Row]:
    return [Row(user, "PUT", f"{place}/{body['metadata']['name']}", body, ends) for user in users]


PEOPLE = (TENANT, EDITOR, ADMIN, MASTER)

ROWS: Sequence[Row] = (
    # Templates of reserved devices: written by the controller and break-glass users.
    *creates(TEMPLATE_PLACE, template(exactly(RESERVED)), TEMPLATES, *PEOPLE),
    *creates(TEMPLATE_PLACE, template(exactly(RESERVED)), "", CONTROLLER, RESCUE, RESCUERS),
    *creates(TEMPLATE_PLACE, template(exactly(RESERVED)), RBAC, PLUGIN, KUBELET, SCHEDULER),
    *creates(TEMPLATE_PLACE, template(first(PLAIN, RESERVED)), TEMPLATES, TENANT, EDITOR),
    *creates(TEMPLATE_PLACE, template(exactly(PLAIN), first(RESERVED)), TEMPLATES, EDITOR),
    *creates(TEMPLATE_PLACE, {**template(exactly(RESERVED)), "metadata": {"generateName": "f-"}}, TEMPLATES, EDITOR),
    *creates(TEMPLATE_PLACE, template(exactly(PLAIN), first(PLAIN)), "", TENANT, EDITOR, ADMIN),
    Row(EDITOR, "APPLY", f"{TEMPLATE_PLACE}/forged", APPLIED, TEMPLATES),
    *creates(
        TEMPLATE_PLACE.replace("/v1/", "/v1beta1/"),
        versioned("v1beta1", template({"name": "r", "deviceClassName": RESERVED})),
        TEMPLATES,
        EDITOR,
    ),
    *creates(
        TEMPLATE_PLACE.replace("/v1/", "/v1beta2/"),
        versioned("v1beta2", template(exactly(RESERVED))),
        TEMPLATES,
        EDITOR,
    ),
    # With admin access a device is not held.
    *creates(TEMPLATE_PLACE.replace(OURS, WATCHED), template(exactly(RESERVED, adminAccess=True)), "", EDITOR, MASTER),
    *creates(
        TEMPLATE_PLACE.replace(OURS, WATCHED),
        template(exactly(RESERVED, adminAccess=True), first(RESERVED)),
        TEMPLATES,
        EDITOR,
    ),
    # Existing objects may be changed, for example by the garbage collector.
    *patches(f"{TEMPLATE_PLACE}/older", OWNED, "", COLLECTOR, EDITOR),
    # Claims of reserved devices: written by Kubernetes' claim controller.
    *creates(CLAIM_PLACE, claim(exactly(RESERVED)), CLAIMS, *PEOPLE, SCHEDULER),
    *creates(CLAIM_PLACE, claim(exactly(RESERVED)), "", CLAIM_CONTROLLER, MANAGER, RESCUE, RESCUERS),
    *creates(CLAIM_PLACE, claim(exactly(RESERVED)), RBAC, CONTROLLER, PLUGIN, KUBELET, RESERVER),
    *creates(CLAIM_PLACE, claim(first(PLAIN, RESERVED)), CLAIMS, TENANT, EDITOR),
    *creates(CLAIM_PLACE, claim(exactly(PLAIN), first(PLAIN)), "", TENANT, EDITOR, SCHEDULER),
    *creates(
        CLAIM_PLACE.replace("/v1/", "/v1beta1/"),
        versioned("v1beta1", claim({"name": "r", "deviceClassName": RESERVED})),
        CLAIMS,
        EDITOR,
    ),
    *creates(CLAIM_PLACE.replace(OURS, WATCHED), claim(exactly(RESERVED, adminAccess=True)), "", EDITOR),
    *creates(CLAIM_PLACE.replace(OURS, ELSEWHERE), claim(exactly(RESERVED)), RBAC, TENANT, EDITOR, ADMIN),
    *patches(f"{CLAIM_PLACE}/older", OWNED, "", COLLECTOR, EDITOR),
    # What a claim has, and which pods use it: written by the scheduler.
    *patches(f"{CLAIM_PLACE}/older/status", HELD, RBAC, EDITOR, ADMIN, RESERVER, CONTROLLER, PLUGIN),
    # Pods for which the scheduler creates such a claim.
    *creates(POD_PLACE, pod(amount()), PODS, *PEOPLE, REPLICAS, RESCUE, since=36),
    *creates(POD_PLACE, pod(amount(), init=True), PODS, EDITOR, since=36),
    *creates(POD_PLACE, pod(amount("deviceclass.resource.kubernetes.io/neuron.aws.com")), "", EDITOR, since=36),
    *creates(POD_PLACE, pod({"limits": {"cpu": "1"}}), "", EDITOR, REPLICAS),
    *creates(POD_PLACE, pod(template_name="job"), "", EDITOR, REPLICAS),
    # The controller's condition of a pod that was there before its template, and nothing else of it.
    *patches(f"{POD_PLACE}/older/status", conditions(TEMPLATE_EXISTS), "", CONTROLLER),
    *patches(f"{POD_PLACE}/older/status", conditions("Ready"), WOKEN, CONTROLLER),
    *patches(f"{POD_PLACE}/older/status", {"status": {"phase": "Failed"}}, WOKEN, CONTROLLER),
    *patches(f"{POD_PLACE}/older/status", {"status": {"reason": "forged"}}, WOKEN, CONTROLLER),
    *patches(f"{POD_PLACE}/older/status", {"metadata": {"labels": {"app": "forged"}}}, WOKEN, CONTROLLER),
    *patches(f"{POD_PLACE}/older", {"metadata": {"labels": {"app": "forged"}}}, RBAC, CONTROLLER),
    # Reservations in NeuronUltraServers.
    *patches(f"{ULTRASERVER}/status", ALLOCATED, STATUS, MASTER, LANDLORD),
    *patches(f"{ULTRASERVER.replace('/v1/', '/v1beta1/')}/status", ALLOCATED, STATUS, MASTER),
    *patches(f"{ULTRASERVER}/status", ALLOCATED, "", CONTROLLER, RESCUE, RESCUERS),
    *patches(f"{ULTRASERVER}/status", ALLOCATED, RBAC, TENANT, EDITOR, ADMIN, RESERVER, PLUGIN, NEIGHBOUR),
    # What a workload's pods are told before they end.
    *patches(f"{ULTRASERVER}/status", NOTICED, STATUS, MASTER, LANDLORD),
    *patches(f"{ULTRASERVER}/status", NOTICED, RBAC, TENANT, EDITOR, ADMIN, RESERVER, PLUGIN, NEIGHBOUR),
    *patches(f"{ULTRASERVER}/status", NOTICED, "", CONTROLLER),
    # What tests found: who writes it makes nodes fit, or unfit.
    *patches(f"{ULTRASERVER}/status", TESTED, STATUS, MASTER, LANDLORD),
    *patches(f"{ULTRASERVER}/status", TESTED, RBAC, TENANT, EDITOR, ADMIN, RESERVER, PLUGIN, NEIGHBOUR, KUBELET),
    *patches(f"{ULTRASERVER}/status", TESTED, "", CONTROLLER),
    *patches(ULTRASERVER, {"metadata": {"finalizers": None}}, "", MASTER, CONTROLLER),
    *patches(ULTRASERVER, {"metadata": {"finalizers": None}}, RBAC, ADMIN, PLUGIN),
    Row(MASTER, "DELETE", ULTRASERVER, None, ""),
    Row(EDITOR, "DELETE", ULTRASERVER, None, RBAC),
    *patches(ULTRASERVER, TOPOLOGY, "", MASTER, CONTROLLER),
    *patches(ULTRASERVER, TOPOLOGY, RBAC, TENANT, EDITOR, ADMIN, RESERVER, PLUGIN),
    # Nodes: only the controller's labels.
    *patches(f"/api/v1/nodes/{NODE}", LABELLED, "", CONTROLLER, MASTER),
    *patches(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {f"{LABEL}-x": None}}}, "", CONTROLLER),
    *patches(f"/api/v1/nodes/{NODE}", LABELLED, RBAC, TENANT, ADMIN, PLUGIN),
    *patches(f"/api/v1/nodes/{NODE}", LABELLED, "", KUBELET),  # of its own node; the controller puts its value back
    *patches(f"/api/v1/nodes/{NODE}", TAINTED, RBAC, TENANT, ADMIN, PLUGIN),
    *patches(f"/api/v1/nodes/{NODE}", {"spec": {"unschedulable": True}}, RBAC, TENANT, ADMIN, PLUGIN),
    *patches(f"/api/v1/nodes/{NODE}/status", READY, RBAC, TENANT, ADMIN, PLUGIN, CONTROLLER),
    *patches(f"/api/v1/nodes/{NODE}/status", REPORTED, RBAC, TENANT, EDITOR, ADMIN, PLUGIN, NEIGHBOUR, CONTROLLER),
    *patches(f"/api/v1/nodes/{NODE}/status", ADDRESSES, RBAC, TENANT, ADMIN, PLUGIN, CONTROLLER),
    *patches(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"zone": "b"}}}, NODES, CONTROLLER),
    *patches(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"zone": None}}}, NODES, CONTROLLER),
    *patches(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"zone": "b"}}}, "", MASTER),
    *patches(f"/api/v1/nodes/{NODE}", annotated("x", "a"), NODES, CONTROLLER),
    *patches(f"/api/v1/nodes/{NODE}", TAINTED, NODES, CONTROLLER),
    *patches(f"/api/v1/nodes/{NODE}", {"spec": {"unschedulable": True}}, NODES, CONTROLLER),
    *patches(f"/api/v1/nodes/{NODE}", {"metadata": {"finalizers": ["a/b"]}}, NODES, CONTROLLER),
    *patches(f"/api/v1/nodes/{NODE}/status", {"status": {"capacity": {"x.y/z": "1"}}}, RBAC, CONTROLLER),
    Row(CONTROLLER, "DELETE", f"/api/v1/nodes/{NODE}", None, RBAC),
    *patches(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {BLOCK: "cr-2"}}}, BLOCKS, MASTER, KUBELET),
    *patches(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {BLOCK: None}}}, BLOCKS, MASTER),
    # Services and EndpointSlices: the controller may write only those for rank 0.
    *creates(SERVICE_PLACE, service(), "", CONTROLLER, TENANT, EDITOR, MASTER),
    *creates(SERVICE_PLACE, service(externalIPs=["192.0.2.1"]), SERVICES, CONTROLLER),
    *creates(SERVICE_PLACE, service(selector={"app": "web"}), SERVICES, CONTROLLER),
    *creates(SERVICE_PLACE, service("web"), SERVICES, CONTROLLER),
    *creates(SERVICE_PLACE, service("web"), RBAC, PLUGIN),
    *creates(ENDPOINT_PLACE, endpoints("forged-rank0", "forged-rank0"), "", CONTROLLER, MASTER),
    *creates(ENDPOINT_PLACE, endpoints("forged-rank0-ipv4", "forged-rank0"), "", CONTROLLER),
    *creates(ENDPOINT_PLACE, endpoints("forged-rank0-ipv6", "forged-rank0"), "", CONTROLLER),
    *creates(ENDPOINT_PLACE, endpoints("forged-rank0", "web"), ENDPOINTS, CONTROLLER),
    *creates(ENDPOINT_PLACE, endpoints("forged-rank0-web", "forged-rank0"), ENDPOINTS, CONTROLLER),
    *creates(ENDPOINT_PLACE, endpoints("web", "web"), ENDPOINTS, CONTROLLER),
    *creates(ENDPOINT_PLACE, endpoints("forged-rank0", "forged-rank0"), RBAC, EDITOR, ADMIN, PLUGIN),
    # The limit of reserved nodes of a namespace.
    *patches(f"/api/v1/namespaces/{OURS}", annotated("99"), LIMITS, TENANT, PATCHER),
    *patches(f"/api/v1/namespaces/{OURS}", annotated(None), LIMITS, TENANT, PATCHER),
    *patches(f"/api/v1/namespaces/{OURS}/status", annotated("99"), LIMITS, TENANT),
    *patches(f"/api/v1/namespaces/{OURS}", annotated("99"), RBAC, EDITOR, ADMIN, RESERVER, CONTROLLER, PLUGIN),
    *patches(f"/api/v1/namespaces/{OURS}", annotated("99"), "", MASTER, LIMITER, RESCUE),
    *patches(f"/api/v1/namespaces/{OURS}", annotated("none"), "", MASTER),
    *patches(f"/api/v1/namespaces/{OURS}", annotated("ten"), LIMITS, MASTER, RESCUE),
    *patches(f"/api/v1/namespaces/{OURS}", annotated("team", "owner"), "", TENANT, PATCHER),
    *creates("/api/v1/namespaces", {"metadata": {"name": "f", "annotations": {LIMIT: "1"}}}, LIMITS, PATCHER),
    *creates("/api/v1/namespaces", {"metadata": {"name": "f", "annotations": {LIMIT: "1"}}}, "", LIMITER),
    *creates("/api/v1/namespaces", meta("f"), "", PATCHER),
    # When the capacity block of a node ends: who may say it needs a right of its own, the node's kubelet too.
    *patches(f"/api/v1/nodes/{NODE}", annotated(FRIDAY, BLOCK_END), ENDS, KUBELET),
    *patches(f"/api/v1/nodes/{NODE}/status", annotated(FRIDAY, BLOCK_END), ENDS, KUBELET),
    *patches(f"/api/v1/nodes/{NODE}", annotated(FRIDAY, BLOCK_END), RBAC, TENANT, EDITOR, ADMIN, PLUGIN, NEIGHBOUR),
    *patches(f"/api/v1/nodes/{NODE}", annotated("Friday", BLOCK_END), ENDS, MASTER),
    *patches(f"/api/v1/nodes/{NODE}", annotated(FRIDAY, BLOCK_END), "", MASTER),
    *patches(f"/api/v1/nodes/{NODE}", annotated("x", "example.com/other"), "", KUBELET),
    # The label of a namespace whose jobs may reserve nodes.
    *patches(f"/api/v1/namespaces/{OURS}", labelled("true"), JOBS, TENANT, PATCHER),
    *patches(f"/api/v1/namespaces/{OURS}/status", labelled("true"), JOBS, TENANT),
    *patches(f"/api/v1/namespaces/{OURS}", labelled("true"), RBAC, EDITOR, ADMIN, RESERVER, CONTROLLER, PLUGIN),
    *patches(f"/api/v1/namespaces/{OURS}", labelled("true"), "", MASTER, LIMITER, RESCUE),
    *patches(f"/api/v1/namespaces/{OURS}", labelled("yes"), JOBS, MASTER, LIMITER),
    *creates("/api/v1/namespaces", meta("f", labels={JOBS_LABEL: "true"}), JOBS, PATCHER),
    *creates("/api/v1/namespaces", meta("f", labels={JOBS_LABEL: "true"}), "", LIMITER),
    # What marks the workload of a job: only who may write workloads, and it gives nothing.
    *patches(f"{WORKLOAD_PLACE}/older", annotated("Job/x/y", MADE_FOR), RBAC, EDITOR, ADMIN, PLUGIN),
    *patches(f"{WORKLOAD_PLACE}/older", annotated("Job/x/y", MADE_FOR), "", RESERVER, TENANT, MASTER),
    # The queue of a workload. It is a request: Kueue decides what it gets.
    *patches(f"{WORKLOAD_PLACE}/older", QUEUED, RBAC, EDITOR, ADMIN, PLUGIN),
    *patches(f"{WORKLOAD_PLACE}/older", QUEUED, "", RESERVER, TENANT, MASTER),
    # Kueue's Workloads: the controller may write those of reservations, and none of jobs.
    *creates(KUEUE_PLACE, kueue_workload(of_a_reservation=False), QUEUES, CONTROLLER),
    *creates(KUEUE_PLACE, kueue_workload(of_a_reservation=True), "", CONTROLLER, TENANT),
    *creates(KUEUE_PLACE, kueue_workload(of_a_reservation=True), RBAC, EDITOR, PLUGIN),
    *patches(f"{KUEUE_PLACE}/of-a-job", {"spec": {"active": False}}, QUEUES, CONTROLLER),
    *patches(f"{KUEUE_PLACE}/of-a-reservation", {"spec": {"active": False}}, "", CONTROLLER, TENANT),
    Row(CONTROLLER, "DELETE", f"{KUEUE_PLACE}/of-a-job", None, QUEUES),
    Row(CONTROLLER, "DELETE", f"{KUEUE_PLACE}/of-a-reservation", None, ""),
    # What Kueue says of them: whoever may write that in a namespace gives out, or takes, its quota.
    *patches(f"{KUEUE_PLACE}/of-a-reservation/status", EVICTION, RBAC, EDITOR, ADMIN, RESERVER, PLUGIN),
    *patches(f"{KUEUE_PLACE}/of-a-reservation/status", EVICTION, "", TENANT, MASTER),
    *creates(KUEUE_PLACE, kueue_workload(of_a_reservation=True), RBAC, RESERVER),
    # Jobs that ask for UltraServers: they are requests. The controller only reads them.
    *creates(JOB_PLACE, asking({"template": pods_of_job()}), "", TENANT, EDITOR, ADMIN),
    *creates(JOB_PLACE, asking({"template": pods_of_job()}), RBAC, RESERVER, PLUGIN, CONTROLLER),
    *creates(STATEFUL_SET_PLACE, stateful_set(), "", TENANT, EDITOR, ADMIN),
    *creates(STATEFUL_SET_PLACE, stateful_set(), RBAC, RESERVER, PLUGIN, CONTROLLER),
    *creates(JOB_SET_PLACE, job_set(), "", TENANT),
    *creates(JOB_SET_PLACE, job_set(), RBAC, RESERVER, PLUGIN, CONTROLLER),
    *creates(LEADER_WORKER_PLACE, leader_workers(), "", TENANT),
    *creates(LEADER_WORKER_PLACE, leader_workers(), RBAC, RESERVER, PLUGIN, CONTROLLER),
    *patches(f"{JOB_PLACE}/older/status", DONE, RBAC, EDITOR, ADMIN, RESERVER, PLUGIN, CONTROLLER),
    *patches(f"{STATEFUL_SET_PLACE}/older/status", DONE, RBAC, EDITOR, ADMIN, RESERVER, PLUGIN, CONTROLLER),
    *patches(f"{JOB_SET_PLACE}/older/status", DONE, RBAC, RESERVER, PLUGIN, CONTROLLER),
    *patches(f"{LEADER_WORKER_PLACE}/older/status", DONE, RBAC, RESERVER, PLUGIN, CONTROLLER),
    # What a PriorityClass is worth.
    *creates(CLASS_PLACE, {**meta("forged"), "value": 1}, "", MASTER),
    *creates(CLASS_PLACE, {**meta("forged"), "value": 1}, RBAC, TENANT, EDITOR, ADMIN, RESERVER, PLUGIN, LANDLORD),
    # What pods of jobs wait for, and what Kubernetes says of them.
    *patches(f"{POD_PLACE}/older/status", conditions("Ready"), RBAC, EDITOR, ADMIN, RESERVER, PLUGIN),
    # Slices: each plugin may write those of its node.
    *creates(SLICE_PLACE, slice_(f"{NODE}-neuron.aws.com-01"), "", PLUGIN, MASTER),
    *creates(SLICE_PLACE, slice_(f"{NODE}-neuron.aws.com-01"), SLICES, NEIGHBOUR, NOWHERE),
    *creates(SLICE_PLACE, slice_(f"{NODE}-neuron.aws.com-01"), RBAC, TENANT, ADMIN, CONTROLLER),
    *creates(SLICE_PLACE, slice_(f"{OTHER}-neuron.aws.com-00"), SLICES, PLUGIN),  # the name of another's
    *creates(SLICE_PLACE, slice_("anything"), SLICES, PLUGIN),
    *creates(SLICE_PLACE, slice_(f"{LONG[:224]}-0123456789-neuron.aws.com-00", LONG), "", FAR),
    *creates(SLICE_PLACE, slice_(f"{NODE}-neuron.aws.com-00", LONG), SLICES, FAR),
    *creates(SLICE_PLACE, slice_(f"{NODE}-neuron.aws.com-01", driver="dra.net"), SLICES, PLUGIN),
    *creates(SLICE_PLACE, slice_(f"{NODE}-neuron.aws.com-01", pool=OTHER), SLICES, PLUGIN),
    *replaces(SLICE_PLACE, slice_(f"{NODE}-neuron.aws.com-00"), "", PLUGIN),
    *replaces(SLICE_PLACE, slice_(f"{NODE}-neuron.aws.com-00"), SLICES, NEIGHBOUR),
    *replaces(SLICE_PLACE, slice_("of-aws-x7k2p"), "", PLUGIN),  # left by AWS's driver, to be replaced
    *patches(f"{SLICE_PLACE}/{NODE}-neuron.aws.com-00", LABELLED, RBAC, PLUGIN, NEIGHBOUR),
    Row(PLUGIN, "DELETE", f"{SLICE_PLACE}/of-aws-x7k2p", None, ""),
    Row(PLUGIN, "DELETE", f"{SLICE_PLACE}/of-another-pool", None, ""),
    Row(NEIGHBOUR, "DELETE", f"{SLICE_PLACE}/{NODE}-neuron.aws.com-00", None, SLICES),
    Row(NEIGHBOUR, "DELETE", SLICE_PLACE, None, RBAC, query={"fieldSelector": f"spec.nodeName={NODE}"}),
    # Workloads: users who were granted the right.
    *creates(WORKLOAD_PLACE, workload(), RBAC, EDITOR, ADMIN, PLUGIN),
    *creates(WORKLOAD_PLACE, workload(), "", RESERVER, TENANT, MASTER, CONTROLLER),
    *patches(f"{WORKLOAD_PLACE}/older", {"spec": {"serverCount": 2}}, RBAC, EDITOR, ADMIN, PLUGIN),
    *patches(f"{WORKLOAD_PLACE}/older", {"spec": {"serverCount": 2}}, "", RESERVER, TENANT),
    *patches(f"{WORKLOAD_PLACE}/older", annotated("host", RENDEZVOUS), RBAC, EDITOR, ADMIN, PLUGIN),
    *patches(f"{WORKLOAD_PLACE}/older", annotated("host", RENDEZVOUS), "", RESERVER, TENANT),
    *patches(f"{WORKLOAD_PLACE}/older", {"metadata": {"finalizers": ["a/b"]}}, RBAC, EDITOR, ADMIN, PLUGIN),
    *patches(f"{WORKLOAD_PLACE}/older/status", {"status": {"state": "Failed"}}, RBAC, EDITOR, ADMIN, RESERVER),
    *patches(f"{WORKLOAD_PLACE}/older/status", {"status": {"state": "Failed"}}, WORKLOAD_STATUS, TENANT, MASTER),
    *patches(f"{WORKLOAD_PLACE}/older/status", {"status": {"state": "Pending"}}, "", CONTROLLER, RESCUE, RESCUERS),
    # The PriorityClass of a workload: users who may use it.
    *creates(WORKLOAD_PLACE, workload(priorityClassName="forged-high"), PRIORITY, RESERVER, TENANT, CONTROLLER),
    *creates(WORKLOAD_PLACE, workload(priorityClassName="forged-high"), RBAC, EDITOR, PLUGIN),
    *creates(WORKLOAD_PLACE, workload(priorityClassName="forged-high"), "", MASTER, RESCUE, RESCUERS),
    *patches(f"{WORKLOAD_PLACE}/older", {"spec": {"priorityClassName": "forged-high"}}, PRIORITY, RESERVER, TENANT),
    # The controller writes that of a job: the ServiceAccounts of its namespace need the right.
    *creates(WATCHED_WORKLOADS, workload(priorityClassName="forged-high"), "", CONTROLLER),
    *creates(WATCHED_WORKLOADS, workload(priorityClassName="forged-higher"), PRIORITY, CONTROLLER),
    *creates(WATCHED_WORKLOADS, workload(priorityClassName="forged-high"), RBAC, EDITOR, RESERVER),
    *patches(f"{WORKLOAD_PLACE}/older", {"spec": {"priorityClassName": "forged-high"}}, PRIORITY, CONTROLLER),
    *patches(f"{WORKLOAD_PLACE}/older", {"spec": {"priorityClassName": None}}, "", RESERVER, TENANT),
    # Reservations in workloads, from which lost ones are restored.
    *patches(f"{WORKLOAD_PLACE}/older/status", COPIED, WORKLOAD_STATUS, TENANT, MASTER),
    *patches(f"{WORKLOAD_PLACE.replace('/v1/', '/v1beta1/')}/older/status", COPIED, WORKLOAD_STATUS, TENANT),
    *patches(f"{WORKLOAD_PLACE}/older", COPIED, "", TENANT),  # without the subresource, the status is ignored
    # Tests of UltraServers: what they are, what runs in their namespace, and how it ended.
    *creates(QUALIFICATION_PLACE, qualification(), "", MASTER),
    *creates(QUALIFICATION_PLACE, qualification(), RBAC, TENANT, EDITOR, ADMIN, RESERVER, PLUGIN, LANDLORD, CONTROLLER),
    *patches(f"{QUALIFICATION_PLACE}/older/status", {"status": {"fresh": 9}}, RBAC, TENANT, ADMIN, PLUGIN, LANDLORD),
    *creates(TEST_WORKLOADS, workload(), "", CONTROLLER, RESCUE),
    *creates(TEST_WORKLOADS, workload(), TESTS, MASTER),
    *creates(TEST_WORKLOADS, workload(), RBAC, TENANT, EDITOR, ADMIN, RESERVER, PLUGIN),
    *creates(TEST_PODS, tokenless(), "", CONTROLLER, RESCUE),
    *creates(TEST_PODS, tokenless(), TESTS, MASTER, REPLICAS),
    *creates(TEST_PODS, pod(), TESTS, CONTROLLER),
    *creates(POD_PLACE.replace(OURS, ELSEWHERE), tokenless(), MAKES_PODS, CONTROLLER),
    *creates(TEST_PODS, pod(), RBAC, TENANT, EDITOR, ADMIN, PLUGIN),
    *patches(f"{TEST_PODS}/older/status", PHASE, RBAC, TENANT, EDITOR, ADMIN, PLUGIN),
    # What exists there is not changed, and nobody opens a session in a pod. A pod may be evicted or deleted.
    *patches(f"{TEST_WORKLOADS}/older", annotated("forged", TARGET), RBAC, TENANT, EDITOR, ADMIN, RESERVER, PLUGIN),
    *patches(f"{TEST_WORKLOADS}/older", annotated("forged", TARGET), TESTS, MASTER),
    *patches(f"{TEST_WORKLOADS}/older", annotated("forged", TARGET), "", RESCUE),
    *patches(f"{TEST_WORKLOADS}/older/status", COPIED, WORKLOAD_STATUS, MASTER),
    *patches(f"{TEST_PODS}/older", {"metadata": {"labels": OF_TEST}}, RBAC, TENANT, EDITOR, ADMIN, PLUGIN, KUBELET),
    *patches(f"{TEST_PODS}/older", {"metadata": {"labels": OF_TEST}}, TESTS, MASTER),
    *patches(f"{TEST_PODS}/older", {"metadata": {"labels": OF_TEST}}, "", RESCUE, COLLECTOR),
    *patches(f"{TEST_PODS}/older", OWNED_BY_ANOTHER, TESTS, MASTER),
    *patches(f"{TEST_PODS}/older/status", PHASE, TESTS, MASTER),
    *patches(f"{TEST_PODS}/older/status", READY, "", SCHEDULER),
    *patches(f"{TEST_PODS}/older/ephemeralcontainers", INTRUDER, RBAC, TENANT, EDITOR, ADMIN, PLUGIN),
    *patches(f"{TEST_PODS}/older/ephemeralcontainers", INTRUDER, TESTS, MASTER),
    *patches(f"{TEST_PODS}/older/resize", {"metadata": {"labels": OF_TEST}}, RBAC, TENANT, EDITOR, ADMIN, PLUGIN),
    *patches(f"{TEST_PODS}/older/resize", {"metadata": {"labels": OF_TEST}}, TESTS, MASTER),
    *connects(f"{TEST_PODS}/older/exec", RBAC, TENANT, EDITOR, ADMIN, PLUGIN, CONTROLLER, command="sh"),
    *connects(f"{TEST_PODS}/older/exec", TESTS, MASTER, command="sh"),
    *connects(f"{TEST_PODS}/older/attach", RBAC, TENANT, EDITOR, ADMIN, PLUGIN, CONTROLLER),
    *connects(f"{TEST_PODS}/older/attach", TESTS, MASTER),
    *connects(f"{TEST_PODS}/older/portforward", RBAC, TENANT, EDITOR, ADMIN, PLUGIN, CONTROLLER),
    *connects(f"{TEST_PODS}/older/portforward", TESTS, MASTER),
    *connects(f"{TEST_PODS}/older/proxy", RBAC, TENANT, EDITOR, ADMIN, PLUGIN, CONTROLLER),
    *connects(f"{TEST_PODS}/older/proxy", TESTS, MASTER),
    *creates(f"{TEST_PODS}/older/eviction", EVICTS, RBAC, TENANT, EDITOR, ADMIN, PLUGIN),
    *creates(f"{TEST_PODS}/older/eviction", EVICTS, "", MASTER, RESCUE),
    *deletes(f"{TEST_PODS}/older", RBAC, TENANT, EDITOR, ADMIN, PLUGIN),
    *deletes(f"{TEST_PODS}/older", "", MASTER, CONTROLLER),
    # Ways to bypass the policies.
    *patches(f"{POLICY_PLACE}/{JOBS}", {"spec": {"validationActions": ["Audit"]}}, RBAC, TENANT, EDITOR, ADMIN),
    *patches(f"{POLICY_PLACE}/{JOBS}", {"spec": {"validationActions": ["Audit"]}}, RBAC, LANDLORD, PLUGIN, CONTROLLER),
    *patches(f"{RULE_PLACE}/{JOBS}", {"spec": {"failurePolicy": "Ignore"}}, RBAC, TENANT, EDITOR, ADMIN),
    *patches(f"{RULE_PLACE}/{JOBS}", {"spec": {"failurePolicy": "Ignore"}}, RBAC, LANDLORD, PLUGIN, CONTROLLER),
    Row(ADMIN, "DELETE", f"{POLICY_PLACE}/{CLAIMS}", None, RBAC),
    Row(TENANT, "DELETE", f"{POLICY_PLACE}/{LIMITS}", None, RBAC),
    *creates("/apis/resource.k8s.io/v1/deviceclasses", {**meta("forged"), "spec": {}}, RBAC, TENANT, ADMIN, CONTROLLER),
    *patches(f"{CLAIM_PLACE}/older/status", {"status": {"devices": None}}, RBAC, EDITOR, ADMIN, CONTROLLER),
    *creates(POD_PLACE, pod(), RBAC, CONTROLLER, PLUGIN),
    Row(CONTROLLER, "DELETE", f"{POD_PLACE}/older", None, RBAC),
)
