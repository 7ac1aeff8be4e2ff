"""What a claim gets on a node: devices, environment, and error messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from neuron_dra.api import claims as wire
from neuron_dra.core import catalogue, cdi, topology
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.config import Entry, EntrySource, NeuronSettings, UltraServerSettings
from neuron_dra.core.decision import decide
from neuron_dra.core.facts import DeviceFacts, NodeFacts, NodeLabels, UltraServerFacts, Unread
from neuron_dra.core.reservation import NodeReservation, Place
from neuron_dra.core.topology import HardwareFinding, Node
from neuron_dra.core.ultraserver import Allocation, Phase, Tag
from neuron_dra.errors import ClaimError, DeviceInUse
from neuron_dra.kube import objects

NODE_NAME = "node-a"
TRN3 = next(known.name for known in catalogue.all_types() if known.platform is catalogue.Platform.PDS)


def node_of(instance_type: str, ultraserver: UltraServerFacts | None = None, gone: tuple[int, ...] = ()) -> Node:
    """A healthy node; the files of the devices in `gone` are missing in /dev."""
    spec = catalogue.lookup(instance_type)
    assert spec is not None
    devices = tuple(
        DeviceFacts(i, spec.cores_per_device, spec.links[i] if spec.links else (), (243, i), i not in gone)
        for i in range(spec.device_count)
    )
    facts = NodeFacts(instance_type, "2.30.2.0", devices, ultraserver or UltraServerFacts())
    return topology.build(facts, NodeLabels())


TRN2 = node_of("trn2.48xlarge")
TRN1_SMALL = node_of("trn1.2xlarge")


def ref(name: str = "job") -> ClaimRef:
    return ClaimRef("ml", name, f"uid-{name}")


def device(number: int | str, request: str = "req", **more: Any) -> AllocatedDevice:
    name = f"neuron-device-{number}" if isinstance(number, int) else number
    return AllocatedDevice(request, more.pop("pool", NODE_NAME), name, **more)


def claim(*devices: AllocatedDevice, name: str = "job", configs: tuple[Entry, ...] = ()) -> Claim:
    return Claim(ref(name), devices, configs)


def lnc(value: Any, *requests: str) -> Entry:
    return Entry(EntrySource.CLAIM, requests, NeuronSettings(value))


def group(nodes: Any, workload: str | None = None, uid: str | None = None) -> Entry:
    return Entry(EntrySource.CLAIM, (), UltraServerSettings(nodes, workload, uid))


def decided(
    wanted: Claim,
    node: Node = TRN2,
    held: tuple[PreparedClaim, ...] = (),
    reservation: NodeReservation | None = None,
) -> PreparedClaim:
    return decide(
        wanted, node_name=NODE_NAME, node=node, held=held, device_files=cdi.DeviceFiles(), reservation=reservation
    )


def refusal(*args: Any, **more: Any) -> str:
    with pytest.raises(ClaimError) as caught:
        decided(*args, **more)
    return str(caught.value)


@pytest.mark.contract("P1")
def test_each_device_has_its_own_cdi_device() -> None:
    prepared = decided(claim(device(3), device(7)))
    assert [d.device for d in prepared.devices] == ["neuron-device-3", "neuron-device-7"]
    assert [d.pool for d in prepared.devices] == [NODE_NAME, NODE_NAME]
    assert [d.cdi_ids for d in prepared.devices] == [
        ("k8s.neuron.aws.com/claim=uid-job-neuron-device-3",),
        ("k8s.neuron.aws.com/claim=uid-job-neuron-device-7",),
    ]
    assert prepared.devices[0].edits == {"deviceNodes": [{"path": "/dev/neuron3"}]}
    assert prepared.devices[0].env == ()


def test_prepared_claim_has_names_time_and_devices() -> None:
    wanted = Claim(ref(), (device(3, "req/small", share_id="aa-1"),), pod="job-0")
    assert decide(
        wanted, node_name=NODE_NAME, node=TRN2, held=(), device_files=cdi.DeviceFiles(), prepared_at="2026-03-01"
    ) == PreparedClaim(
        ref(),
        (
            PreparedDevice(
                request="req",
                pool=NODE_NAME,
                device="neuron-device-3",
                device_ids=(3,),
                cdi_ids=("k8s.neuron.aws.com/claim=uid-job-neuron-device-3-aa-1",),
                edits={"deviceNodes": [{"path": "/dev/neuron3"}]},
                share_id="aa-1",
            ),
        ),
        prepared_at="2026-03-01",
        pod="job-0",
    )


@pytest.mark.contract("P8")
def test_result_names_the_request_without_subrequest() -> None:
    assert decided(claim(device(0, "req/small"))).devices[0].request == "req"


@pytest.mark.contract("P9")
def test_requests_have_separate_core_settings() -> None:
    wanted = claim(device(0, "one"), device(1, "two"), configs=(lnc(1, "one"), lnc(2, "two")))
    first, second = decided(wanted).devices
    assert first.env == ("NEURON_LOGICAL_NC_CONFIG=1", "NEURON_RT_VIRTUAL_CORE_SIZE=1")
    assert second.env == ("NEURON_LOGICAL_NC_CONFIG=2", "NEURON_RT_VIRTUAL_CORE_SIZE=2")
    assert set(first.cdi_ids).isdisjoint(second.cdi_ids)


@pytest.mark.contract("P10")
def test_chosen_alternatives_config_applies() -> None:
    wanted = claim(device(0, "req/small"), configs=(lnc(1, "req/large"), lnc(2, "req/small")))
    assert "NEURON_LOGICAL_NC_CONFIG=2" in decided(wanted).devices[0].env


@pytest.mark.parametrize(
    "instance_type",
    [known.name for known in catalogue.all_types() if not known.lnc_allowed],
)
def test_fixed_lnc_is_rejected_as_documented(instance_type: str) -> None:
    for value in (1, 2):
        text = refusal(claim(device(0), configs=(lnc(value),)), node_of(instance_type))
        assert text.startswith(
            f"error applying config: LNC value is not configurable for instance type {instance_type}"
        )


def test_trn1_2xlarge_message_is_the_documented_one() -> None:
    text = refusal(claim(device(0), configs=(lnc(1),)), TRN1_SMALL)
    assert text.startswith("error applying config: LNC value is not configurable for instance type trn1.2xlarge")


@pytest.mark.parametrize("instance_type", [known.name for known in catalogue.all_types() if known.lnc_allowed])
def test_supported_lnc_is_in_the_environment(instance_type: str) -> None:
    for value in (1, 2):
        env = decided(claim(device(0), configs=(lnc(value),)), node_of(instance_type)).devices[0].env
        assert env[:2] == (f"NEURON_LOGICAL_NC_CONFIG={value}", f"NEURON_RT_VIRTUAL_CORE_SIZE={value}")


def test_unsupported_lnc_error_lists_supported() -> None:
    node = node_of("trn2.48xlarge")
    assert node.spec is not None
    only_two = replace(node, spec=replace(node.spec, lnc_allowed=(2,)))
    text = refusal(claim(device(0), configs=(lnc(1),)), only_two)
    assert "logicalNeuronCore 1 is not offered by instance type trn2.48xlarge; use one of 2" in text


def test_unknown_type_rejects_type_settings() -> None:
    devices = (DeviceFacts(0, 2, (), (243, 0), True),)
    unknown = topology.build(NodeFacts("trn9.96xlarge", "2.30.2.0", devices, UltraServerFacts()), NodeLabels())
    assert decided(claim(device(0)), unknown).devices[0].env == ()
    for wanted in (lnc(1), group(1)):
        text = refusal(claim(device(0), configs=(wanted,)), unknown)
        assert text.startswith("error applying config: ")
        assert "trn9.96xlarge" in text


# UltraServers.

TRN2U = UltraServerFacts(
    modes=(1, 3, 4), node_id_2=1, node_id_4=3, server_id_2="00000000000000aa", server_id_4="00000000000000bb"
)
PDS = UltraServerFacts(modes=(1, 2, 3, 4), node_id=2, reservation_id="00000000000000cc")
NOBODY = "0" * 16


def variables(mode: int, server: str, number: int) -> tuple[str, ...]:
    return (
        f"NEURON_RT_ULTRASERVER_MODE={mode}",
        f"NEURON_RT_ULTRASERVER_SERVER_ID={server}",
        f"NEURON_RT_ULTRASERVER_NODE_ID={number}",
    )


@pytest.mark.parametrize(
    ("instance_type", "facts", "nodes", "expected"),
    [
        ("trn2u.48xlarge", TRN2U, 4, variables(1, "00000000000000bb", 3)),
        ("trn2u.48xlarge", TRN2U, 2, variables(3, "00000000000000aa", 1)),
        ("trn2u.48xlarge", TRN2U, 1, variables(4, NOBODY, -1)),
        ("trn2u.48xlarge", replace(TRN2U, modes=(2, 4)), 2, variables(2, "00000000000000aa", 1)),
        ("trn2u.48xlarge", replace(TRN2U, server_id_4=Unread.UNKNOWN), 4, variables(1, NOBODY, 3)),
        (TRN3, PDS, 4, variables(1, "00000000000000cc", 2)),
        (TRN3, PDS, 2, variables(3, "00000000000000cc", 2)),
        (TRN3, PDS, 1, variables(4, "00000000000000cc", 2)),
    ],
)
def test_ultraserver_environment_as_documented(
    instance_type: str, facts: UltraServerFacts, nodes: int, expected: tuple[str, ...]
) -> None:
    wanted = claim(device("neuron-node-0"), configs=(group(nodes),))
    assert decided(wanted, node_of(instance_type, facts)).devices[0].env == expected


def test_environment_has_lnc_and_ultraserver() -> None:
    wanted = claim(device("neuron-node-0"), configs=(lnc(1), group(4)))
    assert decided(wanted, node_of("trn2u.48xlarge", TRN2U)).devices[0].env == (
        *("NEURON_LOGICAL_NC_CONFIG=1", "NEURON_RT_VIRTUAL_CORE_SIZE=1"),
        *variables(1, "00000000000000bb", 3),
    )


def test_switched_node_always_has_a_mode() -> None:
    assert decided(claim(device(0)), node_of(TRN3, PDS)).devices[0].env == ("NEURON_RT_ULTRASERVER_MODE=4",)
    assert decided(claim(device(0)), node_of("trn2u.48xlarge", TRN2U)).devices[0].env == ()


def test_mode_is_rejected_outside_ultraservers() -> None:
    text = refusal(claim(device(0), configs=(group(2),)))
    assert text.startswith("error applying config: ultraserverMode 2 ")
    assert "trn2.48xlarge is not part of one" in text


def test_busy_driver_is_an_error() -> None:
    busy = node_of("trn2u.48xlarge", replace(TRN2U, modes=Unread.BUSY))
    assert "reads busy" in refusal(claim(device("neuron-node-0"), configs=(group(4),)), busy)


def test_unavailable_mode_error_lists_available() -> None:
    alone = node_of("trn2u.48xlarge", replace(TRN2U, modes=(3, 4)))
    text = refusal(claim(device("neuron-node-0"), configs=(group(4),)), alone)
    assert text.endswith("ultraserverMode 4 is not offered by this node (ultraserver_mode reads 3,4); use 1 or 2")


def test_unreadable_modes_offer_nothing() -> None:
    unknown = node_of("trn2u.48xlarge", replace(TRN2U, modes=Unread.UNKNOWN))
    text = refusal(claim(device("neuron-node-0"), configs=(group(1),)), unknown)
    assert text.endswith("ultraserver_mode cannot be read; check the kernel driver and its version")


def test_busy_error_names_its_cause() -> None:
    """A node with a missing or invalid device stays busy for ever, so waiting does not help."""
    busy = node_of("trn2u.48xlarge", replace(TRN2U, modes=Unread.BUSY))
    cause = HardwareFinding("ultraserver-busy", "ultraserver_mode reads busy, and neuron5 is missing: replace it")
    text = refusal(claim(device("neuron-node-0"), configs=(group(4),)), replace(busy, findings=(cause,)))
    assert text.endswith(f"ultraserverMode 4: {cause.message}")
    assert "tries again" not in text


def test_driver_that_does_not_know_the_type_is_named() -> None:
    empty = node_of("trn2u.48xlarge", replace(TRN2U, modes=()))
    text = refusal(claim(device("neuron-node-0"), configs=(group(1),)), empty)
    assert "ultraserver_mode is empty: kernel driver 2.30.2.0 does not know that trn2u.48xlarge is a type of" in text
    assert "links" not in text


def test_environment_keeps_the_default_id() -> None:
    """It identifies no UltraServer, and the runtime of the node works with it."""
    default = node_of("trn3.48xlarge", UltraServerFacts(modes=(1, 3, 4), node_id=1, reservation_id="0" * 15 + "1"))
    made = decided(claim(device("neuron-node-0"), configs=(group(4),)), default)
    assert "NEURON_RT_ULTRASERVER_SERVER_ID=0000000000000001" in made.devices[0].env


# Reserved nodes

RESERVED = NodeReservation("ml", "llm", "uid-llm", Phase.BOUND, Place(5, 4, 8, "node-x"))
TRN2U_NODE = node_of("trn2u.48xlarge", TRN2U)
OURS = group(4, "llm", "uid-llm")


def whole(*configs: Entry, namespace: str = "ml", **more: Any) -> Claim:
    return Claim(ClaimRef(namespace, "job", "uid-job"), (device("neuron-node-0", **more),), configs)


@pytest.mark.parametrize(
    ("wanted", "reservation", "why"),
    [
        # A node without a reservation rejects a workload's claim.
        (whole(OURS), None, "this node is not reserved for it"),
        (whole(group(4, "llm")), None, "this node is not reserved for it"),
        (whole(group(4, None, "uid-llm")), None, "this node is not reserved for it"),
        # A reserved node rejects other claims.
        (whole(), RESERVED, "reserved for NeuronUltraServerWorkload ml/llm, and this claim belongs to no workload"),
        (whole(group(4)), RESERVED, "this claim belongs to no workload"),
        (whole(lnc(1)), RESERVED, "this claim belongs to no workload"),
        (whole(namespace="dev"), RESERVED, "for a NeuronUltraServerWorkload of another namespace, and this"),
        (whole(OURS, namespace="dev"), RESERVED, "a copy of its ResourceClaimTemplate in namespace dev is not valid"),
        (whole(group(4, "llm", "uid-old")), RESERVED, "with UID uid-llm, and this claim names the UID uid-old"),
        (whole(group(4, "llm"), namespace="dev"), RESERVED, "names workload dev/llm (UID (none))"),
        (whole(group(4, None, "uid-llm")), RESERVED, "names workload ml/(none) (UID uid-llm)"),
        (whole(group(4, "other", "uid-other")), RESERVED, "names workload ml/other (UID uid-other)"),
        (whole(device_class="workload.neuron.aws.com"), RESERVED, "this claim belongs to no workload"),
        # It rejects the workload's own claim before and after the phase Bound.
        (whole(OURS), replace(RESERVED, phase=Phase.PENDING), "not bound to it yet (phase Pending)"),
        (
            whole(OURS),
            replace(RESERVED, phase=Phase.DRAINING),
            "being released by NeuronUltraServerWorkload ml/llm",
        ),
        (whole(OURS), replace(RESERVED, place=None), "cannot be read now, so the rank is unknown"),
    ],
)
def test_reserved_node_rejections_have_reasons(wanted: Claim, reservation: NodeReservation | None, why: str) -> None:
    text = refusal(wanted, TRN2U_NODE, (), reservation)
    assert why in text
    assert text.startswith(f"claim {wanted.ref}: ")


def test_claim_without_workload_is_always_rejected() -> None:
    """13.2. Without an admission policy it would hold a node that was just reserved."""
    intruder = whole(lnc(1), device_class="workload.neuron.aws.com")
    assert refusal(intruder, TRN2U_NODE) == (
        "claim ml/job: DeviceClass workload.neuron.aws.com selects devices that are reserved for a "
        "NeuronUltraServerWorkload, and this claim belongs to no workload; use deviceClassName neuron.aws.com, or the "
        "ResourceClaimTemplate of a workload"
    )
    assert decided(whole(device_class="neuron.aws.com"), TRN2U_NODE)
    assert decided(whole(device_class="workload.neuron.aws.com", admin_access=True), TRN2U_NODE)


def test_claim_of_the_aws_operator_is_accepted() -> None:
    """13.3."""
    prepared = decided(whole(group(4, "llm")), TRN2U_NODE, (), RESERVED)
    assert "NEURON_GLOBAL_TOPOID=5" in prepared.devices[0].env


@pytest.mark.parametrize("phase", Phase)
def test_claim_without_workload_fails_in_all_phases(phase: Phase) -> None:
    text = refusal(whole(), TRN2U_NODE, (), replace(RESERVED, phase=phase))
    assert "belongs to no workload" in text


def test_each_device_must_name_the_workload() -> None:
    first, second = device(0, "one"), device(1, "two")
    wanted = Claim(ref(), (first, second), (replace(OURS, requests=("one",)),))
    assert "belongs to no workload" in refusal(wanted, TRN2U_NODE, (), RESERVED)


def test_admin_device_admits_no_other_device() -> None:
    wanted = Claim(ref(), (device(0, "watch", admin_access=True), device(1, "work")))
    assert "belongs to no workload" in refusal(wanted, TRN2U_NODE, (), RESERVED)


def test_bound_workload_gets_node_and_rank() -> None:
    prepared = decided(whole(OURS), TRN2U_NODE, (), RESERVED)
    assert prepared.workload == "llm"
    assert prepared.devices[0].env == (
        "NEURON_RT_ULTRASERVER_MODE=1",
        f"NEURON_RT_ULTRASERVER_SERVER_ID={TRN2U.server_id_4}",
        f"NEURON_RT_ULTRASERVER_NODE_ID={TRN2U.node_id_4}",
        "NEURON_GLOBAL_TOPOID=5",
        "NEURON_DRA_WORLD_SIZE=8",
        "NEURON_DRA_RANK0_NODE=node-x",
    )


def test_admin_device_does_not_change_the_rank() -> None:
    ours, monitor = device(0, "work"), device(1, "watch", admin_access=True)
    prepared = decided(Claim(ref(), (ours, monitor), (replace(OURS, requests=("work",)),)), TRN2U_NODE, (), RESERVED)
    assert prepared.workload == "llm"
    assert ["NEURON_GLOBAL_TOPOID=5" in each.env for each in prepared.devices] == [True, False]


def test_rank_comes_from_the_allocation() -> None:
    held = Allocation(
        *("ml", "llm", "uid-llm", "a-1", Phase.BOUND, ("n0", "n1"), 2, 3), world_size=8, rank0_node="node-x"
    )
    assert NodeReservation.of(held, "n1") == NodeReservation(
        "ml", "llm", "uid-llm", Phase.BOUND, Place(7, 2, 8, "node-x")
    )


def test_tag_without_allocation_has_no_rank() -> None:
    tag = Tag("ml", "llm", "uid-llm", "a-1", Phase.DRAINING)
    assert NodeReservation.remembered(tag) == NodeReservation("ml", "llm", "uid-llm", Phase.DRAINING, None)


def test_admin_claim_without_allocation_has_no_rank() -> None:
    env = decided(whole(OURS, admin_access=True), TRN2U_NODE, (), replace(RESERVED, place=None)).devices[0].env
    assert env == variables(1, "00000000000000bb", 3)


def test_absent_fields_are_not_in_the_environment() -> None:
    silent = replace(RESERVED, place=Place(5, 4, None, None))
    env = decided(whole(OURS), TRN2U_NODE, (), silent).devices[0].env
    assert [each for each in env if each.startswith(("NEURON_GLOBAL", "NEURON_DRA"))] == ["NEURON_GLOBAL_TOPOID=5"]


def test_mode_must_match_the_allocation() -> None:
    wanted = whole(group(2, "llm", "uid-llm"))
    text = refusal(wanted, TRN2U_NODE, (), RESERVED)
    assert "ultraserverMode 2 differs from the topologySize 4 of workload ml/llm" in text


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("configs", [(), (group(4, "other", "uid-other"),), (OURS,)])
def test_an_administrator_gets_in_anywhere(phase: Phase, configs: tuple[Entry, ...]) -> None:
    prepared = decided(whole(*configs, admin_access=True), TRN2U_NODE, (), replace(RESERVED, phase=phase))
    assert prepared.devices[0].admin_access
    ours = configs == (OURS,)
    assert prepared.workload == ("llm" if ours else "")
    assert ("NEURON_GLOBAL_TOPOID=5" in prepared.devices[0].env) is ours


def test_mode_without_workload_needs_no_reservation() -> None:
    prepared = decided(whole(group(4)), TRN2U_NODE)
    assert prepared.workload == ""
    assert not [each for each in prepared.devices[0].env if each.startswith("NEURON_GLOBAL")]


# One device, one claim.


@pytest.mark.contract("P13")
def test_device_in_use_error_names_the_holder() -> None:
    holder = decided(claim(device(5), name="old"))
    text = refusal(claim(device(5)), TRN2, (holder,))
    assert text == (
        "claim ml/job: neuron-device-5 is in use: neuron5 is held by claim ml/old (UID uid-old) until that claim is "
        "unprepared"
    )


def test_device_in_use_error_has_the_holders_uid() -> None:
    holder = decided(claim(device(5), name="old"))
    with pytest.raises(DeviceInUse) as caught:
        decided(claim(device(5)), TRN2, (holder,))
    assert caught.value.holder == "uid-old"


@pytest.mark.contract("P13")
@pytest.mark.parametrize(
    ("mine", "theirs"), [("neuron-node-0", "neuron-device-5"), ("neuron-device-5", "neuron-node-0")]
)
def test_node_overlaps_each_of_its_devices(mine: str, theirs: str) -> None:
    node = node_of("trn2u.48xlarge", TRN2U)
    holder = decided(claim(device(theirs), name="old"), node)
    assert "is held by claim ml/old" in refusal(claim(device(mine)), node, (holder,))


def test_a_claim_does_not_stand_in_its_own_way() -> None:
    before = decided(claim(device(5)))
    assert decided(claim(device(5)), TRN2, (before,)) == before


def test_a_neighbour_is_no_holder() -> None:
    holder = decided(claim(device(4), name="old"))
    assert decided(claim(device(5)), TRN2, (holder,)).devices[0].device_ids == (5,)


@pytest.mark.contract("P14")
def test_admin_claim_gets_a_device_in_use() -> None:
    holder = decided(claim(device(5), name="old"))
    admin = decided(claim(device(5, admin_access=True), name="monitor"), TRN2, (holder,))
    assert admin.devices[0].edits == {"deviceNodes": [{"path": "/dev/neuron5"}]}
    assert decided(claim(device(5), name="new"), TRN2, (admin,)).devices[0].device_ids == (5,)


def test_admin_claim_is_not_the_holder() -> None:
    job = decided(claim(device(5), name="old"))
    monitor = decided(claim(device(5, admin_access=True), name="monitor"), TRN2, (job,))
    assert "is held by claim ml/old" in refusal(claim(device(5)), TRN2, (monitor, job))


@pytest.mark.contract("P15")
def test_device_shares_are_separate_cdi_devices() -> None:
    first = decided(claim(device(5, share_id="aa-1"), device(5, share_id="aa-2")))
    assert [d.share_id for d in first.devices] == ["aa-1", "aa-2"]
    assert len({cdi_id for d in first.devices for cdi_id in d.cdi_ids}) == 2
    other = decided(claim(device(5, share_id="aa-3"), name="other"), TRN2, (first,))
    assert other.devices[0].share_id == "aa-3"
    assert "is in use" in refusal(claim(device(5), name="whole"), TRN2, (first,))


@pytest.mark.contract("P15")
def test_share_of_a_device_in_use_is_rejected() -> None:
    holder = decided(claim(device(5), name="old"))
    assert "is in use" in refusal(claim(device(5, share_id="aa-1")), TRN2, (holder,))


@pytest.mark.contract("P13")
@pytest.mark.parametrize("before", [device(4), device(4, admin_access=True), device(4, share_id="aa-1")])
def test_every_device_of_every_holder_counts(before: AllocatedDevice) -> None:
    holders = (decided(claim(device(3), name="first")), decided(claim(before, device(5), name="second")))
    text = refusal(claim(device(6), device(5)), TRN2, holders)
    assert "neuron5 is held by claim ml/second" in text


@pytest.mark.contract("P13")
def test_recreated_claim_waits_for_its_predecessor() -> None:
    before = decided(claim(device(5)))
    anew = Claim(ClaimRef("ml", "job", "uid-anew"), (device(5),))
    assert "held by claim ml/job (UID uid-job)" in refusal(anew, TRN2, (before,))


def test_unhealthy_device_is_for_admins_only() -> None:
    def sick(result: AllocatedDevice) -> str:
        return "neuron-device-5 is unhealthy" if result.device == "neuron-device-5" else ""

    def prepared(*devices: AllocatedDevice) -> PreparedClaim:
        return decide(
            claim(*devices), node_name=NODE_NAME, node=TRN2, held=(), device_files=cdi.DeviceFiles(), unhealthy=sick
        )

    with pytest.raises(ClaimError, match="claim ml/job: neuron-device-5 is unhealthy"):
        prepared(device(4), device(5))
    assert prepared(device(4), device(5, admin_access=True)).devices[1].device_ids == (5,)


# What is not there.


def test_node_without_devices_is_rejected() -> None:
    empty = node_of("trn2u.48xlarge", TRN2U, gone=tuple(range(16)))
    assert "neuron-node-0 has no Neuron device left" in refusal(claim(device("neuron-node-0")), empty)


@pytest.mark.contract("P29")
def test_device_of_another_pool_is_rejected() -> None:
    text = refusal(claim(device(0, pool="node-b")))
    assert "pool node-b, and this node is node-a; delete the pod" in text


@pytest.mark.contract("P32")
def test_unknown_device_error_lists_devices() -> None:
    text = refusal(claim(device(1)), TRN1_SMALL)
    assert "neuron-device-1 is allocated, but the node has no such device (it has neuron-device-0)" in text


@pytest.mark.parametrize("name", ["5", "neuron-5", "neuron-device-05", "neuron-device-neuron-device-5"])
def test_similar_name_is_not_a_device(name: str) -> None:
    assert "the node has no such device" in refusal(claim(device(name)))


def test_device_without_file_is_an_error() -> None:
    assert "/dev/neuron2 is missing" in refusal(claim(device(2)), node_of("trn2.48xlarge", gone=(2,)))


def test_node_is_prepared_without_missing_devices() -> None:
    prepared = decided(claim(device("neuron-node-0")), node_of("trn2u.48xlarge", TRN2U, gone=(2,)))
    assert prepared.devices[0].device_ids == tuple(i for i in range(16) if i != 2)


def test_claim_without_own_devices_is_rejected() -> None:
    assert "no device of neuron.aws.com" in refusal(claim())


# From the API's object.


def raw(**status: Any) -> bytes:
    return msgspec.json.encode(
        {
            "metadata": {"name": "job", "namespace": "ml", "uid": "uid-job", "managedFields": [{"x": 1}]},
            "status": status,
        }
    )


def allocation(*results: dict[str, Any], config: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"devices": {"results": list(results), "config": config}, "nodeSelector": {}}


def result(**more: Any) -> dict[str, Any]:
    return {"request": "r", "driver": "neuron.aws.com", "pool": "p", "device": "neuron-device-0", **more}


@pytest.mark.contract("P7")
def test_other_drivers_results_are_ignored() -> None:
    body = raw(
        allocation=allocation(
            result(driver="dra.net", device="eth0"),
            result(),
            config=[
                {"source": "FromClaim", "opaque": {"driver": "dra.net", "parameters": {"anything": [1]}}},
                {
                    "source": "FromClass",
                    "requests": ["r"],
                    "opaque": {
                        "driver": "neuron.aws.com",
                        "parameters": {
                            "apiVersion": "neuron.aws.com/v1",
                            "kind": "NeuronConfig",
                            "logicalNeuronCore": 1,
                        },
                    },
                },
            ],
        ),
        reservedFor=[
            {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g"},
            {"resource": "pods", "name": "pod-0"},
        ],
    )
    found = wire.to_core(wire.decode_claim(body), ref())
    assert found.devices == (AllocatedDevice("r", "p", "neuron-device-0"),)
    assert found.configs == (Entry(EntrySource.CLASS, ("r",), NeuronSettings(1)),)
    assert found.pod == "pod-0"


@pytest.mark.parametrize(
    ("owner", "is_of_its_pod"),
    [
        ({"kind": "Pod", "uid": "uid-pod", "controller": True}, True),
        ({"kind": "Pod", "uid": "uid-pod"}, False),
        ({"kind": "Pod", "uid": "uid-of-another", "controller": True}, False),
        ({"kind": "PodGroup", "uid": "uid-pod", "controller": True}, False),
    ],
)
def test_claim_is_of_the_pod_that_owns_and_uses_it(owner: dict[str, Any], is_of_its_pod: bool) -> None:
    status = {"allocation": allocation(result()), "reservedFor": [{"resource": "pods", "name": "a", "uid": "uid-pod"}]}
    metadata = {"name": "job", "namespace": "ml", "uid": "uid-job", "ownerReferences": [owner]}
    decoded = wire.decode_claim(msgspec.json.encode({"metadata": metadata, "status": status}))
    assert wire.to_core(decoded, ref()) == Claim(
        ref(), (AllocatedDevice("r", "p", "neuron-device-0"),), pod="a", of_its_pod=is_of_its_pod
    )
    assert wire.allocation(decoded, ref()) == wire.to_core(decoded, ref())


def test_allocated_device_fields_are_kept() -> None:
    body = raw(allocation=allocation(result(adminAccess=True, shareID="aa-1", request="r/sub", tolerations=[])))
    assert wire.to_core(wire.decode_claim(body), ref()).devices == (
        AllocatedDevice("r/sub", "p", "neuron-device-0", True, "aa-1"),
    )


def test_class_is_that_of_the_chosen_request() -> None:
    """13.2. `firstAvailable` hides a class one level deeper."""
    alternatives = [{"name": "a", "deviceClassName": "one"}, {"name": "b", "deviceClassName": "two"}]
    requests = [
        {"name": "r", "exactly": {"deviceClassName": "zero", "count": 1}},
        {"name": "s", "firstAvailable": alternatives},
    ]
    body = msgspec.json.encode(
        {
            "metadata": {"name": "job", "namespace": "ml", "uid": "uid-job"},
            "spec": {"devices": {"requests": requests}},
            "status": {"allocation": allocation(result(), result(request="s/b"), result(request="unheard"))},
        }
    )
    found = wire.to_core(wire.decode_claim(body), ref())
    assert [each.device_class for each in found.devices] == ["zero", "two", ""]


@pytest.mark.contract("P4")
def test_replaced_claim_error_names_both_uids() -> None:
    with pytest.raises(ClaimError, match=r"claim ml/job was replaced: .*uid-old.*uid-job"):
        wire.to_core(wire.decode_claim(raw(allocation=allocation(result()))), ClaimRef("ml", "job", "uid-old"))


@pytest.mark.contract("P4")
def test_unallocated_claim_is_rejected() -> None:
    with pytest.raises(ClaimError, match="claim ml/job is not allocated"):
        wire.to_core(wire.decode_claim(raw()), ref())


def test_unknown_config_kind_is_rejected() -> None:
    body = raw(allocation=allocation(result(), config=[{"source": "FromClaim", "structured": {}}]))
    with pytest.raises(ClaimError, match=r"config\[0\] is not opaque configuration; use opaque"):
        wire.to_core(wire.decode_claim(body), ref())


@pytest.mark.parametrize("answer", [b"", b"[]", b"<html>", b'{"metadata": 1}', b"\xff\xfe"])
def test_malformed_claim_is_an_error(answer: bytes) -> None:
    with pytest.raises(ClaimError, match="is not a ResourceClaim"):
        wire.decode_claim(answer)


def test_null_lists_are_empty() -> None:
    nothing = b'"allocation":{"devices":{"results":null,"config":null}},"reservedFor":null'
    body = b'{"metadata":{"uid":"u"},"status":{' + nothing + b"}}"
    found = wire.to_core(wire.decode_claim(body), ClaimRef("ml", "job", "u"))
    assert (found.devices, found.configs, found.pod) == ((), (), "")
    page = objects.page(b'{"metadata":{"resourceVersion":"1"},"items":null}')
    assert page.decoded(wire.ResourceClaim) == objects.Decoded([], [])
