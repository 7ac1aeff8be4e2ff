"""The invariants that must hold during the chaos run and at its end."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from hack.bed import deployed
from hack.bed.deployed import cdi_claims, is_ready, neurons, prepared
from hack.bed.errors import BedError
from hack.bed.real_cluster import BedNode, CommandFailedError, Namespace, TestBed, eventually
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.wire import Obj

PLAIN = {"c-0": "trn2.48xlarge", "c-1": "trn2.48xlarge"}
TEMPLATES = {"one": 1, "four": 4, "half": 8, "all": 16}
GROUPS, DEVICES = (4, 8), 16
CALM_S = 300  # time to recover at the end


@dataclass(slots=True)
class Run:
    """One run: the desired state, the events so far, and the violations."""

    seed: int
    bed: TestBed
    place: Namespace
    nodes: dict[str, BedNode]
    started: float = field(default_factory=time.monotonic)
    pods: dict[str, str] = field(default_factory=dict)  # wanted pods: name -> template
    workloads: dict[str, int] = field(default_factory=dict)  # wanted workloads: name -> nodes
    held: dict[tuple[str, str], set[int]] = field(default_factory=dict)  # devices that a pod of a node ever had
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def note(self, text: str) -> None:
        """Print a line about the run."""
        print(f"{time.monotonic() - self.started:7.1f} s  {text}", flush=True)

    def violated(self, text: str) -> None:
        """Record a violation."""
        if text not in self.violations:
            self.violations.append(text)
            self.note(f"VIOLATION: {text}")


def look(run: Run) -> None:
    """Check the invariants that must hold at all times."""
    with contextlib.suppress(BedError, CommandFailedError, subprocess.TimeoutExpired):
        claims = run.bed.get("resourceclaims", "-A")["items"]
        holders: dict[tuple[str, str], str] = {}
        for claim in claims:
            for result in allocated(claim):
                key = result["pool"], result["device"]
                other = holders.setdefault(key, claim["metadata"]["uid"])
                if other != claim["metadata"]["uid"]:
                    run.violated(f"device {key} is allocated to the claims {other} and {claim['metadata']['uid']}")
    for node in run.nodes.values():
        held: dict[int, str] = {}
        for uid, ids in checkpoint(node):
            for device_id in ids:
                if held.setdefault(device_id, uid) != uid:
                    run.violated(f"neuron{device_id} of {node.name} is prepared for {held[device_id]} and {uid}")


def note_holders(run: Run, node: str) -> None:
    """Note which devices of a node the claims of each pod have."""
    for claim in run.place.get("resourceclaims")["items"]:
        ids = {int(each["device"].rpartition("-")[2]) for each in allocated(claim) if each["pool"] == node}
        for user in claim["status"].get("reservedFor") or ():
            run.held.setdefault((node, user["name"]), set()).update(ids)


def allocated(claim: Obj) -> list[Obj]:
    """Return the results of a claim that belong to this driver."""
    devices = (claim.get("status", {}).get("allocation") or {}).get("devices") or {}
    return [result for result in devices.get("results") or [] if result["driver"] == "neuron.aws.com"]


def checkpoint(node: BedNode) -> Iterator[tuple[str, list[int]]]:
    """Yield the claims in a node's checkpoint with their Neuron devices; nothing while the node is down."""
    claims: Mapping[str, PreparedClaim] = {}
    with contextlib.suppress(BedError, CommandFailedError, subprocess.TimeoutExpired, OSError):
        claims = deployed.checkpoint(node).claims
    for uid, claim in claims.items():
        yield uid, [device_id for device in claim.devices for device_id in device.device_ids]


def settle(run: Run) -> None:
    """Wait for the end state; a part that is not reached is a violation, with the reason."""
    reach(run, "every pod that fits runs", everything_runs)
    reach(run, "CDI files, checkpoint and API server agree", all_agree)
    reach(run, "no two pods of a node see the same device", nothing_shared)


def reach(run: Run, what: str, check: Callable[[Run], str]) -> None:
    """Wait until a check finds nothing; that it still does after CALM_S is a violation."""
    why: list[str] = []

    def holds() -> bool:
        try:
            why[:] = [check(run)]
        except (BedError, CommandFailedError, subprocess.TimeoutExpired, AssertionError) as err:
            why[:] = [str(err)[:2000]]
        return not why[0]

    try:
        eventually(what, holds, CALM_S, 1.0)
    except AssertionError:
        run.violated(f"{what}: not after {CALM_S} s: {why[0]}")


def nothing_held(run: Run) -> str:
    """Return what is still held, or exists, after every pod and claim was deleted.

    tests/support/free_node.py has the same invariant for the scripted kubelet.
    """
    left = [claim["metadata"]["name"] for claim in run.bed.get("resourceclaims", "-A")["items"] if allocated(claim)]
    if left:
        return f"claims are left: {left}"
    for node in run.nodes.values():
        if prepared(node) or cdi_claims(node):
            return f"{node.name} has no claim, and holds: checkpoint {prepared(node)}, CDI {cdi_claims(node)}"
    return ""


def everything_runs(run: Run) -> str:
    """Return the pods and workloads that could run but do not."""
    items = {item["metadata"]["name"]: item for item in run.place.get("pods")["items"]}
    left = [name for name, item in items.items() if "job" not in item["metadata"].get("labels", {})
            and name not in run.pods]  # fmt: skip
    if left:
        return f"pods that were deleted are still there: {left}"
    waiting = [name for name in run.pods if not is_ready(items.get(name, {}))]
    free = {
        name: {*range(DEVICES)} - {each for _, ids in checkpoint(run.nodes[name]) for each in ids} for name in PLAIN
    }
    stuck = [name for name in waiting if any(has_room(ids, TEMPLATES[run.pods[name]]) for ids in free.values())]
    bound = [name for name in waiting if items.get(name, {}).get("spec", {}).get("nodeName")]
    if stuck or bound:
        return f"pods that could run and do not: {sorted({*stuck, *bound})}, free devices {free}"
    for name, nodes in run.workloads.items():
        mine = [item for item in items.values() if item["metadata"].get("labels", {}).get("job") == name]
        running = [item for item in mine if is_ready(item) and "deletionTimestamp" not in item["metadata"]]
        if len(running) != nodes:
            state = run.place.get("nusw", name).get("status", {})
            return f"workload {name}: {len(running)} of {nodes} pods run; {json.dumps(state)[:1000]}"
    return ""


def has_room(free: set[int], count: int) -> bool:
    """Return True if a claim of the templates fits a node with these free devices; groups are of neighbors."""
    if count not in GROUPS:
        return len(free) >= count
    return any(free >= {*range(first, first + count)} for first in range(0, DEVICES, count))


def all_agree(run: Run) -> str:
    """Return where CDI files, checkpoint and API server differ."""
    claims = run.bed.get("resourceclaims", "-A")["items"]
    for node in run.nodes.values():
        in_api = {claim["metadata"]["uid"] for claim in claims if claim["status"].get("reservedFor")
                  and any(result["pool"] == node.name for result in allocated(claim))}  # fmt: skip
        if not in_api == prepared(node) == cdi_claims(node):
            return f"{node.name}: API {in_api}, checkpoint {prepared(node)}, CDI {cdi_claims(node)}"
    return ""


def nothing_shared(run: Run) -> str:
    """Return which pods of a node see the same device, checked inside the pods."""
    seen: dict[tuple[str, int], str] = {}
    for item in run.place.get("pods")["items"]:
        name, node = item["metadata"]["name"], item["spec"].get("nodeName")
        if not is_ready(item) or "deletionTimestamp" in item["metadata"]:
            continue
        devices = neurons(run.place, name)
        if name in run.pods and len(devices) != TEMPLATES[run.pods[name]]:
            return f"pod {name} asked for {TEMPLATES[run.pods[name]]} devices and sees {devices}"
        for device_id in devices:
            if seen.setdefault((node, device_id), name) != name:
                return f"neuron{device_id} of {node} is seen by the pods {seen[node, device_id]} and {name}"
    return ""
