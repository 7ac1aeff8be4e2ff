"""Examples of deploy/examples for the test bed's nodes, whose images come from no registry."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hack.bed.real_cluster import QUICK, REPOSITORY, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import driver_image
from tests.bed.fleet import TRN3

EXAMPLES = REPOSITORY / "deploy/examples"
PYTHON = "public.ecr.aws/docker/library/python:3.12-slim"
TRAINING = "public.ecr.aws/neuron/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.27.1-ubuntu24.04"
JOB_IMAGE = "testbed.local/job:1"
ALL_REDUCE = ("programs/all-reduce.yaml", "ultraservers/all-reduce-job.yaml")
GIVEN_UP = "node.kubernetes.io/out-of-service"


def runnable(bed: TestBed, *files: str, **spec: Any) -> list[Obj]:
    """Return the objects of example files; their containers have images that the nodes have.

    The driver's image has Python too; the other one is there `--with job-image`.
    Workloads get the fleet's instance type, and the fields `spec`.
    """
    text = "\n---\n".join((EXAMPLES / file).read_text() for file in files)
    text = text.replace(PYTHON, driver_image(bed)).replace(TRAINING, JOB_IMAGE)
    found = [item for item in yaml.safe_load_all(text) if item]
    for item in found:
        if item["kind"] == "NeuronUltraServerWorkload":
            item["spec"] |= {"instanceType": TRN3, **spec}
    return found


def idle(file: str) -> list[Obj]:
    """Return the objects of an example file, with containers that do nothing, for tests without cluster DNS."""
    objects: list[Obj] = list(yaml.safe_load_all((EXAMPLES / file).read_text()))
    for spec in _pod_specs(objects):
        spec.pop("volumes", None)
        for container in spec["containers"]:
            kept = {key: container[key] for key in ("name", "resources")}
            container.clear()
            container |= {**kept, "image": QUICK, "command": ["sleep", "infinity"]}
    return objects


def _pod_specs(value: Any) -> Iterator[Obj]:
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for each in value.values():
            yield from _pod_specs(each)
    elif isinstance(value, list):
        for each in value:
            yield from _pod_specs(each)


def kill_program(bed: TestBed, node: str, program: str) -> None:
    """Kill the processes that run a program on a node, as a power cut does."""
    from hack.bed import cgroups

    for pid in cgroups.members(bed.where, node):
        with contextlib.suppress(OSError):
            if program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


# Jobs


def set_rounds(job: Obj, rounds: int, pause_s: float) -> None:
    job["template"]["spec"]["containers"][0]["env"] = [
        {"name": "ROUNDS", "value": f"{rounds}"},
        {"name": "PAUSE", "value": f"{pause_s}"},
    ]


def all_reduce(bed: TestBed, *, size: int = 4, groups: int = 2, rounds: int = 20, pause_s: float = 0.1) -> list[Obj]:
    """Return the example's Job, with a rank on each node of some groups, and what belongs to it."""
    found = runnable(bed, *ALL_REDUCE, topologySize=size, serverCount=groups)
    [job] = [item["spec"] for item in found if item["kind"] == "Job"]
    job |= {"completions": groups * size, "parallelism": groups * size}
    set_rounds(job, rounds, pause_s)
    return found


def start(place: Namespace, objects: list[Obj]) -> None:
    place.apply({"apiVersion": "v1", "kind": "List", "items": objects})


@contextlib.contextmanager
def ended(place: Namespace, kinds: str) -> Iterator[None]:
    """At the end of the block, delete all objects of these kinds, and wait until no pod is left."""
    try:
        yield
    finally:
        place.kubectl("delete", kinds, "--all", "--cascade=foreground", timeout_s=180)
        eventually("no pods", lambda: not place.get("pods")["items"], 120)


def log(place: Namespace, name: str) -> list[str]:
    return place.kubectl("logs", name).splitlines()


def complete(place: Namespace, what: str, condition: str = "Complete", timeout_s: int = 300) -> None:
    """Wait until the Job is complete."""
    place.kubectl("wait", what, f"--for=condition={condition}", f"--timeout={timeout_s}s", timeout_s=timeout_s + 10)


def last_lines(place: Namespace, selector: str) -> set[str]:
    """Return the last line of each pod that has succeeded."""
    items = place.get("pods", f"--selector={selector}")["items"]
    return {log(place, item["metadata"]["name"])[-1] for item in items if item["status"]["phase"] == "Succeeded"}
