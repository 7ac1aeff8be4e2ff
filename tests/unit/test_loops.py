"""An error in a background loop ends the plugin only where the table says so (4.04)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.node.loops import Loop, OnError, kept_running
from tests.support.plugin_host import PluginHost
from tests.support.ports import free_port

QUICK = (0.001, 0.001)
PAGE = Path(__file__).parents[2] / "docs/architecture-node.md"


class Failing:
    """A loop that fails several times before it returns."""

    def __init__(self, failures: int) -> None:
        self.began = 0
        self._failures = failures

    async def run(self) -> None:
        self.began += 1
        if self.began <= self._failures:
            raise AttributeError("a bug")


async def test_loop_that_failed_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing(3)
    await kept_running(Loop("test", failing.run), QUICK)
    assert failing.began == 4
    assert [record.__dict__["loop"] for record in caplog.records] == ["test"] * 3


async def test_error_of_an_essential_loop_ends_the_plugin() -> None:
    failing = Failing(1)
    with pytest.raises(AttributeError):
        await kept_running(Loop("test", failing.run, OnError.ENDS), QUICK)
    assert failing.began == 1


async def test_page_has_each_loop_of_the_plugin(api: EmbeddedApi, host: PluginHost) -> None:
    optional: dict[str, Any] = {
        "metrics_bind_address": "127.0.0.1:0",
        "healthcheck_port": free_port(),
        "efa_interfaces": True,
    }
    async with host.running(**optional) as plugin:
        loops = plugin.loops()
    ends = {loop.name for loop in loops if loop.on_error is OnError.ENDS}
    others = {loop.name for loop in loops} - ends
    rows = dict(re.findall(r"^\| (is logged|ends the plugin)[^|]*\| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE))
    assert {verb: set(names.split("; ")) for verb, names in rows.items()} == {
        "is logged": others,
        "ends the plugin": ends,
    }
