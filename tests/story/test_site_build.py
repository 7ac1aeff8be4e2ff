"""The documentation site as a reader opens it: strictly built, each link followed, search without a server (37.3)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hack.site import check
from tests.support import browser as browsers
from tests.support.browser import browser_test
from tests.support.skipping import impossible

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = ("No matching distribution", "Could not find a version", "Temporary failure in name resolution")


@pytest.fixture(scope="module")
def site() -> Path:
    """Build the site; skip where its packages cannot be had."""
    done = subprocess.run(["make", "site"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    said = done.stdout + done.stderr
    if done.returncode and any(words in said for words in OFFLINE):
        impossible("the packages of the site cannot be downloaded")
    assert done.returncode == 0, said
    return check.SITE


@browser_test
@pytest.mark.timeout(900)
def test_links_of_the_built_site_lead_somewhere_and_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    assert list(check.problems(site)) == []
    assert len(list(site.rglob("*.html"))) > 60


@browser_test
@pytest.mark.timeout(900)
async def test_the_site_is_searched_as_files_without_a_server(site: Path) -> None:
    async with browsers.chromium() as browser:
        page = await browser.new_page()
        asked: list[str] = []
        said: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: said.append(str(error)))
        await page.goto((site / "index.html").as_uri())
        tabs = await page.locator(".md-tabs__link").all_inner_texts()
        assert [each.strip() for each in tabs] == ["Get started", "Tasks", "Reference", "How it works and contributing"]
        await page.locator("input.md-search__input").fill("starvation-threshold")
        await page.locator(".md-search-result__link", has_text="Priority").first.wait_for()
        assert said == []
        assert [url for url in asked if not url.startswith("file://")] == []
