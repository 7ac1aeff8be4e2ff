"""`why` on seeded single and double faults, with every object read from an API server (17, acceptance 2).

NEURON_DRA_FAULTS is the number of seeds; make acceptance tries 1,000.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
from collections.abc import Sequence

import pytest

from neuron_dra.ask.read import cluster
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.kube.config import KubeConfig
from tests.support.cluster_faults import FAULTS, LAST, Fault
from tests.unit.test_why_faults import broken, check_changes, report

SEEDS = int(os.environ.get("NEURON_DRA_FAULTS", "60"))
AT_ONCE = 20


def faults_of(seed: int) -> list[Fault]:
    """Return one fault, or two of which at most one places pods of its own."""
    rng = random.Random(seed)
    while True:
        found = rng.sample(list(FAULTS), rng.choice((1, 2)))
        if len(set(found) & set(LAST)) < 2:
            return found


async def through_a_server(items: Sequence[Obj]) -> list[Obj]:
    """Return the objects as an API server lists them."""
    async with EmbeddedApi(controllers=False) as api:
        namespaces = {item["metadata"].get("namespace") for item in items} - {None, "default", "kube-system"}
        for name in sorted(namespaces):
            api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        api.register("resource.k8s.io", ("v1",), "DeviceTaintRule", "devicetaintrules", namespaced=False)
        api.register("", ("v1",), "ResourceQuota", "resourcequotas")
        api.register("kueue.x-k8s.io", ("v1beta2",), "Workload", "workloads")
        text = json.dumps(sorted(items, key=lambda item: item["kind"] != "Pod"))
        for number in range(len(items)):
            item = json.loads(text)[number]
            made = api.create(item)
            if uid := item["metadata"].get("uid"):  # the server gives another one, to which later objects refer
                text = text.replace(json.dumps(uid), json.dumps(made["metadata"]["uid"]))
        found = await asyncio.to_thread(cluster.read, KubeConfig(api.url), "default")
        return [copy.deepcopy(dict(item)) for item in found.objects.values()]


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
async def test_cause_is_true_and_changes_work(first: int) -> None:
    wrong = []
    for seed in range(first, min(first + AT_ONCE, SEEDS)):
        faults = faults_of(seed)
        items = await through_a_server(broken(seed, faults))
        found = report(items)
        check_changes(items, found)
        if found.findings[0].code not in {"Unknown", *(code for fault in faults for code in FAULTS[fault])}:
            wrong.append((seed, [fault.__name__ for fault in faults], found.findings[0]))
    assert len(wrong) <= AT_ONCE * 0.05, wrong
