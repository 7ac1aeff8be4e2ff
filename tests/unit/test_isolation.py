"""An error in the plan of one object is that object's condition; all others are planned as without it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from hack.bench.ultraservers import ultraserver
from neuron_dra.planner.decisions.actions import Evict, Plan, WriteUltraServerStatus, WriteWorkloadStatus
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.places import everywhere
from neuron_dra.planner.observed.model import UltraServer, Workload
from neuron_dra.planner.plan.planning import plan_of
from tests.unit.ultraserver_world import World

IDENTITY = ("namespace", "name", "uid", "version", "status", "problem", "created", "groups")
BAD = (None, "x", -7, ())


def world() -> World:
    """`one` is Allocated, `next` has a Pending reservation, `new` has none."""
    made = World([item for name in ("u0", "u1", "u2") for item in ultraserver(name)])
    made.settle()
    made.submit("one", size=4)
    made.settle()
    made.submit("next", size=4)
    made.step()
    made.step()
    made.submit("new", size=2)
    return made


def planned(made: World, name: str = "", **changes: Any) -> Plan:
    """Plan with changed fields of one workload, as no decoder returns them."""
    snapshot = made.snapshot()
    changed = (replace(each, **changes) if each.name == name else each for each in snapshot.workloads)
    return plan_of(FleetIndex.of(replace(snapshot, workloads=tuple(changed))), made.now)


def verdicts(made: World, plan: Plan, *, but: str) -> dict[str, Any]:
    uids = {item["metadata"]["uid"]: item["metadata"]["name"] for item in made.all("NeuronUltraServerWorkload")}
    return {uids[uid]: verdict for uid, verdict in plan.verdicts.items() if uids[uid] != but}


def test_error_about_a_workload_changes_no_other() -> None:
    """Whatever raises in a decision, and wherever: what it had decided so far is taken back."""
    raised = set()
    for name in ("one", "next", "new"):
        for field in (each.name for each in fields(Workload) if each.name not in IDENTITY):
            for bad in BAD:
                made = world()
                uid = made.workload(name)["metadata"]["uid"]
                plan = planned(made, name, **{field: bad})
                found = plan.verdicts.get(uid)
                if found is None or found.reason != "InternalError":
                    continue
                raised.add((name, field))
                assert list(plan.errors) == [f"ml/{name}"]
                assert made.workload(name).get("status", {}).get("state", "Pending") == found.state
                mine = [each for each in plan.actions if getattr(each, "owners", None) == {uid}]
                assert not mine
                assert not [each for each in plan.actions if isinstance(each, Evict)]
                [status] = [a for a in plan.actions if isinstance(a, WriteWorkloadStatus) and a.name == name]
                assert status.status["conditions"][0]["reason"] == "InternalError"
                writes = [each for each in plan.actions if isinstance(each, WriteUltraServerStatus)]
                assert not [each for each in writes if uid in each.owners]
                if name != "new" and field != "instance_type":
                    sound = planned(made)
                    assert verdicts(made, plan, but=name) == verdicts(made, sound, but=name)
    assert {name for name, _ in raised} == {"one", "next", "new"}


def test_error_about_an_ultraserver_closes_it_alone() -> None:
    made = world()
    snapshot = made.snapshot()

    def damaged(each: UltraServer) -> UltraServer:
        return replace(each, spec={"topology": 7}) if each.name == "us-u0" else each

    index = FleetIndex.of(replace(snapshot, ultraservers=tuple(map(damaged, snapshot.ultraservers))))
    plan = plan_of(index, made.now)
    assert list(plan.errors) == ["us-u0"]
    [write] = [each for each in plan.actions if isinstance(each, WriteUltraServerStatus) and each.name == "us-u0"]
    [degraded] = [each for each in write.status["conditions"] if each["type"] == "Degraded"]
    assert (degraded["status"], degraded["reason"]) == ("True", "InternalError")
    assert (
        write.status["allocations"]
        == made.get("NeuronUltraServer", "us-u0", "neuron-dra-driver")["status"]["allocations"]
    )
    free = index.places("trn3.48xlarge", 4).best(everywhere("neuron_node"))
    assert "us-u0" not in [slot.ultraserver for slot in free]


def test_workload_with_a_wrong_type_keeps_its_nodes() -> None:
    made = world()
    made.workload("one")["spec"]["serverCount"] = "many"
    plan = made.plan()
    found = plan.verdicts[made.workload("one")["metadata"]["uid"]]
    assert (found.state, found.reason) == ("Allocated", "InternalError")
    assert "spec.serverCount is 'many': it must be a whole number" in found.message
    assert not [each for each in plan.actions if isinstance(each, WriteUltraServerStatus) and each.name == "us-u0"]


def test_workload_with_a_wrong_type_is_released() -> None:
    made = world()
    made.workload("one")["spec"]["serverCount"] = "many"
    made.delete_workload("one")
    for _ in range(20):
        made.step()
        made.later(1)
    assert "one" not in [item["metadata"]["name"] for item in made.all("NeuronUltraServerWorkload")]
    assert made.reserved("one") == {}
