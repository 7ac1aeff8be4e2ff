"""4.05 on real Kubernetes: requests of one tenant, or Events, that get no answer delay no other tenant.

A webhook with the longest timeout gets reviews of the controller's writes and answers none of them. As the writes of a
workload have an order, the webhook stops one kind of write after the other, and each stops workloads of its own.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from controller.timing import DEFAULT_TIMING
from hack.bed.real_cluster import Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import ACCOUNT, CONTROLLER, NAMESPACE
from tests.bed.fleet import end_workloads, slots, submit, workload
from tests.bed.silent_webhook import SilentWebhook, silent_webhook
from tests.bed.test_hostile_tenants import LATER_S, assert_others_notice_nothing

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

LEAST_S = 60.0
"""Long enough for several timeouts of the controller's requests, and for a Lease to expire."""
WORKLOADS_AT_ONCE = 20
RENEWED_WITHIN = datetime.timedelta(seconds=DEFAULT_TIMING.lease.renew_deadline_s)


def rule(group: str, resource: str, *operations: str) -> Obj:
    return {"apiGroups": [group], "apiVersions": ["*"], "operations": operations, "resources": [resource]}


WORKLOADS = "neuronultraserverworkloads"
TEMPLATES = rule("resource.k8s.io", "resourceclaimtemplates", "CREATE", "UPDATE", "DELETE")
SERVICES = rule("", "services", "CREATE", "UPDATE")
STATUSES = rule("neuron.aws.com", f"{WORKLOADS}/status", "UPDATE")
FINALIZERS = rule("neuron.aws.com", WORKLOADS, "UPDATE")
EVENTS = [rule(group, "events", "CREATE", "UPDATE") for group in ("", "events.k8s.io")]


# The tenant.


@contextlib.contextmanager
def hanging(tenant: Namespace, webhook: SilentWebhook, *, events: bool) -> Iterator[None]:
    """Let each kind of write for a tenant's workloads hang, and then, with `events`, those of Events everywhere."""
    submit(tenant, workload("ends", 2, 1, template="ends-rct"))
    with contextlib.ExitStack() as stack:
        stack.callback(end_workloads, tenant)

        stack.enter_context(webhook.asked("objects", [TEMPLATES, SERVICES], tenant))
        tenant.apply(workload("begins", 2, 1, template="begins-rct"))
        wait_for_reviews(webhook, tenant, "CREATE resourceclaimtemplates", "CREATE services")
        # The other UltraServer is free for others.
        reserved = [node for groups in slots(tenant.bed).values() for nodes in groups.values() for node in nodes]
        assert (len(reserved), len({node.partition("-")[0] for node in reserved})) == (4, 1)
        tenant.kubectl("delete", "nusw", "ends", "--wait=false")
        wait_for_reviews(webhook, tenant, "DELETE resourceclaimtemplates")

        stack.enter_context(webhook.asked("statuses", [STATUSES], tenant))
        apply_waiting(tenant, "decided")
        wait_for_reviews(webhook, tenant, f"UPDATE {WORKLOADS}/status")
        stack.enter_context(webhook.asked("finalizers", [FINALIZERS], tenant))
        apply_waiting(tenant, "new")
        wait_for_reviews(webhook, tenant, f"UPDATE {WORKLOADS}")
        if events:
            stack.enter_context(webhook.asked("events", EVENTS, tenant, everywhere=True))
        yield
        assert slots(tenant.bed).keys() == {"begins", "ends"}  # the template of `ends` is still there


def apply_waiting(tenant: Namespace, name: str) -> None:
    """Apply workloads for which there are too few nodes."""
    items = [workload(f"{name}-{number}", 4, 3) for number in range(WORKLOADS_AT_ONCE)]
    tenant.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def wait_for_reviews(webhook: SilentWebhook, tenant: Namespace, *writes: str) -> None:
    """Wait until these writes of the controller in a namespace hang."""
    expected_writes = {(tenant.name, write) for write in writes}
    eventually(f"{writes} hang", lambda: expected_writes <= webhook.writes(ACCOUNT))


@pytest.fixture
def webhook(bed: TestBed) -> Iterator[SilentWebhook]:
    with silent_webhook(bed) as running:
        yield running


# The others.


@dataclass(frozen=True, slots=True)
class Round:
    """How long a workload took to be Allocated, and then to be released."""

    allocated_s: float
    released_s: float


def one_round(place: Namespace) -> Round:
    """Reserve nodes, with a template and a Service, and release them."""
    began = time.monotonic()
    submit(place, workload("job", 4, 1, template="job-rct"))
    allocated = time.monotonic()
    end_workloads(place)
    return Round(allocated - began, time.monotonic() - allocated)


def rounds_of_one_leader(place: Namespace) -> list[Round]:
    """Do rounds for a while; the same replica leads, and has renewed its Lease after each."""
    leader, _ = leader_and_renewal(place.bed)
    began, rounds = time.monotonic(), []
    while time.monotonic() < began + LEAST_S:
        rounds.append(one_round(place))
        current, renewed = leader_and_renewal(place.bed)
        assert current == leader
        assert datetime.datetime.now(datetime.UTC) - renewed < RENEWED_WITHIN
    return rounds


def leader_and_renewal(bed: TestBed) -> tuple[tuple[str, int], datetime.datetime]:
    """Return the holder of the Lease, with the number of its holders, and when it was last renewed."""
    spec = bed.get("lease", CONTROLLER, "--namespace", NAMESPACE)["spec"]
    renewed = datetime.datetime.fromisoformat(spec["renewTime"])
    return (spec["holderIdentity"], spec["leaseTransitions"]), renewed


def assert_no_slower(what: str, paired_s: Sequence[float], beside_s: Sequence[float]) -> None:
    """Compare the medians, and the longest."""
    figures = {name: (of(paired_s), of(beside_s)) for name, of in (("median", statistics.median), ("longest", max))}
    text = ", ".join(f"{name} {alone:.2f} s alone, {beside:.2f} s beside" for name, (alone, beside) in figures.items())
    print(f"{what}: {text} ({len(paired_s)} and {len(beside_s)} rounds)")
    assert all(beside <= 2 * alone + LATER_S for alone, beside in figures.values())


SCOPES = pytest.mark.parametrize("events", [False, True], ids=["one-tenant", "and-events"])


@SCOPES
def test_writes_that_hang_delay_no_other_tenant(
    place: Namespace, tenant: Namespace, webhook: SilentWebhook, events: bool
) -> None:
    alone = rounds_of_one_leader(place)
    with hanging(tenant, webhook, events=events):
        beside = rounds_of_one_leader(place)
    assert_no_slower("Allocated", [timed.allocated_s for timed in alone], [timed.allocated_s for timed in beside])
    assert_no_slower("released", [timed.released_s for timed in alone], [timed.released_s for timed in beside])
    hung = {write for namespace, write in webhook.writes(ACCOUNT) if namespace == place.name}
    assert hung == ({"CREATE events"} if events else set())


@SCOPES
def test_new_leader_serves_others_beside_hanging_writes(
    place: Namespace, tenant: Namespace, webhook: SilentWebhook, events: bool
) -> None:
    assert_others_notice_nothing(place, hanging(tenant, webhook, events=events))


def test_webhook_for_all_namespaces_delays_every_tenant(
    place: Namespace, tenant: Namespace, webhook: SilentWebhook
) -> None:
    """Otherwise the other tests prove nothing."""
    paired_s = one_round(place).allocated_s
    with webhook.asked("finalizers", [FINALIZERS], tenant, everywhere=True):
        place.apply(workload("job", 4, 1))
        time.sleep(2 * paired_s + LATER_S)
        assert place.get("nusw", "job").get("status", {}).get("state") != "Allocated"
        assert (place.name, f"UPDATE {WORKLOADS}") in webhook.writes(ACCOUNT)
    end_workloads(place)
