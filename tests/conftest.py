"""Shared fixtures: an API server with one node, and the node's files."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from neuron_dra.api.objects import node_object
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from tests.support.cost_plugin import TestCosts
from tests.support.plugin_host import PluginHost
from tests.support.selection import QuickTests, sampled_tests

# A busy machine must not fail a test: no limit on the time of an example.
hypothesis.settings.register_profile(
    "no-deadline", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("no-deadline")


MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 * 2**30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out the tests in tests/slow_tests.txt")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(TestCosts())
    if config.getoption("--quick"):
        config.pluginmanager.register(QuickTests())
    if sampler := sampled_tests(config):
        config.pluginmanager.register(sampler)
    _keep_folders_in_memory()


def _keep_folders_in_memory() -> None:
    """Let pytest's folders be in memory, if that has room and programs may run there.

    A simulated node has hundreds of files, and thousands of tests write one.
    """
    if not os.access(MEMORY, os.W_OK):
        return
    about = os.statvfs(MEMORY)
    if about.f_bavail * about.f_frsize >= ROOM_BYTES and not about.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection, and exclude them from later ones: they live until the end.

    Otherwise each full collection looks at a million objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the totals of tests that record them: `record_property("covered", ...)`."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    lines = [text for report in reports for name, text in report.user_properties if name == "covered"]
    if lines:
        terminalreporter.section("covered")
        for line in sorted(lines):
            terminalreporter.write_line(str(line))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a short name, for sockets: their paths have at most 107 bytes, and pytest's folders are long.

    In memory if possible: a simulated node has hundreds of files.
    """
    with tempfile.TemporaryDirectory(prefix="nd", dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    """An embedded API server with the Node `node-a`. Without controllers, so claims need no pods."""
    async with EmbeddedApi(controllers=False) as server:
        server.create(node_object("node-a"))
        yield server


@pytest.fixture
def timing() -> PluginTiming:
    """The timing of plugins in this process; modules and tests have their own."""
    return DEFAULT_TIMING


@pytest.fixture
async def host(api: EmbeddedApi, short_path: Path, timing: PluginTiming) -> AsyncIterator[PluginHost]:
    """The files of `node-a`, a trn2.48xlarge."""
    made = PluginHost(short_path, api.url, timing=timing)
    yield made
    await made.close()
