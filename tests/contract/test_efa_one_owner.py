"""No EFA interface gets a second owner: random sequences of managers, looks and claims on a virtual clock (4.10)."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import os
import random
import socket
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest

from neuron_dra.core import cdi, efa
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef
from neuron_dra.core.efa import EfaReading, Interface
from neuron_dra.errors import ClaimError
from neuron_dra.node.efa.admission import EfaAdmission
from neuron_dra.node.timing import DEFAULT_TIMING
from tests.contract.test_efa_managers import SIGNS, Looks, Node, looks_of, pods, settings_of
from tests.support.pod_resources import NoPods, PodResources

SEQUENCES: Final = 10_000 if os.environ.get("NEURON_DRA_LONG") else 200
PERIOD_S: Final = DEFAULT_TIMING.publish.device_plugin_s
LENGTH_S: Final = 45.0
LONGEST_WATCH_S: Final = 5.0  # until a watch shows a change
LONGEST_REQUEST_S: Final = 20.0  # from the read of a claim to its commit, if the API server or the disk is slow
SOCKETS: Final = {
    "registration": "registry/dra.net-reg.sock",
    "endpoint": "plugins/dra.net/dra.sock",
    "device plugin": "device-plugins/aws-efa-device-plugin.sock",
}
WATCHED: Final = tuple(sign for sign in SIGNS if sign not in SOCKETS and sign != "pod")
INTERFACE: Final = Interface("0000:56:00.0", "rdmap86s0", 0)
READING: Final = EfaReading({INTERFACE.name: INTERFACE})
CLAIM: Final = Claim(ClaimRef("ml", "job", "uid"), (AllocatedDevice("efas", "node-a", INTERFACE.name),))


@dataclass
class OneNode(Node):
    """A node with one interface, whose claim is always the same."""

    known: asyncio.Event = field(default_factory=asyncio.Event)
    watch: efa.Watch = field(default_factory=dict)
    device_files: cdi.DeviceFiles = field(default_factory=cdi.DeviceFiles)

    async def fetch(self, ref: ClaimRef) -> Claim:
        return CLAIM

    def read_now(self, device_names: Collection[str]) -> EfaReading:
        return self.reading


class World:
    """The other managers of a node as they are, and as this driver sees them."""

    def __init__(self, root: Path, node: OneNode, kubelet: PodResources) -> None:
        self._root, self._node, self._kubelet = root, node, kubelet
        self.since: dict[str, float] = {}  # of each sign that is there now
        self._shown: frozenset[str] = frozenset()
        self._servers = contextlib.ExitStack()

    def change(self, sign: str, now: float) -> None:
        """Let a sign appear or disappear; a watch shows it later."""
        if self.since.pop(sign, None) is None:
            self.since[sign] = now
        self._servers.close()
        for name, path in SOCKETS.items():
            if name in self.since:
                server = self._servers.enter_context(socket.socket(socket.AF_UNIX))
                server.bind(str(self._root / path))
                self._servers.callback((self._root / path).unlink)
                server.listen()
        self._kubelet.body = pods(has_interface="pod" in self.since)

    def show(self, sign: str) -> None:
        """Show a sign as it is now, as a watch does."""
        is_there = sign in self.since
        self._shown = self._shown | {sign} if is_there else self._shown - {sign}
        self._node.show(self._shown)
        self._node.reading = replace(READING, is_exclusive="exclusive" in self._shown)

    def end(self) -> None:
        for sign in list(self.since):
            self.change(sign, 0.0)
        for sign in WATCHED:
            self.show(sign)


def events(rng: random.Random) -> list[tuple[float, str, str]]:
    """Return the times at which signs change and claims are read, and at which watches and commits follow."""
    listed = []
    for _ in range(rng.randint(1, 5)):
        at, sign = rng.uniform(0, LENGTH_S), rng.choice(SIGNS)
        listed.append((at, "change", sign))
        if sign in WATCHED:
            listed.append((at + rng.uniform(0, LONGEST_WATCH_S), "show", sign))
    for _ in range(rng.randint(1, 4)):
        listed.append((rng.uniform(0, LENGTH_S), "read", ""))
    first_look = rng.uniform(0, PERIOD_S)
    looks = itertools.takewhile(lambda at: at < LENGTH_S + LONGEST_REQUEST_S, itertools.count(first_look, PERIOD_S))
    return [*listed, *((at, "look", "") for at in looks)]


async def run(rng: random.Random, world: World, looks: Looks, admission: EfaAdmission, counts: Counter[str]) -> None:
    """Run one sequence, and check each commit."""
    queue = events(rng)
    heapq.heapify(queue)
    await looks.look()
    while queue:
        now, what, sign = heapq.heappop(queue)
        if what == "change":
            world.change(sign, now)
        elif what == "show":
            world.show(sign)
        elif what == "look":
            await looks.look()
        elif what == "read":
            with contextlib.suppress(ClaimError):
                await admission.fetch(CLAIM.ref)
                heapq.heappush(queue, (now + rng.expovariate(1 / 2) % LONGEST_REQUEST_S, "commit", ""))
        elif what == "commit":
            counts[commit(admission, world, now)] += 1
    world.end()


def commit(admission: EfaAdmission, world: World, now: float) -> str:
    """Commit the claim; check that no other manager has had the interface for longer than the period of the looks."""
    try:
        admission.decide(CLAIM, [])
    except ClaimError:
        return "rejected"
    late = {sign: now - since for sign, since in world.since.items() if now - since > PERIOD_S}
    assert late == {}, f"prepared {late} seconds after another manager appeared"
    assert not SOCKETS.keys() & world.since.keys(), "prepared while another manager's socket answered"
    return "prepared"


@pytest.mark.timeout(900)
async def test_no_claim_is_prepared_long_after_another_manager_appeared(short_path: Path) -> None:
    settings, node, counts = settings_of(short_path), OneNode(reading=READING), Counter[str]()
    node.known.set()
    looks = looks_of(settings, node)
    admission = EfaAdmission(
        settings,
        node,  # type: ignore[arg-type]  # it has the methods and attributes that are used
        node,  # type: ignore[arg-type]
        looks.managers,
        deadline_s=1.0,
    )
    async with PodResources(NoPods(), Path(settings.kubelet_pod_resources_socket)) as kubelet:
        world = World(short_path, node, kubelet)
        for seed in range(SEQUENCES):
            await run(random.Random(seed), world, looks, admission, counts)
    assert counts["prepared"] > SEQUENCES / 10, counts
    assert counts["rejected"] > SEQUENCES / 50, counts
