"""The API server's rules, checked in advance."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import neuron_dra
from neuron_dra.core import catalogue, devices, facts, limits, semver, topology
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.devices import Attribute, Device
from neuron_dra.emulation.embedded_api import slice_rules

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
KEY = re.compile(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
TAGS = ("workloadId", "workloadNamespace", "workloadUid", "allocationId", "workloadPhase")
MARKS = ("unhealthy",)


def one(**attributes: Attribute) -> Device:
    return Device("neuron-device-0", (0,), attributes)


def refused(attribute: Attribute, name: str = "a") -> str:
    (kept,), problems = limits.check_devices([Device("neuron-device-0", (0,), {name: attribute})])
    assert dict(kept.attributes) == {}
    assert len(problems) == 1
    return problems[0]


@pytest.mark.contract("S15")
@pytest.mark.parametrize(
    ("attribute", "why"),
    [
        (Attribute("string", ""), "empty"),
        (Attribute("string", "x" * 65), "more than 64 bytes"),
        (Attribute("string", "é" * 33), "more than 64 bytes"),
        (Attribute("string", "a\nb"), "cannot be printed"),
        (Attribute("string", "\ud800"), "cannot be printed"),
        (Attribute("string", 5), "empty"),
        (Attribute("version", "2.26.10.0"), "is not a semantic version"),
        (Attribute("version", "1.02.3"), "is not a semantic version"),
        (Attribute("version", "99999999999999999999.0.0"), "is not a semantic version"),
        (Attribute("version", "1.0.0-99999999999999999999"), "is not a semantic version"),
        (Attribute("int", 2**63), "64 bits"),
        (Attribute("int", -(2**63) - 1), "64 bits"),
        (Attribute("int", "5"), "not a whole number"),
        (Attribute("int", True), "not a whole number"),
        (Attribute("bool", 1), "neither true nor false"),
    ],
)
def test_invalid_value_omits_the_attribute(attribute: Attribute, why: str) -> None:
    assert why in refused(attribute)


@pytest.mark.contract("S15")
@pytest.mark.parametrize(
    "name",
    ["numa-1", "1a", "", "a" * 33, "A.example/x", "a/b/c", "/a", "a/", "exa_mple/x", "-a/x", f"{'a' * 64}/x", "naïve"],
)
def test_a_bad_name_costs_the_attribute(name: str) -> None:
    assert f"attribute {name} is left out" in refused(Attribute("int", 1), name)


@pytest.mark.parametrize("name", ["a" * 32, "_x", "topology_x", "resource.aws.com/devicegroup1_id", f"{'a' * 63}/x"])
def test_valid_name_is_kept(name: str) -> None:
    device = Device("neuron-device-0", (0,), {name: Attribute("int", 1)})
    assert limits.check_devices([device]) == ((device,), [])


@pytest.mark.parametrize(
    "attribute",
    [
        Attribute("string", "x" * 64),
        Attribute("version", "1.2.3-rc.1+build.5"),
        Attribute("int", 2**63 - 1),
        Attribute("int", -(2**63)),
        Attribute("bool", False),
    ],
)
def test_value_at_the_limit_is_kept(attribute: Attribute) -> None:
    device = one(a=attribute)
    assert limits.check_devices([device]) == ((device,), [])


@pytest.mark.contract("S15")
@pytest.mark.parametrize("name", ["Neuron-0", "neuron_0", "neuron.0", "", "-a", "a" * 64])
def test_invalid_device_is_omitted(name: str) -> None:
    good = Device("neuron-device-1", (1,))
    kept, problems = limits.check_devices([Device(name, (0,)), good])
    assert kept == (good,)
    assert "not a DNS label" in problems[0]


@pytest.mark.contract("S19")
def test_duplicate_device_name_is_omitted() -> None:
    first = one(a=Attribute("int", 1))
    kept, problems = limits.check_devices([first, one(a=Attribute("int", 2))])
    assert kept == (first,)
    assert "occurs twice" in problems[0]


def test_attribute_limit_reserves_room() -> None:
    many = {f"a{n}": Attribute("int", n) for n in range(40)}
    (kept,), problems = limits.check_devices([Device("neuron-device-0", (0,), many, {"memory": "96Gi"})])
    assert len(kept.attributes) == 32 - 1 - len(TAGS) - len(MARKS)
    assert problems == [
        f"neuron-device-0: attribute a{n} is left out: a device may have 25 with these capacities"
        for n in range(25, 40)
    ]


def test_invalid_capacity_is_omitted() -> None:
    device = Device("neuron-device-0", (0,), {}, {"memory": "96 GiB", "neuronCores": "8"})
    (kept,), problems = limits.check_devices([device])
    assert kept.capacity == {"neuronCores": "8"}
    assert "not a quantity" in problems[0]


def test_reserved_room_fits_all_tags_and_taints() -> None:
    assert (len(TAGS), len(MARKS)) == (limits.WORKLOAD_TAGS, limits.HEALTH_MARKS)


def as_slice(wire: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "a"},
        "spec": {
            "driver": "neuron.aws.com",
            "nodeName": "a",
            "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
            "devices": wire,
        },
    }


texts = st.text(max_size=80) | st.sampled_from(["1.2.3", "a", "é" * 32])
values = st.builds(
    Attribute,
    st.sampled_from(["string", "int", "bool", "version"]),
    texts | st.integers() | st.booleans() | st.sampled_from([2**63, -(2**63)]),
)
keys = st.text(max_size=40) | st.from_regex(KEY, fullmatch=True)
strange = st.builds(
    Device,
    st.text(max_size=70) | st.from_regex(LABEL, fullmatch=True),
    st.just((0,)),
    st.dictionaries(keys, values, max_size=40),
    st.dictionaries(keys, texts | st.just("96Gi"), max_size=8),
)


@pytest.mark.contract("S15")
@given(st.lists(strange, max_size=5))
def test_accepted_devices_obey_api_limits(candidates: list[Device]) -> None:
    kept, problems = limits.check_devices(candidates)
    assert len({device.name for device in kept}) == len(kept)
    assert problems or list(kept) == candidates
    for device in kept:
        assert LABEL.fullmatch(device.name)
        assert len(device.attributes) + len(device.capacity) + len(TAGS) + len(MARKS) <= 32
        for name, attribute in device.attributes.items():
            assert KEY.fullmatch(name)
            assert len(name.rpartition("/")[0]) <= 63
            if attribute.kind in ("string", "version"):
                assert isinstance(attribute.value, str)
                assert 0 < len(attribute.value.encode()) <= 64
            if attribute.kind == "version":
                semver.parse(str(attribute.value))
            if attribute.kind == "int":
                assert isinstance(attribute.value, int)
                assert -(2**63) <= attribute.value < 2**63
    assert slice_rules.check(as_slice([device.to_wire() for device in kept]), None) == []


@pytest.mark.contract("S15")
@pytest.mark.parametrize("mode", ["node", "devices"])
@pytest.mark.parametrize("known", catalogue.all_types(), ids=lambda known: known.name)
def test_every_type_with_all_tags_obeys_limits(known: InstanceType, mode: str) -> None:
    labels = facts.NodeLabels(known.name, ("n" * 64, "n" * 64, "n" * 64), "c" * 64)
    node = topology.build(
        facts.NodeFacts(
            known.name,
            "2.30.2.0",
            tuple(
                facts.DeviceFacts(i, known.cores_per_device, known.links[i] if known.links else (), (243, i), True)
                for i in range(known.device_count)
            ),
            facts.UltraServerFacts((1, 3, 4), 0, 2, "f" * 16, "f" * 16, 2, "f" * 16),
        ),
        labels,
    )
    published = devices.published(node, driver_version="1.2.3", ultraserver_devices=mode)
    kept, problems = limits.check_devices(published)
    assert problems == []
    assert kept == published
    wire = [device.to_wire() for device in kept]
    for device in wire:
        device["attributes"] |= {tag: {"string": "x" * 64} for tag in TAGS}
        assert len(device["attributes"]) + len(device["capacity"]) <= 32
    assert slice_rules.check(as_slice(wire), None) == []


def test_own_version_is_a_semantic_version() -> None:
    semver.parse(neuron_dra.__version__)
