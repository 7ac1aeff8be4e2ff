"""18.4. The chart's dashboards and alerts on a real Prometheus, which scrapes the metrics of plugins and a controller.

No program runs but Prometheus: the metrics are those of the programs' own classes, after the events of a story. A job
runs on four nodes, a device and a link of it fail, another pod's claim is rejected, and a workload waits.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import start_http_server

from controller import metrics as controller_metrics
from controller.metrics import Metrics as ControllerMetrics
from hack.bed import build, layout, network
from neuron_dra.core.claims import ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.wire import Obj
from neuron_dra.node import metrics as plugin_metrics
from neuron_dra.node.metrics import PluginMetrics
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.plan import planning
from tests.bed.prometheus import FACTOR, dashboards, panels, program, rendered, rule_groups, scrape_configs, substituted
from tests.unit.failing_world import break_links, repair_links, running
from tests.unit.ultraserver_world import World

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # Prometheus is built first
NODES = tuple(f"u0-{number}" for number in range(4))
INTERVAL = "2s"
PATIENCE_S = 120


class Story:
    """The metrics of four plugins and the leading controller, and what happens to them."""

    def __init__(self) -> None:
        self.plugins = {node: PluginMetrics() for node in NODES}
        self.controller = ControllerMetrics()
        self.world: World = running("NoOp", servers=1, count=1)
        self.world.submit("waits", size=4, count=1)
        self.controller.leading(True)
        for plugin in self.plugins.values():
            plugin.set(plugin_metrics.REGISTERED, True)
            plugin.published(16, 1, 1)
            plugin.claims([], range(16))
            plugin.health([(f"neuron-device-{number}", "HEALTHY") for number in range(16)], [])
        self.plan()

    def plan(self) -> None:
        before = dict(self.world.workload("job").get("status", {}))
        self.world.settle()
        self.controller.status_written(before, self.world.workload("job")["status"], self.world.now)
        index = FleetIndex.of(self.world.snapshot())
        self.controller.planned(0.1, index, planning.plan_of(index, self.world.now), self.world.now)

    def begin(self) -> None:
        """The job starts, and the faults begin."""
        for node, plugin in self.plugins.items():
            devices = tuple(
                PreparedDevice("r", node, f"neuron-device-{number}", (number,), (), {}) for number in range(8)
            )
            ref = ClaimRef("ml", f"claim-{node}", f"uid-{node}")
            plugin.claims([PreparedClaim(ref, devices, pod=f"job-{node}", workload="job")], range(16))
            plugin.claim_operation("prepare", "ok", 0.02)
        first = self.plugins[NODES[0]]
        states = [(f"neuron-device-{number}", "UNHEALTHY" if number == 3 else "HEALTHY") for number in range(16)]
        first.health(states, [("neuron-device-3", 3, "hbm_ecc")])
        first.findings(["NeuronMissingLink"])
        first.publish_failed("Forbidden")
        first.add(plugin_metrics.REFUSED, "Rejected")
        self.controller.observe(controller_metrics.ALLOCATIONS, 1.5)
        self.controller.add(controller_metrics.WRITES, "UpdateStatus", "ok")
        self.controller.add(controller_metrics.EVICTIONS, "refused")
        break_links(self.world, NODES[0])
        self.plan()

    def end(self) -> None:
        """The faults are over."""
        first = self.plugins[NODES[0]]
        first.health([(f"neuron-device-{number}", "HEALTHY") for number in range(16)], [])
        first.findings([])
        first.published(16, 2, 1)
        repair_links(self.world, NODES[0])
        self.world.now += datetime.timedelta(seconds=30)
        self.plan()


class Server:
    """The HTTP API of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}", timeout=60) as answer:
            return json.load(answer)["data"]

    def values(self, expr: str) -> list[float]:
        """Return the values of an expression now that are numbers."""
        found = [float(each["value"][1]) for each in self.get("query", query=expr)["result"]]
        return [value for value in found if not math.isnan(value)]

    def labels(self, expr: str, label: str) -> set[str]:
        return {each["metric"].get(label, "") for each in self.get("query", query=expr)["result"]}

    def firing(self) -> set[str]:
        found = self.get("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in found if each["state"] == "firing"}


def until(what: str, check: Any) -> Any:
    """Wait for a check to be true, and return its result."""
    ends = time.monotonic() + PATIENCE_S
    while True:
        found: object = None
        with contextlib.suppress(OSError):
            found = check()
        if found:
            return found
        assert time.monotonic() < ends, f"{what}: {found!r}"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def objects() -> list[Obj]:
    build.build(layout.from_environment())  # with helm
    return rendered()


def configuration(objects: list[Obj], addresses: dict[str, str]) -> list[Obj]:
    """Return the PodMonitors' scrape configurations for addresses, as if these were pods on nodes."""
    made = []
    for config in scrape_configs(objects, Path("unused")):
        job = config["job_name"].rpartition("/")[2]
        of_plugins = "kubelet-plugin" in job
        groups = [
            {
                "targets": [address],
                "labels": {
                    "__meta_kubernetes_namespace": "neuron-dra-driver",
                    "__meta_kubernetes_pod_name": f"{job}-{node}",
                    "__meta_kubernetes_pod_container_name": "main",
                    "__meta_kubernetes_pod_container_port_name": "metrics",
                    "__meta_kubernetes_pod_node_name": node,
                    "__meta_kubernetes_pod_phase": "Running",
                    **selected(config),
                },
            }
            for node, address in addresses.items()
            if (node != "controller") == of_plugins
        ]
        del config["kubernetes_sd_configs"]
        made.append({**config, "static_configs": groups, "scrape_interval": INTERVAL, "scrape_timeout": INTERVAL})
    return made


def selected(config: Obj) -> dict[str, str]:
    """Return the labels of a pod that the configuration keeps."""
    prefix = "__meta_kubernetes_pod_label_"
    kept = [each for each in config["relabel_configs"] if each.get("source_labels", [""])[0].startswith(prefix)]
    return {each["source_labels"][0]: each["regex"].replace("\\", "") for each in kept}


@pytest.fixture
def scraped(objects: list[Obj], tmp_path: Path) -> Iterator[tuple[Story, Server]]:
    """A story before it begins, and Prometheus, which has scraped all of it once."""
    story, where = Story(), layout.from_environment()
    addresses, servers = {}, []
    registries = {name: metrics.registry for name, metrics in story.plugins.items()}
    for name, registry in {**registries, "controller": story.controller.registry}.items():
        port = network.free_port()
        servers.append(start_http_server(port, "127.0.0.1", registry))
        addresses[name] = f"127.0.0.1:{port}"
    rules, config, port = tmp_path / "rules.yaml", tmp_path / "prometheus.yaml", network.free_port()
    rules.write_text(yaml.safe_dump({"groups": rule_groups(objects, FACTOR)}))
    content = {
        "global": {"evaluation_interval": INTERVAL},
        "rule_files": [str(rules)],
        "scrape_configs": configuration(objects, addresses),
    }
    config.write_text(yaml.safe_dump(content))
    words = [str(program(where, "prometheus")), f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    words.append(f"--web.listen-address=127.0.0.1:{port}")
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
    try:
        server = Server(port)
        until("all are scraped", lambda: server.values("count(up == 1)") == [len(addresses)])
        yield story, server
    finally:
        child.terminate()
        child.wait(timeout=60)
        for each, thread in servers:
            each.shutdown()
            each.server_close()
            thread.join()


def without_data(server: Server, wanted: dict[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """Return the queries that have no number now, with "All" for every variable."""
    every = dict.fromkeys(("node", "namespace", "workload"), ".*")
    return {key: expr for key, expr in wanted.items() if not server.values(substituted(expr, every))}


def test_panels_have_data_and_alerts_resolve(scraped: tuple[Story, Server], objects: list[Obj]) -> None:
    story, server = scraped
    boards = dashboards(objects)
    wanted = {(name, title): expr for name, board in boards.items() for title, expr in panels(board)}
    assert len(wanted) > 40
    story.begin()
    faults = {"NeuronDeviceUnhealthy", "NeuronClaimsRejected", "NeuronWorkloadDegraded", "NeuronUltraServerDegraded"}
    until("the faults are alerts", lambda: server.firing() >= {*faults, "NeuronSlicesNotPublished"})
    at_the_end = {("neuron-dra-ultraservers", "Time that workloads were degraded A")}
    until("every panel has data", lambda: {*without_data(server, wanted)} <= at_the_end)

    here = {"namespace": "ml", "workload": "job"}
    faulty = dict(panels(boards["neuron-dra-job"]))["Faults A"]
    assert server.values(substituted(faulty, here)) == [1]
    assert server.values(substituted(faulty, {**here, "workload": "another"})) == [0]
    held = 'neuron_dra_device_info{claim!=""}'
    assert (server.labels(held, "namespace"), server.labels(held, "node")) == ({"ml"}, {*NODES})
    free = 'neuron_dra_device_info{claim=""}'
    assert (server.labels(free, "namespace"), server.labels(free, "pod")) == ({""}, {""})

    story.end()
    until("the rest has data", lambda: not without_data(server, {key: wanted[key] for key in at_the_end}))
    until("the faults' alerts resolve", lambda: not server.firing() & {*faults, "NeuronSlicesNotPublished"})
