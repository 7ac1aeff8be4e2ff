"""The alerts about tests and block ends, on a real Prometheus that scrapes a real controller. Issue 36, number 5.

The API server, nodes and kubelets are emulated. Every minute of an alert is a second, as on the test bed.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.bed import layout
from hack.bed.network import free_port
from hack.bench import qualify_requests as bench
from hack.bench import shared
from hack.bench.cluster import PROBES, Controller
from hack.bench.swarm import INSTANCE_TYPE, Swarm
from neuron_dra.core.capacity_block import ANNOTATION
from neuron_dra.core.qualification import NAMESPACE as TESTS
from neuron_dra.core.qualification import target
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from tests.bed.prometheus import FACTOR, program, rendered, rule_groups
from tests.support.built_tools import needs
from tests.support.waiting import eventually

pytestmark = pytest.mark.long  # Prometheus is built first

LIMIT_S = 240.0
UNQUALIFIED, STOPPED, ENDS = "NeuronUltraServerUnqualified", "NeuronQualificationStopped", "NeuronBlockEnds"


@contextlib.asynccontextmanager
async def prometheus(built: Path, folder: Path) -> AsyncIterator[str]:
    """Run Prometheus with the chart's rules beside the controller; yield its URL."""
    port = free_port()
    rules, config = folder / "rules.yaml", folder / "prometheus.yaml"
    rules.write_text(yaml.safe_dump({"groups": rule_groups(rendered(), FACTOR)}))
    jobs = [{"job_name": "controller", "static_configs": [{"targets": [PROBES]}]}]
    every = {"evaluation_interval": "1s", "scrape_interval": "1s", "scrape_timeout": "1s"}
    config.write_text(yaml.safe_dump({"global": every, "rule_files": [str(rules)], "scrape_configs": jobs}))
    words = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        child = subprocess.Popen([built, *words], stdout=log, stderr=subprocess.STDOUT)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(60)


def firing(url: str) -> set[str]:
    """Return the names of the alerts that fire; none until Prometheus answers."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/alerts", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["alerts"]
    except OSError:
        return set()
    return {each["labels"]["alertname"] for each in found if each["state"] == "firing"}


class Programs:
    """The programs of tests: they fail on these UltraServers."""

    def __init__(self, api: EmbeddedApi) -> None:
        self._api = api
        self.failing: set[str] = set()

    def exit_code(self, pod: Obj) -> int:
        """Return how the program of a pod ends."""
        [owner] = pod["metadata"]["ownerReferences"]
        workload = self._api.get("neuronultraserverworkloads", owner["name"], TESTS)
        tested = target(TESTS, workload["metadata"]["annotations"])
        return 1 if tested is not None and tested.ultraserver in self.failing else 0


def ends_soon(api: EmbeddedApi) -> None:
    """Let the blocks of all nodes end in 80 minutes, 20 before EC2 takes them back."""
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=80)
    for node in api.objects("nodes"):
        annotations = {ANNOTATION: f"{end:%Y-%m-%dT%H:%M:%SZ}"}
        api.patch("nodes", node["metadata"]["name"], {"metadata": {"annotations": annotations}})


@pytest.fixture(scope="module")
def built() -> Path:
    return program(layout.from_environment(), "prometheus")


@needs("helm")
@pytest.mark.timeout(900)
async def test_alerts_fire_with_what_the_controller_reports(built: Path, tmp_path: Path) -> None:
    async with EmbeddedApi() as api:
        api.register_neuron_kinds()
        for name in (NAMESPACE, TESTS, "ml"):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        kubeconfig, swarm, programs = (
            api.write_kubeconfig(tmp_path / "kubeconfig"),
            Swarm(api.client("swarm")),
            Programs(api),
        )
        await swarm.grow(4)
        with Controller(kubeconfig, tmp_path / "log", "--qualifications"):
            async with (
                swarm.tagging(),
                shared.beside(bench.kubelets(api, 0.5, programs.exit_code)),
                prometheus(built, tmp_path) as url,
            ):
                servers = await api.until(
                    "neuronultraservers", lambda found: bench.ready(found) == 4, timeout_s=LIMIT_S
                )
                api.create(_workload())
                [job] = await api.until("neuronultraserverworkloads", _is_allocated, timeout_s=LIMIT_S)
                names = {item["metadata"]["name"] for item in servers} - {*job["status"]["allocatedUltraServers"]}
                programs.failing = {min(names)}
                api.create(bench.asked(maxGroups=3))
                await eventually(lambda: UNQUALIFIED in firing(url), what="one bad group", timeout_s=LIMIT_S)
                assert not {STOPPED, ENDS} & firing(url)

                ends_soon(api)
                await eventually(lambda: ENDS in firing(url), what="a block that ends", timeout_s=LIMIT_S)

                programs.failing = names
                api.patch("neuronultraserverqualifications", "nightly", {"spec": {"attempt": 1}})
                await eventually(lambda: STOPPED in firing(url), what="a storm", timeout_s=LIMIT_S)
                await eventually(lambda: UNQUALIFIED not in firing(url), what="no node to blame", timeout_s=LIMIT_S)


def _is_allocated(found: list[Obj]) -> bool:
    return [(each.get("status") or {}).get("state") for each in found] == ["Allocated"]


def _workload() -> Obj:
    spec = {"instanceType": INSTANCE_TYPE, "topologySize": 4, "serverCount": 1}
    meta = {"name": "job", "namespace": "ml"}
    return {"apiVersion": "neuron.aws.com/v1beta1", "kind": "NeuronUltraServerWorkload", "metadata": meta, "spec": spec}
