"""How long the page takes to show a change of a large fleet: reported in build/ui, without a limit (37.1, 37.2)."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path

import pytest
from playwright.async_api import Page

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from tests.support import browser as browsers
from tests.support import shown_fleet
from tests.support.browser import PICTURES

FREE = [f"trn2-{16 * number}" for number in range(12)]
"""Nodes that are free in the fleet of these pictures, so cordoning them changes the number that the page shows."""
NAMESPACES = ("ml", "neuron-dra-driver")
NOTES = """() => {
    window.seen = [];
    const legend = document.querySelector(".legend");
    const cordoned = () => (legend.innerText.match(/cordoned: ([0-9,]+)/) ?? [])[1];
    let last = cordoned();
    const note = () => {
        if (cordoned() === last) return;
        last = cordoned();
        window.seen.push(Date.now());
    };
    new MutationObserver(note).observe(legend, { childList: true, subtree: true, characterData: true });
}"""
"""Notes the time of each change of the number of cordoned nodes, as the page shows it."""

NEXT = """(number) => new Promise((done) => {
    const look = () => (window.seen.length > number ? done(window.seen[number]) : requestAnimationFrame(look));
    look();
})"""
"""Returns the time of the next change after so many."""


async def seen_after(page: Page, api: EmbeddedApi, node: Obj) -> float:
    """Cordon a node, and return after how many seconds the page shows it."""
    number = await page.evaluate("window.seen.length")
    began = time.time()
    api.apply({**node, "spec": {**(node.get("spec") or {}), "unschedulable": True}})
    return float(await page.evaluate(NEXT, number)) / 1000 - began


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("nodes", [5_000, 20_000])
async def test_changes_of_a_large_fleet_are_reported(nodes: int, tmp_path: Path) -> None:
    """The page runs as a user runs it, in a process of its own."""
    items = shown_fleet.mixed(nodes // 5, nodes // 5)
    async with EmbeddedApi() as api, browsers.chromium() as browser:
        api.register_neuron_kinds()
        for name in NAMESPACES:
            api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for item in items:
            api.apply(item)
        words = ["ui", "--no-browser", "--kubeconfig", str(api.write_kubeconfig(tmp_path / "kubeconfig"))]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "neuron_dra.cli", *words, stderr=asyncio.subprocess.PIPE
        )
        try:
            assert process.stderr is not None
            address = re.search(r"http\S+", (await process.stderr.readline()).decode())
            assert address is not None
            began = time.monotonic()
            page = await browser.new_page()
            page.set_default_timeout(600_000)
            await page.goto(address[0])
            await page.locator("main", has_text="cordoned: ").first.wait_for()
            there_s = time.monotonic() - began
            await page.evaluate(NOTES)
            by_name = {each["metadata"]["name"]: each for each in items if each["kind"] == "Node"}
            took = [await seen_after(page, api, by_name[name]) for name in FREE]
            status = Path(f"/proc/{process.pid}/status").read_text()
        finally:
            process.terminate()
            await process.wait()
    memory = int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) // 1024
    found = {"there_s": round(there_s, 1), "memory_mib": memory, "changes_s": [round(each, 2) for each in took]}
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / f"live-{nodes}.json").write_text(json.dumps(found))
    assert len(took) == len(FREE)
