"""Sets up the demo's folder, cluster and scheduler, runs the story, and cleans up."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final

from neuron_dra.ask.ui import opening, session
from neuron_dra.demo import cluster, examples, story, ultraservers
from neuron_dra.demo.pod_scheduler import PodScheduler
from neuron_dra.demo.processes import DemoError
from neuron_dra.demo.timing import DEFAULT_TIMING, DemoTiming
from neuron_dra.demo.view import DemoScreen
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig

WAITS: Final = "seventeen"
"""A pod that stays Pending in the cluster of `--keep`, so that there is something to explain."""


def run(*, keep: bool, view: DemoScreen | None = None, timing: DemoTiming = DEFAULT_TIMING) -> int:
    """Run the demo and return 0. Raises NeuronDraError if a step does not happen as expected.

    With `keep`, the cluster then runs until SIGINT or SIGTERM, and if a step fails, the logs stay.
    """
    view = view or DemoScreen()
    folder = cluster.temporary_folder()
    try:
        asyncio.run(_show(folder, view, timing, keep=keep))
    except DemoError:
        if keep:
            view.line(f"The logs of the programs are in {folder}.", "dim")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return 0


async def _show(folder: Path, view: DemoScreen, timing: DemoTiming, *, keep: bool) -> None:
    started = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(timing.whole_s):
                demo_cluster = await stack.enter_async_context(cluster.Cluster(story.NODES, folder, timing))
                scheduler = PodScheduler(KubeClient(KubeConfig(demo_cluster.api.url)), posts_events=True)
                task = asyncio.create_task(scheduler.run(), name="scheduler")
                stack.push_async_callback(_ended, task)
                await demo_cluster.ready(timing.start_s)
                await story.Story(demo_cluster, scheduler, view, started).run()
        except TimeoutError:
            text = f"the demo was stopped after {timing.whole_s:g} s; the machine may be too busy"
            raise DemoError(text) from None
        if keep:
            await demo_cluster.replace(ultraservers.LOST, timing.start_s)
            await stay(demo_cluster, folder, view)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def exports(kubeconfig: Path) -> str:
    """Return the shell's line that the commands need."""
    programs = shlex.quote(str(Path(sys.executable).parent))
    return f"export KUBECONFIG={shlex.quote(str(kubeconfig))} PATH={programs}:$PATH"


async def stay(demo_cluster: cluster.Cluster, folder: Path, view: DemoScreen) -> None:
    """Print how to look at the cluster, and return after SIGINT or SIGTERM."""
    for item in examples.with_count(examples.load("xl-trn2.yaml"), 17, WAITS):
        demo_cluster.api.apply(item)
    node = next(iter(demo_cluster.nodes.values()))
    view.heading("The cluster runs until Ctrl-C. In another shell, try:")
    view.line(exports(demo_cluster.api.write_kubeconfig(folder / "kubeconfig")))
    for words in ("status", "topology --fleet", f"why pod/{WAITS}", f"inspect --socket {node.socket}"):
        view.line(f"neuron-dra {words}")
    view.line(f"neuron-dra fake-node --root {node.host} --break device:3  # then: neuron-dra why node/{node.spec.name}")
    page = session.of_cluster(KubeConfig(demo_cluster.api.url), "default")
    async with page.served() as server:
        view.line(f"or open {opening.address(server.host, page.token)}")
        view.blank()
        await _signalled()


async def _signalled() -> None:
    """Return after SIGINT or SIGTERM."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, ended.set)
    try:
        await ended.wait()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
