"""`neuron-dra ui` in a real browser: each view, live changes, hostile names and pages, and pictures to look at."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.ui import files, one_file, opening, session
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from neuron_dra.demo.cluster import Cluster, NodeSpec, temporary_folder
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.kube.config import KubeConfig
from tests.support import browser as browsers
from tests.support import shown_fleet
from tests.support import small_clusters as small
from tests.support.browser import CUT, PICTURES, Watched, browser_test, opened

TABLET = {"width": 1024, "height": 768}
PHONE = {"width": 390, "height": 844}
RTL = "\u202e\u2067\u05d0"
HTML = "<img src=x onerror=alert(1)>"
LONG = "n" * 253
MARKS_OF_DIRECTION = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
PAN = """() => new Promise((done) => {
    const map = document.querySelector(".map");
    const took = [];
    const mean = (all) => all.reduce((one, other) => one + other) / all.length;
    const finish = (all) => done({ mean: mean(all), longest: Math.max(...all) });
    let last = performance.now();
    const step = (now) => {
        took.push(now - last);
        last = now;
        map.scrollTop += 40;
        if (took.length < 120) requestAnimationFrame(step);
        else finish(took.slice(1));
    };
    requestAnimationFrame(step);
})"""
"""Scrolls the map for 120 frames, and returns the milliseconds that they took."""
STRAY = r"""() => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (texts.nextNode()) {
        const { data, parentElement } = texts.currentNode;
        if (/[\u0590-\u08ff]/.test(data) && !parentElement.closest("bdi, title")) found.push(data);
    }
    return found;
}"""
"""Returns the texts with right-to-left letters that could reorder what is beside them."""
LINKS = "[...document.querySelectorAll('main a')].map((each) => each.getAttribute('href'))"

VIEWS = {
    "#fleet": "held by pods",
    "#holders": "ml/train-65",
    "#waiting": "request neurons wants 17 devices of one node, and the largest node has 16 that match",
    "#workloads": "ml/llm-1",
    "#faults": "vertical links down",
    "#nodes": "free, but for 1 unhealthy",
    "#node/trn2-10": "groups of 4 free: 8-11, 12-15",
    "#node/trn2-11": "neuron.aws.com/unhealthy",
    "#server/trn2u-ultraserver-3": "vertical: trn2u-12 – trn2u-13, down",
    "#workload/ml/llm-1": "Nothing has changed.",
    "#pod/ml/waits-0": "to change: in ResourceClaimTemplate seventeen, request neurons: count: 16",
    "#search/llm": "5 things found",
}

LISTS = ("#fleet", "#holders", "#waiting", "#workloads", "#faults", "#nodes")
DEMO = {
    "#fleet": "16 of 16",
    "#node/trn2-a": "4 x 4 torus",
    "#node/inf2-a": "ring",
    "#waiting": "request neurons wants 17 devices of one node",
    "#holders": "No claim holds Neuron devices.",
    "#workloads": "There is no NeuronUltraServerWorkload.",
    "#faults": "Nothing is wrong with nodes, UltraServers and pods.",
}


pytestmark = pytest.mark.asyncio(loop_scope="module")  # that of the browser, which starts once: it takes seconds of CPU


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with browsers.chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def browser(chromium: Browser) -> AsyncIterator[Browser]:
    """The browser, without anything that another test has opened."""
    yield chromium
    for context in chromium.contexts:
        await context.close()


async def shown(items: list[Obj], browser: Browser, views: dict[str, str], name: str, **context: Any) -> Watched:
    """Open the page of a snapshot, keep a picture of each view, and return the page."""
    made = session.of_file(small.cluster(items), f"{name}.json")
    async with made.served() as server:
        page = await opened(browser, server.host, opening.address(server.host, made.token), **context)
        for view, words in views.items():
            await page.view(view)
            await page.text(words)
            await page.picture(f"{name}{view.replace('#', '-').replace('/', '_')}")
            assert await page.page.evaluate(CUT) == []
        assert page.said == []
        assert page.elsewhere == []
        return page


@browser_test
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("servers", "nodes"), [(0, 1), (1, 4), (16, 36), (1000, 1000)])
async def test_the_fleet_is_shown_at_every_size(browser: Browser, servers: int, nodes: int, scheme: str) -> None:
    items = shown_fleet.mixed(servers, nodes)
    number = 4 * servers + nodes
    page = await shown(items, browser, {"#fleet": "free: "}, f"{number}-{scheme}", color_scheme=scheme)
    for size in ("small", "medium", "large"):
        await page.page.get_by_role("button", name=size).click()
        frames = await page.page.evaluate(PAN)
        (PICTURES / f"frames-{number}-{scheme}-{size}.json").write_text(json.dumps(frames))


@browser_test
async def test_the_first_screen_shows_what_matters_first(browser: Browser) -> None:
    """Capacity in its own unit, what waits with its cause and age, faults, and then the map."""
    made = session.of_file(small.cluster(shown_fleet.mixed(16, 36)), "production.json", "2026-01-02T03:04:05+00:00")
    async with made.served() as server:
        page = await opened(browser, server.host, opening.address(server.host, made.token), timezone_id="UTC")
        await page.text("request neurons wants 17 devices")
        shown_text = " ".join((await page.page.locator("main").inner_text()).split())
        for words in (
            "production.json data of 2 Jan 2026, 03:04",
            "382 of 576 devices free 112 held, 2 unhealthy",
            "39 of 64 UltraServer nodes free 5 UltraServers, 6 pairs, 7 other nodes 5 held, 20 nodes reserved",
            "3 waiting 3 pods",
            "7 faults",
            "ml/waits-0 and 1 other pod like it, for",
            "request neurons wants 17 devices of one node, and the largest node has 16 that match",
            "vertical links down: UltraServers trn2u-ultraserver-3, trn2u-ultraserver-8",
        ):
            assert words in shown_text
        order = "[...document.querySelectorAll('.headline, .figures, ol.waiting, main ul.faults, .map')]"
        tops = await page.page.evaluate(f"{order}.map((each) => each.getBoundingClientRect().top)")
        assert tops == sorted(tops)
        assert len(tops) == 5


@browser_test
async def test_a_letter_leaves_only_its_nodes_on_the_map(browser: Browser) -> None:
    """Of 5,000 nodes, nobody finds those that are not Ready by looking."""
    made = session.of_file(small.cluster(shown_fleet.mixed(4, 36)), "cluster.json")
    async with made.served() as server:
        page = (await opened(browser, server.host, opening.address(server.host, made.token))).page
        nodes = page.locator("#node-at-cursor")
        grid = page.get_by_role("listbox")
        button = page.get_by_role("button", name="not Ready: 3")
        await grid.focus()
        assert await nodes.get_attribute("aria-setsize") == "52"
        await button.click()
        assert await button.get_attribute("aria-pressed") == "true"
        assert await nodes.get_attribute("aria-setsize") == "3"
        await grid.focus()
        await page.keyboard.press("End")
        assert (await nodes.text_content() or "").startswith("trn2-35: not Ready")
        await page.get_by_role("button", name="reserved for a workload: 4").click()
        assert await nodes.get_attribute("aria-setsize") == "4"
        await page.get_by_role("button", name="reserved for a workload: 4").click()
        assert await nodes.get_attribute("aria-setsize") == "52"


RING = """() => [...document.querySelectorAll(".ring > *")].map((each) => {
    const { left, top } = each.getBoundingClientRect();
    return { text: each.innerText.split("\\n")[0], left: Math.round(left), top: Math.round(top) };
})"""
"""Returns the first line and the place of each part of an UltraServer's ring."""


@browser_test
@pytest.mark.parametrize("width", [1440, 1024, 390])
async def test_an_ultraserver_is_drawn_as_its_ring(browser: Browser, width: int) -> None:
    """As `topology` draws it: 0 over 1, next to 3 over 2, with the missing node and the broken link."""
    items = [item for item in shown_fleet.mixed(4, 1) if item["metadata"]["name"] != "trn2u-14"]
    items = [item for item in items if item["kind"] != "ResourceSlice" or item["spec"]["nodeName"] != "trn2u-14"]
    made = session.of_file(small.cluster(items), "cluster.json")
    async with made.served() as server:
        address = opening.address(server.host, made.token)
        page = await opened(browser, server.host, address, viewport={"width": width, "height": 900})
        await page.view("#server/trn2u-ultraserver-3")
        await page.text("3 of 4 nodes")
        parts = {part["text"]: (part["left"], part["top"]) for part in await page.page.evaluate(RING)}
        corners = [parts[f"{name}"] for name in RING_OF_THREE]
        assert corners[0][0] == corners[1][0] < corners[2][0] == corners[3][0]
        assert corners[0][1] == corners[2][1] < corners[1][1] == corners[3][1]
        assert corners[0][1] < parts["×"][1] < corners[1][1]
        assert await page.page.evaluate("document.documentElement.scrollWidth <= innerWidth") is True
        await page.picture(f"ring-{width}")
        await page.view("#fleet")
        await page.picture(f"ring-map-{width}")


RING_OF_THREE = ("trn2u-12 (node 0)", "trn2u-13 (node 1)", "trn2u-15 (node 3)", "trn2u-14 (node 2)")


@browser_test
async def test_faults_have_the_order_of_status(browser: Browser) -> None:
    snapshot = small.cluster(shown_fleet.mixed(4, 36))
    made = session.of_file(snapshot, "cluster.json")
    expected = [row["name"] for row in status_text.data(World(snapshot), "")["wrong"]]
    async with made.served() as server:
        page = await opened(browser, server.host, opening.address(server.host, made.token))
        await page.view("#faults")
        await page.text("vertical links down")
        assert await page.page.locator("tbody td[data-head=Name]").all_inner_texts() == expected
        await page.page.get_by_role("button", name="Fault").click()
        sorted_whats = await page.page.locator("tbody th").all_inner_texts()
        assert sorted_whats == sorted(sorted_whats)


@browser_test
async def test_lists_are_sorted_filtered_and_counted(browser: Browser) -> None:
    made = session.of_file(small.cluster(shown_fleet.mixed(0, 150)), "cluster.json")
    async with made.served() as server:
        page = await opened(browser, server.host, opening.address(server.host, made.token))
        await page.view("#nodes")
        await page.text("the first 100 of 150 nodes")
        names = page.page.locator("tbody th")
        assert (await names.all_inner_texts())[9:11] == ["trn2-9", "trn2-10"]
        await page.page.get_by_role("button", name="Node").click()
        assert (await names.all_inner_texts())[:2] == ["trn2-149", "trn2-148"]
        await page.page.get_by_role("button", name="show more").click()
        await page.text("150 nodes")
        assert await names.count() == 150
        await page.page.get_by_label("Filter: nodes").fill("cordoned")
        await page.text("9 nodes of 150")
        assert (await names.all_inner_texts())[:2] == ["trn2-135", "trn2-119"]


@browser_test
async def test_what_waits_is_sorted_and_filtered(browser: Browser) -> None:
    """By age, name, kind and number of pods; the oldest first, until a user sorts."""
    waiting = [
        _waiting_since("p-10", "whole", "2026-01-01T00:00:00Z"),
        *(_waiting_since(f"p-9{suffix}", "seventeen", "2026-01-03T00:00:00Z") for suffix in ("", "b")),
        shown_fleet.workload("llm", "ml", "Pending", ready=False),
    ]
    waiting[-1]["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    made = session.of_file(small.cluster([*shown_fleet.mixed(0, 1, waiting=0), *waiting]), "cluster.json")
    async with made.served() as server:
        page = await opened(browser, server.host, opening.address(server.host, made.token))
        await page.view("#waiting")
        links = page.page.locator("ol.waiting > li > p:first-child a")
        await page.text("3 of 3")
        assert await links.all_inner_texts() == ["ml/p-10", "ml/llm", "ml/p-9"]
        orders = {}
        for order in ("Name", "Name", "Kind", "Pods", "Age", "Age"):
            await page.page.get_by_role("group", name="Sort").get_by_role("button", name=order).click()
            pressed = await page.page.locator("main button[aria-pressed=true]").inner_text()
            orders[pressed] = await links.all_inner_texts()
        assert orders == {
            "Name \N{UPWARDS ARROW}": ["ml/llm", "ml/p-9", "ml/p-10"],
            "Name \N{DOWNWARDS ARROW}": ["ml/p-10", "ml/p-9", "ml/llm"],
            "Kind \N{UPWARDS ARROW}": ["ml/p-10", "ml/p-9", "ml/llm"],
            "Pods \N{DOWNWARDS ARROW}": ["ml/p-9", "ml/p-10", "ml/llm"],
            "Age \N{DOWNWARDS ARROW}": ["ml/p-10", "ml/llm", "ml/p-9"],
            "Age \N{UPWARDS ARROW}": ["ml/p-9", "ml/llm", "ml/p-10"],
        }
        await page.page.get_by_label("Filter: what waits").fill("p-")
        await page.text("2 of 3")
        assert await links.all_inner_texts() == ["ml/p-9", "ml/p-10"]


def _waiting_since(name: str, template: str, since: str) -> Obj:
    pod = small.pod(name, template, namespace="ml")
    pod["metadata"]["creationTimestamp"] = since
    return pod


@browser_test
async def test_words_with_hyphens_and_cells_stay_whole_on_a_phone(browser: Browser) -> None:
    """A short name does not break at its hyphen, the parts of a cell follow each other, and a dialog has a margin."""
    made = session.of_file(small.cluster(shown_fleet.mixed(4, 20)), "cluster.json")
    async with made.served() as server:
        address = opening.address(server.host, made.token)
        page = await opened(browser, server.host, address, viewport=PHONE)
        await page.text("vertical links down")
        lines = "[...document.querySelectorAll('.whole')].map((word) => word.getClientRects().length)"
        assert set(await page.page.evaluate(lines)) == {1}
        await page.view("#nodes")
        await page.text("36 nodes")
        letter = "[...document.querySelectorAll('tbody .key')].map((key) => key.getBoundingClientRect().width)"
        assert max(await page.page.evaluate(letter)) < 40, "a letter is as wide as its cell"
        await page.page.keyboard.press("?")
        left = "document.getElementById('help').getBoundingClientRect().left"
        assert await page.page.evaluate(left) > 5


@browser_test
@pytest.mark.parametrize(("servers", "nodes", "lowest", "highest"), [(0, 1, 100, 200), (2, 3, 400, 800)])
async def test_the_map_is_as_high_as_a_small_fleet(
    browser: Browser, servers: int, nodes: int, lowest: int, highest: int
) -> None:
    """Nothing of it is below its edge, and nothing empty is below it."""
    made = session.of_file(small.cluster(shown_fleet.mixed(servers, nodes)), "cluster.json")
    async with made.served() as server:
        page = await opened(browser, server.host, opening.address(server.host, made.token), viewport=TABLET)
        await page.text("trn2.48xlarge")
        height = "document.querySelector('.map').getBoundingClientRect().height"
        await page.page.wait_for_function(f"{lowest} < {height} && {height} < {highest}")
        scrolled = "(map => map.scrollHeight - map.clientHeight)(document.querySelector('.map'))"
        assert await page.page.evaluate(scrolled) <= 0


@browser_test
@pytest.mark.parametrize("context", [{}, {"color_scheme": "dark"}, {"viewport": TABLET}, {"viewport": PHONE}])
async def test_each_view_has_a_link(browser: Browser, context: dict[str, Any]) -> None:
    tag = f"-{context['viewport']['width']}" if "viewport" in context else f"-{context.get('color_scheme', 'light')}"
    await shown(shown_fleet.mixed(16, 36), browser, VIEWS, f"view{tag}", **context)


@browser_test
@pytest.mark.parametrize("viewport", [TABLET, PHONE])
async def test_nothing_is_cut_off_with_the_names_of_ec2(browser: Browser, viewport: Any) -> None:
    items = shown_fleet.mixed(4, 36)
    name = shown_fleet.ec2_names(items)["trn2-10"]
    views = dict.fromkeys((*LISTS, "#server/trn2u-ultraserver-3"), "") | {f"#node/{name}": "DRA driver"}
    await shown(shown_fleet.with_ec2_names(items), browser, views, f"ec2-{viewport['width']}", viewport=viewport)


@browser_test
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_each_view_can_be_used_by_all(browser: Browser, scheme: str) -> None:
    code = browsers.axe()
    made = session.of_file(small.cluster(shown_fleet.mixed(16, 36)), "cluster.json")
    async with made.served() as server:
        address = opening.address(server.host, made.token)
        page = await opened(browser, server.host, address, color_scheme=scheme, bypass_csp=True)
        await page.page.evaluate(code)
        found = {}
        for view, words in VIEWS.items():
            await page.view(view)
            await page.text(words)
            judged = await page.page.evaluate("axe.run()")
            found[view] = [(each["id"], each["nodes"][0]["html"][:200]) for each in judged["violations"]]
        await page.page.keyboard.press("?")
        await page.page.locator("#help").wait_for()
        judged = await page.page.evaluate("axe.run()")
        found["?"] = [(each["id"], each["nodes"][0]["html"][:200]) for each in judged["violations"]]
        assert {view: wrong for view, wrong in found.items() if wrong} == {}


@browser_test
async def test_the_token_is_nowhere_to_be_seen_and_a_new_tab_gets_it_from_the_page(browser: Browser) -> None:
    made = session.of_file(small.cluster(small.base("a")), "cluster.json")
    async with made.served() as server:
        with opening.redirecting(opening.address(server.host, made.token)) as file:
            page = await opened(browser, server.host, file.as_uri())
        assert page.page.url == f"http://{server.host}/#fleet"
        assert made.token not in await page.page.content()
        assert await page.page.context.cookies() == []
        await page.page.reload()
        await page.text("16 of 16")
        other = await page.page.context.new_page()
        await other.goto(f"http://{server.host}/#node/a")
        await other.locator("h1", has_text="Node a").wait_for()
        stranger = await (await browser.new_context()).new_page()
        await stranger.goto(f"http://{server.host}/#node/a")
        await stranger.locator("h1", has_text="This page has no key").wait_for()
        assert not await stranger.locator("nav a, table, .map").count(), "figures of a cluster that was not read"
        assert await stranger.locator("h1", has_text="Node a").count() in (0, 1)
        assert "16 of 16" not in await stranger.content()


@browser_test
async def test_the_history_of_the_browser_has_no_key_that_works(browser: Browser, tmp_path: Path) -> None:
    """Chromium's own history keeps the address with the fragment, whatever the page does with it later."""
    made = session.of_file(small.cluster(small.base("a")), "cluster.json")
    async with made.served() as server:
        async with browsers.profile(tmp_path) as context:
            with opening.redirecting(opening.once(server.host, made.ticket)) as file:
                page = await context.new_page()
                await page.goto(file.as_uri())
                await page.locator("body", has_text="16 of 16").wait_for()
        addresses = browsers.history(tmp_path)
        assert f"http://{server.host}/#ticket={made.ticket}" in addresses
        assert made.token not in "".join(addresses)
        later = await (await browser.new_context()).new_page()
        await later.goto(f"http://{server.host}/#ticket={made.ticket}")
        await later.locator("h1", has_text="This page has no key").wait_for()


HIDING = """
    window.isUnseen = false;
    Object.defineProperty(document, "hidden", { get: () => window.isUnseen });
    window.hide = (isUnseen) => {
        window.isUnseen = isUnseen;
        document.dispatchEvent(new Event("visibilitychange"));
    };
"""
"""Hides a tab as another one in front of it does: pages of a browser without a screen are all seen."""


@browser_test
async def test_more_tabs_than_a_browser_has_connections(browser: Browser) -> None:
    async with EmbeddedApi() as api:
        api.register_neuron_kinds()
        for item in small.base("a", "b"):
            api.apply(item)
        made = session.of_cluster(KubeConfig(api.url), "default")
        async with made.served() as server, asyncio.timeout(120):
            context = await browser.new_context()
            await context.add_init_script(HIDING)
            tabs: list[Page] = []
            for _ in range(8):
                if tabs:
                    await tabs[-1].evaluate("hide(true)")
                tabs.append(await context.new_page())
                view = "node/a" if len(tabs) > 1 else f"token={made.token}"
                await tabs[-1].goto(f"http://{server.host}/#{view}")
                await tabs[-1].locator("#connection", has_text="live").wait_for()
            api.apply({**small.node("a"), "spec": {"unschedulable": True}})
            for tab in reversed(tabs[1:]):
                await tab.locator("main", has_text="cordoned").wait_for()
            await tabs[-1].evaluate("hide(true)")
            await tabs[1].evaluate("hide(false)")
            api.apply(small.node("a"))
            await tabs[1].locator("main", has_text="free").first.wait_for()
            assert "does not answer" not in await tabs[1].content()


@browser_test
@pytest.mark.parametrize("link", ["#constructor", "#__proto__", "#toString/x", "#hasOwnProperty", "#%", "#//", "#node"])
async def test_a_link_that_is_none_of_the_page_leaves_it_whole(browser: Browser, link: str) -> None:
    made = session.of_file(small.cluster(small.base("__proto__", "constructor")), "cluster.json")
    async with made.served() as server:
        page = await opened(browser, server.host, opening.address(server.host, made.token))
        await page.view(link)
        await page.view("#node/__proto__")
        await page.text("groups of 4 free: 0-3")
        await page.view("#node/constructor")
        await page.text("groups of 4 free: 0-3")
        assert page.said == []


@browser_test
async def test_the_demos_cluster_is_shown(browser: Browser) -> None:
    folder = temporary_folder()
    try:
        nodes = (NodeSpec("trn2-a", "trn2.48xlarge"), NodeSpec("inf2-a", "inf2.48xlarge"))
        async with Cluster(nodes, folder) as demo, asyncio.timeout(120):
            await demo.ready(60)
            demo.api.apply(small.template("seventeen", 17))
            demo.api.apply(small.pod("too-many", "seventeen"))
            made = session.of_cluster(KubeConfig(demo.api.url), "default")
            async with made.served() as server:
                page = await opened(browser, server.host, opening.address(server.host, made.token))
                for view, words in DEMO.items():
                    await page.view(view)
                    await page.text(words)
                    await page.picture(f"demo{view.replace('#', '-').replace('/', '_')}")
                assert (page.said, page.elsewhere) == ([], [])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@browser_test
async def test_changes_are_shown_without_a_reload(browser: Browser) -> None:
    async with EmbeddedApi() as api:
        api.register_neuron_kinds()
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}
        for item in [namespace, *small.base("a", "b"), small.template("four", 4)]:
            api.apply(item)
        made = session.of_cluster(KubeConfig(api.url), "default")
        async with made.served() as server, asyncio.timeout(120):
            page = await opened(browser, server.host, opening.address(server.host, made.token))
            await page.text("32 of 32")
            api.apply({**small.node("a"), "spec": {"unschedulable": True}})
            await page.text("cordoned: 1")
            await page.view("#waiting")
            api.apply(small.pod("p", "four"))
            await page.text("default/p")
            await page.view("#workload/ml/llm")
            api.apply(shown_fleet.workload("llm", "ml", "Pending", ready=False, message="no UltraServer is free"))
            await page.text("no UltraServer is free")
            api.apply(shown_fleet.workload("llm", "ml", "Allocated", ready=True))
            await page.text("Pending → Allocated")
            await page.picture("live-history")
            await api.refuse_connections()
            await page.text("lost connection")
            await page.picture("live-lost")
        await page.text("neuron-dra ui does not answer")
        assert [text for text in page.said if "ERR_" not in text] == []


def hostile() -> list[Obj]:
    """Objects with names and texts that no API server would accept, as a file can have them."""
    items = small.base(HTML, f"{RTL}node", LONG)
    for item in items:
        if item["kind"] == "ResourceSlice":
            for device in item["spec"]["devices"]:
                texts = {"ultraserverId": {"string": HTML}, "instanceType": {"string": f"{RTL}type"}}
                device["attributes"] = {**device["attributes"], **texts}
                device["taints"] = [{"key": f"{RTL}{HTML}", "effect": "NoSchedule"}]
    pod = small.pod(f"</script><script>alert(1)</script>{RTL}", "none", namespace="javascript:alert(1)")
    workload = shown_fleet.workload(f"{LONG}{RTL}", HTML, f"<b>{RTL}", ready=False, message=f"{HTML}{RTL}")
    return [*items, pod, workload]


@browser_test
async def test_hostile_names_are_text_and_nothing_of_them_runs(browser: Browser) -> None:
    made = session.of_file(small.cluster(hostile()), f"{HTML}{RTL}.json")
    async with made.served() as server:
        page = await opened(browser, server.host, opening.address(server.host, made.token), viewport=PHONE)
        seen = 0
        for view in (*LISTS, "#search/n", f"#search/{HTML}"):
            await page.view(view)
            await page.picture(f"hostile-{view[1:7]}")
            assert await page.page.evaluate(STRAY) == []
            links = await page.page.evaluate(LINKS)
            for link in links:
                assert link.startswith("#")
                await page.view(link)
                await page.page.locator("main", has_text="asking why").wait_for(state="hidden")
                await page.picture("hostile-thing")
                assert await page.page.evaluate(STRAY) == []
                seen += 1
            text = await page.page.evaluate("document.title + document.body.innerText")
            assert not set(text) & MARKS_OF_DIRECTION, "a mark of direction that is not closed reorders what follows"
        assert seen > 8
        made_of_names = "img, b, iframe, main script, object, embed, [onerror]"
        assert await page.page.locator(made_of_names).count() == 0
        isolated = "getComputedStyle(document.querySelector('main bdi')).unicodeBidi"
        assert await page.page.evaluate(isolated) == "isolate"
        assert await page.page.evaluate("document.documentElement.scrollWidth <= innerWidth") is True
        assert page.said == []
        assert page.elsewhere == []


@browser_test
async def test_the_page_as_one_file_is_the_same_page(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "fleet.html"
    items = [*shown_fleet.mixed(2, 20), *hostile()[-2:]]
    file.write_text(one_file.page(small.cluster(items), "cluster.json", files.read(), "#node/trn2-1"))
    page = await opened(browser, "127.0.0.1:1", file.as_uri())
    await page.text("Node trn2-1")
    await page.view("#fleet")
    await page.text("held by pods")
    await page.view("#waiting")
    await page.text("request neurons wants 17 devices")
    await page.picture("one-file-waiting")
    assert (page.said, page.elsewhere) == ([], [])


@browser_test
async def test_a_page_of_another_origin_learns_nothing(browser: Browser) -> None:
    mine = session.of_file(small.cluster(small.base("a")), "mine.json")
    other = session.of_file(small.cluster(small.base("b")), "other.json")
    async with mine.served() as server, other.served() as foreign:
        page = await (await browser.new_context()).new_page()
        await page.goto(f"http://{foreign.host}/")
        ask = """async ([host, token, mode]) => {
            const headers = { Authorization: `Bearer ${token}` };
            try {
                const answer = await fetch(`http://${host}/api/about?kind=Node&namespace=&name=a`, { headers, mode });
                return await answer.text();
            } catch { return "nothing"; }
        }"""
        for mode in ("cors", "no-cors"):
            assert await page.evaluate(ask, [server.host, mine.token, mode]) in ("nothing", "")
        hidden = await (await browser.new_context(bypass_csp=True)).new_page()
        await hidden.goto(f"http://{foreign.host}/")
        for mode in ("cors", "no-cors"):
            assert await hidden.evaluate(ask, [server.host, mine.token, mode]) in ("nothing", "")
        framed = """async (host) => {
            const frame = document.createElement("iframe");
            frame.src = `http://${host}/`;
            document.body.append(frame);
            await new Promise((done) => { frame.onload = done; });
            try { return frame.contentDocument?.body.textContent ?? "nothing"; } catch { return "nothing"; }
        }"""
        assert await hidden.evaluate(framed, server.host) == "nothing"


@browser_test
async def test_a_foreign_name_for_this_machine_learns_nothing() -> None:
    """A site can let its name lead to 127.0.0.1: the browser then takes the server for a part of that site."""
    made = session.of_file(small.cluster(small.base("a")), "cluster.json")
    flag = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    async with browsers.chromium(flag) as browser, made.served() as server:
        port = server.host.rpartition(":")[2]
        page = await (await browser.new_context()).new_page()
        answer = await page.goto(f"http://evil.example:{port}/")
        assert answer is not None
        assert answer.status == 421
        ask = """async ([path, token]) => {
            const answer = await fetch(path, { headers: { Authorization: `Bearer ${token}` } });
            return `${answer.status} ${await answer.text()}`;
        }"""
        for path in ("/main.js", "/api/stream", "/api/about?kind=Node&namespace=&name=a"):
            assert await page.evaluate(ask, [path, made.token]) == f"421 {await answer.text()}"
        assert "16 of 16" not in await page.content()


@browser_test
async def test_the_map_can_be_read_with_the_keyboard_alone(browser: Browser) -> None:
    made = session.of_file(small.cluster(shown_fleet.mixed(2, 20)), "cluster.json")
    async with made.served() as server:
        page = (await opened(browser, server.host, opening.address(server.host, made.token))).page
        grid = page.get_by_role("listbox")
        await grid.focus()
        said = page.locator("#node-at-cursor")
        assert await said.text_content() == "trn2-0: freetrn2.48xlarge, 16 of 16 devices free"
        await page.keyboard.press("ArrowRight")
        assert (await said.text_content() or "").startswith("trn2-1: ")
        assert (await page.locator("#tip").inner_text()).startswith("trn2-1: ")
        await page.keyboard.press("End")
        assert "UltraServer" in (await said.text_content() or "")
        await page.keyboard.press("Home")
        await page.keyboard.press("Enter")
        await page.locator("h1", has_text="Node trn2-0").wait_for()
        await page.go_back()
        await page.locator(".map:focus").wait_for()
        assert (await said.text_content() or "").startswith("trn2-0: ")
        await page.keyboard.press("/")
        await page.keyboard.type("train-17")
        await page.locator("h1", has_text="Search: train-17").wait_for()
        await page.keyboard.press("Enter")
        await page.locator("tbody a:focus", has_text="ml/train-17").wait_for()
        await page.keyboard.press("Enter")
        await page.locator("h1", has_text="Pod ml/train-17").wait_for()
        await page.go_back()
        await page.locator("tbody a:focus", has_text="ml/train-17").wait_for()


@browser_test
async def test_a_search_is_one_step_of_the_history_and_ends_with_escape(browser: Browser) -> None:
    made = session.of_file(small.cluster(shown_fleet.mixed(2, 20)), "cluster.json")
    async with made.served() as server:
        page = (await opened(browser, server.host, opening.address(server.host, made.token))).page
        await page.evaluate("location.hash = '#faults'")
        await page.locator("h1", has_text="Faults").wait_for()
        await page.keyboard.press("/")
        await page.keyboard.type("trn2-1")
        await page.locator("h1", has_text="Search: trn2-1").wait_for()
        await page.go_back()
        await page.locator("h1", has_text="Faults").wait_for()
        await page.keyboard.press("/")
        await page.keyboard.type("trn2u")
        await page.locator("h1", has_text="Search: trn2u").wait_for()
        await page.keyboard.press("Escape")
        await page.locator("h1", has_text="Faults").wait_for()
        assert await page.locator("#words").input_value() == ""
        await page.locator("main:focus").wait_for()
        await page.keyboard.press("?")
        await page.get_by_role("dialog", name="Keys").wait_for()
        await page.keyboard.press("Escape")
        await page.get_by_role("dialog").wait_for(state="hidden")
        await page.locator("h1", has_text="Faults").wait_for()
        await page.keyboard.press("Escape")
        await page.locator("h1", has_text="cluster.json").wait_for()
