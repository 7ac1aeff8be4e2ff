"""Sets up the demo's folder, cluster and scheduler, runs the story, and cleans up."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Final

from neuron_dra.demo import cluster, story
from neuron_dra.demo.processes import DemoError
from neuron_dra.demo.view import View
from neuron_dra.emulation.pod_scheduler import PodScheduler
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig

TIMEOUT_S: Final = 120.0  # the demo takes about ten seconds; a very busy machine gets an error instead of waiting


def run(*, keep: bool, view: View | None = None) -> int:
    """Run the demo and return 0. Raises NeuronDraError if a step does not happen as expected.

    With `keep`, the folder with logs and CDI files is not deleted.
    """
    view = view or View()
    folder = cluster.temporary_folder()
    try:
        asyncio.run(_show(folder, view))
    finally:
        if keep:
            view.line(f"The demo's files are in {folder}.", "dim")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


async def _show(folder: Path, view: View) -> None:
    started = time.monotonic()
    try:
        async with asyncio.timeout(TIMEOUT_S), cluster.Cluster(story.NODES, folder) as made:
            scheduler = PodScheduler(KubeClient(KubeConfig(made.api.url)))
            task = asyncio.create_task(scheduler.run(), name="scheduler")
            try:
                await made.ready(cluster.START_TIMEOUT_S)
                await story.Story(made, scheduler, view, started).run()
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
    except TimeoutError:
        raise DemoError(f"the demo was stopped after {TIMEOUT_S:g} s; the machine may be too busy") from None
