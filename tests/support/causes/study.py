"""One seeded case: break a fleet, ask `why` through an API server, and let the judges say what is true."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from hack.oracle.judge import Scheduler
from neuron_dra.ask.read import cluster
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.render.findings import Report
from neuron_dra.ask.why import answer
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.kube.config import KubeConfig
from tests.support.causes.after import GAVE_UP
from tests.support.causes.judge import Verdict, changed, verdicts
from tests.support.causes.situations import SITUATIONS, Situation
from tests.support.cluster_faults import waiting

VERSION: Final = "v1.37.0"
GRACE_S: Final = 30
UNKNOWN: Final = ("Unknown", "SchedulerSays")
"""Codes of findings that name no cause."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case showed.

    - `true`: the situations whose removal alone lets the pod run, or all of them if no single one does.
    - `verdict`: true, unknown or false, of the first cause; harmless if the pod runs with the faults.
    - `useless`: changes with which the pod does not run, and why.
    """

    seed: int
    situations: list[str]
    true: list[str]
    verdict: str
    code: str
    text: str
    changes: int
    useless: list[str]

    def line(self) -> str:
        """Return the outcome as a line of JSON."""
        return json.dumps(asdict(self))


def situations_of(seed: int) -> list[Situation]:
    """Return the situations of a seed: each in turn, alone in every third round, and else with another one."""
    first = SITUATIONS[seed % len(SITUATIONS)]
    if (seed // len(SITUATIONS)) % 3 == 0:
        return [first]
    others = [
        each
        for each in SITUATIONS
        if each is not first and each.fleet is first.fleet and not (each.places and first.places)
    ]
    rng = random.Random(seed)
    return [first, rng.choice(others)] if others else [first]


def broken(seed: int, situations: Sequence[Situation]) -> list[Obj]:
    """Return the seed's fleet with these faults; each is the same whatever the others are."""
    items = situations_of(seed)[0].fleet(random.Random(f"{seed} fleet"))
    for each in sorted(situations, key=lambda one: not one.places):
        each.fault(random.Random(f"{seed} {each.name}"), items)
    return items


def case(scheduler: Scheduler, seed: int) -> Outcome:
    """Return the outcome of a seed."""
    situations = situations_of(seed)
    without = [[other for other in situations if other is not each] for each in situations]
    now, healthy, *repaired = verdicts(scheduler, [broken(seed, each) for each in (situations, (), *without)])
    assert not healthy.objection, f"seed {seed}: without a fault: {healthy.objection}"
    ours = [each.name for each in situations]
    if not now.objection:
        return Outcome(seed, ours, [], "harmless", "", "", 0, [])
    enough = [each for each, verdict in zip(situations, repaired, strict=True) if not verdict.objection]
    true = enough or situations
    items = broken(seed, situations)
    _told(items, now)
    seen = asyncio.run(through_a_server(items))
    found = _asked(seen)
    first = found.findings[0]
    verdict = "true" if first.code in {code for each in true for code in each.codes} else "false"
    if verdict == "false" and first.code in UNKNOWN:
        verdict = "unknown"
    changes = [change for each in found.findings for change in each.changes]
    judged = verdicts(scheduler, [changed(list(map(dict, seen.objects.values())), each) for each in changes])
    useless = [f"{each.text}: {one.objection}" for each, one in zip(changes, judged, strict=True) if one.objection]
    return Outcome(seed, ours, [each.name for each in true], verdict, first.code, first.text, len(changes), useless)


def _told(items: list[Obj], verdict: Verdict) -> None:
    """Note in the pod what the scheduler said of it, as it does."""
    pod = waiting(items)
    if pod["spec"].get("nodeName"):
        return
    conditions = pod["status"].get("conditions") or []
    if verdict.said or not any(GAVE_UP in each["message"] for each in conditions):
        pod["status"]["conditions"] = []
    if verdict.said:
        condition = {"type": "PodScheduled", "status": "False", "reason": verdict.reason, "message": verdict.said}
        pod["status"]["conditions"] = [condition]


def _asked(seen: Snapshot) -> Report:
    pod = seen.get("Pod", "p", "default")
    assert pod is not None
    return answer.report(seen, "Pod", pod)


async def through_a_server(items: Sequence[Obj]) -> Snapshot:
    """Return the objects as they are read from an API server of the newest release."""
    async with EmbeddedApi(controllers=False) as api:
        api.answer_versions(VERSION)
        namespaces = {item["metadata"].get("namespace") for item in items} - {None, "default", "kube-system"}
        for name in sorted(namespaces):
            api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        api.register("resource.k8s.io", ("v1",), "DeviceTaintRule", "devicetaintrules", namespaced=False)
        api.register("", ("v1",), "ResourceQuota", "resourcequotas")
        api.register("scheduling.k8s.io", ("v1beta1",), "PodGroup", "podgroups")
        api.register("kueue.x-k8s.io", ("v1beta2",), "Workload", "workloads")
        text = json.dumps(sorted(items, key=lambda item: item["kind"] != "Pod"))
        for number in range(len(items)):
            item = json.loads(text)[number]
            made = api.create(item)
            if uid := item["metadata"].get("uid"):  # the server gives another one, to which later objects refer
                text = text.replace(json.dumps(uid), json.dumps(made["metadata"]["uid"]))
        for item in json.loads(text):
            meta = item["metadata"]
            if meta.get("deletionTimestamp"):
                api.delete(item["kind"], meta["name"], meta["namespace"], grace_s=GRACE_S)
        found = await asyncio.to_thread(cluster.read, KubeConfig(api.url), "default")
        return copy.deepcopy(found)
