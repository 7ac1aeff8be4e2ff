"""Supported Kubernetes versions, and the messages about others."""

from __future__ import annotations

import pytest

from neuron_dra.core.versions import VersionProblem, parse
from neuron_dra.node.version import ServerVersion, problems


def found(server: str = "v1.37.0", kubelet: str = "v1.37.0", *, serves_v1: bool = True) -> list[VersionProblem]:
    return problems(ServerVersion(server, serves_v1), {"kubeletVersion": kubelet})


@pytest.mark.parametrize("server", ["v1.34.0", "v1.34.4-eks-abc", "v1.37.2", "v1.35.0+k3s1"])
@pytest.mark.parametrize("kubelet", ["v1.33.0", "v1.34.2", "v1.34.2-eks-1", "v1.37.0"])
def test_supported_versions_have_no_problem(server: str, kubelet: str) -> None:
    assert [problem for problem in found(server, kubelet) if not problem.depends] == []


@pytest.mark.parametrize(
    ("kubelet", "issues"),
    [
        ("v1.33.0", [140212, 140274]),
        ("v1.34.11-eks-1", [140212, 140274]),
        ("v1.34.12", [140212]),
        ("v1.36.0", [140212, 140274, 139772]),
        ("v1.36.4", [140212]),
    ],
)
def test_faults_of_a_kubelet_that_some_pods_meet_are_named(kubelet: str, issues: list[int]) -> None:
    (problem,) = found(kubelet=kubelet)
    assert (problem.reason, problem.fatal, problem.depends) == ("KubeletKnownBad", False, True)
    assert [issue for issue in (140212, 140274, 139772) if f"kubernetes/kubernetes#{issue}" in problem.text] == issues
    assert len(problem.text) < 1024  # an Event's message


@pytest.mark.parametrize("kubelet", ["v1.37.0", "v1.37.2-eks-4", "v1.38.0"])
def test_kubelets_without_known_faults_have_no_note(kubelet: str) -> None:
    assert found(kubelet=kubelet) == []


@pytest.mark.contract("S27")
def test_api_server_without_v1_is_rejected() -> None:
    (problem,) = found("v1.33.1", serves_v1=False)
    assert problem.fatal
    assert problem.text == ("the API server (v1.33.1) does not serve resource.k8s.io/v1; Kubernetes 1.34 to 1.37 does")


def test_newer_api_server_is_reported_and_used() -> None:
    (problem,) = found("v1.38.0")
    assert (problem.reason, problem.fatal) == ("KubernetesUntested", False)


@pytest.mark.parametrize("kubelet", ["v1.34.0", "v1.34.1", "v1.34.1-eks-12", "v1.34.0+rke2r1"])
def test_hanging_kubelets_are_reported(kubelet: str) -> None:
    problem, _ = found(kubelet=kubelet)
    assert (problem.reason, problem.fatal) == ("KubeletBroken", False)
    assert kubelet in problem.text


def test_too_old_kubelet_is_rejected() -> None:
    (problem,) = found(kubelet="v1.32.9")
    assert problem.fatal
    assert "use 1.33 or later" in problem.text


@pytest.mark.parametrize("text", ["", "unknown", "1", "v.1.2"])
def test_unreadable_version_is_accepted(text: str) -> None:
    assert parse(text) is None
    assert found(text, text) == []


def test_unknown_kubelet_version_is_accepted() -> None:
    assert problems(ServerVersion("v1.36.0", True), {}) == []
