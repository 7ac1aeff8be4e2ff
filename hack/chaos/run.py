#!/usr/bin/env python3
"""Chaos on the test bed: `make chaos SEED=1 MINUTES=10`.

Pods and UltraServer workloads come and go while plugins, kubelets, containerd, the API server, the scheduler and
controllers are killed and nodes lose power, all chosen by the seed. At all times, no device may be allocated or prepared
twice, and `top` must attribute devices and the counters of a simulated load to the pods that have them. In the end,
every pod that should run runs, no two pods of a node see the same device, and CDI files, checkpoint and API server
agree; when all pods and claims are deleted, no plugin holds anything, and claims for all devices of every node get
them. The same seed gives the same order of pods and faults; their times depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hack.bed import cgroups, layout
from hack.bed.deployed import pod, template
from hack.bed.errors import BedError
from hack.bed.real_cluster import BedNode, CommandFailedError, Namespace, TestBed
from hack.chaos.checks import GROUPS, PLAIN, TEMPLATES, Run, everything_runs, look, nothing_held, reach, settle
from hack.chaos.load import look_at_top, raise_load, set_load
from hack.reports.reporting import commit_now

REPOSITORY = Path(__file__).resolve().parents[2]
REPORT = REPOSITORY / "docs" / "reports" / "chaos.md"


ULTRASERVER, ULTRASERVER_TYPE = "u", "trn3.48xlarge"
PODS_AT_MOST = 14
TOP_EVERY = 6  # steps
TRIES = 60  # of one kubectl command, a second apart, because the API server is killed now and then


def patiently(call: Callable[[], Any]) -> Any:
    """Retry a call until the API server answers."""
    for attempt in range(TRIES):
        try:
            return call()
        except (BedError, CommandFailedError, subprocess.TimeoutExpired):
            if attempt == TRIES - 1:
                raise
            time.sleep(1)
    raise AssertionError("not reached")


# -- pods and workloads ------------------------------------------------------------------------------------------------


def churn(run: Run, until: float) -> None:
    """Start and end pods and workloads until the given time."""
    rng = random.Random(f"{run.seed} pods")
    number = 0
    while time.monotonic() < until:
        number += 1
        ends = run.pods and rng.random() < len(run.pods) / PODS_AT_MOST
        if rng.random() < 0.15:
            change_workload(run, rng, number)
        elif ends:
            name = rng.choice(sorted(run.pods))
            hard = rng.random() < 0.2
            del run.pods[name]
            run.counts["pods force-deleted" if hard else "pods ended"] += 1
            words = ("--grace-period=0", "--force") if hard else ("--grace-period=1",)
            patiently(partial(run.place.kubectl, "delete", "pod", name, "--ignore-not-found", "--wait=false", *words))
        else:
            name = f"pod-{number}"
            kind = rng.choices(sorted(TEMPLATES), weights=[1, 4, 2, 6])[0]
            patiently(partial(run.place.apply, pod(name, kind)))
            run.pods[name] = kind
            run.counts["pods started"] += 1
        look(run)
        if number % TOP_EVERY == 0:
            patiently(partial(look_at_top, run, sorted(PLAIN)[number // TOP_EVERY % len(PLAIN)]))
        time.sleep(rng.uniform(0.1, 1.5))


def change_workload(run: Run, rng: random.Random, number: int) -> None:
    """Create a workload with its pods, or delete one."""
    if run.workloads:
        name = sorted(run.workloads)[0]
        del run.workloads[name]
        run.counts["workloads deleted"] += 1
        patiently(lambda: run.place.kubectl("delete", "nusw,deployment", name, "--ignore-not-found", "--wait=false"))
        return
    size = rng.choice((1, 2, 4))
    create_workload(run, f"job-{number}", size, rng.choice((1, 2)) if size < 4 else 1)
    run.counts["workloads created"] += 1


def create_workload(run: Run, name: str, size: int, count: int) -> None:
    """Create a workload with its pods, for `count` slots of `size` nodes."""
    run.workloads[name] = size * count
    workload = {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": name},
        "spec": {"instanceType": ULTRASERVER_TYPE, "topologySize": size, "serverCount": count,
                 "resourceClaimTemplate": {"name": name}},
    }  # fmt: skip
    body = pod(name, name)["spec"]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": size * count,
            "selector": {"matchLabels": {"job": name}},
            "template": {"metadata": {"labels": {"job": name}}, "spec": body},
        },
    }
    patiently(lambda: run.place.apply(workload))
    patiently(lambda: run.place.apply(deployment))


# -- faults ------------------------------------------------------------------------------------------------------------


def faults(run: Run, until: float) -> None:
    """Break something every few seconds until the given time."""
    rng = random.Random(f"{run.seed} faults")
    kinds = {"plugin": 6, "kubelet": 4, "containerd": 3, "reboot": 2, "kube-apiserver": 2, "kube-scheduler": 1,
             "kube-controller-manager": 1, "controller": 4}  # fmt: skip
    while time.monotonic() < until and not run.stop.is_set():
        kind = rng.choices(sorted(kinds), weights=[kinds[name] for name in sorted(kinds)])[0]
        node = rng.choice(sorted(run.nodes))
        pause = rng.uniform(0.5, 6)
        try:
            break_(run, kind, node)
            run.counts[f"{kind} killed" if kind != "reboot" else "reboots"] += 1
        except (BedError, CommandFailedError, subprocess.TimeoutExpired) as err:
            run.note(f"could not break {kind} on {node}: {str(err)[:200]}")
            run.counts["faults that did not work"] += 1
            with contextlib.suppress(BedError, CommandFailedError, subprocess.TimeoutExpired):
                run.bed.command("up", timeout_s=300)
        time.sleep(pause)


def break_(run: Run, kind: str, node: str) -> None:
    """Break one thing. Raises the test bed's error if that is not possible now."""
    if kind.startswith("kube-"):
        run.note(f"kill {kind}")
        parts = run.bed.parts
        os.kill(parts.processes.pid(kind), signal.SIGKILL)
        time.sleep(random.Random(f"{run.seed} {kind} {run.counts[kind]}").uniform(0, 4))
        run.bed.parts.plane.up()
    elif kind == "controller":
        pids = controllers(run)
        if pids:
            run.note(f"kill the controller on {node if node in pids else sorted(pids)[0]}")
            os.kill(pids.get(node) or pids[sorted(pids)[0]], signal.SIGKILL)
    else:
        run.note(f"{kind} {node}")
        run.bed.command("break", node, kind, timeout_s=180)


def controllers(run: Run) -> dict[str, int]:
    """Return the controller's process on each node that has one."""
    found = {}
    for node in run.nodes:
        for pid in cgroups.members(run.bed.where, node):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if any(b"ultraserver" in Path(os.fsdecode(word)).name.encode() for word in words[:2]):
                    found[node] = pid
    return found


# -- the run -----------------------------------------------------------------------------------------------------------


def chaos(seed: int, minutes: float) -> Run:
    """Start the test bed, run pods and faults, and check the end state."""
    bed = TestBed(layout.from_environment())
    words = [word for name, kind in PLAIN.items() for word in ("--node", f"{name}={kind}")]
    bed.command("up", *words, "--ultraserver", f"{ULTRASERVER}={ULTRASERVER_TYPE}", "--driver", "daemonset")
    types = {**PLAIN, **{f"{ULTRASERVER}-{position}": ULTRASERVER_TYPE for position in range(4)}}
    run = Run(
        seed, bed, Namespace(bed, f"chaos-{seed}"), {name: BedNode(bed, name, kind) for name, kind in types.items()}
    )
    run.bed.kubectl("create", "namespace", run.place.name)
    for name, count in TEMPLATES.items():
        run.place.apply(template(name, count, group=count if count in GROUPS else 0))
    set_load(run)
    until = time.monotonic() + minutes * 60
    breaker = threading.Thread(target=faults, args=(run, until), name="faults", daemon=True)
    breaker.start()
    loader = threading.Thread(target=raise_load, args=(run,), name="load", daemon=True)
    loader.start()
    try:
        churn(run, until)
    finally:
        run.stop.set()
        breaker.join(timeout=300)
        loader.join(timeout=60)
    run.note("calm: everything is restarted and must recover")
    bed.command("up", timeout_s=600)
    settle(run)
    look(run)
    end_free(run)
    return run


def end_free(run: Run) -> None:
    """Delete every pod and claim: the plugins then hold nothing, and give out all devices of every node."""
    run.note("end: every pod, workload and claim is deleted")
    run.pods.clear()
    run.workloads.clear()
    kinds = "nusw,deployments,pods,resourceclaims"
    patiently(partial(run.place.kubectl, "delete", kinds, "--all", "--wait=false"))
    reach(run, "without pods and claims, the plugins hold nothing", nothing_held)
    for node in sorted(PLAIN):
        patiently(partial(run.place.apply, pod(f"all-{node}", "all", node=node)))
        run.pods[f"all-{node}"] = "all"
    create_workload(run, "last", 4, 1)
    reach(run, "claims for all devices of every node get them", everything_runs)


def row(run: Run, minutes: float) -> str:
    """Return a line of the report."""
    counts = ", ".join(f"{count} {name}" for name, count in sorted(run.counts.items()))
    return f"| {run.seed} | {minutes:g} min | {counts} | {'; '.join(run.violations) or 'no violation'} |"


def report(rows: Sequence[str], command: str) -> str:
    """Return docs/reports/chaos.md."""
    lines = "\n".join(rows)
    return f"""# Chaos on the test bed

Commit {commit_now()}, {datetime.date.today().isoformat()}, `{command}`: six real kubelets, two trn2.48xlarge and an UltraServer of
four trn3.48xlarge; the DaemonSet, and the controller with two replicas. `hack/chaos/checks.py` has the checks.

| seed | duration | what happened | result |
| --- | --- | --- | --- |
{lines}
"""


def main(arguments: Sequence[str]) -> int:
    """Run the seeds; return 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, action="append", help="may be repeated (default: 1)")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--report", action="store_true", help="write docs/reports/chaos.md")
    options = parser.parse_args(arguments)
    rows, broken = [], False
    for seed in options.seed or [1]:
        run = chaos(seed, options.minutes)
        rows.append(row(run, options.minutes))
        print(rows[-1], flush=True)
        if run.violations:
            broken = True
            logs = REPOSITORY / "build" / f"chaos-{seed}"
            run.bed.keep_logs(logs)
            print(
                f"seed {seed} has violations; logs: {logs.relative_to(REPOSITORY)}. To repeat: make chaos SEED={seed}"
            )
        run.bed.command("down")
    if options.report:
        REPORT.parent.mkdir(exist_ok=True)
        seeds = " ".join(map(str, options.seed or [1]))
        REPORT.write_text(report(rows, f'make chaos SEED="{seeds}" MINUTES={options.minutes:g}'))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
