"""The documentation site as a reader opens it: strictly built, each link followed, search without a server (37.3)."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from hack.release import site as release_site
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
def test_the_site_of_a_release_has_the_same_bytes_wherever_it_is_built(site: Path, tmp_path: Path) -> None:
    """The archive of a release is the site that `make site` builds, and another folder and time change nothing."""
    trees = [tmp_path / name for name in ("one", "another")]
    for tree in trees:
        tree.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    one, another = (release_site.site(tree, "docs", 1_700_000_000) for tree in trees)
    assert one == another
    with tarfile.open(fileobj=io.BytesIO(one)) as packed:
        names = {each.name.removeprefix("docs/") for each in packed if each.isfile()}
    assert {"index.html", "install.html", "search/search_index.js"} <= names
    assert {name for name in names if name.endswith(".html")} == {
        str(path.relative_to(site)) for path in site.rglob("*.html")
    }


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
        await page.locator("input.md-search__input").press_sequentially("starvation")
        await page.locator(".md-search-result__link", has_text="Priority").first.wait_for()
        assert said == []
        assert [url for url in asked if not url.startswith("file://")] == []
