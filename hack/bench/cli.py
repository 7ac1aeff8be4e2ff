"""Measure the command line on fleets of 1,000 to 20,000 nodes, and print a table with the targets.

    .venv/bin/python -m hack.bench.cli [--rounds 3] [--large FOLDER]

Each command is a process of its own, with one thread that waits for nothing: its CPU time counts, the best of a few
rounds. The fleet is written to a file, as kubectl prints it, with two pods on each node, and a pod that waits for devices
in one piece. The file of 20,000 nodes has objects of the size that a cluster has (`snapshot_file`): 1.5 GB, in FOLDER.
Memory is the most that the process had.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from hack.bench import snapshot_file
from hack.bench.table import Row, bounded, show
from neuron_dra.ask.world import imagined
from neuron_dra.core import names
from neuron_dra.core.wire import Obj

API = "resource.k8s.io/v1"
COMMANDS = (("status",), ("why", "pod/p"), ("topology", "--fleet"), ("doctor",))
MUST = {1000: 1.0, 5000: 4.0}
LARGE = 20_000
MOST_MIB = 600
GROUP = f"{names.GROUP_DOMAIN}/devicegroup4_id"


def main() -> int:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each command")
    parser.add_argument(
        "--large", default="", metavar="FOLDER", help="for the file of 20,000 nodes (default: temporary)"
    )
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="neuron-dra-bench-") as folder:
        # First, while this process is small: what a new process had before it became the command counts as its memory.
        job = Path(folder) / "job.json"
        job.write_text(json.dumps({"kind": "List", "items": [template(4), deployment(4000)]}))
        for nodes in (1000, LARGE):
            used = best(args.rounds, "simulate", str(job), "--fleet", f"{nodes} x trn2.48xlarge")
            name = f"simulate 4,000 claims of four connected, {nodes:,} nodes"
            rows.append(bounded(name, used.seconds, "s", 5, 5))
            rows.append(bounded(f"{name}, memory", used.mebibytes, "MiB", MOST_MIB, MOST_MIB))
        rows += large(Path(args.large or folder), args.rounds)
        for nodes, must in MUST.items():
            file = Path(folder) / f"{nodes}.json"
            file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": fleet(nodes)}))
            for words in COMMANDS:
                seconds = best(args.rounds, *words, "--snapshot", str(file)).seconds
                rows.append(bounded(f"{' '.join(words)}, {nodes} nodes, JSON", seconds, "s", must, must))
            if nodes == min(MUST):
                text = Path(folder) / f"{nodes}.yaml"
                text.write_text(yaml.dump(json.loads(file.read_text()), Dumper=getattr(yaml, "CDumper", yaml.Dumper)))
                rows.append(
                    bounded(
                        f"status, {nodes} nodes, YAML", best(1, "status", "--snapshot", str(text)).seconds, "s", 60, 20
                    )
                )
        rows.append(bounded("--help", best(args.rounds, "--help").seconds, "s", 0.3, 0.2))
    show(rows, Path("build/bench-cli.json"))
    return 0


def large(folder: Path, rounds: int) -> list[Row]:
    """Return the rows of a snapshot with objects of the size that a cluster has."""
    waiting = {"name": "p", "namespace": "default", "uid": "p"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": waiting, "spec": pod_spec(4), "status": {}}
    file = folder / "large.json"
    try:
        size = snapshot_file.write(file, LARGE, [template(4), pod])
        used = best(rounds, "status", "--snapshot", str(file))
    finally:
        file.unlink(missing_ok=True)
    name = f"status, {LARGE:,} nodes, JSON of {size / 10**6:,.0f} MB"
    return [
        bounded(name, used.seconds, "s", 6, 6),
        bounded(f"{name}, memory", used.mebibytes, "MiB", MOST_MIB, MOST_MIB),
    ]


@dataclass(frozen=True)
class Used:
    """What a run of a command took: CPU time, and the most memory that it had."""

    seconds: float
    mebibytes: float


def best(rounds: int, *words: str) -> Used:
    """Return what the fastest run of a command took."""
    found = []
    for _ in range(rounds):
        command = [sys.executable, "-m", "neuron_dra.cli", *words]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode in (0, 1), words
        found.append(Used(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024))
    return min(found, key=lambda each: each.seconds)


def template(count: int) -> Obj:
    """Return the template of claims for connected devices."""
    request = {"name": "neurons", "exactly": {"deviceClassName": names.DRIVER, "count": count}}
    devices = {"requests": [request], "constraints": [{"matchAttribute": GROUP}]}
    metadata = {"name": f"connected-{count}", "namespace": "default"}
    return {
        "apiVersion": API,
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"spec": {"devices": devices}},
    }


def pod_spec(count: int) -> Obj:
    """Return the spec of a pod that uses the template."""
    claim = {"name": "neurons", "resourceClaimTemplateName": f"connected-{count}"}
    container = {"name": "main", "image": "train", "resources": {"claims": [{"name": "neurons"}]}}
    return {"containers": [container], "resourceClaims": [claim]}


def deployment(replicas: int) -> Obj:
    """Return a Deployment of pods with four connected devices."""
    spec = {"replicas": replicas, "template": {"spec": pod_spec(4)}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "train"}, "spec": spec}


def fleet(nodes: int) -> list[Obj]:
    """Return a fleet on which pods with four connected devices leave two free in each group."""
    items: list[Obj] = [*imagined.fleet(f"{nodes} x trn2.48xlarge", "bench"), template(4)]
    for number in range(nodes):
        for half in range(2):
            items += held(f"trn2-{number}", f"job-{number}-{half}", [8 * half + n for n in (0, 1, 4, 5)])
    waiting = {"name": "p", "namespace": "default", "uid": "p"}
    return [*items, {"apiVersion": "v1", "kind": "Pod", "metadata": waiting, "spec": pod_spec(4), "status": {}}]


def held(node: str, name: str, devices: list[int]) -> list[Obj]:
    """Return a running pod and its claim."""
    results = [
        {"request": "neurons", "driver": names.DRIVER, "pool": node, "device": f"{names.DEVICE_PREFIX}{number}"}
        for number in devices
    ]
    claim = {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {"name": f"{name}-claim", "namespace": "default"},
        "spec": template(4)["spec"]["spec"],
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": name}],
        },
    }
    status = {"phase": "Running", "resourceClaimStatuses": [{"name": "neurons", "resourceClaimName": f"{name}-claim"}]}
    meta = {"name": name, "namespace": "default", "uid": name}
    return [
        claim,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {**pod_spec(4), "nodeName": node},
            "status": status,
        },
    ]


if __name__ == "__main__":
    sys.exit(main())
