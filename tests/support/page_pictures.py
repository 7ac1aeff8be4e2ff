"""Pictures of the page to look at, with what `status` prints of the same fleets.

`python -m tests.support.page_pictures [NODES ...]` writes them to build/ui/looks: each size of a fleet at three widths,
light and dark, and other views of the fleet of 100 nodes. It prints what is cut off, and what scrolls sideways.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from playwright.async_api import Browser

from neuron_dra.ask.ui import opening, session
from tests.support import browser as browsers
from tests.support import shown_fleet
from tests.support import small_clusters as small

INTO: Final = browsers.PICTURES / "looks"
FLEETS: Final = {1: (0, 1), 11: (2, 3), 100: (16, 36), 400: (64, 144), 5000: (1000, 1000)}
"""UltraServers of four nodes, and other nodes, by the number of nodes."""
WIDTHS: Final = {1440: 900, 1024: 768, 390: 844}
"""Heights of screens by their widths."""
SCHEMES: Final = ("light", "dark")
WITH_VIEWS: Final = 100
NODE, SERVER, WORKLOAD = "#node/trn2-10", "#server/trn2u-ultraserver-3", "#workload/ml/llm-1"
VIEWS: Final = ("#waiting", NODE, SERVER, WORKLOAD, "#workloads", "#nodes", "#holders", "#faults", "#pod/ml/waits-0")
NOW: Final = "2026-01-02T03:04:05+00:00"
HEIGHT: Final = "document.getElementById('main').scrollHeight + document.getElementById('main').offsetTop"
DRAWN: Final = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


async def make(numbers: Sequence[int]) -> None:
    """Write the pictures of the fleets with so many nodes."""
    INTO.mkdir(parents=True, exist_ok=True)
    async with browsers.chromium() as browser:
        for number in numbers:
            items = shown_fleet.mixed(*FLEETS[number])
            shown_fleet.written(INTO, items, f"{number}.json")
            shown_session = session.of_file(small.cluster(items), f"{number}.json", NOW)
            async with shown_session.served() as server:
                address = opening.address(server.host, shown_session.token)
                for width in WIDTHS:
                    for scheme in SCHEMES:
                        await _pictures(browser, server.host, address, number, width, scheme)


async def _pictures(browser: Browser, host: str, address: str, number: int, width: int, scheme: str) -> None:
    viewport = {"width": width, "height": WIDTHS[width]}
    page = await browsers.opened(browser, host, address, color_scheme=scheme, viewport=viewport, timezone_id="UTC")
    await page.page.clock.set_fixed_time(NOW)
    await page.view("#holders")  # the fleet's ages are drawn again after the time has been set
    await page.page.locator("h1", has_text="Who holds devices").wait_for()
    for view in ("#fleet", *(VIEWS if number == WITH_VIEWS else ())):
        await page.page.set_viewport_size({"width": width, "height": WIDTHS[width]})
        await page.view(view)
        await page.page.locator("h1").first.wait_for()
        await page.page.locator("main", has_text="asking why").wait_for(state="hidden")
        whole = max(WIDTHS[width], await page.page.evaluate(HEIGHT))
        await page.page.set_viewport_size({"width": width, "height": min(whole, 2400)})
        await page.page.locator("main", has_text="asking why").wait_for(state="hidden")
        await _picture(page, f"{number}-{width}-{scheme}-{view[1:].replace('/', '_')}")
    if number == WITH_VIEWS:
        await page.page.set_viewport_size({"width": width, "height": WIDTHS[width]})
        await page.page.keyboard.press("?")
        await _picture(page, f"{number}-{width}-{scheme}-help")
    await page.page.context.close()


async def _picture(page: browsers.Watched, name: str) -> None:
    await page.page.evaluate(DRAWN)
    await page.page.screenshot(path=INTO / f"{name}.png")
    print(name, *await page.page.evaluate(browsers.CUT), *page.said, sep="\n    ", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Make the pictures of all fleets, or of those with so many nodes."""
    asyncio.run(make([int(number) for number in arguments] or list(FLEETS)))
    print(f"pictures are in {INTO}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
