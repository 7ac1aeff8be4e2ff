"""Actors on the API server: old CRDs and rejecting policies; and rollouts of the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from neuron_dra.core.ultraserver import NAMESPACE, object_name
from neuron_dra.kube.requests import NEURON_ULTRASERVERS, NEURON_WORKLOADS, NODES
from tests.support.fleet.known import WITHOUT_SPEC_FIELDS
from tests.support.fleet.mix import Actor
from tests.support.fleet.network import Policy

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

SPEC_FIELDS: Final = frozenset(
    {
        "spec.priorityClassName",
        "spec.ttlSecondsUnused",
        "spec.expectedDuration",
        "spec.allocationPolicy.onCordon",
    }
)
PRUNED: Final[Mapping[str, Mapping[str, AbstractSet[str]]]] = {
    WITHOUT_SPEC_FIELDS: {"neuronultraserverworkloads": SPEC_FIELDS},
    "an older one of ours": {
        "neuronultraservers": {
            "spec.topology[*].nodeUid",
            "spec.topology[*].providerID",
            "status.allocations[*].nodeUids",
            "status.allocations[*].faults",
        },
        "neuronultraserverworkloads": {"status.restarting", "status.restarts", "status.migrations"},
    },
    "AWS's": {
        "neuronultraservers": {
            "status.ultraserverId",
            "status.availability",
            "status.freeNodeCount",
            "status.supportedSizes",
            *(
                f"status.allocations[*].{name}"
                for name in ("workloadUid", "allocationId", "nodeUids", "faults", "worldSize", "rank0Node")
            ),
            "status.allocations[*].rendezvous",
            "spec.topology[*].nodeUid",
            "spec.topology[*].providerID",
        },
        "neuronultraserverworkloads": {
            "status.restarting",
            "status.restarts",
            "status.migrations",
            "status.workloadId",
            *SPEC_FIELDS,
        },
    },
}
"""Fields that the API server drops on write, by the CRDs that are installed."""
REFUSED: Final = "one that refuses"


async def begin_with_an_old_crd(schedule: Schedule) -> None:
    """Install one before the controller has written anything."""
    await _install(schedule, schedule.rng.choice((*PRUNED, REFUSED)))


async def change_crd(schedule: Schedule) -> str | None:
    """A user upgrades or downgrades the CRDs."""
    crd = "ours" if schedule.fleet.crd != "ours" else schedule.rng.choice((*PRUNED, REFUSED))
    await _install(schedule, crd)
    return f"the CRDs are {crd}"


async def install_our_crds(schedule: Schedule) -> None:
    """The CRDs are those of this release."""
    await _install(schedule, "ours")


async def _install(schedule: Schedule, crd: str) -> None:
    fleet = schedule.fleet
    if fleet.api is None:
        return
    fleet.crd, fleet.crd_since = crd, fleet.clock.now()
    for node in fleet.nodes.values():  # the next write of its object may lose a reservation, which is restored later
        fleet.safety.may_vanish(object_name(node.block))
    dropped = fleet.api.dropped_fields
    for plural in ("neuronultraservers", "neuronultraserverworkloads"):
        dropped.pop(plural, None)
    dropped.update({plural: set(paths) for plural, paths in PRUNED.get(crd, {}).items()})
    fleet.policies[:] = [policy for policy in fleet.policies if policy.name != REFUSED]
    fleet.api.published_enums.pop("neuronultraservers", None)
    if crd == REFUSED:
        fleet.api.published_enums["neuronultraservers"] = {"status.allocations[].phase": ["Pending"]}
        prefix = f"/apis/neuron.aws.com/v1beta1/namespaces/{NAMESPACE}/neuronultraservers/"
        fleet.policies.append(
            Policy(REFUSED, lambda method, path: method == "PATCH" and path.startswith(prefix) and "/status" in path)
        )
    fleet.trace(f"the CRDs are {crd}")


async def refuse_labels(schedule: Schedule) -> str | None:
    """A policy rejects the controller's labels on a node."""
    node = schedule.node(lambda n: n.present)
    if node is None:
        return None
    path = NODES.path("", node.name)
    schedule.fleet.policies.append(Policy(f"no labels on {node.name}", lambda m, p: m == "PATCH" and p == path))
    return f"a policy refuses labels on {node.name}"


async def refuse_status(schedule: Schedule) -> str | None:
    """A policy rejects the status of one NeuronUltraServer, or of one workload."""
    fleet, rng = schedule.fleet, schedule.rng
    found = fleet.view.all("neuronultraservers") if rng.random() < 0.5 else fleet.workloads()
    if not found:
        return None
    item = rng.choice(found)
    meta, kind = item["metadata"], str(item["kind"])
    resource = NEURON_ULTRASERVERS if kind == "NeuronUltraServer" else NEURON_WORKLOADS
    path = resource.path(meta["namespace"], meta["name"], "status")
    fleet.policies.append(
        Policy(f"no status of {meta['name']}", lambda m, p: m == "PATCH" and p == path, rng.choice((403, 422)))
    )
    fleet.refused.add(f"{kind}/{meta['namespace']}/{meta['name']}")
    return f"a policy refuses the status of {kind} {meta['name']}"


async def lift_policies(schedule: Schedule) -> str | None:
    """All policies are gone."""
    lasting = [policy for policy in schedule.fleet.policies if policy.name == REFUSED]
    if len(lasting) == len(schedule.fleet.policies):
        return None
    await allow_everything(schedule)
    return "no policy refuses anything"


async def allow_everything(schedule: Schedule) -> None:
    """Remove all policies except for those of other actors."""
    schedule.fleet.policies[:] = [policy for policy in schedule.fleet.policies if policy.name == REFUSED]
    schedule.fleet.refused.clear()


async def roll_out(schedule: Schedule) -> str | None:
    """A replica of the controller is replaced: the new one starts before the old one ends, as a surge does."""
    fleet = schedule.fleet
    index = schedule.rng.randrange(len(fleet.replicas))
    old = fleet.replicas[index]
    schedule.made += 1
    new = fleet.replica(f"controller-r{schedule.made}")
    fleet.replicas[index] = new
    fleet.old_replicas.append(old)
    new.start()
    await fleet.sleep(schedule.rng.choice((0.1, 3.0, 20.0)))
    gracefully = schedule.rng.random() < 0.7
    await (old.retire() if gracefully else old.stop())
    return f"{old.name} is replaced by {new.name}{'' if gracefully else ', and killed'}"


async def two_at_once(schedule: Schedule) -> str | None:
    """A controller without a Lease runs beside the others for a while, as with leaderElect=false."""
    fleet = schedule.fleet
    schedule.made += 1
    other = fleet.replica(f"controller-u{schedule.made}", elected=False)
    fleet.old_replicas.append(other)
    other.start()
    seconds = schedule.rng.choice((1.0, 10.0, 60.0))

    async def end() -> None:
        await asyncio.sleep(seconds)
        await other.stop()

    fleet.spawn(end())
    return f"{other.name} works without a lease for {seconds:g} s"


ACTORS: Final[dict[str, Actor]] = {
    "old-crds": Actor(
        "the CRDs are AWS's, or older ones of ours, or reject our writes; they are upgraded and downgraded; a "
        "workload names the dropped fields of its spec",
        {change_crd: 3},
        begin_with_an_old_crd,
        install_our_crds,
        embedded=True,
    ),
    "policies": Actor(
        "policies reject labels, and the status of single objects",
        {refuse_labels: 2, refuse_status: 4, lift_policies: 3},
        heal=allow_everything,
        issue="13.10",
    ),
    "rollouts": Actor("replicas of the controller are replaced, the new one starts first", {roll_out: 4}),
    "two-at-once": Actor(
        "a controller without a Lease runs next to the leader, as during a rollout with leaderElect=false",
        {two_at_once: 4},
        issue="13.13",
    ),
    "back-off": Actor(
        "the invariant that at most a dozen writes of one object are ineffective within ten minutes",
        issue="13.10",
    ),
}
