"""What could not be read is unknown in `status` and `why`, never absent (17.1, 17.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.render.findings import Report
from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.why import answer, jobs
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import cluster_faults as faults
from tests.support import small_clusters as small
from tests.support.reported_clusters import event
from tests.unit.test_why_pod import ultraserver_cluster

FORBIDDEN = "forbidden"


def without(items: Sequence[Obj], *kinds: str) -> Snapshot:
    """The cluster as a person sees it who may not list these kinds."""
    built = snapshot.build([item for item in items if item["kind"] not in kinds])
    return dataclasses.replace(built, left_out=dict.fromkeys(kinds, FORBIDDEN))


def screen(found: Snapshot, *, wide: bool = False) -> list[str]:
    return status_text.lines(World(found, proposes=False), "", wide=wide)


def why(found: Snapshot, kind: str, name: str, namespace: str = "default") -> Report:
    item = found.get(kind, name, namespace)
    assert item is not None
    return answer.report(found, kind, item)


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("ResourceClaim", "trn2.48xlarge  2      32 devices  ?     0          0"),
        ("ResourceSlice", "trn2.48xlarge  2      ?          ?     ?          ?"),
        ("DeviceTaintRule", "trn2.48xlarge  2      32 devices  4     ?          0"),
    ],
)
def test_status_shows_numbers_that_are_unknown(kind: str, row: str) -> None:
    lines = screen(without(faults.healthy(), kind))
    assert lines[0] == f"not seen: {kind} (forbidden)"
    assert row in lines
    assert "WRONG" not in lines
    data = status_text.data(World(without(faults.healthy(), kind)), "")
    assert data["notSeen"] == [{"kind": kind, "reason": FORBIDDEN}]
    assert data["types"][0]["free"] is None
    assert data["nodes"][0]["free"] is None


def test_status_does_not_call_nodes_free_without_the_claims() -> None:
    lines = screen(without(faults.healthy(), "ResourceClaim"), wide=True)
    assert "b     trn2.48xlarge  ?     ?     0          unknown" in lines


def test_status_without_pods_or_nodes_says_unknown() -> None:
    assert screen(without(faults.healthy(), "Pod"))[-1] == "unknown whether pods wait"
    assert screen(without(faults.healthy(), "Node"))[-1] == "unknown: the nodes could not be read"


def test_status_doubts_causes_that_are_absent_objects() -> None:
    items = faults.healthy()
    lines = screen(without(items, "DeviceClass"))
    place = next(number for number, line in enumerate(lines) if line.startswith("WAITING"))
    assert lines[place + 1].startswith("default/p: unknown: ")


@pytest.mark.parametrize(
    ("kind", "name", "hidden"),
    [("Node", "b", "ResourceSlice"), ("Node", "b", "DeviceTaintRule"), ("Pod", "p", "ResourceQuota")],
)
def test_why_is_unknown_where_the_cause_may_not_have_been_seen(kind: str, name: str, hidden: str) -> None:
    items = faults.healthy()
    faults.uncreate(items)
    found = why(without(items, hidden), kind, name, "" if kind == "Node" else "default")
    assert found.findings[0].code == "Unknown", found
    assert hidden in found.findings[0].text
    assert found.notes == (f"not seen: {hidden} (forbidden)",)
    assert not found.fine


def test_claim_without_a_pod_is_unknown_if_pods_were_not_seen() -> None:
    found = why(without(faults.healthy(), "Pod"), "ResourceClaim", "p-neurons-x")
    assert found.findings[0].code == "Unknown"


def of_a_job(items: list[Obj]) -> list[Obj]:
    """Return the objects, of which pod p belongs to the Job train."""
    pod = faults.the(items, "Pod", "p")
    assert pod is not None
    pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "uid": "j"}]
    return items


@pytest.mark.parametrize("hidden", ["DeviceClass", "ResourceClaimTemplate"])
def test_cause_of_a_job_is_unknown_where_that_of_its_pod_is(hidden: str) -> None:
    items = of_a_job(faults.healthy())
    faults.uncreate(items)
    seen = without(items, hidden)
    found = jobs.report(World(seen, proposes=False), "Job", "train", "default")
    assert found is not None
    assert [each.code for each in found.findings] == [each.code for each in why(seen, "Pod", "p").findings]
    assert found.findings[0].code == "Unknown"
    assert f"not seen: {hidden} (forbidden)" in found.notes


def test_job_whose_pods_run_says_what_was_not_seen() -> None:
    items = of_a_job(faults.healthy())
    pod = faults.the(items, "Pod", "p")
    assert pod is not None
    pod["status"]["phase"] = "Succeeded"
    found = jobs.report(World(without(items, "DeviceTaintRule"), proposes=False), "Job", "train", "default")
    assert found is not None
    assert (found.fine, found.notes) == (True, ("not seen: DeviceTaintRule (forbidden)",))


def test_event_about_a_claim_is_a_cause_without_the_quotas() -> None:
    items = faults.healthy()
    faults.uncreate(items)
    items.append(event("FailedResourceClaimCreation", "exceeded quota: team"))
    found = why(without(items, "ResourceQuota"), "Pod", "p")
    assert found.findings[0].text == "its claim could not be created: exceeded quota: team"


def test_held_devices_of_a_node_are_a_lower_bound_without_the_claims() -> None:
    assert why(without(faults.healthy(), "ResourceClaim"), "Node", "b", "").state == (
        "publishes 16 devices, at least 0 held"
    )


def test_ultraserver_nodes_are_not_free_without_the_claims() -> None:
    found = why(without(ultraserver_cluster(), "ResourceClaim"), "NeuronUltraServerWorkload", "job", "ml")
    assert ("UltraServer", "us-0: all 4 nodes: unknown") in (found.findings[0].facts)


def budget(name: str = "small", allowed: int = 0, generation: int = 1, **spec: Any) -> Obj:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default", "generation": generation},
        "spec": {"selector": {"matchLabels": {"app": "small"}}, **spec},
        "status": {
            "disruptionsAllowed": allowed,
            "currentHealthy": 1,
            "desiredHealthy": 1 - allowed,
            "observedGeneration": 1,
        },
    }


def in_the_way(*budgets: Obj, ready: str = "True") -> list[Obj]:
    """A pod of whole nodes waits; one pod with two devices is in its way, and fits on the other node."""
    items = small.base("a", "b")
    items += small.running(items, "big", 14, "b")
    items += small.running(items, "small", 2, "a")
    pod = faults.the(items, "Pod", "small")
    assert pod is not None
    pod["spec"].pop("nodeSelector")
    pod["metadata"]["labels"] = {"app": "small"}
    pod["status"]["conditions"] = [{"type": "Ready", "status": ready}]
    made = small.template("whole", 16)
    return [*items, made, *small.created(small.pod("p", "whole"), made), *budgets]


def changes(found: Report) -> list[str]:
    return [change.text for change in found.findings[0].changes if "pod small" in change.text]


MOVE = ["kubectl delete pod small -n default"]


@pytest.mark.parametrize(
    ("budgets", "ready", "expected"),
    [
        ([], "True", MOVE),
        ([budget()], "True", []),
        ([budget(allowed=1)], "True", MOVE),
        ([budget(allowed=1, generation=2)], "True", []),
        ([budget(selector={"matchLabels": {"app": "other"}})], "True", MOVE),
        ([budget(selector={})], "True", []),
        ([budget(selector=None)], "True", MOVE),
        (
            [budget(selector={"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["small"]}]})],
            "True",
            MOVE,
        ),
        ([budget(selector={"matchExpressions": [{"key": "app", "operator": "Exists"}]})], "True", []),
        ([budget(allowed=1), budget("second", allowed=1)], "True", []),
        ([budget()], "False", MOVE),
        ([{**budget(), "status": {"desiredHealthy": 2, "currentHealthy": 1}}], "False", []),
        (
            [
                {
                    **budget(unhealthyPodEvictionPolicy="AlwaysAllow"),
                    "status": {"desiredHealthy": 2, "currentHealthy": 1},
                }
            ],
            "False",
            MOVE,
        ),
    ],
)
def test_pods_that_a_budget_protects_are_not_moved(budgets: list[Obj], ready: str, expected: list[str]) -> None:
    found = why(snapshot.build(in_the_way(*budgets, ready=ready)), "Pod", "p")
    assert found.findings[0].code == "DevicesInUse"
    assert changes(found) == expected
    protected = [text for name, text in found.findings[0].facts if name == "protected"]
    assert bool(protected) is not bool(expected)


def test_protected_pods_are_named_with_their_budget() -> None:
    found = why(snapshot.build(in_the_way(budget())), "Pod", "p")
    assert ("protected", "pod default/small: PodDisruptionBudget small allows no disruption now") in (
        found.findings[0].facts
    )


def test_pods_are_not_moved_if_budgets_were_not_seen() -> None:
    found = why(without(in_the_way(), "PodDisruptionBudget"), "Pod", "p")
    assert changes(found) == []
    assert ("protected", "pod default/small: its PodDisruptionBudgets are unknown (forbidden)") in (
        found.findings[0].facts
    )


def test_protected_pod_does_not_free_an_ultraserver() -> None:
    items = ultraserver_cluster()
    items += small.running(items, "small", 1, "trn2u-0")
    pod = faults.the(items, "Pod", "small")
    assert pod is not None
    pod["spec"].pop("nodeSelector")
    pod["metadata"]["labels"] = {"app": "small"}
    pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert why(snapshot.build(items), "NeuronUltraServerWorkload", "job", "ml").findings[0].changes
    built = snapshot.build([*items, budget()])
    assert not why(built, "NeuronUltraServerWorkload", "job", "ml").findings[0].changes
