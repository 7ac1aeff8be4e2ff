"""The chart's alerts and dashboards: every query is about metrics that the programs export (18.4).

`tests/bed/test_alert_rules.py` and `test_monitoring.py` run them on Prometheus' own programs.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller import metrics as controller_metrics
from controller.metrics import Metrics as ControllerMetrics
from hack.bench.ultraservers import ultraserver
from neuron_dra.errors import ApiError, CheckpointDamaged, ClaimError, DeviceInUse, NotFound
from neuron_dra.node import metrics as plugin_metrics
from neuron_dra.node.metrics import PluginMetrics
from neuron_dra.node.prepare import kubelet
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.plan import planning
from tests.support import fast_yaml
from tests.support.built_tools import HELM, needs
from tests.unit.failing_world import remove_node, remove_slices, running
from tests.unit.ultraserver_world import World

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/neuron-dra"
RUNBOOKS = "https://runbooks.example/neuron"
TARGET = {"instance", "job", "namespace", "pod", "container", "endpoint", "node"}
"""The labels of a target that a PodMonitor of the chart adds."""
WORDS = {
    *("sum", "max", "min", "count", "by", "on", "group_left", "and", "or", "unless", "absent", "time", "vector"),
    *("max_over_time", "rate", "increase", "histogram_quantile", "label_values"),
}
"""The words of PromQL, and of Grafana's variables, that the queries use."""
needs_helm = needs("helm")


def exported() -> dict[str, set[str]]:
    """Return the labels of every series of both programs, by name."""
    found: dict[str, set[str]] = {}
    for series in (*plugin_metrics.ROWS.all, *controller_metrics.ROWS.all):
        endings = {"counter": ["_total"], "info": ["_info"], "histogram": ["_bucket", "_sum", "_count"]}
        for ending in endings.get(series.kind, [""]):
            found[series.name + ending] = {*series.labels, *(["le"] if ending == "_bucket" else [])}
    return found


SERIES = exported() | {"up": set()}


def problems(query: str) -> list[str]:
    """Return what in a query is no exported metric, no label of its metrics, and no word of PromQL."""
    found = []
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', query)
    for metric, selector in re.findall(r"([a-z_]+)\{([^}]*)\}", bare):
        labels = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)
        found += [f"{metric} has no label {each}" for each in labels if each not in SERIES.get(metric, set()) | TARGET]
    words = re.findall(r"(?<![\w$])[A-Za-z_]\w*", bare)
    metrics = {each for each in words if each in SERIES}
    known = {label for each in metrics for label in SERIES[each]} | TARGET
    found += [f"{each} is unknown" for each in words if each not in metrics | known | WORDS]
    return found if metrics else [*found, "it names no metric"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('sum by (reason) (rate(neuron_dra_publish_errors_total{node=~"$node"}[5m])) > 0', []),
        ("sum(neuron_dra_publish_errors[5m])", ["neuron_dra_publish_errors is unknown", "it names no metric"]),
        ('max(neuron_dra_device_fault{why="x y"})', ["neuron_dra_device_fault has no label why", "why is unknown"]),
        ("sum by (crd) (neuron_dra_registered)", ["crd is unknown"]),
        ("avg(neuron_dra_registered)", ["avg is unknown"]),
    ],
)
def test_check_finds_wrong_queries(query: str, found: list[str]) -> None:
    assert problems(query) == found


def chart(*values: str) -> list[dict[str, Any]]:
    """Return the objects of the chart."""
    sets = [word for value in ("draDriver.image.repository=example/driver", *values) for word in ("--set", value)]
    command = [str(HELM), "template", "r", str(CHART), "--kube-version", "1.34.0", *sets]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [item for item in fast_yaml.load_all(text) if item]


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return chart(
        "ultraserverOperator.enabled=true",
        "monitoring.prometheusRule.enabled=true",
        f"monitoring.prometheusRule.runbooks={RUNBOOKS}",
        "monitoring.prometheusRule.labels.release=prometheus",
        "monitoring.dashboards.enabled=true",
        "draDriver.podMonitor.enabled=true",
        "ultraserverOperator.podMonitor.enabled=true",
    )


def rules(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [each for each in objects if each["kind"] == "PrometheusRule"]
    return [rule for each in found for group in each["spec"]["groups"] for rule in group["rules"]]


def dashboards(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the dashboards by the name of their file."""
    found = [each for each in objects if each["metadata"]["name"].startswith("neuron-dra-dashboard-")]
    return {name: json.loads(text) for each in found for name, text in each["data"].items()}


@needs_helm
def test_every_alert_queries_exported_series(objects: list[dict[str, Any]]) -> None:
    assert {each["alert"]: problems(each["expr"]) for each in rules(objects) if problems(each["expr"])} == {}
    assert len(rules(objects)) == 24


@needs_helm
def test_every_alert_has_a_runbook(objects: list[dict[str, Any]]) -> None:
    """And no runbook is left of an alert that is gone."""
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs/runbooks.md").read_text(), flags=re.MULTILINE)
    assert headings == [each["alert"] for each in rules(objects)]
    linked = [each["annotations"]["runbook_url"] for each in rules(objects)]
    assert linked == [f"{RUNBOOKS}#{name.lower()}" for name in headings]


def test_links_of_runbooks_lead_somewhere() -> None:
    found = re.findall(r"\]\(([\w-]+\.md)(?:#([\w-]+))?\)", (ROOT / "docs/runbooks.md").read_text())
    assert len(found) > 5
    for page, anchor in found:
        headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert not anchor or anchor in anchors, f"{page}#{anchor}"


@needs_helm
def test_alerts_name_only_labels_that_they_have(objects: list[dict[str, Any]]) -> None:
    for rule in rules(objects):
        kept = re.search(r"\bby \(([^)]*)\)", rule["expr"])
        labels = {each.strip() for each in kept[1].split(",")} if kept else set()
        text = json.dumps(rule["annotations"])
        assert {*re.findall(r"\$labels\.(\w+)", text)} <= labels, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def queries(board: dict[str, Any]) -> Iterator[str]:
    """Yield the queries of a dashboard's panels and variables."""
    yield from (each["expr"] for panel in board["panels"] for each in panel["targets"])
    yield from (each["definition"] for each in board["templating"]["list"] if each["type"] == "query")


@needs_helm
def test_every_panel_queries_exported_series(objects: list[dict[str, Any]]) -> None:
    boards = dashboards(objects)
    assert sorted(boards) == [f"neuron-dra-{name}.json" for name in ("fleet", "job", "node", "ultraservers")]
    for name, board in boards.items():
        assert {each: problems(each) for each in queries(board) if problems(each)} == {}, name
        variables = {each["name"] for each in board["templating"]["list"]}
        assert set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"]))) <= variables
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert len({board["uid"] for board in boards.values()}) == len(boards)


@needs_helm
def test_legends_name_labels_of_their_query(objects: list[dict[str, Any]]) -> None:
    for board in dashboards(objects).values():
        for panel in board["panels"]:
            for target in panel["targets"]:
                named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                kept = [each.split(", ") for each in re.findall(r"\bby \(([^)]*)\)", target["expr"])]
                assert named <= {label for labels in kept for label in labels}, target


@needs_helm
def test_every_metric_of_the_plugin_is_used_or_left_out(objects: list[dict[str, Any]]) -> None:
    """A new metric gets a panel, or a place in this list."""
    used = " ".join(query for board in dashboards(objects).values() for query in queries(board))
    used += " ".join(each["expr"] for each in rules(objects))
    endings = re.compile("_(bucket|sum|count)$")
    left = {endings.sub("", name) for name in SERIES if endings.sub("", name) not in used}
    assert left == {"neuron_dra_build_info", "neuron_ultraserver_grpc_answers_total"}


@needs_helm
def test_nothing_is_installed_by_default() -> None:
    """Alerts need the Prometheus operator's CRDs."""
    kinds = {(each["kind"], each["metadata"]["name"]) for each in chart("ultraserverOperator.enabled=true")}
    assert not {name for kind, name in kinds if kind == "PrometheusRule" or "dashboard" in name}
    without = chart("monitoring=null", "ultraserverOperator.enabled=true")  # helm upgrade --reuse-values
    assert {(each["kind"], each["metadata"]["name"]) for each in without} == kinds


@needs_helm
def test_alerts_of_absent_programs_are_left_out() -> None:
    found = rules(chart("monitoring.prometheusRule.enabled=true"))
    assert {each["alert"] for each in found} & {"NeuronUltraServerNoLeader", "NeuronWorkloadWaits"} == set()
    assert {"NeuronDeviceUnhealthy", "NeuronClaimsFail"} <= {each["alert"] for each in found}


class Strict(yaml.SafeLoader):
    """Rejects a key that is twice in a mapping, as YAML 1.2 and kustomize, which Flux runs after Helm, do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        return super().construct_mapping(node, deep)


@needs_helm
def test_labels_of_values_replace_those_of_the_chart() -> None:
    """Prometheus operators may select objects by `app`."""
    names = (
        "draDriver.podMonitor",
        "ultraserverOperator.podMonitor",
        "monitoring.prometheusRule",
        "monitoring.dashboards",
    )
    values = [f"{name}.{rest}" for name in names for rest in ("enabled=true", "labels.app=prometheus")]
    values += [
        "ultraserverOperator.enabled=true",
        r"draDriver.podAnnotations.kubectl\.kubernetes\.io/default-container=a",
    ]
    sets = [word for value in ("draDriver.image.repository=r", *values) for word in ("--set", value)]
    command = [str(HELM), "template", "r", str(CHART), *sets]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = [item for item in yaml.load_all(text, Strict) if item]
    kinds = ("PodMonitor", "PrometheusRule", "ConfigMap")
    assert {item["metadata"]["labels"]["app"] for item in found if item["kind"] in kinds} == {"prometheus"}
    [daemonset] = [item for item in found if item["kind"] == "DaemonSet"]
    annotations = {"kubectl.kubernetes.io/default-container": "a"}
    assert daemonset["spec"]["template"]["metadata"]["annotations"] == annotations


@needs_helm
def test_pod_monitors_add_the_label_node(objects: list[dict[str, Any]]) -> None:
    monitors = [each["spec"]["podMetricsEndpoints"][0] for each in objects if each["kind"] == "PodMonitor"]
    wanted = [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}]
    assert [each["relabelings"] for each in monitors] == [wanted] * 2
    assert [each.get("honorLabels", False) for each in monitors] == [True, False]


# -- the new series ----------------------------------------------------------------------------------------------------


def sampled(world: World) -> dict[str, float]:
    """Return the new series of the controller after a plan."""
    metrics = ControllerMetrics()
    index = FleetIndex.of(world.snapshot())
    metrics.planned(0.1, index, planning.plan_of(index, world.now), world.now)
    names = ("free_groups", "idle_reserved_nodes", "oldest_waiting_timestamp_seconds", "queued_workloads")
    return {
        sample.name.removeprefix("neuron_ultraserver_") + "".join(f" {v}" for v in sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name.removeprefix("neuron_ultraserver_") in names
    }


def test_free_groups_by_type_and_size() -> None:
    world = World([*ultraserver("u0"), *ultraserver("u1")])
    world.settle()
    free = {"free_groups trn3.48xlarge 1": 8.0, "free_groups trn3.48xlarge 2": 4.0, "free_groups trn3.48xlarge 4": 2.0}
    rest = {"idle_reserved_nodes": 0.0, "oldest_waiting_timestamp_seconds": 0.0}
    assert sampled(world) == {**free, **rest}
    world.submit("job", size=4, count=2)
    world.settle()
    assert sampled(world) == {**dict.fromkeys(free, 0.0), **rest, "idle_reserved_nodes": 8.0}


def test_oldest_waiting_is_the_first_pending_workload() -> None:
    world = World(ultraserver("u0"))
    world.settle()
    created = world.now
    world.submit("first", size=4, count=2)
    world.settle()
    world.now += datetime.timedelta(minutes=5)
    world.submit("second", size=4, count=3)
    world.settle()
    assert sampled(world)["oldest_waiting_timestamp_seconds"] == created.timestamp()
    world.delete_workload("first")
    world.settle()
    assert sampled(world)["oldest_waiting_timestamp_seconds"] > created.timestamp()


def test_a_restarted_workload_waits_since_its_nodes_were_released() -> None:
    """A job that ran for a day has not waited for a day."""
    world = running("RestartAll", servers=1, count=1)
    created = world.now
    world.now += datetime.timedelta(days=1)
    remove_node(world, "u0-0")
    for _ in range(20):
        world.settle()
        world.now += datetime.timedelta(minutes=1)
    assert world.workload("job")["status"]["state"] == "Pending"
    since = sampled(world)["oldest_waiting_timestamp_seconds"]
    assert since >= (created + datetime.timedelta(days=1)).timestamp()


def test_workloads_that_wait_for_a_queue_are_counted_apart() -> None:
    world = World(ultraserver("u0"))
    world.settle()
    item = world.submit("job", size=4, count=1)
    waits = {"type": "Ready", "status": "False", "reason": "WaitingForQuota", "message": "insufficient quota"}
    world.put({**item, "status": {"state": "Pending", "conditions": [waits]}})
    found = sampled(world)
    assert found["oldest_waiting_timestamp_seconds"] == 0.0
    assert found["queued_workloads WaitingForQuota"] == 1.0


def test_nodes_with_pods_are_not_idle() -> None:
    assert sampled(running("NoOp", count=1))["idle_reserved_nodes"] == 0.0


def test_follower_exports_none_of_them() -> None:
    """A sum over both replicas stays right."""
    world = World(ultraserver("u0"))
    world.settle()
    metrics = ControllerMetrics()
    index = FleetIndex.of(world.snapshot())
    metrics.planned(0.1, index, planning.plan_of(index, world.now), world.now)
    whole = ("neuron_ultraserver_free_groups", {"instance_type": "trn3.48xlarge", "size": "4"})
    assert metrics.registry.get_sample_value(*whole) == 1.0
    metrics.leading(False)
    assert metrics.registry.get_sample_value(*whole) is None


def test_counters_start_at_zero() -> None:
    """`increase` does not see the step to a series' first value, so the first event would be missed."""
    plugin, controller = PluginMetrics().registry, ControllerMetrics().registry
    for reason in ("Rejected", "DeviceInUse", "ApiServer", "Timeout", "Disk", "Internal"):
        assert plugin.get_sample_value("neuron_dra_refused_claims_total", {"reason": reason}) == 0
    labels = {"operation": "prepare", "result": "ok", "le": "10.0"}
    assert plugin.get_sample_value("neuron_dra_claim_operation_seconds_bucket", labels) == 0
    for name, labels in (
        ("failures", {"reason": "DeviceUnhealthy"}),
        ("recoveries", {"strategy": "MigrateAffected"}),
        ("evictions", {"result": "refused"}),
    ):
        assert controller.get_sample_value(f"neuron_ultraserver_{name}_total", labels) == 0
    assert controller.get_sample_value("neuron_ultraserver_failures_total", {"reason": "NoProblem"}) is None


def test_degraded_workloads_by_reason() -> None:
    """The gauge lasts as long as the fault."""
    world = running("NoOp", count=1)
    metrics = ControllerMetrics()

    def degraded() -> dict[str, float]:
        index = FleetIndex.of(world.snapshot())
        metrics.planned(0.1, index, planning.plan_of(index, world.now), world.now)
        found = next(
            each for each in metrics.registry.collect() if each.name == "neuron_ultraserver_degraded_workloads"
        )
        return {sample.labels["reason"]: sample.value for sample in found.samples}

    assert degraded() == {}
    remove_slices(world, "u0-0")
    world.settle()
    assert degraded() == {"SliceMissing": 1.0}
    metrics.leading(False)
    found = next(each for each in metrics.registry.collect() if each.name == "neuron_ultraserver_degraded_workloads")
    assert not found.samples


def test_only_the_leader_reports_outdated_crds() -> None:
    """A replica that has lost its leadership does not learn when the CRD is replaced."""
    metrics = ControllerMetrics()
    whole = ("neuron_ultraserver_crd_outdated", {"crd": "neuronultraservers"})
    metrics.crd_outdated("neuronultraservers", True)
    assert metrics.registry.get_sample_value(*whole) == 1
    metrics.leading(False)
    assert metrics.registry.get_sample_value(*whole) is None
    metrics.leading(True)
    assert metrics.registry.get_sample_value(*whole) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ClaimError("no"), "Rejected"),
        (DeviceInUse("no", "uid"), "DeviceInUse"),
        (NotFound("no"), "Rejected"),
        (ApiError("no"), "ApiServer"),
        (TimeoutError(), "Timeout"),
        (PermissionError("no"), "Disk"),
        (CheckpointDamaged("no"), "Disk"),
        (ValueError("no"), "Internal"),
    ],
)
def test_reason_of_a_refused_claim(error: Exception, reason: str) -> None:
    assert kubelet._reason(error) == reason
