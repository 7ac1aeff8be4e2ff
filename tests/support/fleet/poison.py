"""An actor that stores what no decoder reads, and dates at both ends of time: one object costs no other anything."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Final

import msgspec

from neuron_dra.core.wire import Obj
from neuron_dra.errors import AlreadyExists
from neuron_dra.kube.requests import CLAIM_TEMPLATES, NODES, RESOURCE_CLAIMS, Resource
from tests.support.fleet.mix import Actor
from tests.support.fleet.pods import plain_template
from tests.support.fleet.user_steps import end_job, start_job

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

VALUES: Final = (
    b'{"a":"\\ud800"}',
    b'{"\\udfff":1}',
    b'{"a":"\xff"}',
    b'{"a":' + b"[" * 4000 + b"]" * 4000 + b"}",
    b'{"a":123456789012345678901234567890}',
    b'{"a":"' + b"x" * 10_000 + b'"}',
)
DATES: Final = ("0001-01-01T00:00:01Z", "9999-12-31T23:59:59Z")
PREFIX: Final = "poison"
TEMPLATE: Final = "poisoned-node"  # a user's template for a whole node, with such a value for another driver


def poisoned(name: str, value: bytes) -> Obj:
    """A template for a whole node with a value for another driver."""
    made = copy.deepcopy(plain_template())
    made["metadata"] = {"name": name}
    opaque = {"driver": "other.example.com", "parameters": msgspec.Raw(value)}
    made["spec"]["spec"]["devices"]["config"] = [{"opaque": opaque}]
    return made


async def _create(schedule: Schedule, resource: Resource, namespace: str, body: Obj) -> None:
    """Create an object; its answer is not decoded."""
    with contextlib.suppress(AlreadyExists):
        await schedule.fleet.admin.request("POST", resource.path(namespace), body=body)


async def store_poison(schedule: Schedule) -> str | None:
    """A user creates a claim or a template of another driver that no decoder reads."""
    schedule.made += 1
    name, namespace = f"{PREFIX}{schedule.made}", schedule.namespace()
    value = schedule.rng.choice(VALUES)
    made = poisoned(name, value)
    if schedule.rng.random() < 0.5:
        await _create(schedule, CLAIM_TEMPLATES, namespace, made)
        return f"create template {name} with {value[:12]!r}"
    claim = {"apiVersion": made["apiVersion"], "kind": "ResourceClaim", "metadata": {"name": name}}
    await _create(schedule, RESOURCE_CLAIMS, namespace, {**claim, "spec": made["spec"]["spec"]})
    return f"create claim {name} with {value[:12]!r}"


async def remove_poison(schedule: Schedule) -> str | None:
    """The user deletes all of them."""
    for resource in (RESOURCE_CLAIMS, CLAIM_TEMPLATES):
        async for page in schedule.fleet.admin.list(resource):
            for item in page.decoded(dict).objects:
                meta = item["metadata"]
                if meta["name"].startswith(PREFIX) and not meta.get("ownerReferences") and meta["name"] != TEMPLATE:
                    await schedule.fleet.remove(resource, meta["namespace"], meta["name"])
    return "delete what cannot be decoded"


async def start_poisoned_pods(schedule: Schedule) -> str | None:
    """Pods run with such claims, and hold their nodes."""
    job = start_job(schedule, "poisoned", TEMPLATE)
    await _create(schedule, CLAIM_TEMPLATES, job.namespace, poisoned(TEMPLATE, schedule.rng.choice(VALUES)))
    return f"start {job.replicas} pods {job.name} with claims that cannot be decoded"


async def end_poisoned_pods(schedule: Schedule) -> str | None:
    """They end."""
    job = end_job(schedule, TEMPLATE)
    return None if job is None else f"end pods {job.name}"


async def register_a_dated_node(schedule: Schedule) -> str | None:
    """A Node of another kind registers, whose clock is far off."""
    name, date = f"dated-{schedule.made}", schedule.rng.choice(DATES)
    schedule.made += 1
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": date, "lastHeartbeatTime": date}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"conditions": [condition]}}
    await _create(schedule, NODES, "", body)
    return f"Node {name} is dated {date}"


async def heal(schedule: Schedule) -> None:
    """Delete all of it."""
    for job in schedule.fleet.pods.jobs.values():
        if job.template == TEMPLATE:
            job.replicas = 0
    await remove_poison(schedule)
    async for page in schedule.fleet.admin.list(NODES):
        for item in page.decoded(dict).objects:
            if item["metadata"]["name"].startswith("dated-"):
                await schedule.fleet.remove(NODES, "", item["metadata"]["name"])


ACTORS: Final[dict[str, Actor]] = {
    "poison": Actor(
        "users store values that no decoder reads, pods run with such claims, and Nodes are dated 1 and 9999",
        {
            store_poison: 5,
            remove_poison: 1,
            start_poisoned_pods: 2,
            end_poisoned_pods: 2,
            register_a_dated_node: 1,
        },
        heal=heal,
        embedded=True,
        issue="30",
    ),
}
