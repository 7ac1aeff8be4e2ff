"""A real browser for tests of the page: Debian's Chromium, which is installed where root may."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from hack.bed import packages
from hack.bed.errors import NotPossibleHereError
from tests.support.skipping import impossible

PICTURES = Path(__file__).resolve().parent.parent.parent / "build" / "ui"
"""Where pictures of the page are kept, to be looked at."""
PACKAGES = {"chromium": "chromium", "fonts-dejavu-core": "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"}

TIMEOUT_MS = 120_000
"""How long a page may take to show something, on a machine that is busy with much else."""

CUT = """() => [...document.querySelectorAll("html, header *, main, main *:not(.map *, .hidden, input)")]
    .filter((each) => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
    .map((each) => each.outerHTML.slice(0, 100))"""
"""Returns the elements that are wider than the place that they have."""

browser_test = pytest.mark.tool
"""Mark a test that runs a browser."""


@contextlib.asynccontextmanager
async def chromium(*flags: str) -> AsyncIterator[Browser]:
    """Yield a browser with these flags; skip the test where there is none and none can be installed."""
    try:
        packages.require(PACKAGES, "the page's tests")
    except NotPossibleHereError as err:
        impossible(str(err))
    program = shutil.which("chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox", *flags])
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def profile(folder: Path) -> AsyncIterator[BrowserContext]:
    """Yield a browser that keeps what it remembers in a folder; to be used beside `chromium`, which installs one."""
    async with async_playwright() as playwright:
        launch = playwright.chromium.launch_persistent_context
        context = await launch(folder, executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            yield context
        finally:
            await context.close()


def history(folder: Path) -> list[str]:
    """Return the addresses that a browser has kept in its history."""
    with contextlib.closing(sqlite3.connect(folder / "Default" / "History")) as found:
        return [address for (address,) in found.execute("select url from urls order by id")]


AXE = "4.14.1"
"""The version of axe-core, which judges whether a page can be used by all."""


def axe() -> str:
    """Return the program of axe-core; skip the test where it cannot be had."""
    folder = PICTURES.parent / f"axe-{AXE}"
    file = folder / "node_modules/axe-core/axe.min.js"
    if not file.exists():
        npm = shutil.which("npm")
        if npm is None:
            impossible("no npm on the PATH, which installs axe-core")
        words = [npm, "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", f"axe-core@{AXE}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            impossible(f"npm cannot install axe-core: {done.stderr[-500:]}")
    return file.read_text()


class Watched:
    """A page with what it has said: messages of its console, errors, and requests that left the page's own server."""

    def __init__(self, page: Page, host: str) -> None:
        self.page = page
        self.said: list[str] = []
        self.elsewhere: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: self.said.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: self._asked(request.url, host))

    def _asked(self, url: str, host: str) -> None:
        if not url.startswith((f"http://{host}/", "file://")):
            self.elsewhere.append(url)

    async def view(self, link: str) -> None:
        """Open a view by its link."""
        await self.page.evaluate("link => { location.hash = link; }", link)

    async def text(self, words: str) -> None:
        """Wait until the page shows these words."""
        await self.page.locator("body", has_text=words).wait_for()

    async def picture(self, name: str) -> None:
        """Keep a picture of the page as it is when it has been drawn."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        await self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        await self.page.screenshot(path=PICTURES / f"{name}.png")


async def opened(browser: Browser, host: str, address: str, **context: Any) -> Watched:
    """Return a page that has read everything."""
    made = await (await browser.new_context(**context)).new_page()
    made.set_default_timeout(TIMEOUT_MS)
    watched = Watched(made, host)
    await made.goto(address)
    await made.locator("#connection", has_text="live").or_(made.locator("#connection", has_text="snapshot")).wait_for()
    return watched
