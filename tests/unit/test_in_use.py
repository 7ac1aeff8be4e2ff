"""When the kubelet's list is evidence that no container has a claim (14.9)."""

from __future__ import annotations

import pytest

from neuron_dra.core.claims import ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.in_use import ListedClaim, ListedPod, is_absent, is_doubtful

DEVICE = ("neuron.aws.com", "node-a", "neuron-device-5")
OTHER = ListedPod("apps", "other", (ListedClaim("apps", "other", frozenset({("dra.net", "node-a", "efa-0")})),))


def claim(pod: str = "trainer", adopted: bool = False, doubtful: bool = False) -> PreparedClaim:
    device = PreparedDevice("r", "node-a", "neuron-device-5", (5,), (), {})
    return PreparedClaim(ClaimRef("ml", "held", "uid-1"), (device,), pod=pod, adopted=adopted, doubtful=doubtful)


def listed(name: str = "held", namespace: str = "ml", device: tuple[str, str, str] = DEVICE) -> ListedPod:
    return ListedPod(namespace, "trainer", (ListedClaim(namespace, name, frozenset({device})),))


@pytest.mark.parametrize(
    ("pods", "absent"),
    [
        ([], False),  # a kubelet that has just started, or lists no claims
        ([ListedPod("apps", "plain")], False),
        ([OTHER], True),
        ([OTHER, listed()], False),
        ([OTHER, listed(name="another")], True),
        ([OTHER, listed(namespace="apps")], True),
        ([OTHER, listed(device=("neuron.aws.com", "node-a", "neuron-device-6"))], True),  # a new claim with that name
        ([OTHER, listed(device=("neuron.aws.com", "node-b", "neuron-device-5"))], True),
        ([OTHER, listed(device=("dra.net", "node-a", "neuron-device-5"))], True),
        ([OTHER, ListedPod("ml", "trainer")], False),  # its pod: the kubelet may have failed to read its claims
        ([OTHER, ListedPod("ml", "another")], True),
        ([OTHER, ListedPod("apps", "trainer")], True),
    ],
)
def test_claim_is_absent_only_from_valid_lists(pods: list[ListedPod], *, absent: bool) -> None:
    assert is_absent(claim(), pods) is absent


@pytest.mark.parametrize(("namespace", "absent"), [("ml", False), ("apps", True)])
def test_claim_without_pod_matches_unlisted_pods(namespace: str, *, absent: bool) -> None:
    assert is_absent(claim(pod=""), [OTHER, ListedPod(namespace, "plain")]) is absent


def test_own_claims_are_not_doubtful() -> None:
    assert [is_doubtful(each) for each in (claim(), claim(adopted=True), claim(doubtful=True))] == [False, True, True]
