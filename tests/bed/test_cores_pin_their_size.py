"""32.2 on a real kubelet: pods that set a size of logical cores themselves keep to their own cores."""

from __future__ import annotations

from typing import Any

import pytest

from hack.bed.real_cluster import Namespace
from neuron_dra.core.wire import Obj
from tests.bed.deployed import environment, started
from tests.bed.limited import CORE, container, ended, pod

TORUS = {"nodeSelector": {"kubernetes.io/hostname": "torus"}}
CORES_OF_A_DEVICE = 8  # physical ones, of trn2.48xlarge
OWN_SIZE = [{"name": "NEURON_LOGICAL_NC_CONFIG", "value": "1"}, {"name": "NEURON_RT_VIRTUAL_CORE_SIZE", "value": "1"}]


def with_own_size(name: str, number: int) -> Obj:
    """A pod with some cores, whose spec says that a logical core is one physical core."""
    made = pod(name, {CORE: number}, **TORUS)
    made["spec"]["containers"][0]["env"] = OWN_SIZE
    return made


def claim_with_size(name: str, number: int, size: int) -> list[Obj]:
    """A pod with a claim for cores, whose configuration sets the size, and its template."""
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": size}
    devices: dict[str, Any] = {
        "requests": [{"name": "cores", "exactly": {"deviceClassName": f"cores-{number}.neuron.aws.com"}}],
        "config": [{"requests": ["cores"], "opaque": {"driver": "neuron.aws.com", "parameters": parameters}}],
    }
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }
    made = pod(name, {}, **TORUS)
    made["spec"]["containers"] = [{**container({}), "resources": {"claims": [{"name": "cores"}]}, "env": OWN_SIZE}]
    made["spec"]["resourceClaims"] = [{"name": "cores", "resourceClaimTemplateName": name}]
    return [template, made]


def physical_cores(place: Namespace, name: str) -> tuple[int, int, set[int]]:
    """Return the device of a pod, its size of logical cores, and the physical cores that the runtime takes."""
    [device] = [
        int(word.removeprefix("neuron")) for word in place.exec(name, "sh", "-c", "cd /dev; ls -d neuron*").split()
    ]
    variables = environment(place, name)
    size = int(variables["NEURON_LOGICAL_NC_CONFIG"])
    assert variables["NEURON_RT_VIRTUAL_CORE_SIZE"] == variables["NEURON_LOGICAL_NC_CONFIG"]
    first, _, last = variables["NEURON_RT_VISIBLE_CORES"].partition("-")
    return device, size, set(range(int(first) * size, (int(last or first) + 1) * size))


@pytest.mark.long
def test_two_pods_with_a_size_of_their_own_share_a_device_and_no_core(sets_place: Namespace) -> None:
    place = sets_place
    for name in ("first", "second"):
        started(place, with_own_size(name, 1))
    found = [physical_cores(place, name) for name in ("first", "second")]
    assert [size for _, size, _ in found] == [2, 2]  # that of the type, which the cores' numbers assume
    assert found[0][0] == found[1][0]
    assert found[0][2] & found[1][2] == set()
    assert all(max(cores) < CORES_OF_A_DEVICE for _, _, cores in found)
    ended(place, "first", "second")


@pytest.mark.long
def test_a_claim_s_own_size_wins_and_keeps_the_same_physical_cores(sets_place: Namespace) -> None:
    place = sets_place
    started(place, with_own_size("limited", 1))
    for made in claim_with_size("claimed", 2, size=1):
        place.apply(made)
    place.wait_ready("claimed")
    by_limits, by_claim = physical_cores(place, "limited"), physical_cores(place, "claimed")
    assert (by_limits[1], by_claim[1]) == (2, 1)
    assert (len(by_limits[2]), len(by_claim[2])) == (2, 4)
    assert (by_limits[0], by_limits[2] & by_claim[2]) == (by_claim[0], set())
    ended(place, "limited", "claimed")
