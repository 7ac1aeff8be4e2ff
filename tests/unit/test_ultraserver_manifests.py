"""The manifests with the UltraServer controller, compared with those without, and the image."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from controller import settings
from neuron_dra import __version__
from neuron_dra.arguments import Parser, go_style
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.planner.plan.planning import Limits
from tests.support import fast_yaml

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy/manifests"
NAME = "neuron-ultraserver-controller"
LABELS = {
    "app": NAME,
    "app.kubernetes.io/name": NAME,
    "app.kubernetes.io/component": "controller",
    "app.kubernetes.io/version": __version__,
}
SELECTED = {key: value for key, value in LABELS.items() if not key.endswith("/version")}

GUARDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
POLICIES = (
    "capacity-block-label",
    "reserved-templates",
    "reserved-claims",
    "reserved-pods",
    "ultraserver-status",
    "workload-status",
    "controller-endpointslices",
    "controller-nodes",
    "controller-pods",
    "controller-services",
    "namespace-limits",
    "block-ends",
    "jobs-reserve",
    "workload-priority",
)

Objects = dict[tuple[str, str], dict[str, Any]]


def objects(folder: Path) -> Objects:
    """Return every object of the manifests in a folder by kind and name."""
    documents = [d for path in sorted(folder.glob("*.yaml")) for d in fast_yaml.load_all(path.read_text())]
    return {(d["kind"], d["metadata"]["name"]): d for d in documents}


PLAIN, WITH = objects(MANIFESTS), objects(MANIFESTS / "ultraserver")


@pytest.fixture
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = WITH["Deployment", NAME]["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    only: dict[str, Any]
    [only] = pod["containers"]
    return only


def test_these_objects_are_added() -> None:
    kinds = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]
    kinds += ["PodDisruptionBudget", "Deployment"]
    access = {
        ("ClusterRole", "neuron-ultraserver-workloads-edit"),
        ("ClusterRole", "neuron-ultraserver-workloads-view"),
        ("ClusterRole", "neuron-ultraserver-limits"),
        ("ClusterRole", "neuron-ultraserver-block-ends"),
        *((kind, f"neuron-dra-driver-{name}") for kind in GUARDS for name in POLICIES),
    }
    assert WITH.keys() - PLAIN.keys() == {(kind, NAME) for kind in kinds} | access
    assert PLAIN.keys() <= WITH.keys()
    places = {kind: WITH[kind, NAME]["metadata"].get("namespace", "") for kind in kinds}
    assert places == {kind: "" if kind.startswith("Cluster") else NAMESPACE for kind in kinds}
    assert all(WITH[kind, NAME]["metadata"]["labels"] == LABELS for kind in kinds)


def test_manifests_differ_only_in_the_controller() -> None:
    [(kind, name)] = [key for key in PLAIN if PLAIN[key] != WITH[key]]
    assert kind == "DaemonSet"
    [plain], [with_controller] = (each[kind, name]["spec"]["template"]["spec"]["containers"] for each in (PLAIN, WITH))
    added = [entry for entry in with_controller["env"] if entry not in plain["env"]]
    assert added == [{"name": "ENABLE_ULTRASERVER_OPERATOR", "value": "true"}]
    assert [entry for entry in with_controller["env"] if entry not in added] == plain["env"]


def test_replicas_spread_with_a_budget() -> None:
    deployment = WITH["Deployment", NAME]["spec"]
    assert deployment["replicas"] == 2
    assert deployment["selector"] == {"matchLabels": SELECTED}
    assert deployment["template"]["metadata"]["labels"] == LABELS
    assert WITH["PodDisruptionBudget", NAME]["spec"] == {
        "maxUnavailable": 1,
        "selector": {"matchLabels": SELECTED},
    }
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": SELECTED}}
    assert deployment["template"]["spec"]["affinity"] == {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
        }
    }


def test_budget_and_daemonset_select_own_pods() -> None:
    plugin = WITH["DaemonSet", "neuron-dra-driver-kubelet-plugin"]["spec"]
    assert not plugin["selector"]["matchLabels"].items() <= LABELS.items()
    assert not SELECTED.items() <= plugin["template"]["metadata"]["labels"].items()


def test_controller_runs_unprivileged_read_only(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers", "volumes"} & set(pod)


def test_only_the_pod_mounts_its_token(pod: dict[str, Any]) -> None:
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (NAME, True)
    assert WITH["ServiceAccount", NAME]["automountServiceAccountToken"] is False
    for kind in ("ClusterRole", "Role"):
        binding = WITH[f"{kind}Binding", NAME]
        assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": NAME}
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]


def test_view_role_reads_edit_role_cannot_reserve() -> None:
    """13.15. Users with edit or admin were not granted whole nodes."""
    found = {}
    for what in ("edit", "view"):
        role = WITH["ClusterRole", f"neuron-ultraserver-workloads-{what}"]
        prefix = "rbac.authorization.k8s.io/aggregate-to-"
        into = [key.removeprefix(prefix) for key in sorted(role["metadata"]["labels"]) if key.startswith(prefix)]
        [rule] = role["rules"]
        found[what] = (into, rule["resources"], rule["verbs"])
    assert found == {
        "edit": (
            [],
            ["neuronultraserverworkloads"],
            ["create", "update", "patch", "delete", "deletecollection"],
        ),
        "view": (
            ["admin", "edit", "view"],
            ["neuronultraserverworkloads", "neuronultraservers"],
            ["get", "list", "watch"],
        ),
    }


def test_policies_fail_closed() -> None:
    for name in POLICIES:
        assert WITH[GUARDS[0], f"neuron-dra-driver-{name}"]["spec"]["failurePolicy"] == "Fail"
        binding = WITH[GUARDS[1], f"neuron-dra-driver-{name}"]["spec"]
        assert binding == {"policyName": f"neuron-dra-driver-{name}", "validationActions": ["Deny"]}


@pytest.mark.parametrize("name", ["templates", "claims", "pods"])
def test_reservation_policies_match_as_v1(name: str) -> None:
    """13.2. The garbage collector makes updates; requests for devices are immutable."""
    found = WITH[GUARDS[0], f"neuron-dra-driver-reserved-{name}"]["spec"]["matchConstraints"]
    [rule] = found["resourceRules"]
    assert (found["matchPolicy"], rule["apiVersions"], rule["operations"]) == ("Equivalent", ["v1"], ["CREATE"])


def test_command_has_defaults_and_election(container: dict[str, Any]) -> None:
    # The driver's image, which has both programs: the README's one `sed` names the registry of both.
    assert container["image"] == f"neuron-dra-driver:{__version__}"
    assert container["command"] == ["k8s-neuron-ultraserver-operator"]
    fields = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"]}
    assert fields == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    parser = Parser()
    settings.add_arguments(parser)
    given = settings.load(
        parser.parse_args(go_style(container["args"])), {"POD_NAME": "a-b", "POD_NAMESPACE": NAMESPACE}, "host"
    )
    assert given == settings.ControllerSettings(
        leader_elect=True,
        leader_election_namespace=NAMESPACE,
        identity="a-b",
        health_probe_bind_address=":8081",
        metrics_bind_address=":8080",
        grpc_address="127.0.0.1:8082",
        kubeconfig="",
        kube_api_server="",
        log_format="text",
        v=2,
    )
    assert given.limits == Limits()


def test_probes_use_the_serving_port(container: dict[str, Any]) -> None:
    assert container["ports"] == [
        {"name": "health", "containerPort": 8081},
        {"name": "metrics", "containerPort": 8080},
    ]
    assert container["livenessProbe"] == {
        "httpGet": {"path": "/healthz", "port": "health"},
        "initialDelaySeconds": 15,
        "periodSeconds": 20,
        "timeoutSeconds": 5,
    }
    assert container["readinessProbe"] == {
        "httpGet": {"path": "/readyz", "port": "health"},
        "initialDelaySeconds": 2,
        "periodSeconds": 10,
        "timeoutSeconds": 5,
    }
    assert "startupProbe" not in container


def test_memory_is_limited_and_cpu_is_not(container: dict[str, Any], pod: dict[str, Any]) -> None:
    assert container["resources"] == {"requests": {"cpu": "10m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}
    assert pod["priorityClassName"] == "system-cluster-critical"


# The image.


def stages(name: str) -> tuple[list[str], list[str]]:
    """Return the lines of a Dockerfile's two stages, without comments and labels."""
    text = re.sub(r"\\\n", "", (ROOT / name).read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "LABEL"))]
    second = [i for i, line in enumerate(lines) if line.startswith("FROM")][1]
    return lines[:second], lines[second:]


def test_controller_image_runs_unprivileged(pod: dict[str, Any]) -> None:
    (build, final), (drivers_build, drivers_final) = stages("Dockerfile.controller"), stages("Dockerfile.plugin")
    assert build == drivers_build
    assert final[:-3] == drivers_final[:-2]
    user = pod["securityContext"]
    assert final[-3:] == [
        "ENV MALLOC_TRIM_THRESHOLD_=131072",
        f"USER {user['runAsUser']}:{user['runAsGroup']}",
        'ENTRYPOINT ["k8s-neuron-ultraserver-operator"]',
    ]


def test_image_has_the_controllers_imports() -> None:
    """Only the standard library, our packages, and those in the image's lock file."""
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements/plugin.txt").read_text(), re.MULTILINE))
    texts = [path.read_text() for path in (ROOT / "controller").glob("*.py")]
    imported = {name for text in texts for name in re.findall(r"^ *(?:from|import) ([a-z_]+)", text, re.MULTILINE)}
    foreign = imported - sys.stdlib_module_names - {"controller", "neuron_dra", "__future__"}
    owners = importlib.metadata.packages_distributions()
    assert {owner.lower().replace("_", "-") for name in foreign for owner in owners[name]} <= locked
