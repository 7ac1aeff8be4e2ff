"""The pictures of docs/command-line.md: pods placed on fleets that do not exist, drawn by `neuron-dra topology`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.simulate import simulation
from neuron_dra.ask.topology import fleet_svg
from neuron_dra.ask.topology import svg as topology_svg
from neuron_dra.ask.world import fleet, imagined
from neuron_dra.ask.world.world import World
from neuron_dra.core import names
from neuron_dra.core.wire import Obj

API = "resource.k8s.io/v1"
GROUPS = {4: f"{names.GROUP_DOMAIN}/devicegroup4_id", 8: f"{names.GROUP_DOMAIN}/devicegroup8_id"}


def pages() -> Mapping[str, Callable[[], str]]:
    """Return the pictures by their path below docs/."""
    return {
        "images/topology-inf2.svg": lambda: _node("1 x inf2.48xlarge", [("llm-0", 2), ("llm-1", 2), ("embed", 1)]),
        "images/topology-trn1.svg": lambda: _node("1 x trn1.32xlarge", [("train", 8), ("tune", 4)]),
        "images/topology-trn2.svg": lambda: _node(
            "1 x trn2.48xlarge", [("train", 8), ("tune", 4), ("try", 1)], sick=14
        ),
        "images/topology-trn2u.svg": lambda: _ultraserver("trn2u.48xlarge"),
        "images/topology-trn3.svg": lambda: _ultraserver("trn3.48xlarge"),
        "images/topology-fleet.svg": _fleet,
    }


def _template(count: int) -> Obj:
    request = {"deviceClassName": names.DRIVER, "allocationMode": "ExactCount", "count": count}
    constraints = [{"matchAttribute": GROUPS[count]}] if count in GROUPS else []
    devices = {"requests": [{"name": "neurons", "exactly": request}], "constraints": constraints}
    metadata = {"name": f"devices-{count}", "namespace": "default"}
    return {
        "apiVersion": API,
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"spec": {"devices": devices}},
    }


def _placed(text: str, pods: Sequence[tuple[str, int]], sick: int | None = None, every: int = 1) -> World:
    items = [*imagined.fleet(text, "picture"), *(_template(count) for count in {count for _, count in pods})]
    slices = [item for item in items if item["kind"] == "ResourceSlice"]
    for item in slices[every - 1 :: every]:
        if sick is not None:
            device = item["spec"]["devices"][sick]
            device["attributes"]["unhealthy"] = {"string": "hbm"}
            device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "hbm", "effect": "NoSchedule"}]
    trial = simulation.Simulation(World(snapshot.build(items)))
    for outcome in trial.run(_pod(name, count) for name, count in pods):
        assert outcome.runs, (text, outcome)
    return trial.world


def _pod(name: str, count: int) -> Obj:
    claim = {"name": "neurons", "resourceClaimTemplateName": f"devices-{count}"}
    spec = {"containers": [{"name": "main"}], "resourceClaims": [claim]}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec, "status": {}}


def _node(text: str, pods: Sequence[tuple[str, int]], sick: int | None = None) -> str:
    return topology_svg.node(fleet.nodes(_placed(text, pods, sick))[0])


def _ultraserver(kind: str) -> str:
    world = _placed(f"1 x ultraserver {kind}", [("rank-0", 1), ("rank-1", 1)])
    return topology_svg.ultraserver(*next(iter(fleet.ultraservers(fleet.nodes(world)).items())))


def _fleet() -> str:
    pods = [(f"job-{number}", (8, 4, 2, 4, 8, 1, 3)[number % 7]) for number in range(220)]
    text = "30 x inf2.48xlarge, 60 x trn2.48xlarge, 10 x trn1.32xlarge"
    return fleet_svg.fleet(fleet.nodes(_placed(text, pods, sick=11, every=9)))
