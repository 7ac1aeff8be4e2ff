"""The chart's alerts in promtool: they fire after their `for`, they resolve, and normal operation does not fire them.

The series are synthetic, with one sample a minute. `test_monitoring_on_nodes.py` fires them with faults on nodes.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.bed import build, layout
from neuron_dra.core.wire import Obj
from tests.bed.prometheus import program, rendered, rule_groups, seconds

pytestmark = pytest.mark.long  # Prometheus is built first
BEGINS = 5
"""The minute in which a fault begins."""
LASTS = 10
"""The minutes for which an alert fires before the fault ends."""
WINDOW = 15
"""The minutes that the alerts about counters look back."""
NODE = 'node="a",instance="10.0.0.1:8080"'
OTHER = 'node="a",instance="10.0.0.2:8080"'
PREPARE = "neuron_dra_claim_operation_seconds_bucket"


@dataclass(frozen=True, slots=True)
class Gauge:
    """A series with one value while all is well, and another one during a fault."""

    name: str
    well: str
    fault: str

    def values(self, holds: int) -> str:
        """Return its values if an alert fires when the fault has lasted so many minutes; `_` is no series."""
        before = f"_x{BEGINS}" if self.well == "_" else f"{self.well}x{BEGINS - 1}"
        during = f"stale _x{holds + LASTS}" if self.fault == "_" else f"{self.fault}x{holds + LASTS}"
        return f"{before} {during} {'stale' if self.well == '_' else f'{self.well}x60'}"


@dataclass(frozen=True, slots=True)
class Count:
    """A counter that grows each minute during a fault."""

    name: str
    grows: int = 1

    def values(self, holds: int) -> str:
        last = self.grows * (holds + WINDOW)
        return f"0x{BEGINS - 1} {self.grows}+{self.grows}x{holds + WINDOW - 1} {last}x60"


def prepares(le: str, grows: int, result: str = "ok") -> Count:
    return Count(f'{PREPARE}{{{NODE},operation="prepare",result="{result}",le="{le}"}}', grows)


FAULTS: dict[str, list[Gauge | Count]] = {
    "NeuronDeviceUnhealthy": [
        Gauge(
            f'neuron_dra_device_fault{{{NODE},device="neuron-device-3",neuron_device="3",reason="hbm_ecc"}}', "_", "1"
        )
    ],
    "NeuronPluginDown": [
        Gauge(f'up{{{NODE},job="neuron-dra-driver/neuron-dra-driver-kubelet-plugin"}}', "1", "0"),
    ],
    "NeuronNodeNotRegistered": [Gauge(f"neuron_dra_registered{{{NODE}}}", "1", "0")],
    "NeuronSlicesNotPublished": [Gauge(f"neuron_dra_published{{{NODE}}}", "1", "0")],
    "NeuronDeviceHealthUnknown": [Gauge(f'neuron_dra_device_healthy{{{NODE},device="neuron-device-3"}}', "1", "-1")],
    "NeuronFactsUnread": [Gauge(f'neuron_dra_findings{{{NODE},kind="unread-facts"}}', "0", "1")],
    "NeuronClaimsRejected": [Count(f'neuron_dra_refused_claims_total{{{NODE},reason="Rejected"}}')],
    "NeuronClaimsFail": [Count(f'neuron_dra_refused_claims_total{{{NODE},reason="Disk"}}', 5)],
    "NeuronCheckpointDamaged": [Gauge(f"neuron_dra_checkpoint_damaged{{{NODE}}}", "0", "1")],
    "NeuronOrphanedClaims": [Gauge(f"neuron_dra_prepared_claims_without_object{{{NODE}}}", "0", "2")],
    "NeuronDevicePluginAlive": [Gauge(f"neuron_dra_device_plugin_alive{{{NODE}}}", "0", "1")],
    "NeuronPrepareSlow": [prepares("10.0", 0), prepares("20.0", 1), prepares("+Inf", 1)],
    "NeuronUltraServerNoLeader": [
        Gauge('neuron_ultraserver_leader{pod="a"}', "1", "0"),
        Gauge('neuron_ultraserver_leader{pod="b"}', "0", "_"),
    ],
    "NeuronUltraServerCRDsOutdated": [Gauge('neuron_ultraserver_crd_outdated{crd="neuronultraservers"}', "0", "1")],
    "NeuronUltraServerDegraded": [Gauge('neuron_ultraserver_ultraservers{state="Degraded"}', "0", "1")],
    "NeuronWorkloadDegraded": [Gauge('neuron_ultraserver_degraded_workloads{reason="LinkDown"}', "_", "1")],
    "NeuronWorkloadFailed": [Gauge('neuron_ultraserver_workloads{state="Failed"}', "0", "1")],
    "NeuronWorkloadWaits": [Gauge("neuron_ultraserver_oldest_waiting_timestamp_seconds", "0", "1")],
    "NeuronUltraServerUnqualified": [
        Gauge('neuron_ultraserver_tested_groups{qualification="q",result="unqualified"}', "0", "1")
    ],
    "NeuronQualificationStopped": [Gauge('neuron_ultraserver_failure_storm{qualification="q"}', "0", "1")],
    "NeuronReservedNodesIdle": [Gauge("neuron_ultraserver_idle_reserved_nodes", "0", "4")],
    "NeuronQueueBlocked": [Gauge('neuron_ultraserver_queued_workloads{reason="QueueUnknown"}', "_", "1")],
    "NeuronBlockEnds": [Gauge("neuron_ultraserver_ending_workloads", "0", "1")],
    "NeuronControllerWritesHeld": [Gauge("neuron_ultraserver_held_writes", "0", "1")],
}


WAITS = {"NeuronWorkloadWaits": 61 - BEGINS}
"""The minutes from the fault to an alert's condition. This workload was created when the tests' clock started."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """What must fire no alert, or the same one all the time."""

    series: dict[str, str]
    firing: str = ""
    minutes: tuple[int, int] = field(default=(1, 40))


LEADERS = {'neuron_ultraserver_leader{pod="a"}': "1x20 stale", 'neuron_ultraserver_leader{pod="b"}': "0x21 1x40"}


def led(series: str, value: str) -> dict[str, str]:
    """Return a series that the leader exports, and the next one too, a minute later."""
    return {
        **LEADERS,
        series.format(pod='pod="a"'): f"{value}x20 stale",
        series.format(pod='pod="b"'): f"_x22 {value}x40",
    }


QUIET = {
    "another replica leads, and an UltraServer is degraded": Quiet(
        led('neuron_ultraserver_ultraservers{{state="Degraded",{pod}}}', "1"), "NeuronUltraServerDegraded", (11, 60)
    ),
    "another replica leads, and a workload is degraded": Quiet(
        led('neuron_ultraserver_degraded_workloads{{reason="LinkDown",{pod}}}', "1"), "NeuronWorkloadDegraded", (1, 60)
    ),
    "another replica leads, and a workload has failed": Quiet(
        led('neuron_ultraserver_workloads{{state="Failed",{pod}}}', "1"), "NeuronWorkloadFailed", (6, 60)
    ),
    "a rolling update: the new pod is not registered at first": Quiet(
        {
            f"neuron_dra_registered{{{NODE}}}": "1x10 stale",
            f"neuron_dra_registered{{{OTHER}}}": "_x9 0x2 1x40",
            f"neuron_dra_published{{{NODE}}}": "1x10 stale",
            f"neuron_dra_published{{{OTHER}}}": "_x9 0x2 1x40",
            f'up{{{NODE},job="neuron-dra-driver/neuron-dra-driver-kubelet-plugin"}}': "1x10 stale",
            f'up{{{OTHER},job="neuron-dra-driver/neuron-dra-driver-kubelet-plugin"}}': "_x7 0x3 1x40",
            f'neuron_dra_device_healthy{{{OTHER},device="neuron-device-3"}}': "_x9 -1x2 1x40",
        }
    ),
    "a rolling update while a device is unhealthy": Quiet(
        {
            f'neuron_dra_device_fault{{{NODE},device="d",neuron_device="3",reason="hbm_ecc"}}': "1x10 stale",
            f'neuron_dra_device_fault{{{OTHER},device="d",neuron_device="3",reason="hbm_ecc"}}': "_x9 1x40",
        },
        firing="NeuronDeviceUnhealthy",
    ),
    "another replica leads after a minute without one": Quiet(
        {
            'neuron_ultraserver_leader{pod="a"}': "1x10 stale",
            'neuron_ultraserver_leader{pod="b"}': "0x11 1x40",
            'neuron_ultraserver_workloads{state="Failed",pod="a"}': "0x10 stale",
        }
    ),
    "rejected claims that took long": Quiet(
        {
            f'{PREPARE}{{{NODE},operation="prepare",result="error",le="10.0"}}': "0x40",
            f'{PREPARE}{{{NODE},operation="prepare",result="error",le="20.0"}}': "0+1x40",
            f'{PREPARE}{{{NODE},operation="prepare",result="error",le="+Inf"}}': "0+1x40",
        }
    ),
    "a pod that waits for the devices of one that ends": Quiet(
        {f'neuron_dra_refused_claims_total{{{NODE},reason="DeviceInUse"}}': "0+3x40"}
    ),
    "one failure of the API server": Quiet(
        {f'neuron_dra_refused_claims_total{{{NODE},reason="ApiServer"}}': "0x5 1x40"}
    ),
}


@pytest.fixture(scope="module")
def promtool() -> Path:
    return program(layout.from_environment(), "promtool")


@pytest.fixture(scope="module")
def groups() -> list[Obj]:
    build.build(layout.from_environment())  # with helm
    return rule_groups(rendered())


@pytest.fixture(scope="module")
def rules(groups: list[Obj], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with all rules."""
    file = tmp_path_factory.mktemp("rules") / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": groups}))
    return file


def checked(promtool: Path, *words: str) -> None:
    done = subprocess.run([str(promtool), *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def expected(alert: str, minute: int, fires: bool) -> Obj:
    """Return the check that an alert fires in a minute, or not; the name "" stands for all."""
    named = f',alertname="{alert}"' if alert else ""
    samples = [{"labels": "{}", "value": int(fires)}]
    expr = f'count(ALERTS{{alertstate="firing"{named}}}) or vector(0)'
    return {"expr": expr, "eval_time": f"{minute}m", "exp_samples": samples}


def tried(promtool: Path, rules: Path, series: dict[str, str], checks: list[Obj]) -> None:
    """Run one unit test of promtool."""
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": checks,
    }
    # Without a leader there is always an alert.
    if not any("neuron_ultraserver_leader" in name for name in series):
        test["input_series"].append({"series": "neuron_ultraserver_leader", "values": "1x120"})
    file = rules.with_name("test.yaml")
    file.write_text(yaml.safe_dump({"rule_files": [rules.name], "evaluation_interval": "1m", "tests": [test]}))
    checked(promtool, "test", "rules", str(file))


def test_promtool_accepts_all_rules(promtool: Path, rules: Path) -> None:
    checked(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(rules))


def test_each_alert_has_a_fault(groups: list[Obj]) -> None:
    assert [rule["alert"] for group in groups for rule in group["rules"]] == list(FAULTS)


@pytest.mark.parametrize("alert", FAULTS)
def test_alert_fires_and_resolves(promtool: Path, groups: list[Obj], rules: Path, alert: str) -> None:
    rule = next(rule for group in groups for rule in group["rules"] if rule["alert"] == alert)
    holds = WAITS.get(alert, 0) + int(seconds(rule["for"]) // 60)
    counters = any(isinstance(each, Count) for each in FAULTS[alert])
    ends = BEGINS + holds + (2 * WINDOW if counters else LASTS)
    checks = [
        expected(alert, BEGINS - 1, False),
        expected(alert, BEGINS + holds + 1, True),
        expected("", ends + 2, False),
    ]
    if holds > 1 and not counters:
        checks.insert(1, expected(alert, BEGINS + holds - 1, False))
    tried(promtool, rules, {each.name: each.values(holds) for each in FAULTS[alert]}, checks)


@pytest.mark.parametrize("what", QUIET)
def test_normal_operation_fires_no_alert(promtool: Path, rules: Path, what: str) -> None:
    quiet = QUIET[what]
    minutes = range(*quiet.minutes)
    checks = [expected(quiet.firing, minute, bool(quiet.firing)) for minute in minutes]
    tried(promtool, rules, quiet.series, checks)
