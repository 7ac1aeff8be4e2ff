"""Which pods use a claim that is reserved for a PodGroup. Issue 35."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from controller.apply.claim_pods import ClaimPods
from controller.observe.caches import wall_clock
from controller.timing import DEFAULT_TIMING
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.planner.decisions.actions import Evict
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import ClaimUse, Consumer
from neuron_dra.planner.observed.projections import Pod
from neuron_dra.planner.plan.claim_pods import users
from neuron_dra.planner.plan.planning import plan
from tests.support.sending import new_sender, sent
from tests.unit.failing_world import LIMITS, running
from tests.unit.ultraserver_world import World

GANG = Consumer("scheduling.k8s.io", "podgroups", "gang")
PODS = (("gang-0", "uid-0"), ("gang-1", "uid-1"))


def pod(**changes: Any) -> Pod:
    """A running pod of the group with a claim."""
    wire: Obj = {
        "metadata": {"namespace": "ml", "name": "gang-0", "uid": "uid-0"},
        "spec": {
            "resourceClaims": [{"name": "neuron", "resourceClaimTemplateName": "job"}],
            "schedulingGroup": {"podGroupName": "gang"},
        },
        "status": {"phase": "Running"},
    }
    for path, value in changes.items():
        part, name = path.split("__")
        wire[part][name] = value
    return msgspec.convert(wire, Pod)


@pytest.mark.parametrize(
    ("changes", "uses"),
    [
        ({}, True),
        ({"metadata__namespace": "other"}, False),
        ({"spec__schedulingGroup": {"podGroupName": "another"}}, False),
        ({"spec__schedulingGroup": None}, False),
        ({"spec__resourceClaims": []}, False),
        ({"status__phase": "Succeeded"}, False),
        ({"status__phase": "Failed"}, False),
        ({"status__phase": "Pending"}, True),
        ({"spec__schedulingGroup": None, "spec__resourceClaims": [{"resourceClaimName": "gang-claim"}]}, True),
        ({"spec__schedulingGroup": None, "status__resourceClaimStatuses": [{"resourceClaimName": "gang-claim"}]}, True),
    ],
)
def test_pods_are_matched_by_namespace_and_group(changes: dict[str, Any], uses: bool) -> None:
    claim = ClaimUse("ml", "gang-claim", ("u0-0",), None, others=(GANG,))
    assert users(claim, [pod(**changes)]) == ((("gang-0", "uid-0"),) if uses else ())


def test_consumer_of_an_unknown_kind_is_matched_by_the_claims_name_only() -> None:
    claim = ClaimUse("ml", "gang-claim", ("u0-0",), None, others=(Consumer("example.com", "podgroups", "gang"),))
    named = pod(metadata__name="named", spec__resourceClaims=[{"resourceClaimName": "gang-claim"}])
    assert users(claim, [pod(), named]) == (("named", "uid-0"),)


def reserve_for_group(world: World, name: str) -> None:
    claim = world.get("ResourceClaim", name, "ml")
    entry = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "gang", "uid": "uid-gang"}
    claim["status"]["reservedFor"] = [entry]
    world.put(claim)


def released() -> World:
    """A deleted workload whose nodes have closed; the claim on its first node is reserved for a PodGroup."""
    world = running("NoOp", count=1)
    reserve_for_group(world, "claim-u0-0")
    world.delete_workload("job")
    for _ in range(3):
        world.step(LIMITS)
    return world


def test_consumers_that_are_no_pods_are_decoded() -> None:
    world = running("NoOp", count=1)
    reserve_for_group(world, "claim-u0-0")
    use = decode.claim_use(world.get("ResourceClaim", "claim-u0-0", "ml"))
    assert use is not None
    assert (use.pods, use.others) == ((), (GANG,))


def test_release_asks_for_the_pods_of_a_group() -> None:
    made = released().plan(LIMITS)
    assert [use.ref for use in made.shared] != []
    assert {use.ref for use in made.shared} == {"ml/claim-u0-0"}


def test_pods_of_a_group_are_evicted_and_waited_for() -> None:
    world = released()
    found = replace(world.snapshot(), shared_by={"ml/claim-u0-0": PODS})
    made = plan(found, world.now, LIMITS)
    evicted = {(each.name, each.uid) for each in made.actions if isinstance(each, Evict)}
    (verdict,) = made.verdicts.values()
    assert evicted == set(PODS)
    assert verdict.reason == "WaitingForPods"
    assert verdict.message == "waiting for pods and claims on the nodes: ml/gang-0, ml/gang-1"


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({}, "PodGroup ml/gang"),
        ({"ml/claim-u0-0": ()}, "PodGroup ml/gang (no pod of it is there: delete it)"),
    ],
)
def test_group_without_pods_is_named(known: dict[str, tuple[()]], text: str) -> None:
    world = released()
    (verdict,) = plan(replace(world.snapshot(), shared_by=known), world.now, LIMITS).verdicts.values()
    assert verdict.message == f"waiting for pods and claims on the nodes: {text}"


def test_rank_0_is_a_pod_of_the_group() -> None:
    world = running("NoOp", count=1)
    reserve_for_group(world, "claim-u0-0")
    made = plan(replace(world.snapshot(), shared_by={"ml/claim-u0-0": PODS}), world.now, LIMITS)
    assert [each.pod for each in made.meetings] == [("gang-0", "uid-0")]
    assert {use.ref for use in made.shared} == {"ml/claim-u0-0"}


def test_rank_0_is_not_looked_for_until_the_pods_of_its_group_were_read() -> None:
    """A new leader has read none; the address of the running pod stays (seed 1012 of the fleet)."""
    world = running("NoOp", count=1)
    reserve_for_group(world, "claim-u0-0")
    unread = plan(world.snapshot(), world.now, LIMITS)
    assert unread.meetings == ()
    assert {use.ref for use in unread.shared} == {"ml/claim-u0-0"}


def test_pods_of_a_group_that_their_node_rejects_are_suspects() -> None:
    world = running("NoOp", count=1)
    world.claim("strange", ["u0-0"], workload_uid="uid-of-another", pod="named")
    reserve_for_group(world, "strange")
    asked = world.plan(LIMITS)
    found = plan(replace(world.snapshot(), shared_by={"ml/strange": PODS}), world.now, LIMITS)
    assert "ml/strange" in {use.ref for use in asked.shared}
    assert [(each.name, each.uid, each.node) for each in found.suspects] == [(*each, "u0-0") for each in PODS]


class PodsOfANode(KubeClient):
    """An API server with these pods on each node."""

    def __init__(self, *pods: Pod) -> None:
        super().__init__(KubeConfig("pods:"))
        self.pods = pods

    async def _send(self, method: str, path: str, *_: object) -> bytes:
        return b'{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":%s}' % msgspec.json.encode(self.pods)


async def test_pods_of_a_deleted_claim_are_not_those_of_the_next_claim_with_its_name() -> None:
    first_claim = ClaimUse("ml", "claim", ("u0-0",), None, others=(GANG,), uid="first")
    second_claim = replace(first_claim, uid="second")
    server, sender, now = PodsOfANode(pod()), new_sender(), wall_clock()
    looks = ClaimPods(server, DEFAULT_TIMING.pods, sender)
    await sent(sender, lambda: looks.look([first_claim], now))
    pods_of_the_first = looks.found
    server.pods = ()
    looks.look([second_claim], now)
    pods_before_the_second_was_read = looks.found
    await sent(sender, lambda: looks.look([second_claim], now))
    assert (pods_of_the_first, pods_before_the_second_was_read) == ({"ml/claim": (("gang-0", "uid-0"),)}, {})
    assert looks.found == {"ml/claim": ()}
