"""What proves that a claim was prepared: rows of the table in docs/architecture-node.md that a list decides (4.04)."""

from __future__ import annotations

import pytest

from neuron_dra.core import evidence
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef
from neuron_dra.core.evidence import Listing, ShownClaim
from neuron_dra.core.in_use import ListedClaim, ListedPod

DEVICE = ("neuron.aws.com", "node-a", "neuron-device-5")
PREPARED = ListedClaim("ml", "job", frozenset({DEVICE}), uid="uid-job")
KNOWN_TO_THE_KUBELET = ListedClaim("ml", "job", frozenset())
OTHER = ListedClaim("ml", "other", frozenset({("gpu.example.com", "node-a", "gpu-0")}))
CLAIM = Claim(ClaimRef("ml", "job", "uid-job"), (AllocatedDevice("r", "node-a", "neuron-device-5"),), pod="job-0")


def trusted(*claims: ListedClaim, pod: str = "job-0") -> Listing:
    return Listing((ListedPod("ml", pod, claims),), is_trusted=True)


def adopts(listing: Listing, *, others_ran: bool, offered: bool = True) -> bool:
    return evidence.must_adopt(CLAIM, listing, is_offered=lambda name: offered, others_ran=others_ran)


@pytest.mark.parametrize("listing", [Listing(), trusted(), trusted(PREPARED)])
def test_allocation_alone_holds_nothing(listing: Listing) -> None:
    assert not adopts(listing, others_ran=False)


@pytest.mark.parametrize("listing", [Listing(), trusted(), trusted(PREPARED)])
def test_allocation_of_a_name_that_is_not_published_holds_the_device(listing: Listing) -> None:
    assert adopts(listing, others_ran=False, offered=False)


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        pytest.param(Listing(), True, id="no list"),
        pytest.param(Listing((ListedPod("ml", "job-0"),)), True, id="a list that is not trusted"),
        pytest.param(trusted(pod="another"), True, id="its pod is not listed"),
        pytest.param(trusted(PREPARED), True, id="listed with its device"),
        pytest.param(trusted(PREPARED, pod="another"), True, id="another pod has it"),
        pytest.param(trusted(), False, id="its pod has no claims"),
        pytest.param(trusted(OTHER), False, id="its pod has another claim alone"),
        pytest.param(trusted(KNOWN_TO_THE_KUBELET), False, id="listed without devices"),
    ],
)
def test_claims_of_another_driver_are_adopted_unless_the_list_excludes_them(listing: Listing, expected: bool) -> None:
    assert adopts(listing, others_ran=True) is expected


@pytest.mark.parametrize(
    ("version", "claims", "expected"),
    [
        ("v1.36.3", (), True),
        ("v1.37.0-eks-1", (), True),
        ("v1.35.9", (), False),
        ("v1.34.2", (OTHER,), True),
        ("", (), False),
        ("", (OTHER,), True),
    ],
)
def test_list_is_trusted_if_the_kubelet_lists_claims(
    version: str, claims: tuple[ListedClaim, ...], expected: bool
) -> None:
    pods = (ListedPod("ml", "job-0", claims),)
    assert evidence.listing(pods, version) == Listing(pods, expected)


def test_claim_of_several_containers_is_shown_once() -> None:
    second = ListedClaim("ml", "job", frozenset({("neuron.aws.com", "node-a", "neuron-device-6")}), uid="uid-job")
    elsewhere = ListedClaim("ml", "far", frozenset({("neuron.aws.com", "node-b", "neuron-device-5")}))
    listing = trusted(PREPARED, second, OTHER, elsewhere, KNOWN_TO_THE_KUBELET)
    expected = ShownClaim("ml", "job", "uid-job", ("neuron-device-5", "neuron-device-6"))
    assert evidence.shown_claims(listing, "node-a") == (expected,)
