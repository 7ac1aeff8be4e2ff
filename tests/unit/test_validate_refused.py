"""`validate` finds what the API server and prepare refuse (34, 6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small
from tests.support.questions import Answer, ask


def validate(capsys: pytest.CaptureFixture[str], folder: Path, *items: Obj, words: tuple[str, ...] = ()) -> Answer:
    file = folder / "manifest.yaml"
    file.write_text(yaml.safe_dump_all(items))
    return ask(capsys, "validate", str(file), *words)


def request(**exactly: Any) -> Obj:
    made = small.template("t")
    made["spec"]["spec"]["devices"]["requests"][0]["exactly"] |= exactly
    return made


def pod(**spec: Any) -> Obj:
    return small.pod("p", "t", **spec)


def several(shared: bool) -> list[Obj]:
    """A Deployment of two pods that want a whole node, with a claim, which has devices of one node, or a template."""
    made = small.template("t", 16)
    claim = {"apiVersion": small.API, "kind": "ResourceClaim", "metadata": {"name": "t", "namespace": "default"}}
    field = "resourceClaimName" if shared else "resourceClaimTemplateName"
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "d"}}}]}}  # fmt: skip
    spec = {
        "containers": [{"name": "main", "image": "train", "resources": {"claims": [{"name": "neurons"}]}}],
        "resourceClaims": [{"name": "neurons", field: "t"}],
        "affinity": affinity,
    }
    deployment: Obj = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "default"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "d"}},
            "template": {"metadata": {"labels": {"app": "d"}}, "spec": spec},
        },
    }
    return [{**claim, "spec": made["spec"]["spec"]} if shared else made, deployment]


@pytest.mark.parametrize(
    ("items", "text"),
    [
        pytest.param([request(count=0)], "count: 0", id="zero devices"),
        pytest.param([request(count=-1)], "count: -1", id="negative number"),
        pytest.param([request(count="four")], "count", id="number that is text"),
        pytest.param([request(allocationMode="All", count=4)], "count", id="All with a number"),
        pytest.param([request(allocationMode="Exact")], "ExactCount", id="unknown mode"),
        pytest.param([request(count=4), pod(nodeName="a")], "spec.nodeName", id="nodeName"),
        pytest.param(several(shared=True), "one node", id="claim of one node that several nodes need"),
        pytest.param([{**small.template("t"), "apiVersion": "resource.k8s.io/v1alpha3"}], "resource.k8s.io/v1alpha3",
                     id="version that is gone"),
        pytest.param([{**small.template("t"), "apiVersion": "resource.k8s.io/v2"}], "resource.k8s.io/v2",
                     id="version that is not known"),
        pytest.param([request(adminAccess=True)], "", id="adminAccess, with the namespace elsewhere"),
    ],
)  # fmt: skip
def test_what_the_api_server_refuses_is_a_problem(
    items: list[Obj], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = validate(capsys, tmp_path, *items)
    assert (found.code, text in found.text) == (1 if text else 0, True), found.text


def test_claim_for_each_pod_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate(capsys, tmp_path, *several(shared=False), words=("--kubernetes", "1.37")).text == ""


@pytest.mark.parametrize("version", ["1.29", "1.99", "2.0"])
def test_version_of_no_known_kubernetes_is_refused(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = validate(capsys, tmp_path, small.template("t"), words=("--kubernetes", version))
    assert (found.code, f"--kubernetes: {version}: write a version from 1.34 to 1.37" in found.text) == (2, True)
