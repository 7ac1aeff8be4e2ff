"""Measures tests of free groups with their requests: `python -m hack.bench.qualify_requests`.

The controller is a process with HTTP requests and watches; API server, nodes and kubelets are in this one. It prints the
CPU of the controller for each test and the requests of a test, then the same for a fleet whose groups are tested
once a day: what decisions about it cost more than about this fleet is measured in process (`hack.bench.qualify`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hack.bench import qualify, shared
from hack.bench.cluster import Controller
from hack.bench.swarm import INSTANCE_TYPE, Swarm
from neuron_dra.core.qualification import NAMESPACE as TESTS
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.embedded_api.errors import StatusError

WRITES: Final = frozenset({"create", "update", "patch", "delete"})
CONTROLLER: Final = "neuron-ultraserver-controller"
STEP_S: Final = 0.2
LIMIT_S: Final = 300.0
MESSAGE: Final = 'done\n{"bandwidth": 150.0, "p99": 12}'


@dataclass(frozen=True, slots=True)
class Figures:
    """What so many tests cost the controller; `idle` is the CPU of as much time without any, in seconds."""

    tests: int
    took_s: float
    cpu_s: float
    idle_s: float
    requests: Counter[str]

    @property
    def of_a_test_s(self) -> float:
        """The CPU seconds of one test, without those that pass in any case."""
        return max(0.0, self.cpu_s - self.idle_s) / self.tests

    @property
    def writes(self) -> float:
        """The writes of one test."""
        return sum(self.requests.values()) / self.tests


def asked(**spec: Any) -> Obj:
    """Return the qualification of the whole fleet."""
    bound = {"name": "bandwidth", "atLeast": 140}
    every = {"instanceTypes": [INSTANCE_TYPE], "image": "i", "period": "24h", "thresholds": [bound], **spec}
    return {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerQualification",
        "metadata": {"name": "nightly"},
        "spec": every,
    }


async def kubelets(api: EmbeddedApi, lasts_s: float, exit_code: Callable[[Obj], int] = lambda pod: 0) -> None:
    """Start the pods of tests, and let them end: two statuses of each, as kubelets write them."""
    begun: dict[str, float] = {}
    while True:
        for pod in api.objects("pods", TESTS):
            meta, status = pod["metadata"], pod.get("status") or {}
            began = begun.setdefault(meta["uid"], time.monotonic())
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            if meta.get("deletionTimestamp"):
                with contextlib.suppress(StatusError):  # it is gone
                    api.delete("pods", meta["name"], TESTS, grace_s=0)
            elif status.get("phase") in (None, "", "Pending"):
                running = {"name": "test", "state": {"running": {"startedAt": moment}}}
                api.patch("pods", meta["name"], _status("Running", running), TESTS)
            elif status["phase"] == "Running" and time.monotonic() >= began + lasts_s:
                ended = {"exitCode": exit_code(pod), "startedAt": moment, "finishedAt": moment, "message": MESSAGE}
                api.patch(
                    "pods", meta["name"], _status("Succeeded", {"name": "test", "state": {"terminated": ended}}), TESTS
                )
        await asyncio.sleep(STEP_S)


def _status(phase: str, container: Obj) -> Obj:
    return {"status": {"phase": phase, "containerStatuses": [container]}}


def results(found: list[Obj]) -> int:
    """Return how many UltraServers have a result."""
    return sum(bool((item.get("status") or {}).get("qualifications")) for item in found)


async def measure(groups: int, lasts_s: float, most: int) -> Figures:
    """Test each of some UltraServers once."""
    async with EmbeddedApi() as api:
        api.register_neuron_kinds()
        with tempfile.TemporaryDirectory() as folder, _process(api, Path(folder)) as controller:
            swarm = Swarm(api.client("swarm"))
            await swarm.grow(groups)
            await api.until("neuronultraservers", lambda found: ready(found) == groups, timeout_s=LIMIT_S)
            async with swarm.tagging():
                return await _tests(api, controller, groups, lasts_s, most)


@contextlib.contextmanager
def _process(api: EmbeddedApi, folder: Path) -> Iterator[Controller]:
    for name in (NAMESPACE, TESTS):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    kubeconfig = api.write_kubeconfig(folder / "kubeconfig")
    with Controller(kubeconfig, folder / "log", "--qualifications") as made:
        yield made


def ready(found: list[Obj]) -> int:
    """Return how many UltraServers are Ready."""
    conditions = [each for item in found for each in (item.get("status") or {}).get("conditions") or ()]
    return sum((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


async def _tests(api: EmbeddedApi, controller: Controller, groups: int, lasts_s: float, most: int) -> Figures:
    await asyncio.sleep(5.0)  # until the writes of the start are over
    api.log.clear()
    began, cpu = time.monotonic(), controller.cpu_s()
    async with shared.beside(kubelets(api, lasts_s)):
        api.create(asked(maxGroups=most))
        await api.until("neuronultraservers", lambda found: results(found) == groups, timeout_s=LIMIT_S)
        await api.until("neuronultraserverworkloads", lambda found: not found, namespace=TESTS, timeout_s=LIMIT_S)
    took, spent = time.monotonic() - began, controller.cpu_s() - cpu
    writes = [each for each in api.log if each.verb in WRITES and CONTROLLER in each.user_agent]
    requests = Counter(f"{each.verb} {each.resource}" for each in writes if "leases" not in each.resource)
    idle = controller.cpu_s()
    await asyncio.sleep(took)
    return Figures(groups, took, spent, controller.cpu_s() - idle, requests)


def in_process(nodes: int, tests: int) -> tuple[float, float]:
    """Return the CPU seconds of the decisions about one test in a fleet of this size, and of one survey."""
    made = qualify.Fleet(nodes)
    return statistics.mean(made.test() for _ in range(tests)), made.survey_s


def daily(figures: Figures, here: tuple[float, float], there: tuple[float, float], groups: int) -> list[str]:
    """Return the lines about a fleet of which each group is tested once a day."""
    a_test = figures.of_a_test_s + max(0.0, there[0] - here[0])
    surveys = qualify.DAY_S / max(qualify.TIMING.survey_s, qualify.TIMING.survey_group_s * groups)
    survey_s = there[1] * (surveys + groups)
    tests, more = 1000 * a_test * groups / qualify.DAY_S, 1000 * survey_s / qualify.DAY_S
    minute = figures.writes * groups * 60 / qualify.DAY_S
    return [
        f"{groups * 4:,} nodes, each group once a day: {tests:.2f} millicores for tests with their requests, "
        f"{more:.2f} for surveys, {tests + more:.2f} together",
        f"{groups * 60 / qualify.DAY_S:.1f} tests and {minute:.0f} writes a minute on average",
    ]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=12, help="UltraServers with requests")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long a test runs")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=20_000, help="of the fleet to which this is extended")
    parsed = parser.parse_args()
    figures = asyncio.run(measure(parsed.groups, parsed.seconds, parsed.at_once))
    print(f"{figures.tests} tests in {figures.took_s:.0f} s: {figures.of_a_test_s * 1000:.1f} ms of CPU each")
    print(f"{figures.writes:.1f} writes a test: {dict(figures.requests)}")
    here, there = in_process(parsed.groups * 4, 10), in_process(parsed.nodes, 10)
    print(f"decisions of a test {here[0] * 1000:.1f} ms here, {there[0] * 1000:.1f} ms there")
    print("\n".join(daily(figures, here, there, parsed.nodes // 4)))


if __name__ == "__main__":
    main()
