"""Writes without permission (13, acceptance 3): the API server rejects each by the policy or role that covers it.

The table is in `forged_writes`. The policies and roles are those of the chart, with one user on the break-glass list.
The control plane is enough: no pods are needed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import yaml

from hack.bed import pki
from hack.bed.real_cluster import REPOSITORY, TestBed, eventually
from neuron_dra.core.qualification import NAMESPACE as TEST_NAMESPACE
from neuron_dra.core.wire import Obj
from tests.bed import forged_writes as table
from tests.bed.forged_writes import DRIVER_NAMESPACE, LIMIT, NODE, OTHER, OURS, ROWS, Row, User

CHART = REPOSITORY / "deploy/helm/neuron-dra"
WRITTEN = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
GUARDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
POLICY = re.compile(r"ValidatingAdmissionPolicy '([^']+)' with binding '[^']+' denied request: (.*)", re.DOTALL)


@dataclass(slots=True)
class Api:
    """The real API server, called with impersonated users."""

    connection: http.client.HTTPSConnection
    token: str

    def ask(self, who: User, method: str, path: str, body: Any = None, kind: str = "") -> tuple[int, Obj]:
        headers = [
            ("Authorization", f"Bearer {self.token}"),
            ("Content-Type", kind or "application/json"),
            ("Impersonate-User", who.name),
            *(("Impersonate-Group", group) for group in (*who.groups, "system:authenticated")),
            *((f"Impersonate-Extra-{quote(name, safe='')}", value) for name, value in who.extra.items()),
        ]
        data = b"" if body is None else json.dumps(body).encode()
        self.connection.putrequest(method, path)
        for name, value in (*headers, ("Content-Length", str(len(data)))):
            self.connection.putheader(name, value)
        self.connection.endheaders(data)
        with self.connection.getresponse() as answer:
            text = answer.read()
            if "json" in answer.headers.get("Content-Type", ""):
                return answer.status, json.loads(text)
            return answer.status, {"message": text.decode()}  # such as of a kind that is not served yet

    def outcome(self, row: Row) -> str:
        """Return the result of an attempt as in the table, or the API server's message."""
        return _message(*self.attempt(row))

    def attempt(self, row: Row) -> tuple[int, Obj]:
        apply = {"fieldManager": "f"} if row.verb == "APPLY" else {}
        dry_run = {} if row.is_session else {"dryRun": "All"}  # the API server refuses dry runs of sessions
        path = f"{row.path}?{urlencode({**dry_run, **apply, **row.query})}"
        method, kind = {"PATCH": ("PATCH", MERGE), "APPLY": ("PATCH", APPLY)}.get(row.verb, (row.verb, ""))
        return self.ask(row.who, method, path, row.body, kind)

    def put(self, item: Obj, who: User = table.MASTER) -> None:
        """Create an object, or replace an existing one with its name."""
        status, answer = self.try_to_put(item, who)
        assert status in (200, 201), (item["kind"], item["metadata"]["name"], answer.get("message"))

    def try_to_put(self, item: Obj, who: User) -> tuple[int, Obj]:
        name, where = item["metadata"]["name"], place(item)
        written = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")
        item = {**item, "metadata": {key: value for key, value in item["metadata"].items() if key not in written}}
        status, have = self.ask(who, "GET", f"{where}/{name}")
        if status == 404:
            status, answer = self.ask(who, "POST", where, item)
        else:
            version = {"resourceVersion": have["metadata"].get("resourceVersion")}
            body = {**item, "metadata": {**item["metadata"], **version}}
            status, answer = self.ask(who, "PUT", f"{where}/{name}", body)
        return status, answer

    def get(self, where: str) -> Obj | None:
        status, answer = self.ask(table.MASTER, "GET", where)
        return answer if status == 200 else None

    def remove(self, item: Obj) -> None:
        status, answer = self.ask(table.MASTER, "DELETE", f"{place(item)}/{item['metadata']['name']}")
        assert status in (200, 202, 404), answer


def _message(status: int, answer: Obj) -> str:
    message = str(answer.get("message"))
    if status in (200, 201, 202):
        return ""
    refused = POLICY.search(message)
    if refused and "resulted in error" not in message and "failed to evaluate" not in message:
        return refused[1]
    return table.RBAC if status == 403 and "cannot" in message else f"{status}: {message}"


PLURALS = {
    "Node": "nodes",
    "Namespace": "namespaces",
    "Pod": "pods",
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ResourceSlice": "resourceslices",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "NeuronUltraServer": "neuronultraservers",
    "NeuronUltraServerWorkload": "neuronultraserverworkloads",
    "Workload": "workloads",
    "CustomResourceDefinition": "customresourcedefinitions",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


def place(item: Obj) -> str:
    """Return the path of an object's collection."""
    group, namespace = item["apiVersion"], item["metadata"].get("namespace")
    root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    return f"{root}/{f'namespaces/{namespace}/' if namespace else ''}{PLURALS[item['kind']]}"


CONFIGURATION = "neuron-dra-driver-configuration"
"""This policy limits no rights, it warns (test_configuration_on_a_real_server.py)."""


def chart(helm: str) -> list[Obj]:
    """The roles and policies of the chart; the user `forged-rescue` and the group `forged-rescuers` are on the
    break-glass list.
    """
    glass = "ultraserverOperator.admissionPolicies.breakGlass"
    values = {
        "draDriver.image.repository": "d",
        "ultraserverOperator.enabled": "true",
        "ultraserverOperator.jobs.enabled": "true",
        "ultraserverOperator.queues.enabled": "true",
        "ultraserverOperator.qualification.enabled": "true",
        f"{glass}.users[0]": table.RESCUE.name,
        f"{glass}.groups[0]": "forged-rescuers",
    }
    sets = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    command = [helm, "template", "r", str(CHART), "--namespace", DRIVER_NAMESPACE, *sets]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = [item for item in yaml.safe_load_all(text) if item and item["kind"] in (*WRITTEN, *GUARDS)]
    return [item for item in found if item["metadata"]["name"] != CONFIGURATION]


def made(kind: str, name: str, group: str = "v1", namespace: str = "", **more: Any) -> Obj:
    meta = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})}
    return {"apiVersion": group, "kind": kind, "metadata": meta, **more}


RBAC = "rbac.authorization.k8s.io/v1"
ALL = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


def bound(role: str, who: User | str, namespace: str = "", kind: str = "ClusterRole") -> Obj:
    """A binding of a role to a user, or to a group; in the whole cluster without namespace."""
    subject = {"kind": "User", "name": who.name} if isinstance(who, User) else {"kind": "Group", "name": who}
    name = f"forged-{role}-{subject['name'].replace(':', '-')}"
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    about = {"subjects": [{"apiGroup": "rbac.authorization.k8s.io", **subject}], "roleRef": ref}
    return made("RoleBinding" if namespace else "ClusterRoleBinding", name, RBAC, namespace, **about)


def rights() -> list[Obj]:
    """Return the role bindings besides the chart's own."""
    writes = ["create", "update", "patch", "delete"]
    dra = {"apiGroups": ["resource.k8s.io"], "verbs": writes}
    claims = {**dra, "resources": ["resourceclaims"]}
    pods = {"apiGroups": [""], "resources": ["pods"]}
    namespaces = {"apiGroups": [""], "resources": ["namespaces"], "verbs": writes}
    classes = {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "resourceNames": ["forged-high"]}
    return [
        made("Role", "forged-everything", RBAC, OURS, rules=[ALL]),
        made("Role", "forged-everything", RBAC, DRIVER_NAMESPACE, rules=[ALL]),
        made("ClusterRole", "forged-claims", RBAC, rules=[claims]),
        made("ClusterRole", "forged-namespaces", RBAC, rules=[namespaces]),
        made("ClusterRole", "forged-priority", RBAC, rules=[{**classes, "verbs": ["use"]}]),
        bound("forged-priority", f"system:serviceaccounts:{table.WATCHED}"),
        bound("forged-everything", table.TENANT, OURS, "Role"),
        bound("forged-everything", table.LANDLORD, DRIVER_NAMESPACE, "Role"),
        # A role that gives the controller more than the chart does.
        made("Role", "forged-pods", RBAC, table.ELSEWHERE, rules=[{**pods, "verbs": ["create"]}]),
        bound("forged-pods", table.CONTROLLER, table.ELSEWHERE, "Role"),
        bound("cluster-admin", "forged-masters"),
        *(bound("forged-claims", who) for who in (table.MANAGER, table.SCHEDULER, table.CLAIM_CONTROLLER)),
        *(bound("forged-namespaces", who) for who in (table.PATCHER, table.LIMITER)),
        bound("neuron-ultraserver-limits", table.LIMITER),
        bound("neuron-ultraserver-workloads-edit", table.RESERVER, OURS),
        *(bound("edit", table.EDITOR, namespace) for namespace in (OURS, table.WATCHED)),
        bound("admin", table.ADMIN, OURS),
    ]


def present() -> list[Obj]:
    """Return the objects that exist before the attempts."""
    labels = {"zone": "a", f"{table.LABEL}-x": "1", table.BLOCK: "cr-1"}
    topology = [{"nodeName": NODE, "nodeId": 0}]
    slices = (
        table.slice_(f"{NODE}-neuron.aws.com-00"),
        table.slice_("of-aws-x7k2p"),
        table.slice_("of-another-pool", pool="another"),
    )
    return [
        *(made("Node", name, metadata={"labels": labels}) for name in (NODE, OTHER)),
        *({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **item} for item in slices),
        made(
            "NeuronUltraServer",
            "us-forged",
            "neuron.aws.com/v1",
            DRIVER_NAMESPACE,
            spec={"instanceType": "trn3.48xlarge", "topology": topology},
        ),
        *(
            {**table.workload(), "metadata": {"name": "older", "namespace": namespace}}
            for namespace in (OURS, TEST_NAMESPACE)
        ),
        *(
            {**item, "metadata": {**item["metadata"], "namespace": OURS}}
            for item in (
                table.kueue_workload("of-a-job", of_a_reservation=False),
                table.kueue_workload("of-a-reservation", of_a_reservation=True),
            )
        ),
        made("ResourceClaim", "older", "resource.k8s.io/v1", OURS, spec=table.claim(table.exactly("x"))["spec"]),
        made("Pod", "older", "v1", OURS, spec={**table.pod()["spec"], "schedulerName": "forged-nobody"}),
        made(
            "Pod", "older", "v1", TEST_NAMESPACE, spec={**table.tokenless()["spec"], "schedulerName": "forged-nobody"}
        ),
        made(
            *("ResourceClaimTemplate", "older", "resource.k8s.io/v1", OURS),
            spec=table.template(table.exactly(table.RESERVED))["spec"],
        ),
    ]


@pytest.fixture(scope="module")
def api(running_bed: TestBed) -> Iterator[Api]:
    parts = running_bed.parts
    host, port = parts.plane.address, parts.state.ports["api"]
    trust = ssl.create_default_context(cafile=running_bed.where.pki_dir / "ca.crt")
    with contextlib.closing(http.client.HTTPSConnection(host, port, timeout=30, context=trust)) as connection:
        with running_bed.inside():
            connection.connect()
        yield Api(connection, pki.token(running_bed.where, "admin"))


@pytest.fixture(scope="module")
def undisturbed(running_bed: TestBed, api: Api) -> Iterator[None]:
    """An installed controller would remove forged objects, so none runs during the test."""
    running_bed.kubectl("apply", "-f", str(REPOSITORY / "deploy/crds"))
    deployment = f"/apis/apps/v1/namespaces/{DRIVER_NAMESPACE}/deployments/neuron-ultraserver-controller"
    found = api.get(deployment)
    if found:
        words = ("scale", "--namespace", DRIVER_NAMESPACE, "deployment/neuron-ultraserver-controller")
        running_bed.kubectl(*words, "--replicas=0")
        pods = f"/api/v1/namespaces/{DRIVER_NAMESPACE}/pods?labelSelector=app%3Dneuron-ultraserver-controller"
        eventually("the controller is gone", lambda: (api.get(pods) or {"items": ["unknown"]})["items"] == [], 120)
    yield
    if found:
        running_bed.kubectl(*words, f"--replicas={found['spec']['replicas']}")


def kind_of(group: str, version: str, kind: str) -> Obj:
    """Return the CRD of a kind of another project, for rights alone."""
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    spec = {
        "group": group,
        "names": {"plural": plural, "kind": kind},
        "scope": "Namespaced",
        "versions": [{**served, "schema": {"openAPIV3Schema": anything}}],
    }
    # As the groups of Kubernetes' projects need it.
    meta = {"annotations": {"api-approved.kubernetes.io": "unapproved, for a test of rights"}}
    return made("CustomResourceDefinition", f"{plural}.{group}", "apiextensions.k8s.io/v1", metadata=meta, spec=spec)


FOREIGN = {
    table.KUEUE_PLACE: kind_of("kueue.x-k8s.io", "v1beta2", "Workload"),
    table.JOB_SET_PLACE: kind_of("jobset.x-k8s.io", "v1alpha2", "JobSet"),
    table.LEADER_WORKER_PLACE: kind_of("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"),
}
"""Kinds of other projects, by the path of their collection."""


@pytest.fixture(scope="module")
def queues(api: Api) -> Iterator[None]:
    """The API server has the kinds of Kueue, JobSet and LeaderWorkerSet."""
    absent = [kind for kind in FOREIGN.values() if api.get(address(kind)) is None]
    for kind in absent:
        api.put(kind)
    for path in FOREIGN:
        eventually(f"{path} is served", lambda path=path: api.get(path), 60)
    yield
    for kind in absent:
        api.remove(kind)


@pytest.fixture(scope="module")
def guards(running_bed: TestBed, api: Api, undisturbed: None, queues: None) -> Iterator[list[str]]:
    """The chart's roles and policies, in force; the former ones are restored afterwards. The policies' names."""
    path = running_bed.parts.plane.environment()["PATH"].split(":")
    items = chart(next(str(Path(each, "helm")) for each in path if Path(each, "helm").exists()))
    own = [
        made("Namespace", OURS, metadata={"annotations": {LIMIT: "4"}}),
        made("Namespace", table.ELSEWHERE),
        made("Namespace", TEST_NAMESPACE),
        made("Namespace", table.WATCHED, metadata={"labels": {"resource.kubernetes.io/admin-access": "true"}}),
        *rights(),
    ]
    before = {address(item): api.get(address(item)) for item in items}
    try:
        yield put_in_force(api, items, own)
    finally:  # also after an error: other tests upgrade the chart
        for item in (*reversed(present()), *reversed(own)):
            api.remove(item)
        for item in items:
            old = before[address(item)]
            api.put(old) if old else api.remove(item)


def put_in_force(api: Api, items: list[Obj], own: list[Obj]) -> list[str]:
    """Create the objects, and wait until the API server enforces the policies; return their names."""
    if api.get(f"/api/v1/namespaces/{DRIVER_NAMESPACE}") is None:
        # The namespace stays: one that is being deleted would block the next test.
        api.put(made("Namespace", DRIVER_NAMESPACE))
    namespaces_first = sorted((*items, *own), key=lambda item: item["kind"] != "Namespace")
    for item in namespaces_first:
        api.put(item)
    for name in (OURS, table.ELSEWHERE, TEST_NAMESPACE):
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        eventually("pods can be made", lambda account=account: api.get(account), 60)
    eventually("rights are known", lambda: api.ask(table.RESCUE, "GET", "/api/v1/nodes")[0] == 200, 60)
    for item in present():  # former policies may still apply for a moment
        exempt = lambda item=item: api.try_to_put(item, table.RESCUE)[0] in (200, 201)  # noqa: E731
        eventually("break-glass users can create objects", exempt, 60)
    names = sorted({item["metadata"]["name"] for item in items if item["kind"] in GUARDS})
    for name in names:
        in_force(api, name)
    for row in expected(minor_of(api)):  # policies that were replaced may still apply for a moment
        if not row.ends:
            eventually(f"{row.text} is accepted", lambda row=row: api.outcome(row) == "", 60)
    return names


def address(item: Obj) -> str:
    return f"{place(item)}/{item['metadata']['name']}"


def expected(minor: int) -> list[Row]:
    """The attempts that are valid requests in this version of Kubernetes."""
    return [row for row in ROWS if minor >= row.since]


def minor_of(api: Api) -> int:
    version = api.get("/version") or {}
    return int(version["minor"].rstrip("+"))


def refused_by(name: str) -> list[Row]:
    found = [row for row in ROWS if row.ends == name]
    assert found, f"no row of the table is refused by {name}: no test would fail without it"
    return found


def in_force(api: Api, name: str) -> None:
    """Wait until the API server enforces a policy; it takes some seconds."""
    rows = [row for row in refused_by(name) if minor_of(api) >= row.since]
    eventually(f"{name} is in force", lambda: not rows or api.outcome(rows[0]) == name, 60)


def test_forged_writes_are_rejected_per_table(api: Api, guards: list[str]) -> None:
    outcomes = [(row, api.outcome(row)) for row in expected(minor_of(api))]
    wrong = [
        f"{row.text}\n    ends with {found or 'success'!r}, not {row.ends or 'success'!r}"
        for row, found in outcomes
        if found != row.ends
    ]
    assert not wrong, "\n".join(wrong)
    assert len(outcomes) >= 60


def test_policies_are_tabled_and_compile(api: Api, guards: list[str]) -> None:
    assert set(guards) == {row.ends for row in ROWS} - {"", table.RBAC}
    for name in guards:
        path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}"

        def checked(path: str = path) -> Obj | None:
            found = api.get(path) or {}
            status = found.get("status") or {}
            return status if status.get("observedGeneration") == found["metadata"]["generation"] else None

        status = eventually(f"{name} has been checked", checked, 60)
        assert status is not None
        assert (status.get("typeChecking") or {}).get("expressionWarnings") is None, name


POLICIES = sorted({row.ends for row in ROWS} - {"", table.RBAC})


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_is_needed(api: Api, guards: list[str], name: str) -> None:
    minor = minor_of(api)
    rows = [row for row in refused_by(name) if minor >= row.since]
    if not rows:
        pytest.skip(f"on Kubernetes 1.{minor} the API server itself refuses what {name} is for")
    binding = made("ValidatingAdmissionPolicyBinding", name, "admissionregistration.k8s.io/v1")
    was = api.get(address(binding))
    assert was is not None
    api.remove(binding)
    try:
        eventually(f"{name} is out of force", lambda: api.outcome(rows[0]) != name, 60)
        outcomes = [api.outcome(row) for row in rows]
    finally:
        api.put({**was, "metadata": {key: was["metadata"][key] for key in ("name", "labels")}})
        in_force(api, name)
    assert name not in outcomes
    assert "" in outcomes


def test_rejections_name_the_remedy(api: Api, guards: list[str]) -> None:
    messages: set[str] = set()
    for row in expected(minor_of(api)):
        if row.ends not in ("", table.RBAC):
            message = POLICY.search(str(api.attempt(row)[1].get("message")))
            messages.add(message[2] if message else "")
    assert [text for text in messages if len(text) <= 60 or "failed expression" in text] == []
