"""The catalogue of instance types."""

import pytest

from neuron_dra.core import catalogue
from neuron_dra.core.catalogue import GIB, InstanceType, Platform

ALL = catalogue.all_types()


def by_name(name: str) -> catalogue.InstanceType:
    known = catalogue.lookup(name)
    assert known is not None
    return known


@pytest.mark.parametrize(
    ("name", "devices", "cores", "memory_gib", "lnc_default", "lnc", "shape", "platform"),
    [
        ("inf1.xlarge", 1, 4, 8, 1, (), "none", "standard"),
        ("inf1.2xlarge", 1, 4, 8, 1, (), "none", "standard"),
        ("inf1.6xlarge", 4, 4, 8, 1, (), "line", "standard"),
        ("inf1.24xlarge", 16, 4, 8, 1, (), "ring", "standard"),
        ("inf2.xlarge", 1, 2, 32, 1, (), "none", "standard"),
        ("inf2.8xlarge", 1, 2, 32, 1, (), "none", "standard"),
        ("inf2.24xlarge", 6, 2, 32, 1, (), "line", "standard"),
        ("inf2.48xlarge", 12, 2, 32, 1, (), "ring", "standard"),
        ("trn1.2xlarge", 1, 2, 32, 1, (), "none", "standard"),
        ("trn1.32xlarge", 16, 2, 32, 1, (), "torus", "standard"),
        ("trn1n.32xlarge", 16, 2, 32, 1, (), "torus", "standard"),
        ("trn2.3xlarge", 1, 8, 96, 2, (1, 2), "none", "standard"),
        ("trn2.48xlarge", 16, 8, 96, 2, (1, 2), "torus", "standard"),
        ("trn2u.48xlarge", 16, 8, 96, 2, (1, 2), "torus", "ultraserver"),
        ("trn2eu.48xlarge", 16, 8, 96, 2, (1, 2), "torus", "ultraserver"),
        ("trn2es.48xlarge", 16, 8, 96, 2, (1, 2), "torus", "pds"),
        ("trn2en.24xlarge", 4, 8, 96, 2, (1, 2), "switch", "max"),
        ("trn3p.48xlarge", 16, 8, 144, 2, (1, 2), "torus", "ultraserver"),
        ("trn3.48xlarge", 16, 8, 144, 2, (1, 2), "switch", "pds"),
        ("trn3-dev1.48xlarge", 16, 8, 144, 2, (1, 2), "switch", "pds"),
        ("trn3e.24xlarge", 4, 8, 144, 2, (1, 2), "switch", "max"),
        ("trn3pd98.3xlarge", 1, 8, 144, 2, (1, 2), "none", "standard"),
    ],
)
def test_types_match_their_data_sheets(
    name: str,
    devices: int,
    cores: int,
    memory_gib: int,
    lnc_default: int,
    lnc: tuple[int, ...],
    shape: str,
    platform: str,
) -> None:
    known = by_name(name)
    assert (known.device_count, known.cores_per_device, known.memory_bytes_per_device) == (
        devices,
        cores,
        memory_gib * GIB,
    )
    assert (known.lnc_default, known.lnc_allowed, known.shape) == (lnc_default, lnc, shape)
    assert known.platform is Platform(platform)


@pytest.mark.parametrize("known", ALL, ids=lambda known: known.name)
def test_a_type_does_not_contradict_itself(known: InstanceType) -> None:
    everyone = set(range(known.device_count))
    assert not known.lnc_allowed or known.lnc_default in known.lnc_allowed
    assert known.efa is None or len(known.efa) == known.device_count
    assert (known.device_count == 1) == (known.shape == "none")
    assert known.whole_node is (known.platform is not Platform.STANDARD)
    assert known.links == () or len(known.links) == known.device_count
    for one, neighbours in enumerate(known.links):
        assert len(set(neighbours)) == len(neighbours)
        assert set(neighbours) <= everyone - {one}
        assert all(one in known.links[other] for other in neighbours), "a link has two ends"


def test_names_are_unique() -> None:
    assert len({known.name for known in ALL}) == len(ALL)


@pytest.mark.parametrize(
    "name", ["trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge", "trn2u.48xlarge", "trn3p.48xlarge"]
)
def test_torus_links_rows_and_columns(name: str) -> None:
    for device, neighbours in enumerate(by_name(name).links):
        row, column = divmod(device, 4)
        expected = {((row + step) % 4) * 4 + column for step in (1, -1)}
        expected |= {row * 4 + (column + step) % 4 for step in (1, -1)}
        assert set(neighbours) == expected


def test_links_stand_in_the_kernel_drivers_order() -> None:
    assert by_name("trn1.32xlarge").links[0] == (12, 3, 4, 1)
    assert by_name("trn2.48xlarge").links[0] == (12, 1, 3, 4)
    assert by_name("trn3.48xlarge").links[0] == (12, 1, 3, 4), "printed, although the fabric is a switch"
    assert by_name("inf2.24xlarge").links == ((1,), (0, 2), (1, 3), (2, 4), (3, 5), (4,))
    assert by_name("inf2.48xlarge").links[0] == (11, 1)
    assert by_name("inf1.6xlarge").links == ((1,), (2, 0), (3, 1), (2,)), "as neuron-ls shows it"


def test_only_documented_links_are_expected() -> None:
    assert not by_name("inf1.6xlarge").links_promised
    assert not by_name("trn3.48xlarge").links_promised
    assert by_name("inf2.24xlarge").links_promised
    assert by_name("trn2u.48xlarge").links_promised


@pytest.mark.parametrize(
    ("name", "platform", "devices"),
    [
        ("trn2u-ac.24xlarge", Platform.ULTRASERVER, 16),
        ("trn2u.48xlarge-preview", Platform.ULTRASERVER, 16),
        ("trn3sn.48xlarge.b", Platform.PDS, 16),
        ("trn3e-dev0.24xlarge2", Platform.MAX, 4),
    ],
)
def test_type_is_matched_by_prefix(name: str, platform: Platform, devices: int) -> None:
    known = by_name(name)
    assert (known.name, known.platform, known.device_count) == (name, platform, devices)


def test_type_matched_by_prefix_has_no_efa_map() -> None:
    assert by_name("trn2u.48xlarge").efa is not None
    assert by_name("trn2u.48xlarge-preview").efa is None, "a guessed group id would pair the wrong devices"


def test_sagemakers_names_are_ec2s() -> None:
    known = by_name("ml.trn1.32xlarge")
    assert known.name == "ml.trn1.32xlarge"
    assert known.efa == by_name("trn1.32xlarge").efa
    assert catalogue.lookup("ml.m5.large") is None


@pytest.mark.parametrize("name", ["", "ml.", "m5.large", "trn2", "trn2.48", "TRN2.48XLARGE", "Standard PC (Q35)"])
def test_unknown_name_is_none(name: str) -> None:
    assert catalogue.lookup(name) is None


@pytest.mark.parametrize(
    ("family", "name"),
    [("trn1", "trn1.32xlarge"), ("trn2u", "trn2u.48xlarge"), ("inf2", "inf2.48xlarge"), ("trn3e", "trn3e.24xlarge")],
)
def test_a_family_stands_for_its_largest_type(family: str, name: str) -> None:
    assert by_name(name) == catalogue.largest(family)


def test_no_family_stands_for_nothing() -> None:
    assert catalogue.largest("m5") is None


def test_a_mistyped_name_gets_a_suggestion() -> None:
    assert "did you mean trn2.48xlarge" in catalogue.nearest("trn2.84xlarge")
    assert catalogue.nearest("zzz") == ""
