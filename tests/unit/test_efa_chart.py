"""EFA interfaces in the chart: off, nothing of them; on, a setting, a class and a row of the policy (4.10)."""

from __future__ import annotations

import subprocess

import pytest

from neuron_dra.core import efa
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.admission import Denied, admit
from tests.support.built_tools import needs
from tests.support.chart import rendered

PLUGIN = "system:serviceaccount:neuron-dra-driver:neuron-dra-driver-sa"
needs_helm = needs("helm")


def resource_slice(name: str, driver: str, node: str = "a") -> Obj:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": node, "pool": pool},
    }


def why_denied(item: Obj, *values: str) -> str:
    """Return why the policy denies the plugin on node a to create or update a slice; empty if it does not."""
    policies = [
        policy
        for policy in rendered(*values)
        if policy["kind"] == "ValidatingAdmissionPolicy"
        and policy["metadata"]["name"] == "neuron-dra-driver-own-resourceslices"
    ]
    assert len(policies) == 1
    try:
        admit(policies, item, {"metadata": {}}, user=PLUGIN, node="a")
    except Denied as err:
        return str(err)
    return ""


@needs_helm
def test_nothing_of_it_is_there_without_the_value() -> None:
    text = str(rendered())
    assert "EFA_INTERFACES" not in text
    assert "dra.net" not in text
    assert efa.CLASS not in text


@needs_helm
def test_value_sets_the_setting_and_adds_the_class() -> None:
    items = rendered("efa.enabled=true")
    (daemonset,) = [item for item in items if item["kind"] == "DaemonSet"]
    environment = daemonset["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "EFA_INTERFACES", "value": "true"} in environment
    (device_class,) = [item for item in items if item["metadata"]["name"] == efa.CLASS]
    assert device_class["spec"]["selectors"] == [
        {
            "cel": {
                "expression": "device.driver == 'dra.net' && has(device.attributes['dra.net'].pciDevice) && "
                "device.attributes['dra.net'].pciDevice == 'Elastic Fabric Adapter (EFA)'"
            }
        }
    ]


@needs_helm
def test_class_can_be_left_out() -> None:
    assert not [item for item in rendered("efa.enabled=true", "efa.deviceClass=false") if item["kind"] == efa.CLASS]
    assert efa.CLASS not in str(rendered("efa.enabled=true", "efa.deviceClass=false"))


@needs_helm
def test_unknown_values_are_rejected() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        rendered("efa.interfaces=true")


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (resource_slice("a-dra.net-00", "dra.net"), ""),
        (resource_slice("a-neuron.aws.com-00", "neuron.aws.com"), ""),
        (resource_slice("a-dra.net-x7k2p", "other.example.com"), "drivers neuron.aws.com and dra.net only"),
        (resource_slice("a-neuron.aws.com-00", "dra.net"), "may write slices of dra.net only with names a-dra.net-"),
        (resource_slice("a-dra.net-x7k2p", "dra.net"), "may write slices of dra.net only with names a-dra.net-NN"),
        (resource_slice("b-dra.net-00", "dra.net"), "may write slices of dra.net only with names a-dra.net-"),
        (resource_slice("a-dra.net-00", "neuron.aws.com"), "may create only slices with names a-neuron.aws.com-"),
        (resource_slice("a-dra.net-00", "dra.net", "b"), "may write slices of its own node only"),
    ],
)
@needs_helm
def test_plugin_may_write_its_own_slices_only(item: Obj, why: str) -> None:
    denied = why_denied(item, "efa.enabled=true")
    assert why in denied
    assert bool(why) == bool(denied)


@needs_helm
def test_without_the_value_slices_of_dranet_are_denied() -> None:
    assert "driver neuron.aws.com only" in why_denied(resource_slice("a-dra.net-00", "dra.net"))
