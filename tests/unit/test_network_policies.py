"""18.5. The chart's NetworkPolicies: each pod of the chart has one, which leaves its metrics reachable."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from neuron_dra.core.wire import Obj
from tests.support import fast_yaml
from tests.support.built_tools import HELM, needs

CHART = Path(__file__).resolve().parents[2] / "deploy/helm/neuron-dra"
EVERYTHING = ("networkPolicy.enabled=true", "ultraserverOperator.enabled=true", "scheduler.enabled=true")
PEERS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
needs_helm = needs("helm")


def rendered(*values: str, peers: list[Obj] | None = None) -> list[Obj]:
    words = [word for value in ("draDriver.image.repository=r", *values) for word in ("--set", value)]
    words += ["--set-json", f"networkPolicy.metricsFrom={json.dumps(peers)}"] if peers else []
    command = [str(HELM), "template", "r", str(CHART), "--kube-version", "1.37.0", *words]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [item for item in fast_yaml.load_all(text) if item]


def policies(items: list[Obj]) -> list[Obj]:
    return [item for item in items if item["kind"] == "NetworkPolicy"]


@needs_helm
def test_every_pod_has_one_policy() -> None:
    """(18.5) Its metrics are reachable, and its health port is not."""
    items = rendered(*EVERYTHING)
    pods = [item["spec"]["template"] for item in items if item["kind"] in ("DaemonSet", "Deployment")]
    assert len(pods) == len(policies(items)) == 3
    for pod in pods:
        labels = pod["metadata"]["labels"].items()
        [policy] = [each for each in policies(items) if each["spec"]["podSelector"]["matchLabels"].items() <= labels]
        ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
        [rule] = policy["spec"]["ingress"]
        assert rule == {"ports": [{"protocol": "TCP", "port": ports["metrics"]}]}
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        assert not pod["spec"].get("hostNetwork")


@needs_helm
def test_policies_are_in_the_namespace_of_the_pods() -> None:
    items = rendered("networkPolicy.enabled=true", "draDriver.namespaceOverride=elsewhere")
    places = {each["metadata"]["namespace"] for each in items if each["kind"] in ("NetworkPolicy", "DaemonSet")}
    assert places == {"elsewhere"}


@needs_helm
def test_peers_are_a_value() -> None:
    found = policies(rendered(*EVERYTHING, peers=PEERS))
    assert [each["spec"]["ingress"][0]["from"] for each in found] == [PEERS] * 3


@needs_helm
def test_policies_are_off_by_default() -> None:
    assert policies(rendered()) == []
    assert policies(rendered("networkPolicy=null")) == []  # --reuse-values of a release that did not have it
    without = policies(rendered("networkPolicy.enabled=true", "scheduler.enabled=true", "scheduler.watcher=null"))
    assert [each["metadata"]["name"] for each in without] == ["neuron-dra-driver-kubelet-plugin"]


@needs_helm
def test_parts_that_are_off_have_no_policy() -> None:
    [policy] = policies(rendered("networkPolicy.enabled=true"))
    assert policy["metadata"]["name"] == "neuron-dra-driver-kubelet-plugin"
