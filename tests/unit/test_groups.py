"""Ids of device groups, byte for byte those of the EFA driver."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.core import catalogue, groups
from neuron_dra.core.catalogue import InstanceType

WITH_EFA = [known for known in catalogue.all_types() if known.efa is not None]

# Values of real trn1.32xlarge and trn2.48xlarge nodes
TRN1 = {
    4: ["88a3c6ad1661fe1d", "69b2225fd72a59dd", "e3c29faa0cd11323", "178a9e264a26793e"],
    8: ["86c451036f622685", "aa86c05423d6e8cd"],
    16: ["fb838249c99a6341"],
}
TRN2 = {
    4: ["13713e551cd37c19", "671622785349fddf", "237e3ef7b968b4d3", "b3d6ce1919d29f8f"],
    8: ["3593812b8066a078", "614e16dab9ba2f1f"],
    16: ["821d14afaf11327d"],
}


def ids_of(name: str) -> dict[int, dict[int, str]]:
    known = catalogue.lookup(name)
    assert known is not None
    return groups.group_ids(known)


@pytest.mark.parametrize(
    ("name", "vectors"),
    [
        ("trn1.32xlarge", TRN1),
        ("trn2.48xlarge", TRN2),
        ("trn2e.48xlarge", TRN2),
        ("trn2u.48xlarge", TRN2),
        ("ml.trn1.32xlarge", TRN1),
    ],
)
def test_group_ids_are_those_seen_on_real_nodes(name: str, vectors: dict[int, list[str]]) -> None:
    ids = ids_of(name)
    for size, expected in vectors.items():
        assert [ids[device][size] for device in range(16)] == [expected[device // size] for device in range(16)]


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        ("trn1.32xlarge", {0: "0000:10:1a.0", 1: "0000:10:1a.0", 7: "0000:90:19.0", 15: "0000:a0:19.0"}),
        ("trn1n.32xlarge", {0: "0000:10:17.0", 1: "0000:10:1a.0", 7: "0000:90:18.0", 15: "0000:a0:18.0"}),
        ("trn2.48xlarge", {0: "0000:c9:00.0", 5: "0000:57:00.0", 15: "0000:f6:00.0"}),
        ("trn3.48xlarge", {0: "0000:be:00.0", 5: "0000:4c:00.0", 15: "0000:eb:00.0"}),
        ("trn3-dev0.48xlarge", {0: "0000:a9:00.0", 5: "0000:d4:00.0", 15: "0000:8d:00.0"}),
    ],
)
def test_group_of_one_is_its_efa_function(name: str, functions: dict[int, str]) -> None:
    ids = ids_of(name)
    assert {device: ids[device][1] for device in functions} == functions


@pytest.mark.parametrize("name", ["trn1.2xlarge", "inf2.48xlarge", "trn2.3xlarge", "trn2n.48xlarge", "trn3sn.48xlarge"])
def test_type_without_efa_map_has_no_group_ids(name: str) -> None:
    assert ids_of(name) == {}


@pytest.mark.parametrize("known", WITH_EFA, ids=lambda known: known.name)
def test_groups_partition_the_devices_and_nest(known: InstanceType) -> None:
    ids = groups.group_ids(known)
    assert sorted(ids) == list(range(known.device_count))
    for size in groups.SIZES[1:]:
        members: dict[str, list[int]] = {}
        for device in sorted(ids):
            members.setdefault(ids[device][size], []).append(device)
        assert all(len(group) == size for group in members.values()), f"blocks of {size}"
        assert all(group == list(range(group[0], group[0] + size)) for group in members.values())
    for smaller, larger in ((4, 8), (8, 16)):
        assert len({(ids[d][smaller], ids[d][larger]) for d in ids}) == len({ids[d][smaller] for d in ids})


@given(st.lists(st.sampled_from(["0000:c9:00.0", "0000:b4:00.0", "0000:10:1a.0", "0000:f6:00.0"]), min_size=1))
def test_group_id_ignores_order_and_duplicates(functions: list[str]) -> None:
    value = groups.group_id(functions)
    assert re.fullmatch("[0-9a-f]{16}", value)
    assert value == groups.group_id(reversed(functions)) == groups.group_id([*functions, *functions])


def test_other_devices_have_another_group_id() -> None:
    assert groups.group_id(["0000:c9:00.0"]) != groups.group_id(["0000:c9:00.1"])
