"""The chart's UltraServer controller: disabled by default, two replicas, and only the rights that it uses."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from controller import settings
from neuron_dra.arguments import Parser, go_style
from tests.support import fast_yaml
from tests.support.built_tools import HELM, needs
from tests.support.chart_notes import notes

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/neuron-dra"
needs_helm = needs("helm")


def rendered(*values: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the controller's objects by kind and name."""
    sets = [word for value in ("draDriver.image.repository=example/driver", *values) for word in ("--set", value)]
    command = [str(HELM), "template", "r", str(CHART), "--kube-version", "1.34.0", *sets]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = [item for item in fast_yaml.load_all(text) if item]
    return {
        (item["kind"], item["metadata"]["name"]): item
        for item in found
        if item["metadata"]["name"] == "neuron-ultraserver-controller"
    }


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], dict[str, Any]]:
    return rendered("ultraserverOperator.enabled=true")


def pod(objects: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = objects["Deployment", "neuron-ultraserver-controller"]["spec"]["template"]["spec"]
    return spec


@needs_helm
def test_controller_is_disabled_by_default() -> None:
    assert rendered() == {}


@needs_helm
def test_two_replicas_with_election_and_budget(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert objects["Deployment", "neuron-ultraserver-controller"]["spec"]["replicas"] == 2
    assert objects["PodDisruptionBudget", "neuron-ultraserver-controller"]["spec"]["maxUnavailable"] == 1
    assert "--leader-elect" in pod(objects)["containers"][0]["args"]


@needs_helm
def test_arguments_are_valid_for_the_controller(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    container = pod(objects)["containers"][0]
    parser = Parser()
    settings.add_arguments(parser)
    found = settings.load(parser.parse_args(go_style(container["args"])), {}, "host")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert found.health_probe_bind_address == f":{ports['health']}"
    assert found.metrics_bind_address == f":{ports['metrics']}"
    assert {one["name"] for one in container["env"]} == {"POD_NAME", "POD_NAMESPACE"}


@needs_helm
def test_large_numbers_of_values_files_are_whole(tmp_path: Path) -> None:
    """Helm reads them as floats, and writes 1000000 as 1e+06."""
    file = tmp_path / "values.yaml"
    file.write_text("ultraserverOperator: {enabled: true, outageNodes: 1000000}")
    command = [str(HELM), "template", "r", str(CHART), "--set", "draDriver.image.repository=r", "--values", str(file)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    [deployment] = [item for item in fast_yaml.load_all(text) if item and item["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    parser = Parser()
    settings.add_arguments(parser)
    assert settings.load(parser.parse_args(go_style(container["args"])), {}, "host").limits.outage_nodes == 1000000


@needs_helm
def test_controller_runs_unprivileged(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    spec = pod(objects)
    assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (True, 65532)
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@needs_helm
def test_drivers_image_is_the_default(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert pod(objects)["containers"][0]["image"].startswith("example/driver:")
    other = rendered("ultraserverOperator.enabled=true", "ultraserverOperator.image.repository=example/controller")
    assert pod(other)["containers"][0]["image"].startswith("example/controller:")


@needs_helm
def test_two_replicas_need_an_election() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        rendered("ultraserverOperator.enabled=true", "ultraserverOperator.leaderElect=false")
    assert "replicas" in refusal.value.stderr


@needs_helm
def test_mismatching_namespace_is_rejected() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        rendered("ultraserverOperator.enabled=true", "draDriver.namespaceOverride=elsewhere")
    assert "needs draDriver.namespaceOverride=neuron-dra-driver, not elsewhere" in refusal.value.stderr


@needs_helm
def test_pod_monitor_selects_pods_and_port(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    monitored = rendered("ultraserverOperator.enabled=true", "ultraserverOperator.podMonitor.enabled=true")
    spec = monitored["PodMonitor", "neuron-ultraserver-controller"]["spec"]
    labels = objects["Deployment", "neuron-ultraserver-controller"]["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert spec["podMetricsEndpoints"][0]["port"] in {port["name"] for port in pod(objects)["containers"][0]["ports"]}
    assert ("PodMonitor", "neuron-ultraserver-controller") not in objects


@needs_helm
def test_without_election_strategy_is_recreate(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    """13.13. Two that write at once would undo each other's plans."""
    alone = rendered(
        "ultraserverOperator.enabled=true", "ultraserverOperator.leaderElect=false", "ultraserverOperator.replicas=1"
    )
    # Null, because an upgrade would keep the API server's default, which is invalid with Recreate.
    strategy = {"type": "Recreate", "rollingUpdate": None}
    assert alone["Deployment", "neuron-ultraserver-controller"]["spec"]["strategy"] == strategy
    assert "strategy" not in objects["Deployment", "neuron-ultraserver-controller"]["spec"]


def whole(*values: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return every object of the chart with the controller, by kind and name."""
    sets = [w for value in ("draDriver.image.repository=d", *values) for w in ("--set", value)]
    command = [str(HELM), "template", "r", str(CHART), "--set", "ultraserverOperator.enabled=true", *sets]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {(item["kind"], item["metadata"]["name"]): item for item in fast_yaml.load_all(text) if item}


@needs_helm
@pytest.mark.parametrize(
    ("value", "edit", "view"),
    [
        ("view", [], ["admin", "edit", "view"]),
        ("true", ["admin", "edit"], ["admin", "edit", "view"]),
        ("edit", ["admin", "edit"], ["admin", "edit", "view"]),
        ("false", [], []),
    ],
)
def test_aggregation_value_accepts_old_booleans(value: str, edit: list[str], view: list[str]) -> None:
    """13.15. The older values true and false keep their meaning."""
    objects = whole(f"ultraserverOperator.aggregateRoles={value}")
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    found = {
        name: [key.removeprefix(prefix) for key in sorted(role["metadata"]["labels"]) if key.startswith(prefix)]
        for name in ("edit", "view")
        for role in [objects["ClusterRole", f"neuron-ultraserver-workloads-{name}"]]
    }
    assert found == {"edit": edit, "view": view}


@needs_helm
def test_break_glass_users_are_in_the_policies() -> None:
    """13.2, 13.15. Except for Pods, whose claim the scheduler could not create, and for the controller's own writes."""
    glass = "ultraserverOperator.admissionPolicies.breakGlass"
    objects = whole(f"{glass}.users={{eks:one,two}}", f"{glass}.groups={{sre}}")
    named = {
        name.removeprefix("neuron-dra-driver-")
        for (kind, name), item in objects.items()
        if kind == "ValidatingAdmissionPolicy" and '["eks:one","two"]' in (text := json.dumps(item).replace("\\", ""))
        if 'exists(g, g in ["sre"])' in text
    }
    assert named == {
        "reserved-templates",
        "reserved-claims",
        "ultraserver-status",
        "workload-status",
        "namespace-limits",
        "block-ends",
        "jobs-reserve",
        "workload-priority",
    }


@needs_helm
def test_policies_name_the_controllers_account() -> None:
    objects = whole("ultraserverOperator.serviceAccount.name=someone")
    user = "'system:serviceaccount:neuron-dra-driver:someone'"
    named = {
        name.removeprefix("neuron-dra-driver-")
        for (kind, name), item in objects.items()
        if kind == "ValidatingAdmissionPolicy" and user in json.dumps(item)
    }
    assert named == {
        "reserved-templates",
        "ultraserver-status",
        "workload-status",
        "controller-nodes",
        "controller-pods",
        "controller-services",
        "controller-endpointslices",
        "workload-priority",
    }


@needs_helm
def test_the_policies_can_be_left_out() -> None:
    kept = {name for kind, name in whole("ultraserverOperator.admissionPolicies.enabled=false") if kind.startswith("V")}
    own = {"neuron-dra-driver-own-resourceslices", "neuron-dra-driver-configuration"}
    assert kept == {*own, "neuron-dra-driver-capacity-block-label"}


@needs_helm
def test_reservations_for_jobs_are_off_by_default() -> None:
    plain, jobs = whole(), whole("ultraserverOperator.jobs.enabled=true")
    role, deployment = ((kind, "neuron-ultraserver-controller") for kind in ("ClusterRole", "Deployment"))
    changed = {key for key in jobs if jobs[key] != plain.get(key)}
    assert changed == {role, deployment}
    added = [each for each in jobs[role]["rules"] if each not in plain[role]["rules"]]
    assert {(resource, *each["verbs"]) for each in added for resource in each["resources"]} == {
        *((kind, "get", "list", "watch") for kind in ("jobs", "statefulsets", "jobsets", "leaderworkersets")),
        ("neuronultraserverworkloads", "create", "delete"),
        ("pods/status", "patch"),
        ("validatingadmissionpolicies", "get"),
        ("validatingadmissionpolicybindings", "get"),
    }
    (container,) = jobs[deployment]["spec"]["template"]["spec"]["containers"]
    assert "--jobs-may-reserve" in container["args"]


@needs_helm
def test_queues_are_off_by_default() -> None:
    plain, queues = whole(), whole("ultraserverOperator.queues.enabled=true")
    role, deployment = ((kind, "neuron-ultraserver-controller") for kind in ("ClusterRole", "Deployment"))
    policy = "neuron-dra-driver-controller-queues"
    changed = {key for key in queues if queues[key] != plain.get(key)}
    policies = {(kind, policy) for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")}
    assert changed == {role, deployment, *policies}
    added = [each for each in queues[role]["rules"] if each not in plain[role]["rules"]]
    assert {(resource, *each["verbs"]) for each in added for resource in each["resources"]} == {
        ("workloads", "get", "list", "watch", "create", "patch", "delete"),
        ("workloads/status", "update"),
    }
    (container,) = queues[deployment]["spec"]["template"]["spec"]["containers"]
    assert "--queues" in container["args"]


@needs_helm
def test_queues_need_the_policies() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        whole("ultraserverOperator.queues.enabled=true", "ultraserverOperator.admissionPolicies.enabled=false")
    assert "queues.enabled needs ultraserverOperator.admissionPolicies.enabled" in refusal.value.stderr


@needs_helm
def test_reservations_for_jobs_need_the_policy() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        whole("ultraserverOperator.jobs.enabled=true", "ultraserverOperator.admissionPolicies.enabled=false")
    assert "jobs.enabled needs ultraserverOperator.admissionPolicies.enabled" in refusal.value.stderr


@needs_helm
@pytest.mark.parametrize("value", ["-1", "many", "1.5"])
def test_invalid_namespace_limit_is_rejected(value: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        whole(f"ultraserverOperator.maxReservedNodes={value}")
    assert "maxReservedNodes" in refusal.value.stderr


@needs_helm
def test_spares_are_a_flag() -> None:
    deployment = ("Deployment", "neuron-ultraserver-controller")

    def flags(*values: str) -> list[str]:
        (container,) = whole(*values)[deployment]["spec"]["template"]["spec"]["containers"]
        return [each for each in container["args"] if "spares" in each]

    key = "ultraserverOperator.spares"
    assert flags() == []
    found = flags(rf"{key}.trn3\.48xlarge=2", rf"{key}.trn2u\.48xlarge=1")
    assert found == ["--spares=trn2u.48xlarge=1,trn3.48xlarge=2"]


@needs_helm
@pytest.mark.parametrize("value", ["-1", "many", "1.5"])
def test_invalid_number_of_spares_is_rejected(value: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        whole(rf"ultraserverOperator.spares.trn3\.48xlarge={value}")
    assert "spares" in refusal.value.stderr


@needs_helm
def test_label_policy_users_are_a_value() -> None:
    def policies(*values: str) -> list[dict[str, Any]]:
        command = [str(HELM), "template", "r", str(CHART), "--kube-version", "1.34.0"]
        command += ["--set", "draDriver.image.repository=d,ultraserverOperator.enabled=true"]
        sets = [word for value in values for word in ("--set", value)]
        text = subprocess.run([*command, *sets], check=True, capture_output=True, text=True).stdout
        items = [item for item in fast_yaml.load_all(text) if item]
        return [i for i in items if i["metadata"]["name"] == "neuron-dra-driver-capacity-block-label"]

    key = "ultraserverOperator.capacityBlockPolicy"
    policy, _binding = policies(f"{key}.users={{eks:one,two}}")
    assert policy["spec"]["matchConditions"][0]["expression"] == '!(request.userInfo.username in ["eks:one","two"])'
    assert policies(f"{key}.enabled=false") == []


@needs_helm
def test_crds_are_templates_kept_on_uninstall() -> None:
    """13.5. Helm never upgrades a chart's folder crds, and GitOps tools apply templates."""
    assert HELM is not None

    def custom_resources(*values: str) -> list[dict[str, Any]]:
        command = [HELM, "template", "r", str(CHART), "--kube-version", "1.34.0", "--skip-crds"]
        sets = [word for value in ("draDriver.image.repository=d", *values) for word in ("--set", value)]
        text = subprocess.run([*command, *sets], check=True, capture_output=True, text=True).stdout
        return [item for item in fast_yaml.load_all(text) if item and item["kind"] == "CustomResourceDefinition"]

    enabled = "ultraserverOperator.enabled=true"
    assert custom_resources(enabled) == [
        fast_yaml.load(path.read_text()) for path in sorted((ROOT / "deploy/crds").glob("*.yaml"))
    ]
    kept = {"helm.sh/resource-policy": "keep"}
    assert [item["metadata"]["annotations"] for item in custom_resources(enabled)] == [kept] * 3
    assert custom_resources(enabled, "ultraserverOperator.crds.enabled=false") == []
    assert custom_resources() == []


def test_chart_has_copies_of_the_crds() -> None:
    """13.5. Archives lose symbolic links."""
    assert {path.name: path.read_text() for path in (CHART / "files/crds").glob("*.yaml")} == {
        path.name: path.read_text() for path in (ROOT / "deploy/crds").glob("*.yaml")
    }
    assert [path for path in CHART.rglob("*") if path.is_symlink()] == []


def test_schema_has_every_controller_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = fast_yaml.load((CHART / "values.yaml").read_text())
    assert values["ultraserverOperator"].keys() == schema["properties"]["ultraserverOperator"]["properties"].keys()


@needs_helm
def test_notes_grep_a_line_that_the_controller_logs(tmp_path: Path) -> None:
    found = re.search(r"\| grep '([^']+)'", notes(tmp_path, "--set", "ultraserverOperator.enabled=true"))
    assert found is not None
    sources = [path.read_text() for path in (ROOT / "controller").rglob("*.py")]
    assert any(f'{found[1]}: delete them"' in source for source in sources)
