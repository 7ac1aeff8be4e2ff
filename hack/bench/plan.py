"""Measures decisions alone, in process and without requests: `python -m hack.bench.plan`.

It prints a row for each scene and number of nodes: CPU seconds of the first plan, of the longest one, and of all plans
until every workload has been decided. For single workloads of 8 nodes these are the median and the longest of many plans,
each for another one.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

from hack.bench.ultraservers import ultraserver
from neuron_dra.planner.decisions.actions import Action, CreateUltraServer, LabelNode, Plan, WriteUltraServerStatus
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed import decode, slices
from neuron_dra.planner.plan import planning

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
PASSES = 500
SINGLE = 200


def fleet(nodes: int) -> FleetIndex:
    """Return the index of a free fleet of UltraServers with four nodes each, for which nothing is left to write."""
    index = FleetIndex()
    for number in range(nodes // 4):
        for item in ultraserver(f"u{number:06}"):
            name = item["metadata"]["name"]
            item["metadata"].setdefault("uid", f"uid-{name}")
            if item["kind"] == "Node":
                index.put_node(name, decode.cluster_node(item))
            else:
                one = slices.published_slice(item)
                for found in slices.published_nodes([one] if one is not None else []):
                    index.put_published(found.name, found)
    index.refresh()
    while actions := planning.plan_of(index, NOW).actions:
        for action in actions:
            write(index, action)
        index.refresh()
    return index


def write(index: FleetIndex, action: Action) -> None:
    """Store an action of a fleet without workloads, as the API server does. Raises TypeError for any other."""
    match action:
        case CreateUltraServer(body=body):
            meta = {**body["metadata"], "uid": body["metadata"]["name"], "resourceVersion": "1", "generation": 1}
            index.put_ultraserver(meta["name"], decode.ultraserver({**body, "metadata": meta}))
        case WriteUltraServerStatus(name=name, status=status):
            stored = index.ultraserver_by_name[name]
            index.put_ultraserver(name, replace(stored, status=status))
        case LabelNode(name=name, labels=changes):
            node = index.node_by_name[name]
            labels = {key: value for key, value in {**node.labels, **changes}.items() if value is not None}
            index.put_node(name, replace(node, labels=labels))
        case _:
            raise TypeError(f"{type(action).__name__} is no write of a fleet without workloads")


def submit(index: FleetIndex, number: int, size: int, count: int, namespace: str = "many") -> None:
    """Put a workload that was created `number` milliseconds after the start."""
    name = f"w{number:05}"
    created = NOW - datetime.timedelta(hours=1) + datetime.timedelta(seconds=number)
    item = {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
        "spec": {
            "instanceType": "trn3.48xlarge",
            "topologySize": size,
            "serverCount": count,
            "resourceClaimTemplate": {"name": f"{name}-template"},
        },
    }
    index.put_workload(f"{namespace}/{name}", decode.workload(item))


def passes(index: FleetIndex) -> Iterator[tuple[float, Plan]]:
    """Plan until each workload has a verdict; nothing is written in between, and nothing was decided before."""
    kept = replace(planning.plan_of(index, NOW).kept, decided={})
    for _ in range(PASSES):
        began = time.process_time()
        plan = planning.plan_of(index, NOW, kept=kept)
        kept = plan.kept
        yield time.process_time() - began, plan
        if len(plan.verdicts) == len(index.workloads):
            return


def row(scene: str, nodes: int, index: FleetIndex) -> str:
    """Return the measured row of a scene."""
    times = [seconds for seconds, _ in passes(index)]
    return _line(scene, nodes, times[0], max(times), sum(times))


def single(nodes: int) -> str:
    """Return the measured row of workloads of 8 nodes that come one at a time, in a fleet with nothing else to do."""
    index = fleet(nodes)
    kept = planning.plan_of(index, NOW).kept
    times = []
    for number in range(SINGLE):
        submit(index, number, 4, 2)
        began = time.process_time()
        plan = planning.plan_of(index, NOW, kept=kept)
        times.append(time.process_time() - began)
        [verdict] = plan.verdicts.values()
        assert verdict.state == "Allocating", verdict
        index.put_workload(f"many/w{number:05}", None)
    return _line("a workload of 8 nodes", nodes, statistics.median(times), max(times), sum(times))


def _line(scene: str, nodes: int, *seconds: float) -> str:
    return f"{scene:<28} {nodes:>8,} " + " ".join(f"{each:>9.5f}" for each in seconds)


def burst(nodes: int, workloads: int = 100) -> FleetIndex:
    """Return a fleet on which as many workloads of 8 nodes were created at once."""
    index = fleet(nodes)
    for number in range(workloads):
        submit(index, number, 4, 2)
    return index


def queue(nodes: int, workloads: int = 2500) -> FleetIndex:
    """Return a fleet for which one user's distinct requests, each more than there is, wait."""
    index = fleet(nodes)
    for number in range(workloads):
        submit(index, number, (1, 2, 4)[number % 3], 1 + min(1023, nodes // 4 + 1 + number // 3))
    return index


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[2000, 20000])
    chosen = parser.parse_args()
    print(f"{'scene':<28} {'nodes':>8} {'first':>9} {'longest':>9} {'all':>9}")
    for nodes in chosen.nodes:
        print(single(nodes), flush=True)
        print(row("100 workloads at once", nodes, burst(nodes)), flush=True)
    print(row("2,500 distinct waiting", 2000, queue(2000)), flush=True)


if __name__ == "__main__":
    main()
