"""A plugin may set one label of its own Node, and nothing else (32.9)."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.admission import Denied, admit
from tests.support.built_tools import needs
from tests.support.chart import rendered

PLUGIN = "system:serviceaccount:neuron-dra-driver:neuron-dra-driver-sa"
LABEL = "neuron.amazonaws.com/present"
needs_helm = needs("helm")


def node(name: str = "a", *, spec: Obj | None = None, **meta: Any) -> Obj:
    labels = {"zone": "z", **meta.pop("labels", {})}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels, **meta}, "spec": spec or {}}


def written(new: Obj, old: Obj | None = None, *, user: str = PLUGIN, on: str = "a") -> str:
    """Return why the policy refuses an update; empty if it does not."""
    policies = [
        item
        for item in rendered("draDriver.presentLabel=true")
        if item["kind"] == "ValidatingAdmissionPolicy" and item["metadata"]["name"] == "neuron-dra-driver-own-node"
    ]
    assert len(policies) == 1
    try:
        admit(policies, new, {"metadata": {}}, old=old or node(), user=user, node=on)
    except Denied as err:
        return str(err)
    return ""


@needs_helm
def test_a_plugin_may_label_its_own_node() -> None:
    assert written(node(labels={LABEL: "true"})) == ""


@pytest.mark.parametrize(
    ("new", "on", "why"),
    [
        (node("b", labels={LABEL: "true"}), "a", "may label its own Node only, not b"),
        (node(labels={LABEL: "true"}), "", "may label its own Node only, not a"),
        (node(labels={LABEL: "false"}), "a", "may set only the label"),
        (node(), "a", "may set only the label"),
        (node(labels={LABEL: "true", "zone": "other"}), "a", "may set only the label"),
        (node(labels={LABEL: "true", "role": "admin"}), "a", "may set only the label"),
        (node(labels={LABEL: "true"}, annotations={"a": "b"}), "a", "may change nothing of a Node but a label"),
        (node(labels={LABEL: "true"}, finalizers=["a/b"]), "a", "may change nothing of a Node but a label"),
        (node(labels={LABEL: "true"}, spec={"unschedulable": True}), "a", "may change nothing of a Node but a label"),
    ],
)
@needs_helm
def test_anything_else_is_refused(new: Obj, on: str, why: str) -> None:
    old = node(new["metadata"]["name"])
    assert why in written(new, old, on=on)


@needs_helm
def test_a_removed_label_is_refused() -> None:
    gone = node(labels={LABEL: "true"})
    del gone["metadata"]["labels"]["zone"]
    assert "may set only the label" in written(gone)


@needs_helm
def test_other_users_are_not_concerned() -> None:
    assert written(node(labels={"zone": "other"}), user="system:admin") == ""


@needs_helm
def test_the_right_comes_with_the_value() -> None:
    def rights(*values: str) -> list[list[str]]:
        roles = [item for item in rendered(*values) if item["kind"] == "ClusterRole"]
        return [rule["verbs"] for role in roles for rule in role["rules"] if rule["resources"] == ["nodes"]]

    assert rights() == [["list", "watch"]]
    assert rights("draDriver.presentLabel=true") == [["list", "watch"], ["patch"]]


@needs_helm
def test_without_the_policy_the_value_is_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        rendered("draDriver.presentLabel=true", "draDriver.admissionPolicy.enabled=false")
    assert "draDriver.presentLabel needs draDriver.admissionPolicy.enabled" in caught.value.stderr
