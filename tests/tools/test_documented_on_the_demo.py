"""Commands of the pages that need a cluster, on the demo's cluster, with the real kubectl (37.5)."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neuron_dra.demo import cluster, examples, main
from neuron_dra.demo.pod_scheduler import PodScheduler
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from tests.support import documented_commands as documented
from tests.support.built_tools import KUBECTL, needs

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 100
NODES = (
    cluster.NodeSpec("a", "trn2.48xlarge"),
    cluster.NodeSpec("trn2-a", "trn1.2xlarge"),
    cluster.NodeSpec("spare", "trn1.2xlarge"),
)
FINDS = ("neuron-dra ",)
"""Commands that end with 1 if there is a finding."""


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """Yield the environment of a shell that a reader has beside the demo's cluster."""
    folder = cluster.temporary_folder()
    try:
        async with cluster.Cluster(NODES, folder) as made:
            scheduler = PodScheduler(KubeClient(KubeConfig(made.api.url)))
            task = asyncio.create_task(scheduler.run(), name="scheduler")
            await made.ready(TIMEOUT_S)
            for item in examples.with_count(examples.load("xl-trn2.yaml"), 17, main.WAITS):
                made.api.apply(item)
            made.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
            container = {"name": "main", "image": "none", "resources": {"limits": {"aws.amazon.com/neuron": 4}}}
            by_limits = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "by-limits"}}
            made.api.apply({**by_limits, "spec": {"containers": [container]}})
            (tmp_path / "deploy").symlink_to(ROOT / "deploy")
            (tmp_path / "deployment.yaml").write_text((ROOT / "deploy/examples/l-trn2.yaml").read_text())
            programs = [Path(sys.executable).parent, Path(str(KUBECTL)).parent]
            path = ":".join([*map(str, programs), os.environ["PATH"]])
            kubeconfig = str(made.api.write_kubeconfig(folder / "kubeconfig"))
            yield {**os.environ, "KUBECONFIG": kubeconfig, "HOME": str(tmp_path), "PATH": path}
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def code(command: str, environment: dict[str, str]) -> tuple[int, str]:
    """Return the exit code of a command, with what it says on standard error."""
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-o", "pipefail", "-c", command],
        cwd=environment["HOME"], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr[-300:]


@needs("kubectl")
@pytest.mark.timeout(600)
async def test_commands_that_need_a_cluster_run_on_the_demos(shell: dict[str, str]) -> None:
    failed = {}
    for each in documented.on_the_demo():
        found = await code(documented.named(each.command), shell)
        if found[0] > each.command.startswith(FINDS):
            failed[each.command] = found
    assert failed == {}
