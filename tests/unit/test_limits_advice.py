"""16.5: the message for a pod that requests a number of devices or cores that no node serves."""

from __future__ import annotations

from typing import Any

import pytest

from controller.limits import advice
from controller.limits.advice import NodeSizes, Waiting
from neuron_dra.core import sizes
from neuron_dra.core.wire import Obj

TRN1 = NodeSizes("trn1.32xlarge", (("core", 1), *(("device", n) for n in (1, 4, 8, 16))))
RING = NodeSizes("inf2.48xlarge", tuple(("device", n) for n in range(1, 13)))
PLAIN = NodeSizes("inf2.24xlarge", ())
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def pod(*limits: dict[str, str], **spec: Any) -> Obj:
    """A pod that the scheduler cannot place, with a container for each of the limits."""
    containers = [{"name": f"c{n}", "resources": {"limits": each}} for n, each in enumerate(limits)]
    return {
        "metadata": {"namespace": "ml", "name": "job", "uid": "u"},
        "spec": {"containers": containers, **spec},
        "status": {"phase": "Pending", "conditions": [UNSCHEDULABLE]},
    }


def connected(number: int) -> dict[str, str]:
    return {sizes.resource_name(sizes.DEVICE, number): "1"}


def wants(*found: tuple[str, int], types: tuple[str, ...] = ()) -> Waiting:
    return Waiting("ml", "job", "u", found, types)


def on(types: list[str]) -> Obj:
    """The affinity of a pod to nodes of these types."""
    expressions = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": types}]
    term = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (pod(connected(7)), wants(("device", 7))),
        (pod({"cpu": "1"}, {sizes.resource_name(sizes.CORE, 9): "1"}, connected(2)), wants(("core", 9), ("device", 2))),
        (pod(connected(7), nodeSelector={"node.kubernetes.io/instance-type": "trn1.32xlarge"}),
         wants(("device", 7), types=("trn1.32xlarge",))),
        (pod(connected(7), affinity=on(["trn1.32xlarge", "inf2.48xlarge"])),
         wants(("device", 7), types=("inf2.48xlarge", "trn1.32xlarge"))),
        (pod({"aws.amazon.com/neuron": "7"}), None),
        (pod({"deviceclass.resource.kubernetes.io/connected-0.neuron.aws.com": "1"}), None),
        (pod(connected(7), nodeName="node-a"), None),
        ({**pod(connected(7)), "status": {}}, None),
        ({**pod(connected(7)), "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_pod_waits_for_what_its_containers_request(made: Obj, expected: Waiting | None) -> None:
    assert advice.waiting(made) == expected


def test_init_containers_count_too() -> None:
    init = [{"name": "init", "resources": {"limits": connected(3)}}]
    found = advice.waiting(pod(connected(1), initContainers=init))
    assert found is not None
    assert found.wants == (("device", 1), ("device", 3))


def test_slice_offers_the_sizes_of_its_devices() -> None:
    attributes = {"instanceType": {"string": "inf2.48xlarge"}, "connectedDevices": {"int": 3}, "cores": {"int": 6}}
    devices = [{"name": "neuron-set-3-0", "attributes": attributes}, {"name": "neuron-device-0", "attributes": {}}]
    assert advice.offered({"spec": {"devices": devices}}) == NodeSizes("inf2.48xlarge", (("core", 6), ("device", 3)))
    assert advice.offered({"spec": {"sharedCounters": []}}) == NodeSizes("", ())


REFUSED = (
    "Instance type trn1.32xlarge does not support requests for device: 7. Please request a different number of devices."
)


@pytest.mark.parametrize(
    ("waits", "offers", "message"),
    [
        (wants(("device", 4)), [TRN1], ""),
        (wants(("device", 7)), [TRN1], f"{REFUSED} In this cluster: trn1.32xlarge serves 1, 4, 8 or 16 devices."),
        (wants(("device", 7)), [TRN1, RING], ""),
        (wants(("device", 7), types=("trn1.32xlarge",)), [TRN1, RING],
         f"{REFUSED} In this cluster: trn1.32xlarge serves 1, 4, 8 or 16 devices."),
        (wants(("device", 7), types=("trn1.32xlarge",)), [],
         f"{REFUSED} In this cluster: trn1.32xlarge serves 1, 4, 8 or 16 devices."),
        (wants(("device", 7)), [], ""),
        (wants(("device", 7), types=("m5.large",)), [TRN1], ""),
        (wants(("device", 99)), [RING, PLAIN],
         "Instance type inf2.24xlarge does not support requests for device: 99. Please request a different number of "
         "devices. In this cluster: nodes of type inf2.24xlarge publish no connected sets (their Events say why); "
         "inf2.48xlarge serves 1 to 12 devices."),
        (wants(("device", 4), ("device", 7)), [TRN1],
         f"{REFUSED} In this cluster: trn1.32xlarge serves 1, 4, 8 or 16 devices."),
    ],
)  # fmt: skip
def test_message_names_what_each_type_serves(waits: Waiting, offers: list[NodeSizes], message: str) -> None:
    assert advice.advice(waits, advice.served(offers)) == message


def test_many_types_are_counted() -> None:
    offers = [NodeSizes(f"type-{n}", (("device", 1),)) for n in range(7)]
    text = advice.advice(wants(("device", 2)), advice.served(offers))
    assert text.count("serves") == advice.TYPES_SHOWN
    assert text.endswith("3 more instance types do not serve 2.")
