"""Prometheus on the test bed: it scrapes what the chart's PodMonitors select, and evaluates its PrometheusRules.

The Prometheus operator turns these objects into a configuration; `scrape_configs` and `rule_groups` do the same here.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from hack.bed import build, driver, layout, network
from hack.bed.real_cluster import REPOSITORY, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.support.built_tools import path_of

CHART = REPOSITORY / "deploy/helm/neuron-dra"
RUNBOOKS = "https://runbooks.example/neuron"
READY_TIMEOUT_S = 120
FACTOR = 60
"""Alerts are tried with every minute as a second."""
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def program(where: layout.Layout, name: str) -> Path:
    """Return a program of Prometheus; build it first if it is missing."""
    module = build.prometheus(where)
    wanted = tuple(each for each in module.programs if each.file == name)
    build.build_modules(where, (replace(module, programs=wanted),), "Prometheus")
    return module.bin_dir / name


def rendered(*values: str) -> list[Obj]:
    """Return the objects of the chart with alerts, dashboards and PodMonitors; helm is built with the test bed."""
    wanted = (
        "ultraserverOperator.enabled=true",
        "monitoring.prometheusRule.enabled=true",
        f"monitoring.prometheusRule.runbooks={RUNBOOKS}",
        "monitoring.dashboards.enabled=true",
        "draDriver.podMonitor.enabled=true",
        "ultraserverOperator.podMonitor.enabled=true",
        "draDriver.image.repository=example/driver",
        *values,
    )
    sets = [word for value in wanted for word in ("--set", value)]
    command = [str(path_of("helm")), "template", driver.RELEASE, str(CHART), "--namespace", driver.NAMESPACE, *sets]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [item for item in yaml.safe_load_all(text) if item]


# -- from the operator's objects to files of Prometheus ----------------------------------------------------------------


def rule_groups(objects: Iterable[Obj], factor: float = 1) -> list[Obj]:
    """Return the groups of the PrometheusRules; a factor divides every duration in them."""
    groups = [group for item in objects if item["kind"] == "PrometheusRule" for group in item["spec"]["groups"]]
    return [{**group, "rules": [shortened(rule, factor) for rule in group["rules"]]} for group in groups]


def shortened(rule: Obj, factor: float) -> Obj:
    """Return a rule with its `for`, its ranges and its threshold of an hour divided by a factor."""
    if factor == 1:
        return rule
    expr = re.sub(r"\[(\w+)\]", lambda found: f"[{_divided(found[1], factor)}]", rule["expr"])
    expr = re.sub(r"> 3600\b", f"> {3600 / factor:g}", expr)
    return {**rule, "expr": expr, "for": _divided(rule["for"], factor)}


def _divided(duration: str, factor: float) -> str:
    return f"{int(seconds(duration) * 1000 / factor)}ms"


def seconds(duration: str) -> float:
    """Return a duration such as 5m in seconds."""
    return float(duration[:-1]) * _UNITS_S[duration[-1]]


def scrape_configs(objects: Iterable[Obj], kubeconfig: Path) -> list[Obj]:
    """Return what the PodMonitors select, as the Prometheus operator writes it."""
    return [
        _scrape_config(monitor, endpoint, kubeconfig)
        for monitor in objects
        if monitor["kind"] == "PodMonitor"
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
    ]


def _scrape_config(monitor: Obj, endpoint: Obj, kubeconfig: Path) -> Obj:
    namespace, name = monitor["metadata"]["namespace"], monitor["metadata"]["name"]
    pods = {"role": "pod", "kubeconfig_file": str(kubeconfig), "namespaces": {"names": [namespace]}}
    chosen = [
        _relabeling("keep", [f"__meta_kubernetes_pod_label_{_as_label(key)}"], regex=re.escape(value))
        for key, value in monitor["spec"]["selector"]["matchLabels"].items()
    ]
    copied = {"namespace": "namespace", "container": "pod_container_name", "pod": "pod_name"}
    return {
        "job_name": f"podMonitor/{namespace}/{name}",
        "honor_labels": endpoint.get("honorLabels", False),
        "scrape_interval": endpoint["interval"],
        "scrape_timeout": min(endpoint["interval"], "10s", key=seconds),
        "metrics_path": endpoint["path"],
        "kubernetes_sd_configs": [pods],
        "relabel_configs": [
            _relabeling("drop", ["__meta_kubernetes_pod_phase"], regex="Failed|Succeeded"),
            *chosen,
            _relabeling("keep", ["__meta_kubernetes_pod_container_port_name"], regex=endpoint["port"]),
            *(_relabeling("replace", [f"__meta_kubernetes_{of}"], target_label=to) for to, of in copied.items()),
            _relabeling("replace", [], target_label="job", replacement=f"{namespace}/{name}"),
            _relabeling("replace", [], target_label="endpoint", replacement=endpoint["port"]),
            *({_snake(key): value for key, value in each.items()} for each in endpoint.get("relabelings", [])),
        ],
    }


def _relabeling(action: str, sources: list[str], **others: str) -> Obj:
    return {"action": action, **({"source_labels": sources} if sources else {}), **others}


def _as_label(key: str) -> str:
    return re.sub(r"\W", "_", key)


def _snake(key: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", key)


# -- a running Prometheus ----------------------------------------------------------------------------------------------


class Prometheus:
    """A running Prometheus, and its HTTP API."""

    def __init__(self, bed: TestBed, port: int) -> None:
        self._bed = bed
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        """Return `data` of an answer of the HTTP API."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        status, body = network.get(self._bed.where, f"{self._url}/api/v1/{path}{query}", timeout_s=60)
        answer = json.loads(body)
        assert (status, answer["status"]) == (200, "success"), (path, parameters, answer)
        return answer["data"]

    def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Return the series of an expression now, with their values."""
        found = self.get("query", query=expr)
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in found["result"]]

    def firing(self, alert: str = "") -> list[dict[str, str]]:
        """Return the labels of the alerts that fire, of all or of one name."""
        found = [each["labels"] for each in self.get("alerts")["alerts"] if each["state"] == "firing"]
        return [each for each in found if alert in ("", each["alertname"])]

    def targets(self) -> list[Obj]:
        """Return the targets that it scrapes."""
        return list(self.get("targets", state="active")["activeTargets"])

    def answers(self) -> bool:
        """Return True if it is ready."""
        return network.answers(self._bed.where, f"{self._url}/-/ready")


@contextlib.contextmanager
def running(bed: TestBed, folder: Path, objects: list[Obj], *, port: int, factor: float = 1) -> Iterator[Prometheus]:
    """Run Prometheus in the test bed's network until the end of the block, and wait until it scrapes every target."""
    interval = next(each["scrape_interval"] for each in scrape_configs(objects, bed.where.kubeconfig))
    rules, config = folder / "rules.yaml", folder / "prometheus.yaml"
    rules.write_text(yaml.safe_dump({"groups": rule_groups(objects, factor)}))
    # 30 s is the Prometheus operator's default; a shortened alert is evaluated as often as it is scraped.
    settings = {"evaluation_interval": "30s" if factor == 1 else interval}
    wanted = scrape_configs(objects, bed.where.kubeconfig)
    config.write_text(yaml.safe_dump({"global": settings, "rule_files": [str(rules)], "scrape_configs": wanted}))
    words = [
        *network.enter(bed.where),
        str(program(bed.where, "prometheus")),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        child = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
    try:
        server = Prometheus(bed, port)
        eventually(f"Prometheus is ready ({log})", server.answers, READY_TIMEOUT_S)
        yield server
    finally:
        child.terminate()
        child.wait(timeout=60)


# -- dashboards --------------------------------------------------------------------------------------------------------


def dashboards(objects: Iterable[Obj]) -> dict[str, Obj]:
    """Return the dashboards of the ConfigMaps by their file's name without ending."""
    found = [each for each in objects if each["metadata"]["name"].startswith("neuron-dra-dashboard-")]
    return {name.removesuffix(".json"): json.loads(text) for each in found for name, text in each["data"].items()}


def variables(server: Prometheus, board: Obj) -> dict[str, list[str]]:
    """Return the values that Grafana offers for each variable of a dashboard, with "All" for the ones before it."""
    found: dict[str, list[str]] = {}
    for each in board["templating"]["list"]:
        if each["type"] == "query":
            query = substituted(each["definition"], dict.fromkeys(found, ".*"))
            [(metric, label)] = re.findall(r"^label_values\((.*), (\w+)\)$", query)
            found[each["name"]] = sorted({labels[label] for labels, _ in server.query(metric) if label in labels})
    return found


def substituted(expr: str, values: Mapping[str, str]) -> str:
    """Return a query with values for its variables, as Grafana sends it."""
    for name, value in values.items():
        expr = re.sub(rf"\$\{{?{name}\b\}}?", value.replace("\\", r"\\"), expr)
    return expr


def panels(board: Obj) -> Iterator[tuple[str, str]]:
    """Yield the title of each panel with each of its queries."""
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
