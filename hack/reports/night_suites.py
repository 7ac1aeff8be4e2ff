"""The suites of `make night`: what each runs, and how its result is read from what it printed."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from hack.bed import build, layout

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = sys.executable
AUDIT_LOGS: Final = REPOSITORY / "build" / "audit"
RIGHTS: Final = "tests/contract/test_rights.py"
SHOWN: Final = 20  # violations in the report


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The result of a part."""

    outcome: str
    failed: bool
    took_s: float = 0.0
    commit: str = ""
    date: str = ""
    details: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The size of each part."""

    seeds: int
    sequences: int
    fleets: int
    first: int
    jobs: int
    minutes: float


Run = Callable[[Options], Result]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A suite: what it is, as the report says it, and how it runs."""

    what: str
    run: Run

    @property
    def release(self) -> str:
        """The release of Kubernetes that it is for, such as 1.37; empty if it needs no test bed."""
        return self.run.release if isinstance(self.run, OnBed) else ""


@dataclasses.dataclass(frozen=True, slots=True)
class OnBed:
    """A run between the build and the end of a test bed with a release of Kubernetes."""

    release: str
    tests: Run

    def __call__(self, options: Options) -> Result:
        """Build the test bed, run the tests, and take the test bed down."""
        subprocess.run(["hack/testbed/testbed", "build", "--kubernetes", self.release], cwd=REPOSITORY, check=True)
        try:
            return self.tests(options)
        finally:
            subprocess.run(["hack/testbed/testbed", "down"], cwd=REPOSITORY, check=False)


def _seed(seed: int) -> str:
    return _fleet("--seed", str(seed), "--ultraservers", str(2 + seed % 3), "--steps", "20")


def _sequence(seed: int) -> str:
    return _fleet("--seed", str(seed), "--beside-a-victim")


def _fleet(*options: str) -> str:
    """Run one seed of the virtual fleet, and return its violation and the command that repeats it."""
    words = ("-m", "tests.support.fleet", *options)
    ran = subprocess.run([PYTHON, *words, "--quiet"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        return ""
    _, violated, text = ran.stdout.partition("VIOLATED: ")
    reason = (
        text.partition("\nreplay: ")[0] if violated else f"ended with {ran.returncode}: {ran.stderr.strip()[-500:]}"
    )
    return f"{reason}; python {' '.join(words)}"


def _numbered(kind: str, one: Callable[[int], str]) -> Run:
    """Return a run of a function with each number of a kind, in several processes, until the time is over."""

    def run(options: Options) -> Result:
        numbers = range(options.first, options.first + getattr(options, kind))
        found, began, done = [], time.monotonic(), 0
        with ProcessPoolExecutor(options.jobs, initializer=partial(os.nice, 10)) as pool:
            for done, text in enumerate(pool.map(one, numbers, chunksize=5), start=1):
                if text:
                    found.append(f"seed {numbers[done - 1]}: {text}")
                    print(found[-1], flush=True)
                took_s = time.monotonic() - began
                if done % 100 == 0:
                    print(f"{done} of {len(numbers)}: {len(found)} violations, {took_s:.0f} s", flush=True)
                if took_s > options.minutes * 60:
                    pool.shutdown(wait=False, cancel_futures=True)
                    break
        shown = f"{len(found)} of {done} violate an invariant" if found else f"{done}, no violation"
        ran = f"{kind} {numbers.start} to {numbers[done - 1]}"
        return Result(f"{ran}: {shown}", bool(found), details=tuple(found[:SHOWN]))

    return run


def _tests(*words: str, **environment: str) -> Run:
    """Return a run of pytest with every case of the tests that `make test` samples."""
    return _command("-m", "pytest", "-q", *words, **{"NEURON_DRA_LONG": "1", **environment})


def _fleets(options: Options) -> Result:
    """Compare what Plan predicts with what the controller then does."""
    found = _tests("tests/unit/test_plan_matches_controller.py", NEURON_DRA_PLAN_FLEETS=str(options.fleets))(options)
    return dataclasses.replace(found, outcome=f"fleets 1 to {options.fleets}: {found.outcome}")


def _bed(version: str, *tests: str, long: bool = True) -> Run:
    """Return a run of test files on a test bed with a version of Kubernetes, which is built first."""
    words = [*(("-m", "long") if long else ()), *(f"tests/{name}.py" for name in tests)]
    return OnBed(version, _tests(*words, NEURON_DRA_KUBERNETES=version))


def _whole_bed(version: str) -> Run:
    """Return a run of every test-bed test that takes no minutes, and then of the rights that all of them used."""
    folders = ("tests/bed", "tests/contract", f"--ignore={RIGHTS}")
    environment = {"NEURON_DRA_KUBERNETES": version}

    def run(options: Options) -> Result:
        junit = f"--junitxml=build/results-bed-{version}.xml"  # from which docs/contract.md is made
        result = _tests("-m", "testbed and not long", junit, *folders, **environment)(options)
        AUDIT_LOGS.mkdir(parents=True, exist_ok=True)
        for log in AUDIT_LOGS.glob("*.log"):
            log.unlink()
        shutil.copy(layout.from_environment().audit_log, AUDIT_LOGS / f"{version}.log")
        rights = _tests("-m", "testbed", RIGHTS, **environment)(options)
        outcome = f"{result.outcome}; rights: {rights.outcome}"
        return Result(outcome, result.failed or rights.failed, details=result.details + rights.details)

    return OnBed(version, run)


def _make(*words: str) -> Run:
    """Return a run of a target of the Makefile."""
    return _program("make", "--no-print-directory", *words)


def _command(*words: str, **environment: str) -> Run:
    """Return a run of Python."""
    return _program(PYTHON, *words, **environment)


def _program(*command: str, **environment: str) -> Run:
    """Return a run of a program; the last of its lines with the word \"passed\" is the outcome."""

    def run(options: Options) -> Result:
        about = {**os.environ, **environment}
        ran = subprocess.run(command, cwd=REPOSITORY, env=about, capture_output=True, text=True, check=False)
        lines = [line for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
        print("\n".join(lines[-20:]), flush=True)
        failed = ran.returncode != 0
        passed = [] if failed else [line for line in lines if "passed" in line]
        last = re.sub(r"^=+ | =+$", "", [*lines, *passed][-1]) if lines else "no output"
        details = tuple(line for line in lines if line.startswith(("FAILED", "ERROR")))[:SHOWN]
        return Result(last if "passed" in last or failed else "see there", failed, details=details)

    return run


PARTS = {
    **{
        f"bed-{release}": Part(
            f"all tests on the test bed with Kubernetes {release} that take no minutes, and the rights that they used",
            _whole_bed(release),
        )
        for release in build.KUBERNETES
    },
    "oracle": Part(
        "what Kubernetes' own Go modules judge",
        _tests("tests/oracle"),
    ),
    "tools": Part(
        "the release, the workflows, the site and the commands in the documentation",
        _tests("tests/tools"),
    ),
    "sabotage": Part(
        "the virtual fleet finds every program with a planted fault",
        _tests("-n", "2", "tests/story/test_fleet_sabotage.py"),
    ),
    "long": Part(
        "unit, contract and story tests that take minutes",
        _tests("-m", "long and not testbed", "-n", "2", "tests/unit", "tests/contract", "tests/story"),
    ),
    "crash": Part(
        "every crash point and power cut: [crash.md](crash.md)",
        _command("-m", "hack.chaos.crash", "--report"),
    ),
    "chaos": Part(
        "injected faults on the test bed: [chaos.md](chaos.md)",
        _make("chaos", "SEED=1 2 3"),
    ),
    "fuzz": Part(
        "20,000 inputs for each fuzz target: [fuzz.md](fuzz.md)",
        _make("fuzz", "INPUTS=20000"),
    ),
    "mutation": Part(
        "mutants of core and plan: [mutation.md](mutation.md)",
        _make("mutation"),
    ),
    "bench": Part(
        "the benchmarks beside their targets",
        _make("bench"),
    ),
    "fleet-on-a-server": Part(
        "the virtual fleet on a real API server",
        OnBed("1.37", _tests("tests/contract/test_fleet_on_a_real_server.py")),
    ),
    "seeds": Part(
        "virtual fleet: two to four UltraServers, and the actors that each seed chooses",
        _numbered("seeds", _seed),
    ),
    "interference": Part(
        "non-interference: sequences of one tenant's requests beside a victim's workload",
        _numbered("sequences", _sequence),
    ),
    "plan": Part(
        "Plan equals the controller's actions on random fleets",
        _fleets,
    ),
    "kubernetes": Part(
        "driver, controller, policies, take-over and migrated manifests on the test bed with Kubernetes 1.34",
        _bed(
            "1.34",
            "bed/test_daemonset",
            "bed/test_contract_updates",
            "bed/test_takeover",
            "bed/test_ultraservers",
            "bed/test_forged_writes",
            "bed/test_migrated_limits",
            long=False,
        ),
    ),
    "jobs": Part(
        "the examples for jobs and inference groups on eight kubelets of Kubernetes 1.37, with CoreDNS; rank "
        "0's or a leader's node loses power, or fails for good",
        _bed("1.37", "bed/test_jobs", "bed/test_ultraserver_groups"),
    ),
    "installs": Part(
        "two releases in a registry; the README's commands on an empty cluster (Kubernetes 1.37) up to a pod,"
        " whose node pulls the image; update beside the pod, `helm test`, uninstall",
        _bed("1.37", "bed/test_release_installs"),
    ),
    "chain": Part(
        "a release from a registry on two UltraServers (eight kubelets of Kubernetes 1.37): the README's "
        "installation; the examples for Job, torchrun, JobSet, MPIJob with EFA, LeaderWorkerSet, and prefill "
        "and decode; an alert and a panel on Prometheus; an upgrade beside a job of eight ranks, which "
        "finishes with the same pods; uninstall",
        _bed("1.37", "bed/test_release_runs_jobs"),
    ),
    "chain-1.34": Part(
        "a release from a registry on Kubernetes 1.34: the README's installation, an upgrade beside a job of "
        "eight ranks, uninstall",
        _bed("1.34", "bed/test_release_runs_jobs"),
    ),
    "gitops": Part(
        "Flux and Argo CD on the test bed (Kubernetes 1.37): install a release from a registry, compare "
        "without drift, upgrade beside a job, remove",
        _bed("1.37", "oracle/test_gitops_health", "bed/test_flux", "bed/test_argocd"),
    ),
    "monitoring": Part(
        "the alerts and dashboards: rules and queries on Prometheus, and a fault for each alert on the test bed",
        _bed(
            "1.37",
            "bed/test_alert_rules",
            "bed/test_panels",
            "bed/test_monitoring_on_nodes",
            "story/test_alerts_on_prometheus",
        ),
    ),
    "sets": Part(
        "connected sets and limits of the device plugin on the test bed with Kubernetes 1.37, 300 random "
        "steps among them",
        _bed(
            "1.37",
            "bed/test_connected_set_pods",
            "bed/test_cores_pin_their_size",
            "bed/test_dead_links_on_nodes",
            "bed/test_limits_on_a_real_server",
            "bed/test_limits_on_nodes",
            "bed/test_parts_beside_reservations",
            "bed/test_reported_manifests",
            "bed/test_unanswered_pods_on_nodes",
            long=False,
        ),
    ),
    "node-faults": Part(
        "pods of another namespace do their worst to the ports of plugin and controller for five minutes; kubelet, "
        "containerd and API server dead and slow in turn; connections to the API server that are dead or slow, on the "
        "test bed with Kubernetes 1.37",
        _bed("1.37", "bed/test_hostile_neighbours", "bed/test_slow_and_dead_parts"),
    ),
    "absence": Part(
        "what is missing on nodes: pods that are deleted before their volumes attach on twenty new nodes, the CDI directory "
        "and the plugin's directory; the kernel driver loads and leaves; on the test bed with Kubernetes 1.37",
        _bed("1.37", "bed/test_absence_on_nodes", "bed/test_driver_loads"),
    ),
    "tenants": Part(
        "a policy that rejects every write of one namespace, 6,000 waiting pods, JobSets without their version, forged "
        "objects of Kueue, and webhooks that hang for one namespace and for Events: workloads of others in pairs with and "
        "without them, on the test bed with Kubernetes 1.37",
        _bed("1.37", "bed/test_hostile_tenants", "bed/test_hanging_webhooks"),
    ),
    "tenants-1.35": Part(
        "the same on the test bed with Kubernetes 1.35",
        _bed("1.35", "bed/test_hostile_tenants", "bed/test_hanging_webhooks"),
    ),
    "why": Part(
        "the first cause that `why` names, in situations made on the test bed with Kubernetes 1.37",
        _bed("1.37", "bed/test_why_on_nodes"),
    ),
    "poison": Part(
        "objects that no decoder reads, and large ones, on two UltraServers of the test bed: the time until workloads of "
        "others are Allocated, in pairs with and without them",
        _bed("1.37", "bed/test_ultraserver_poison", "bed/test_large_claims"),
    ),
    "reserving-jobs": Part(
        "jobs of all kinds on two UltraServers of the test bed with Kubernetes 1.37 reserve by an annotation, run and "
        "free their nodes; a forged label is refused; claims that are reserved for PodGroups",
        _bed("1.37", "bed/test_jobs_that_reserve", "bed/test_pod_group_claims"),
    ),
    "reserving-jobs-1.34": Part(
        "jobs that reserve by an annotation, on the test bed with Kubernetes 1.34",
        _bed("1.34", "bed/test_jobs_that_reserve"),
    ),
    "queues": Part(
        "reservations in queues of the real Kueue on two UltraServers of the test bed with Kubernetes 1.37: quota, "
        "preemption, deactivation, growth, borrowing; 30 gangs of three queues while Kueue and the controller are killed",
        _bed("1.37", "bed/test_queues", "bed/test_queue_delays", "bed/test_queue_gangs"),
    ),
    "gangs": Part(
        "1,000 gangs in queues of the real Kueue on 100 UltraServers without kubelets: [queues.md](queues.md)",
        _command("-m", "hack.bench.queues", "--report"),
    ),
    "known-good": Part(
        "free groups are tested on two UltraServers of the test bed: a node that is slow by a double fails twice, and is "
        "used again after a pass; a group whose node lost power moves to a spare",
        _bed("1.37", "bed/test_qualified_ultraservers", "bed/test_known_good_on_nodes"),
    ),
    "ipv6": Part(
        "pods with IPv6 addresses on the test bed with Kubernetes 1.37: a job finds rank 0 under its name",
        _bed("1.37", "bed/test_ipv6_pods"),
    ),
    "manifests": Part(
        "ten public manifests on four kubelets of Kubernetes 1.37, three rounds",
        _bed("1.37", "bed/test_public_manifests_on_nodes"),
    ),
    "scale": Part(
        "controller at scale: [scale.md](scale.md)",
        _command("-m", "hack.bench.controller"),
    ),
    "packing": Part(
        "packing of connected sets: [packing.md](packing.md)",
        _command("-m", "hack.oracle", "packing", "--report"),
    ),
    "allocator": Part(
        "random use of connected sets on Kubernetes' allocator, 100,000 steps",
        _command("-m", "hack.oracle", "allocator"),
    ),
    "scheduler": Part(
        "what connected sets cost the scheduler: [sets.md](sets.md)",
        _command("-m", "hack.bench.sets", "--report"),
    ),
    "quotas": Part(
        "quotas on connected sets (docs/connected-sets.md), API server and scheduler of Kubernetes 1.37",
        _command("-m", "hack.oracle", "quotas"),
    ),
    "faults": Part(
        "`why` on 2,000 seeded single and double faults, judged by Kubernetes' scheduler: [causes.md](causes.md)",
        _command("-m", "hack.reports.causes", "--report"),
    ),
    "differential": Part(
        "simulator against the modules of Kubernetes 1.34, 1.35 and 1.37, 20,000 random cases each",
        _tests("tests/oracle/test_allocator_oracle.py", NEURON_DRA_ORACLE_CASES="20000"),
    ),
    "kueue": Part(
        "Kueue with connected sets (docs/queues.md), API server and scheduler of Kubernetes 1.37",
        _command("-m", "hack.oracle", "kueue"),
    ),
    "placements": Part(
        "simulator against kube-scheduler, 500 random clusters with init containers, taint rules, mixed sizes and gangs; "
        "time-outs are predicted",
        _command("-m", "hack.oracle", "placements"),
    ),
    "soak": Part(
        "the plugin for 30 minutes with a clock that runs 60 times as fast, beside claims that come and go, faults and "
        "changes of the Node: heap, memory, threads and descriptors stay level",
        _command("-m", "hack.bench.soak"),
    ),
    "late": Part(
        "tests of contracts and stories; what threads and the API server hand back is late by up to 80 ms, and waits "
        "look all the time",
        _tests(
            *("-p", "tests.support.late", "-n", "2", "--dist", "loadfile"),
            *("-m", "not testbed and not tool and not long", "tests/contract", "tests/story"),
        ),
    ),
    "release": Part(
        "a release: two builds with the wheel, the same bytes; SBOMs; the workflow, signatures, the registry",
        _tests(
            "-m",
            "long",
            *(f"tests/tools/test_release_{name}.py" for name in ("build", "publish", "workflow", "signed")),
        ),
    ),
}
