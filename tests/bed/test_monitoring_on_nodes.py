"""18.4. The chart's alerts on a real Prometheus that scrapes the plugins and the controller on the test bed.

The time from a fault to its alert is measured with the chart's own intervals. The other alerts are scraped every 2 s,
with every minute of a `for` as a second. `test_alert_rules.py` fires all alerts with synthetic series.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.bed.real_cluster import REPOSITORY, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed import monitored
from tests.bed.deployed import NAMESPACE
from tests.bed.fleet import workload
from tests.bed.monitored import FAULTS, PLAIN, TRN2, Fault
from tests.bed.prometheus import FACTOR, Prometheus, dashboards, panels, rendered, running, substituted, variables

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]  # Prometheus is built first
MEASURED = REPOSITORY / "build" / "night" / "fault-to-alert.txt"
FAST = ("draDriver.podMonitor.interval=2s", "ultraserverOperator.podMonitor.interval=2s")
LATER = ("neuron-dra-ultraservers", "Time that workloads were degraded A")
"""The panel that has data when a fault has ended."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prometheus")


def started(bed: TestBed, folder: Path, *values: str, port: int, factor: float = 1) -> Iterator[Prometheus]:
    """Run Prometheus until it has scraped each plugin and each replica of the controller."""
    folder.mkdir()
    with running(bed, folder, rendered(*values), port=port, factor=factor) as server:

        def scraped() -> bool:
            found = server.targets()
            pods = bed.get("pods", "--namespace", NAMESPACE)["items"]
            return len(found) == len(pods) and all(each["health"] == "up" for each in found)

        eventually("all plugins and replicas are scraped", scraped, 120)
        yield server


@pytest.fixture(scope="module")
def as_installed(running_fleet: TestBed, folders: Path) -> Iterator[Prometheus]:
    """Prometheus with the chart's own intervals."""
    yield from started(running_fleet, folders / "installed", port=9090)


@pytest.fixture(scope="module")
def fast(running_fleet: TestBed, folders: Path) -> Iterator[Prometheus]:
    """Prometheus with short intervals, and every minute of an alert as a second; and one more node."""
    running_fleet.command("up", "--node", f"{PLAIN}={TRN2}")
    monitored.all_slices(running_fleet)
    yield from started(running_fleet, folders / "fast", *FAST, port=9091, factor=FACTOR)


def test_a_device_fault_is_an_alert(as_installed: Prometheus, fleet: TestBed, place: Namespace) -> None:
    """With the chart's intervals. The time is written down, not judged: a busy machine takes longer."""
    took = []
    for _ in range(3):
        began = time.monotonic()
        with monitored.unhealthy_device(fleet, place):
            (labels,) = eventually("an alert", lambda: as_installed.firing("NeuronDeviceUnhealthy"), 120, 0.2)
            took.append(time.monotonic() - began)
            assert (labels["node"], labels["neuron_device"], labels["reason"]) == ("u2-0", "3", "hbm_ecc")
        eventually("it resolves", lambda: not as_installed.firing("NeuronDeviceUnhealthy"), 120)
    MEASURED.parent.mkdir(parents=True, exist_ok=True)
    MEASURED.write_text(f"a device fault is an alert after {', '.join(f'{each:.1f}' for each in took)} s\n")


def test_every_alert_has_a_fault() -> None:
    rules = [rule for item in rendered() if item["kind"] == "PrometheusRule" for rule in all_rules(item)]
    tried = {"NeuronDeviceUnhealthy", *(alert for alert, _ in FAULTS)}
    assert {rule["alert"] for rule in rules} == tried


def all_rules(item: Obj) -> list[Obj]:
    return [rule for group in item["spec"]["groups"] for rule in group["rules"]]


def without_data(server: Prometheus, wanted: dict[tuple[str, str], str]) -> set[tuple[str, str]]:
    """Return the queries of panels that have no number now, with "All" for every variable."""
    every = dict.fromkeys(("node", "namespace", "workload"), ".*")
    found = {key: server.query(substituted(expr, every)) for key, expr in wanted.items()}
    return {key for key, series in found.items() if all(math.isnan(value) for _, value in series)}


def test_every_panel_has_data_of_the_bed(fast: Prometheus, fleet: TestBed, place: Namespace) -> None:
    """A job runs, a device of it and a link of another node fail, and a workload waits."""
    boards = dashboards(rendered())
    wanted = {(name, title): expr for name, board in boards.items() for title, expr in panels(board)}
    with monitored.degraded_job(fleet, place), monitored.broken(fleet, PLAIN, "link", "0-1"):
        place.apply(workload("waits", 4, 3))
        eventually("all but one have data", lambda: without_data(fast, wanted) <= {LATER}, 240)
        offered = {name: each for board in boards.values() for name, each in variables(fast, board).items()}
        nodes = sorted(fleet.parts.state.nodes)
        assert offered == {"node": nodes, "namespace": [place.name], "workload": ["job"]}
    eventually("the last one has data", lambda: not without_data(fast, {LATER: wanted[LATER]}), 120)
    monitored.all_slices(fleet)


@pytest.mark.parametrize(
    ("alert", "fault"), [pytest.param(*each, id=f"{each[0]}-{each[1].__name__}") for each in FAULTS]
)
def test_alert_fires_and_resolves(fast: Prometheus, fleet: TestBed, place: Namespace, alert: str, fault: Fault) -> None:
    eventually("no alert of it before", lambda: not fast.firing(alert), 120)
    with fault(fleet, place):
        labels = eventually(f"{alert} fires", lambda: fast.firing(alert), 240)
        assert all(each["severity"] in ("critical", "warning", "info") for each in labels)
        assert {each["node"] for each in labels if "node" in each} <= {PLAIN}
    eventually(f"{alert} resolves", lambda: not fast.firing(alert), 240)
    monitored.all_slices(fleet)
