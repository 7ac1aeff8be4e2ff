"""18.4. The chart's alerts on a real Prometheus that scrapes the plugins and the controller on the test bed.

The time from a fault to its alert is measured with the chart's own intervals. The other alerts are scraped every 2 s,
with every minute of a `for` as a second. `test_alert_rules.py` fires all alerts with synthetic series.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import monitored
import pytest
from monitored import Fault
from prometheus import FACTOR, Prometheus, rendered, running
from real_cluster import REPOSITORY, Namespace, TestBed, eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]  # Prometheus is built first
MEASURED = REPOSITORY / "build" / "acceptance" / "fault-to-alert.txt"
FAST = ("draDriver.podMonitor.interval=2s", "ultraserverOperator.podMonitor.interval=2s")
FAULTS: dict[str, Fault] = {
    "NeuronUltraServerDegraded": monitored.cordoned_node,
    "NeuronWorkloadDegraded": monitored.degraded_workload,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prometheus")


def started(bed: TestBed, folder: Path, *values: str, port: int, factor: float = 1) -> Iterator[Prometheus]:
    """Run Prometheus until it has scraped each plugin and each replica of the controller."""
    folder.mkdir()
    with running(bed, folder, rendered(*values), port=port, factor=factor) as server:

        def scraped() -> bool:
            found = server.targets()
            return len(found) == 10 and all(each["health"] == "up" for each in found)

        eventually("eight plugins and two replicas are scraped", scraped, 120)
        yield server


@pytest.fixture(scope="module")
def as_installed(running_fleet: TestBed, folders: Path) -> Iterator[Prometheus]:
    """Prometheus with the chart's own intervals."""
    yield from started(running_fleet, folders / "installed", port=9090)


@pytest.fixture(scope="module")
def fast(running_fleet: TestBed, folders: Path) -> Iterator[Prometheus]:
    """Prometheus with short intervals, and every minute of an alert as a second."""
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


@pytest.mark.parametrize("alert", FAULTS)
def test_alert_fires_and_resolves(fast: Prometheus, fleet: TestBed, place: Namespace, alert: str) -> None:
    eventually("no alert of it before", lambda: not fast.firing(alert), 120)
    with FAULTS[alert](fleet, place):
        labels = eventually(f"{alert} fires", lambda: fast.firing(alert), 240)
        assert all(each["severity"] in ("critical", "warning", "info") for each in labels)
    eventually(f"{alert} resolves", lambda: not fast.firing(alert), 240)
    monitored.all_slices(fleet)
