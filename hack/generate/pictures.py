"""Make the pictures of the page in README.md and docs/ui.md again: `python -m hack.generate.pictures`.

They show a fleet that does not exist, at a fixed time, in Debian's Chromium, light and dark. The pictures of
docs/command-line.md are text, and `hack.generate.docs` writes them.
"""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, async_playwright

from hack.bed import packages
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.simulate import simulation
from neuron_dra.ask.ui import opening, session
from neuron_dra.ask.world import imagined
from neuron_dra.ask.world.world import World
from neuron_dra.core import names
from neuron_dra.core.ultraserver import NAMESPACE, Allocation, Phase, Tag, object_name, tagged
from neuron_dra.core.wire import Obj

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
PACKAGES: Final = {"chromium": "chromium", "fonts-dejavu-core": "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"}
NOW: Final = "2026-06-01T09:00:00+00:00"
API: Final = "resource.k8s.io/v1"
FLEET: Final = "36 x trn2.48xlarge\n16 x ultraserver trn2u.48xlarge"
JOBS: Final = (
    ("research", "llm", 16, 23),
    ("research", "tune", 8, 15),
    ("serving", "chat", 4, 11),
    ("serving", "embed", 2, 9),
)
"""Namespace, name, devices of a pod, and pods."""
RESERVED: Final = (("llm-405b", (1, 2, 3, 4)), ("llm-70b", (7,)), ("moe", (9, 10)))
"""Workloads, and the UltraServers that they have."""
BROKEN_LINK, LACKING, NOT_READY, CORDONED, UNHEALTHY, SHOWN = 5, "trn2u-50", 17, 21, 33, "trn2-35"
VIEWS: Final = {
    "fleet": ("#fleet", "would serve it", 1180),
    "node": ("#node/{node}", "groups of 4 free", 720),
    "waiting": ("#waiting", "to change", 720),
}
"""Name of the file, link, words that the view shows when it is whole, and height."""


def fleet() -> Snapshot:
    """Return the fleet: pods that the simulator placed, reserved UltraServers, some faults, and what waits."""
    items = [_named(item) for item in imagined.fleet(FLEET, "pictures")]
    lacking = _host(LACKING)
    machines = [item for item in items if item["kind"] == "Node"]
    slices = {item["spec"]["nodeName"]: item for item in items if item["kind"] == "ResourceSlice"}
    for number, machine in enumerate(machines):
        machine["metadata"]["creationTimestamp"] = "2026-05-12T07:00:00Z"
        machine["status"] = {
            "conditions": [{"type": "Ready", "status": str(number != NOT_READY)}],
            "nodeInfo": _PROGRAMS,
        }
    machines[CORDONED]["spec"] = {"unschedulable": True}
    _make_sick(slices[machines[UNHEALTHY]["metadata"]["name"]])
    items += _ultraservers(slices)
    items = [item for item in items if lacking not in (item["metadata"]["name"], item.get("spec", {}).get("nodeName"))]
    items += [_template(namespace, count) for namespace, _, count, _ in JOBS]
    trial = simulation.Simulation(World(snapshot.build(items)))
    pods = [
        _pod(f"{name}-{number}", namespace, f"devices-{count}", "2026-06-01T06:12:00Z")
        for namespace, name, count, pods_of_job in JOBS
        for number in range(pods_of_job)
    ]
    for outcome in trial.run(pods):
        if not outcome.runs:
            raise RuntimeError(f"{outcome.pod['metadata']['name']} finds no devices: {outcome.finding}")
    placed = [_running(copy.deepcopy(dict(item))) for item in trial.world.snapshot.objects.values()]
    return snapshot.build([*placed, *_waiting()])


_PROGRAMS: Final = {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.4"}


def _named(item: Obj) -> Obj:
    """Return an object with a node's name as EC2 gives it."""
    text = json.dumps(item)
    if item["kind"] in ("Node", "ResourceSlice"):
        old = item["metadata"]["name"] if item["kind"] == "Node" else item["spec"]["nodeName"]
        text = text.replace(f'"{old}"', f'"{_host(old)}"').replace(
            f'"{old}-{names.DRIVER}', f'"{_host(old)}-{names.DRIVER}'
        )
    named: Obj = json.loads(text)
    return named


def _host(name: str) -> str:
    kind, _, number = name.rpartition("-")
    network = 12 if kind == "trn2" else 40
    return f"ip-10-0-{network + int(number) // 24}-{17 + int(number) * 37 % 230}.ec2.internal"


def _make_sick(item: Obj) -> None:
    device = item["spec"]["devices"][5]
    device["attributes"]["unhealthy"] = {"string": "hbm_uncorrectable"}
    device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "hbm_uncorrectable", "effect": "NoSchedule"}]


def _ultraservers(slices: dict[str, Obj]) -> Iterator[Obj]:
    """Yield the NeuronUltraServers and the workloads that have reserved some of them."""
    members: dict[str, list[str]] = {}
    for name, item in slices.items():
        found = item["spec"]["devices"][0]["attributes"].get("ultraserverId")
        if found:
            members.setdefault(found["string"], []).append(name)
    of_server = {place: (workload, index) for workload, places in RESERVED for index, place in enumerate(places)}
    for number, (server, nodes) in enumerate(members.items()):
        slots = []
        if number in of_server:
            workload, index = of_server[number]
            slot = Allocation(
                "research", workload, workload, f"{workload}-{index}", Phase.BOUND, tuple(nodes), 4, index
            )
            slots.append(slot.to_wire())
            for node in nodes:
                spec = slices[node]["spec"]
                spec["devices"] = [tagged(device, Tag.of(slot)) for device in spec["devices"]]
        if number == BROKEN_LINK:
            for device in slices[nodes[0]]["spec"]["devices"]:
                device["attributes"]["linkVertical"] = {"bool": False}
        topology = [{"nodeName": node, "nodeId": place} for place, node in enumerate(nodes)]
        yield {
            "apiVersion": "neuron.aws.com/v1",
            "kind": "NeuronUltraServer",
            "metadata": {"name": object_name(server), "namespace": NAMESPACE},
            "spec": {"instanceType": "trn2u.48xlarge", "topology": topology},
            "status": {"ultraserverId": server, "allocations": slots},
        }
    for workload, places in RESERVED:
        yield _workload(workload, len(places), "2026-05-31T18:30:00Z", "Allocated")


def _workload(name: str, groups: int, created: str, reason: str, message: str = "") -> Obj:
    is_ready = reason == "Allocated"
    condition = {"type": "Ready", "status": str(is_ready), "reason": reason, "message": message}
    return {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": name, "namespace": "research", "uid": name, "creationTimestamp": created},
        "spec": {"instanceType": "trn2u.48xlarge", "topologySize": 4, "serverCount": groups},
        "status": {"state": "Allocated" if is_ready else "Pending", "conditions": [condition]},
    }


def _template(namespace: str, count: int) -> Obj:
    meta = {"name": f"devices-{count}", "namespace": namespace}
    return {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": meta, "spec": {"spec": _devices(count)}}


def _devices(count: int) -> Obj:
    attribute = f"{names.GROUP_DOMAIN}/devicegroup{count}_id"
    constraints = [{"matchAttribute": attribute}] if count in (4, 8, 16) else []
    request = {"deviceClassName": names.DRIVER, "allocationMode": "ExactCount", "count": count}
    return {"devices": {"requests": [{"name": "neurons", "exactly": request}], "constraints": constraints}}


def _pod(name: str, namespace: str, template: str, created: str) -> Obj:
    claim = {"name": "neurons", "resourceClaimTemplateName": template}
    container = {"name": "main", "image": "train", "resources": {"claims": [{"name": "neurons"}]}}
    meta = {"name": name, "namespace": namespace, "uid": name, "creationTimestamp": created}
    spec = {"containers": [container], "resourceClaims": [claim]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}}


def _running(item: Obj) -> Obj:
    if item["kind"] == "Pod":
        item["status"] = {**item["status"], "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return item


def _waiting() -> Iterator[Obj]:
    """Yield two pods for which no node has enough connected devices, one with a wrong class, and a workload."""
    for number in range(23, 25):
        yield from _with_claim(_pod(f"llm-{number}", "research", "devices-16", "2026-06-01T08:22:00Z"), _devices(16))
    wrong = _devices(2)
    wrong["devices"]["requests"][0]["exactly"]["deviceClassName"] = "neurons.aws.com"
    yield from _with_claim(_pod("rerank-0", "serving", "rerank", "2026-06-01T08:51:00Z"), wrong)
    message = "12 groups of 4 nodes are needed, and 7 are free"
    yield _workload("llm-1t", 12, "2026-05-31T21:40:00Z", "InsufficientCapacity", message)


def _with_claim(pod: Obj, spec: Obj) -> Iterator[Obj]:
    """Yield a pod and the claim that kube-controller-manager makes for it."""
    meta = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
    name = f"{meta['name']}-neurons-x2k4p"
    status = {**pod["status"], "resourceClaimStatuses": [{"name": "neurons", "resourceClaimName": name}]}
    yield {**pod, "status": status}
    claim_meta = {"name": name, "namespace": meta["namespace"], "uid": name, "ownerReferences": [owner]}
    yield {"apiVersion": API, "kind": "ResourceClaim", "metadata": claim_meta, "spec": spec}


async def make(into: Path) -> None:
    """Write the pictures into a folder."""
    packages.require(PACKAGES, "the pictures of the page")
    made = session.of_file(fleet(), "production", NOW)
    async with made.served() as server, async_playwright() as playwright:
        program = shutil.which("chromium")
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for scheme, suffix in (("light", ""), ("dark", "-dark")):
            await _pictures(browser, opening.address(server.host, made.token), scheme, suffix, into)
        await browser.close()


async def _pictures(browser: Browser, address: str, scheme: str, suffix: str, into: Path) -> None:
    context = await browser.new_context(color_scheme="dark" if scheme == "dark" else "light", timezone_id="UTC")
    page = await context.new_page()
    await page.clock.set_fixed_time(NOW)
    await page.goto(address)
    for name, (link, words, height) in VIEWS.items():
        await page.set_viewport_size({"width": 1280, "height": height})
        await page.evaluate("link => { location.hash = link; }", link.format(node=_host(SHOWN)))
        await page.locator("main", has_text=words).wait_for()
        await page.locator("main", has_text="asking why").wait_for(state="hidden")
        await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        await page.screenshot(path=into / f"ui-{name}{suffix}.png")


def main(arguments: Sequence[str]) -> int:
    """Make the pictures, in docs/images or in the folder that is named."""
    into = Path(arguments[0]) if arguments else IMAGES
    asyncio.run(make(into))
    print(f"pictures of the page are in {into}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
