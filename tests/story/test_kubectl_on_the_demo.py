"""Kubernetes' own kubectl on the demo's cluster: it prints tables, applies, cordons, describes, watches and deletes."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from neuron_dra.demo import cluster, examples
from neuron_dra.demo.pod_scheduler import PodScheduler
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from tests.support.built_tools import KUBECTL, needs
from tests.support.waiting import eventually

TIMEOUT_S = 100
NODE = cluster.NodeSpec("trn2-a", "trn2.48xlarge")
AGE = r"\d+s"
needs_kubectl = needs("kubectl")


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with the kubeconfig of a cluster, and a home folder of its own."""

    made: cluster.Cluster
    kubeconfig: Path
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.home)}

    async def fails(self, *words: str) -> str:
        done = await self._run(words, "")
        assert done.returncode != 0, done.stdout
        return done.stderr

    async def __call__(self, *words: str, given: str = "") -> str:
        done = await self._run(words, given)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    async def _run(self, words: tuple[str, ...], given: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [str(KUBECTL), *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=self.environment,
            check=False,
        )


@pytest.fixture
def folder() -> Iterator[Path]:
    made = cluster.temporary_folder()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
async def kubectl(folder: Path, tmp_path: Path) -> AsyncIterator[Kubectl]:
    async with cluster.Cluster((NODE,), folder) as made:
        scheduler = PodScheduler(KubeClient(KubeConfig(made.api.url)))
        task = asyncio.create_task(scheduler.run(), name="scheduler")
        await made.ready(TIMEOUT_S)
        yield Kubectl(made, made.api.write_kubeconfig(folder / "kubeconfig"), tmp_path)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def lines(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines()]


def manifest(**labels: str) -> str:
    """Return an example's template and pod, with labels."""
    items = examples.load("xl-trn2.yaml")
    for item in items:
        item["metadata"]["labels"] = labels
    return yaml.safe_dump_all(items)


@needs_kubectl
async def test_kubectl_applies_prints_and_deletes(kubectl: Kubectl) -> None:
    created = await kubectl("apply", "-f", "-", given=manifest(step="1"))
    assert sorted(created.splitlines()) == [
        "pod/xl-trn2 created",
        "resourceclaimtemplate.resource.k8s.io/xl-trn2 created",
    ]
    unchanged = await kubectl("apply", "-f", "-", given=manifest(step="1"))
    assert {line.split()[-1] for line in unchanged.splitlines()} == {"unchanged"}
    configured = await kubectl("apply", "-f", "-", given=manifest(step="2"))
    assert {line.split()[-1] for line in configured.splitlines()} == {"configured"}
    await kubectl("wait", "--for=condition=Ready", "pod/xl-trn2", f"--timeout={TIMEOUT_S}s")
    title, row = lines(await kubectl("get", "pods", "--show-labels"))
    assert title == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "LABELS"]
    assert (row[:4], row[5]) == (["xl-trn2", "1/1", "Running", "0"], "step=2")
    assert re.fullmatch(AGE, row[4])
    described = await kubectl("describe", "pod", "xl-trn2")
    assert re.search(r"^Node: +trn2-a", described, re.MULTILINE)
    assert (await kubectl("delete", "pod", "xl-trn2", "--now")).startswith('pod "xl-trn2" deleted')
    assert "not found" in await kubectl.fails("get", "pod", "xl-trn2")


@needs_kubectl
async def test_kubectl_cordons_a_node(kubectl: Kubectl) -> None:
    assert await kubectl("cordon", "trn2-a") == "node/trn2-a cordoned\n"
    title, row = lines(await kubectl("get", "nodes"))
    assert title[:2] == ["NAME", "STATUS"]
    assert row[:2] == ["trn2-a", "Ready,SchedulingDisabled"]
    await kubectl("apply", "-f", "-", given=manifest())
    waiting = lambda: _condition(kubectl, "xl-trn2")  # noqa: E731
    assert "unschedulable" in await eventually(waiting, TIMEOUT_S)
    assert await kubectl("uncordon", "trn2-a") == "node/trn2-a uncordoned\n"
    await kubectl("wait", "--for=condition=Ready", "pod/xl-trn2", f"--timeout={TIMEOUT_S}s")


def _condition(kubectl: Kubectl, pod: str) -> str:
    found = kubectl.made.api.find("pods", pod, "default") or {}
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((each.get("message") or "" for each in conditions if each["type"] == "PodScheduled"), "")


@needs_kubectl
async def test_kubectl_watches_pods(kubectl: Kubectl) -> None:
    words = [str(KUBECTL), "get", "pods", "--watch"]
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, env=kubectl.environment, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        await eventually(lambda: kubectl.made.api.requests("watch", "pods"), TIMEOUT_S)
        for item in examples.load("xl-trn2.yaml"):
            kubectl.made.api.apply(item)
        async with asyncio.timeout(TIMEOUT_S):
            text = ""
            while "Running" not in text:
                text += (await process.stdout.readline()).decode()
    finally:
        process.terminate()
        await process.wait()
    title, *rows = lines(text)
    assert title == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert {row[0] for row in rows} == {"xl-trn2"}
    assert rows[-1][1:4] == ["1/1", "Running", "0"]


@needs_kubectl
async def test_kubectl_prints_the_custom_kinds(kubectl: Kubectl) -> None:
    spec = {"instanceType": "trn2u.48xlarge", "topologySize": 4, "serverCount": 1}
    workload = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronUltraServerWorkload", "metadata": {"name": "a"}}
    created = await kubectl("apply", "-f", "-", given=yaml.safe_dump({**workload, "spec": spec}))
    assert created == "neuronultraserverworkload.neuron.aws.com/a created\n"
    changed = {**workload, "spec": {**spec, "serverCount": 2}}
    assert "configured" in await kubectl("apply", "-f", "-", given=yaml.safe_dump(changed))
    title, row = lines(await kubectl("get", "nusw"))
    assert title == ["NAME", "STATE", "SIZE", "SERVERS", "NODES", "AGE", "REASON"]
    assert row[0] == "a"
    slices = lines(await kubectl("get", "resourceslices"))
    assert slices[0] == ["NAME", "NODE", "DRIVER", "POOL", "AGE"]
    assert slices[1][1:4] == ["trn2-a", "neuron.aws.com", "trn2-a"]


@needs_kubectl
async def test_kubectl_names_a_kind_that_the_demo_lacks(kubectl: Kubectl) -> None:
    """As on a cluster without JobSet: not that the server lacks something to validate with."""
    said = await kubectl.fails("apply", "-f", "deploy/examples/ultraservers/jobset.yaml")
    assert 'no matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"' in said
    assert "ensure CRDs are installed first" in said


@needs_kubectl
async def test_kubectl_names_an_unknown_field(kubectl: Kubectl) -> None:
    text = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: a}\nspec: {devises: {}}\n"
    file = kubectl.home / "claim.yaml"
    file.write_text(text)
    assert 'unknown field "spec.devises"' in await kubectl.fails("apply", "-f", str(file))
