"""Tests of free UltraServers on real kubelets: a slow node is found, jobs get others, and tests yield (36, number 2).

The slow node is a double: the program of the test reports a low bandwidth on it. Everything else is real.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.bed.real_cluster import QUICK, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import NAMESPACE
from tests.bed.fleet import TRN3, end_workloads, slots, submit, workload

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SETTING = "ultraserverOperator.qualification.enabled"
TESTS = "neuron-qualification"
NAME = "nightly"
SLOW = "u1-0 2"  # node of rank 0, and rank


@pytest.fixture(scope="module")
def testing(running_fleet: TestBed) -> Iterator[TestBed]:
    """The fleet, whose controller tests UltraServers."""
    running_fleet.command("up", "--driver", "daemonset", "--set", f"{SETTING}=true", timeout_s=1800)
    yield running_fleet
    running_fleet.kubectl("delete", "nusq", "--all", "--timeout=120s", timeout_s=130)
    running_fleet.command("up", "--driver", "daemonset", "--set", f"{SETTING}=false", timeout_s=600)


def program(slow: str, seconds: int) -> list[str]:
    """Return the command of a test that is slow on one node."""
    figure = f'if [ "$NEURON_DRA_RANK0_NODE $NEURON_GLOBAL_TOPOID" = "{slow}" ]; then v=100.5; else v=150; fi'
    said = 'echo "{\\"bandwidth\\": $v}" > /dev/termination-log'
    return ["/bin/bash", "-c", f"{figure}; sleep {seconds}; {said}"]


def qualification(command: list[str]) -> Obj:
    spec = {
        "instanceTypes": [TRN3],
        "topologySize": 4,
        "image": QUICK,
        "command": command,
        "period": "1h",
        "maxGroups": 2,
        "timeout": "20m",
        "thresholds": [{"name": "bandwidth", "atLeast": 140}],
    }
    kind = "NeuronUltraServerQualification"
    return {"apiVersion": "neuron.aws.com/v1beta1", "kind": kind, "metadata": {"name": NAME}, "spec": spec}


def results(bed: TestBed) -> dict[str, Obj]:
    """Return the result of each group of the type, by the name of its first node."""
    found = {}
    for item in bed.get("nus", "--namespace", NAMESPACE)["items"]:
        for entry in item.get("status", {}).get("qualifications") or []:
            found[entry["nodes"][0]] = entry
    return found


def verdicts(bed: TestBed) -> dict[str, tuple[str, bool]]:
    return {node: (entry["verdict"], entry["unqualified"]) for node, entry in results(bed).items()}


def change(bed: TestBed, command: list[str]) -> None:
    bed.kubectl("patch", "nusq", NAME, "--type=merge", "-p", json.dumps({"spec": {"command": command}}))


def running_tests(bed: TestBed) -> list[str]:
    pods = bed.get("pods", "--namespace", TESTS)["items"]
    return [each["metadata"]["name"] for each in pods if each["status"].get("phase") == "Running"]


def test_slow_node_fails_twice_jobs_go_elsewhere_and_it_passes_after_repair(
    testing: TestBed, fleet: TestBed, place: Namespace
) -> None:
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps(qualification(program(SLOW, 3))))
    eventually("u1 is unqualified", lambda: verdicts(fleet).get("u1-0") == ("Failed", True), 240)
    eventually("u2 has passed", lambda: verdicts(fleet).get("u2-0") == ("Passed", False), 120)
    bad = results(fleet)["u1-0"]
    assert (bad["failures"], bad["message"]) == (2, "bandwidth 100.5 is below 140")
    assert bad["figures"] == {"bandwidth": 100.5}
    eventually("no test holds nodes", lambda: slots(fleet) == {}, 120)

    submit(place, workload("job", 4, 1))
    assert slots(fleet)["job"] == {0: ("u2-0", "u2-1", "u2-2", "u2-3")}
    end_workloads(place)

    change(fleet, program("none", 3))  # the node was repaired
    wanted = {"u1-0": ("Passed", False), "u2-0": ("Passed", False)}
    eventually("all pass", lambda: verdicts(fleet) == wanted, 240)
    eventually("no test holds nodes", lambda: slots(fleet) == {}, 120)


def test_job_gets_all_nodes_while_all_are_tested(
    testing: TestBed, fleet: TestBed, place: Namespace, tmp_path: Path
) -> None:
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps(qualification(program("none", 600))))
    eventually("eight pods of tests run", lambda: len(running_tests(fleet)) == 8, 240)
    made = submit(place, workload("job", 4, 2))
    waited = seconds_to_allocated(made)
    (tmp_path / "waited").write_text(f"{waited:g} s\n")  # a figure for the report, beside the bound
    assert sorted(slots(fleet)["job"]) == [0, 1]
    assert waited < 30
    fleet.kubectl("delete", "nusq", NAME)
    end_workloads(place)


def seconds_to_allocated(made: Obj) -> float:
    def moment(text: Any) -> datetime.datetime:
        return datetime.datetime.fromisoformat(str(text).replace("Z", "+00:00"))

    return (moment(made["status"]["allocatedAt"]) - moment(made["metadata"]["creationTimestamp"])).total_seconds()


def test_pods_of_tests_have_no_token_and_nobody_else_makes_any(testing: TestBed, fleet: TestBed) -> None:
    level = fleet.get("namespace", TESTS)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert level == "baseline"
    controller = "--as=system:serviceaccount:neuron-dra-driver:neuron-ultraserver-controller"
    answer = fleet.kubectl("auth", "can-i", "create", "pods", controller, "--namespace", TESTS)
    assert answer.strip() == "yes"
