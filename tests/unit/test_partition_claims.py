"""16.4: what a container gets for a connected set or a core partition: its device files, and the cores that it sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import msgspec
import pytest

from neuron_dra.api import claims as wire
from neuron_dra.api.objects import healthy_node
from neuron_dra.core import catalogue, cdi, checkpoint, health, members
from neuron_dra.core.cdi import ShownDevice
from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.core.config import Entry, EntrySource, NeuronSettings
from neuron_dra.core.decision import decide
from neuron_dra.core.members import Cores, Members
from neuron_dra.core.topology import Node
from neuron_dra.errors import ClaimError, DeviceInUse

INF2, INF1, TRN2 = (healthy_node(name) for name in ("inf2.48xlarge", "inf1.24xlarge", "trn2.48xlarge"))


def claim(
    *devices: tuple[str, str], name: str = "job", lnc: Literal[1, 2] | None = None, limits: bool = False
) -> Claim:
    """A claim for devices, each with its request."""
    results = tuple(AllocatedDevice(request, "node-a", device) for request, device in devices)
    configs = () if lnc is None else (Entry(EntrySource.CLAIM, (), NeuronSettings(lnc)),)
    return Claim(ClaimRef("ml", name, f"uid-{name}"), results, configs, extended_resources=limits)


def prepare(wanted: Claim, node: Node = INF2, *held: PreparedClaim) -> PreparedClaim:
    return decide(wanted, node_name="node-a", node=node, held=held, device_files=cdi.DeviceFiles())


def given(prepared: PreparedClaim) -> list[tuple[list[str], list[str]]]:
    """Return, for each device of the claim, the device files and the environment."""
    return [
        ([node["path"] for node in device.edits["deviceNodes"]], list(device.edits.get("env", ())))
        for device in prepared.devices
    ]


def files(*ids: int) -> list[str]:
    return [f"/dev/neuron{i}" for i in ids]


def visible(text: str) -> list[str]:
    return [f"NEURON_RT_VISIBLE_CORES={text}"]


def test_a_set_gets_exactly_its_devices() -> None:
    assert given(prepare(claim(("req", "neuron-set-3-10")))) == [(files(0, 10, 11), [])]


def test_cores_are_numbered_from_the_first_visible_device() -> None:
    assert given(prepare(claim(("req", "neuron-cores-9-8")), INF1)) == [(files(2, 3, 4), visible("0-8"))]
    assert given(prepare(claim(("req", "neuron-cores-2-9")), INF1)) == [(files(2), visible("1-2"))]
    assert given(prepare(claim(("req", "neuron-cores-1-23")))) == [(files(11), visible("1"))]


@pytest.mark.parametrize(("lnc", "text"), [(None, "1"), (2, "1"), (1, "2-3")])
def test_cores_are_counted_in_the_claims_size(lnc: Literal[1, 2] | None, text: str) -> None:
    """A logical core of trn2 is two physical ones; with logicalNeuronCore 1 the runtime counts each of them."""
    [(paths, env)] = given(prepare(claim(("req", "neuron-cores-1-5"), lnc=lnc), TRN2))
    assert (paths, env[-1:]) == (files(1), visible(text))


def test_containers_of_limits_have_their_own_cores() -> None:
    wanted = claim(
        ("container-0-request-0", "neuron-cores-1-3"), ("container-1-request-0", "neuron-cores-3-4"), limits=True
    )
    assert given(prepare(wanted)) == [(files(1), visible("1")), (files(2, 3), visible("0-2"))]


def test_two_requests_of_one_container_share_one_value() -> None:
    """The environment has one value, and the last would win."""
    wanted = claim(
        ("container-0-request-0", "neuron-set-2-4"), ("container-0-request-1", "neuron-cores-1-12"), limits=True
    )
    assert given(prepare(wanted)) == [(files(4, 5), visible("0-4")), (files(6), visible("0-4"))]


def test_cores_that_are_not_contiguous_are_refused() -> None:
    with pytest.raises(ClaimError, match=r"cores 0, 3 of its devices.*cores-2\.neuron\.aws\.com"):
        prepare(claim(("req", "neuron-cores-1-0"), ("req", "neuron-cores-1-5")))


def test_several_core_requests_need_limits() -> None:
    with pytest.raises(ClaimError, match="one of several requests"):
        prepare(claim(("one", "neuron-cores-1-0"), ("two", "neuron-cores-1-1")))


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ("neuron-set-3-0", "neuron-device-2"),
        ("neuron-device-2", "neuron-set-3-0"),
        ("neuron-set-3-11", "neuron-set-2-1"),
        ("neuron-cores-1-4", "neuron-device-2"),
        ("neuron-set-3-0", "neuron-cores-1-4"),
        ("neuron-cores-3-2", "neuron-cores-1-4"),
    ],
)
def test_overlap_is_refused_whatever_the_scheduler_did(held: str, wanted: str) -> None:
    with pytest.raises(DeviceInUse):
        prepare(claim(("req", wanted), name="late"), INF2, prepare(claim(("req", held))))


def test_parts_of_one_device_go_to_two_claims() -> None:
    first = prepare(claim(("req", "neuron-cores-3-2")))
    late = prepare(claim(("req", "neuron-cores-1-5"), name="late"), INF2, first)
    assert [device.cores for device in late.devices] == [Cores(5, 1)]


def test_overlap_inside_one_claim_is_refused() -> None:
    with pytest.raises(ClaimError, match="neuron-device-1 and neuron-set-2-0 are allocated together"):
        prepare(claim(("req", "neuron-set-2-0"), ("req", "neuron-device-1")))


def test_a_set_with_a_missing_device_is_refused() -> None:
    without = [device for device in INF2.devices if device.device_id != 4]
    node = replace(INF2, devices=tuple(without))
    with pytest.raises(ClaimError, match="neuron-set-3-3 is allocated, but the node has no such device"):
        prepare(claim(("req", "neuron-set-3-3")), node)


def test_the_checkpoint_keeps_the_cores() -> None:
    held = prepare(claim(("req", "neuron-cores-3-2")))
    written = checkpoint.encode(Checkpoint("boot", {held.ref.uid: held}))
    assert checkpoint.decode(written).claims == {held.ref.uid: held}
    assert b'"deviceIds":[1,2]' in written  # by which a release without cores rejects other claims for the devices


def test_a_claim_for_limits_is_known_by_its_annotation() -> None:
    item = {
        "metadata": {
            "name": "pod-extended-resources-x7k2p",
            "namespace": "ml",
            "uid": "u",
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        },
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {
                            "request": "container-0-request-0",
                            "driver": "neuron.aws.com",
                            "pool": "node-a",
                            "device": "neuron-set-2-3",
                        }
                    ]
                }
            }
        },
    }
    decoded = wire.to_core(wire.decode_claim(msgspec.json.encode(item)), ClaimRef("ml", "x", "u"))
    assert decoded.extended_resources
    assert [device.request for device in decoded.devices] == ["container-0-request-0"]


def test_set_health_is_its_worst_devices() -> None:
    gone = health.observe({}, (), (3,), 0.0, 0.0)
    well = {i: health.WatchedDevice(seen=True, known=True) for i in (4, 5)}
    judged = health.judged("neuron-set-3-3", (3, 4, 5), {**gone, **well})
    assert (judged.reasons, judged.message) == (("missing",), "neuron3: the device is gone from the node")


@pytest.mark.parametrize("name", ["neuron-set-13-0", "neuron-set-2-12", "neuron-cores-2-23", "neuron-set-0-1"])
def test_names_that_the_type_cannot_have_mean_nothing(name: str) -> None:
    assert members.of(name, INF2.spec) is None


def test_a_set_wraps_around_the_ring() -> None:
    assert members.of("neuron-set-3-11", catalogue.lookup("inf2.48xlarge")) == Members((11, 0, 1))
    assert members.of("neuron-cores-3-0", None) is None


def test_a_lost_checkpoint_finds_the_devices_in_the_cdi_file() -> None:
    held = prepare(claim(("req", "neuron-cores-3-2")))
    [shown] = cdi.devices(cdi.spec(held), held.ref.uid)
    assert shown == ShownDevice("neuron-cores-3-2", held.devices[0].device_ids, cores=held.devices[0].cores)


LNC2 = ["NEURON_LOGICAL_NC_CONFIG=2", "NEURON_RT_VIRTUAL_CORE_SIZE=2"]


@pytest.mark.parametrize("name", ["neuron-cores-1-5", "neuron-cores-3-8"])
def test_cores_pin_the_logical_core_size_that_their_numbers_assume(name: str) -> None:
    """(32.2) A pod's own NEURON_LOGICAL_NC_CONFIG=1 would give it a physical core of another pod."""
    [(_, env)] = given(prepare(claim(("req", name)), TRN2))
    assert env[:2] == LNC2
    assert [each.partition("=")[0] for each in env[2:]] == ["NEURON_RT_VISIBLE_CORES"]


def test_the_claims_configuration_wins_over_the_pinned_size() -> None:
    [(_, env)] = given(prepare(claim(("req", "neuron-cores-1-5"), lnc=1), TRN2))
    assert env == ["NEURON_LOGICAL_NC_CONFIG=1", "NEURON_RT_VIRTUAL_CORE_SIZE=1", *visible("2-3")]


def test_every_device_of_a_container_with_cores_has_the_same_size() -> None:
    wanted = claim(
        ("container-0-request-0", "neuron-set-4-4"), ("container-0-request-1", "neuron-cores-1-15"), limits=True
    )
    assert [env for _, env in given(prepare(wanted, TRN2))] == [[*LNC2, *visible("3-19")]] * 2


def test_whole_devices_leave_the_size_to_the_pod() -> None:
    assert given(prepare(claim(("req", "neuron-set-4-4")), TRN2)) == [(files(4, 5, 6, 7), [])]


def test_types_with_one_size_have_no_variable_for_it() -> None:
    assert given(prepare(claim(("req", "neuron-cores-1-5")))) == [(files(2), visible("1"))]


@pytest.mark.parametrize(
    ("node", "first", "second"),
    [
        (INF2, "neuron-cores-1-1", "neuron-cores-1-4"),  # devices 0 and 2 of a ring: cores 1 and 2 of what it sees
        (TRN2, "neuron-cores-1-15", "neuron-cores-1-24"),  # devices 3 and 6 of the torus
        (INF2, "neuron-device-3", "neuron-cores-1-10"),
    ],
)
def test_core_ranges_over_devices_that_are_not_linked_are_refused(node: Node, first: str, second: str) -> None:
    """(32.11)"""
    wanted = claim(("container-0-request-0", first), ("container-0-request-1", second), limits=True)
    with pytest.raises(ClaimError, match=r"cores of neuron\d, neuron\d, which no links connect.*cores-\d\.neuron"):
        prepare(wanted, node)


def test_a_link_that_has_failed_refuses_no_range() -> None:
    """The set that the scheduler gave is withdrawn; its pod is not held up by what it would find when it runs."""
    cut = tuple(replace(one, reported=frozenset()) for one in INF2.devices)
    assert given(prepare(claim(("req", "neuron-cores-3-4")), replace(INF2, devices=cut)))[0][1] == visible("0-2")
