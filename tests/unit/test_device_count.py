"""16.6: a claim that requires a number of devices is not prepared with another one."""

from __future__ import annotations

import json

import pytest

from neuron_dra.api import claims as wire
from neuron_dra.api.objects import healthy_node
from neuron_dra.core import cdi
from neuron_dra.core.claims import ClaimRef, PreparedClaim
from neuron_dra.core.decision import decide
from neuron_dra.errors import ClaimError

REF = ClaimRef("ml", "all", "uid")


def prepare(*devices: str, annotation: str | None) -> PreparedClaim:
    results = [{"request": "r", "driver": "neuron.aws.com", "pool": "n", "device": each} for each in devices]
    notes = {} if annotation is None else {"annotations": {"neuron.aws.com/device-count": annotation}}
    item = {
        "metadata": {"name": "all", "namespace": "ml", "uid": "uid", **notes},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    claim = wire.to_core(wire.decode_claim(json.dumps(item).encode()), REF)
    node = healthy_node("trn1.32xlarge")
    return decide(claim, node_name="n", node=node, held=(), device_files=cdi.DeviceFiles())


SIXTEEN = tuple(f"neuron-device-{n}" for n in range(16))


@pytest.mark.parametrize("annotation", ["16", None, ""])
def test_the_number_that_is_required_is_prepared(annotation: str | None) -> None:
    assert len(prepare(*SIXTEEN, annotation=annotation).devices) == 16


def test_a_set_counts_its_devices() -> None:
    assert len(prepare("neuron-set-16-0", annotation="16").devices) == 1


@pytest.mark.parametrize("annotation", ["16", "all", "+15"])
def test_another_number_is_rejected(annotation: str) -> None:
    """On Kubernetes 1.34 an unhealthy device leaves the slice, and `All` then means the other fifteen."""
    with pytest.raises(ClaimError) as caught:
        prepare(*SIXTEEN[:15], annotation=annotation)
    assert str(caught.value) == (
        f"claim ml/all has 15 Neuron devices, and its annotation neuron.aws.com/device-count requires {annotation}: a "
        "device of this node is missing or unhealthy, or the annotation is wrong; delete the pod so that its claim is "
        "allocated again"
    )
