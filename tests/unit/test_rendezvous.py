"""The address of rank 0: its name, the variables of a container, and the pod that it leads to. Issue 18, item 2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hack.bench.ultraservers import ultraserver
from neuron_dra.core import reservation
from neuron_dra.core.rendezvous import ANNOTATION, Rendezvous, service_name
from neuron_dra.core.ultraserver import Allocation, Phase, read_allocations
from neuron_dra.emulation.admission import evaluate, variables
from neuron_dra.planner.decisions.actions import WriteUltraServerStatus
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import Known, Meeting
from neuron_dra.planner.plan import planning
from neuron_dra.planner.plan import rendezvous as plan
from tests.support import fast_yaml
from tests.unit.failing_world import LIMITS, not_ready, running, start_pods
from tests.unit.ultraserver_world import World

NAME = "job-rank0.ml.svc"
ALWAYS = ("NEURON_DRA_RANK0_ADDR=job-rank0.ml.svc", "NEURON_GLOBAL_TOPOID0_HOST=job-rank0.ml.svc")
MASTER = ("MASTER_ADDR=job-rank0.ml.svc", "MASTER_PORT=29500")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Rendezvous(NAME), ALWAYS),
        (Rendezvous(NAME, "pod"), (*ALWAYS, *MASTER)),
        (Rendezvous(NAME, "host", "10.0.1.2"), (*ALWAYS, *MASTER, "NEURON_RT_ROOT_COMM_ID=10.0.1.2:46820")),
        (Rendezvous(NAME, "host", "fd00::2"), (*ALWAYS, *MASTER, "NEURON_RT_ROOT_COMM_ID=[fd00::2]:46820")),
        (Rendezvous(NAME, "host"), (*ALWAYS, *MASTER)),
    ],
)
def test_variables_of_a_container(found: Rendezvous, expected: tuple[str, ...]) -> None:
    """18.2: MASTER_ADDR and the others only on request, because they would overwrite the pod's own."""
    assert found.environment() == expected
    assert Rendezvous.from_wire(found.to_wire()) == found
    held = Allocation("ml", "job", "uid", "a-1", Phase.BOUND, ("n0",), 1, 0, rendezvous=found)
    assert reservation.environment(reservation.NodeReservation.of(held, "n0")) == ("NEURON_GLOBAL_TOPOID=0", *expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("job", None),
        ({}, None),
        ({"address": ""}, None),
        ({"address": "a\nLD_PRELOAD=/x"}, None),
        ({"address": 7}, None),
        ({"address": NAME, "mode": "later", "hostIP": "10.0.0.1 x"}, Rendezvous(NAME)),
        ({"address": NAME, "mode": ["pod"], "hostIP": None}, Rendezvous(NAME)),
    ],
)
def test_unreadable_addresses_reach_no_container(value: Any, expected: Rendezvous | None) -> None:
    """18.2: the rest of the reservation stays readable, so the node stays reserved."""
    entry = Allocation("ml", "job", "uid", "a-1", Phase.BOUND, ("n0",), 1, 0).to_wire() | {"rendezvous": value}
    (found,) = read_allocations({"metadata": {"uid": "u"}, "status": {"allocations": [entry]}}).allocations
    assert found.rendezvous == expected


@pytest.mark.parametrize("name", ["job", "a" * 57, "j0"])
def test_service_is_named_after_the_workload(name: str) -> None:
    """18.2."""
    assert service_name(name) == f"{name}-rank0"


@pytest.mark.parametrize("name", ["a" * 58, "a" * 253, "2b-model", "team.job", "x.y"])
def test_other_names_become_a_digest(name: str) -> None:
    """18.2: a Service has at most 63 characters, begins with a letter, and has no dot."""
    found = service_name(name)
    assert found.startswith("rank0-")
    assert len(found) == 22
    assert found != service_name(name + "0")


# -- the plan ----------------------------------------------------------------------------------------------------------


def meetings(world: World) -> list[Meeting]:
    return list(world.plan(LIMITS).meetings)


def stored(world: World) -> list[Any]:
    """Return the address in each reservation."""
    return [
        entry.get("rendezvous")
        for item in world.all("NeuronUltraServer")
        for entry in item.get("status", {}).get("allocations", [])
    ]


def asked(mode: str, **ips: str) -> World:
    """A world with an allocated workload that has the annotation, and addresses of nodes."""
    world = World([*ultraserver("u0"), *ultraserver("u1")])
    for name, address in ips.items():
        node = world.get("Node", name.replace("_", "-"))
        node["status"]["addresses"] = [
            {"type": "Hostname", "address": name},
            {"type": "InternalIP", "address": address},
            {"type": "InternalIP", "address": "fd00::1"},
        ]
        world.put(node)
    job = world.submit("job", size=4, count=2)
    job["metadata"]["annotations"] = {ANNOTATION: mode}
    world.put(job)
    world.settle(LIMITS)
    assert world.state("job")[0] == "Allocated"
    return world


def test_every_group_has_the_address_before_a_pod_starts() -> None:
    """18.2: the kubelet prepares a claim before its pod has an address."""
    world = asked("")
    assert stored(world) == [{"address": NAME}] * 2
    uid = world.workload("job")["metadata"]["uid"]
    assert meetings(world) == [Meeting("ml", "job", uid, "", None)]


def test_reboot_of_rank_0_changes_the_meeting() -> None:
    """18.2: the Service is read again then, because the pod has another address after it."""
    world = asked("")
    (before,) = meetings(world)
    not_ready(world, world.reserved("job")[0][0])
    assert meetings(world) == [replace(before, node_ready=False)]


def test_pod_with_rank_0_is_found_by_its_claim() -> None:
    """18.2."""
    world = running("NoOp", count=1)
    (found,) = meetings(world)
    first = world.reserved("job")[0][0]
    assert found.pod == (f"pod-{first}", f"pod-claim-{first}")
    world.remove("ResourceClaim", f"claim-{first}", "ml")
    (found,) = meetings(world)
    assert found.pod is None


def test_claim_of_another_workload_is_not_followed() -> None:
    """18.2: its pod would get the connections of the job."""
    world = asked("")
    world.claim("foreign", [world.reserved("job")[0][0]])
    (found,) = meetings(world)
    assert found.pod is None


def test_address_follows_a_group_that_moved() -> None:
    """18.2."""
    world = running("MigrateAffected", count=1)
    (before,) = meetings(world)
    not_ready(world, world.reserved("job")[0][0])
    for name in world.reserved("job")[0]:
        world.remove("ResourceClaim", f"claim-{name}", "ml")
    world.now += 2 * LIMITS.node_failure_grace
    world.settle(LIMITS)
    start_pods(world)
    (after,) = meetings(world)
    assert after.pod not in (None, before.pod)


def test_deleted_workload_is_not_followed() -> None:
    """18.2: the garbage collector deletes its Service."""
    world = asked("")
    world.delete_workload("job")
    assert meetings(world) == []


def test_host_mode_has_the_address_of_the_node() -> None:
    """18.2: it stays while the Node is away, and changes with the annotation."""
    first = asked("").reserved("job")[0][0]
    world = asked("host", **{first.replace("-", "_"): "10.0.1.2"})
    expected = {"address": NAME, "mode": "host", "hostIP": "10.0.1.2"}
    assert stored(world) == [expected] * 2
    node = world.get("Node", first)
    del node["status"]["addresses"]
    world.put(node)
    world.settle(LIMITS)
    assert stored(world) == [expected] * 2
    job = world.workload("job")
    job["metadata"]["annotations"] = {ANNOTATION: "pod"}
    world.put(job)
    world.settle(LIMITS)
    assert stored(world) == [{"address": NAME, "mode": "pod"}] * 2


def test_invalid_annotation_requests_nothing() -> None:
    """18.2: an Event reports it."""
    world = asked("hostname")
    assert stored(world) == [{"address": NAME}] * 2
    (found,) = meetings(world)
    assert found.mode == "hostname"


def test_address_is_removed_without_the_rights() -> None:
    """18.2: in AWS's chart the controller may not write Services, and no name must lead nowhere."""
    world = asked("pod")
    index = FleetIndex.of(world.snapshot())
    assert planning.plan_of(index, world.now, LIMITS).actions == ()
    (first, *_) = planning.plan_of(index, world.now, LIMITS, Known(without_services=True)).actions
    assert isinstance(first, WriteUltraServerStatus)
    assert ["rendezvous" in each for each in first.status["allocations"]] == [False]


# -- the objects -------------------------------------------------------------------------------------------------------

SERVICE = {"metadata": {"namespace": "ml", "name": "job-rank0", "uid": "s-1"}}


def pod(**status: str) -> dict[str, Any]:
    meta = {"namespace": "ml", "name": "job-0", "uid": "p-1", "labels": {"a": "b"}}
    return {"metadata": meta, "spec": {"nodeName": "n0"}, "status": status}


@pytest.mark.parametrize("found", [None, pod(phase="Pending"), pod(phase="Failed", podIP="10.1.0.7")])
def test_pod_without_an_address_has_no_endpoint(found: dict[str, Any] | None) -> None:
    """18.2."""
    assert plan.endpoint_slice(SERVICE, found) is None


@pytest.mark.parametrize(("address", "family"), [("10.1.0.7", "IPv4"), ("fd00::7", "IPv6")])
def test_endpoint_is_the_pods_address(address: str, family: str) -> None:
    """18.2: with hostNetwork podIP is the node's."""
    made = plan.endpoint_slice(SERVICE, pod(phase="Running", podIP=address))
    assert made is not None
    assert plan.is_the_services(made, SERVICE)
    assert (made["metadata"]["name"], made["addressType"]) == (f"job-rank0-{family.lower()}", family)
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == "job-rank0"
    assert made["endpoints"] == [
        {
            "addresses": [address],
            "conditions": {"ready": True},
            "nodeName": "n0",
            "targetRef": {"kind": "Pod", "namespace": "ml", "name": "job-0", "uid": "p-1"},
        }
    ]


# -- the policies of the chart -----------------------------------------------------------------------------------------

EXTRA = ({"selector": {"app": "web"}}, {"externalIPs": ["192.0.2.1"]}, {"clusterIP": "10.0.0.1"})
MANIFEST = Path(__file__).resolve().parents[2] / "deploy/manifests/ultraserver/70-reservation-policies.yaml"


def allowed(policy: str, item: dict[str, Any]) -> bool:
    """Return True if all validations of a policy of the manifests accept the object."""
    found = next(
        each
        for each in fast_yaml.load_all(MANIFEST.read_text())
        if (each["kind"], each["metadata"]["name"]) == ("ValidatingAdmissionPolicy", f"neuron-dra-driver-{policy}")
    )
    inputs = {"object": item}
    inputs |= variables(found["spec"], inputs)
    return all(evaluate(each["expression"], inputs) for each in found["spec"]["validations"])


@pytest.mark.parametrize("name", ["job", "a" * 57, "a" * 58, "2b-model", "team.job"])
def test_policies_accept_what_the_controller_writes(name: str) -> None:
    """18.2."""
    service = plan.service(Meeting("ml", name, "uid-1", "", None))
    service["metadata"]["uid"] = "s-1"
    assert allowed("controller-services", service)
    for address in ("10.1.0.7", "fd00::7"):
        made = plan.endpoint_slice(service, pod(phase="Running", podIP=address))
        assert made is not None
        assert allowed("controller-endpointslices", made)
        earlier = {**made, "metadata": {**made["metadata"], "name": service["metadata"]["name"]}}
        assert allowed("controller-endpointslices", earlier)


def test_policies_reject_services_of_others() -> None:
    """18.2: the controller may write Services and EndpointSlices in every namespace."""
    made = plan.service(Meeting("ml", "job", "uid-1", "", None))
    forged = [{**made, "metadata": {"name": "web"}}]
    forged += [{**made, "spec": {**made["spec"], **more}} for more in EXTRA]
    assert [allowed("controller-services", each) for each in forged] == [False] * 4
    slices = plan.endpoint_slice(SERVICE, pod(phase="Running", podIP="10.1.0.7"))
    assert slices is not None
    meta = slices["metadata"]
    label = {"labels": {"kubernetes.io/service-name": "web"}}
    forged = [{**slices, "metadata": {**meta, **more}} for more in ({"name": "web"}, {"name": "web", **label}, label)]
    assert [allowed("controller-endpointslices", each) for each in forged] == [False] * 3
