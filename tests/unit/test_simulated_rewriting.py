"""`simulate` places pods with limits of the device plugin as the policy rewrites them (4.09)."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dra.ask.simulate import rewritten
from neuron_dra.core import names
from neuron_dra.core.wire import Obj, Wire
from tests.support import small_clusters as small

DEVICE_CLASSES = ("connected-4.neuron.aws.com", "cores-2.neuron.aws.com")
PREFIX = "deviceclass.resource.kubernetes.io"


def limits(raw_pod: Wire) -> Any:
    return raw_pod["spec"]["containers"][0]["resources"].get("limits")


def after(*, labels: dict[str, str], **amounts: Any) -> Any:
    names = {"neuron": "aws.amazon.com/neuron", "core": "aws.amazon.com/neuroncore", "cpu": "cpu"}
    pod = small.pod("p")
    pod["spec"]["containers"][0]["resources"]["limits"] = {names[key]: value for key, value in amounts.items()}
    namespace: Obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}}
    classes: list[Obj] = []
    for name in DEVICE_CLASSES:
        classes.append({"apiVersion": small.API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {}})
    return limits(rewritten.pod(small.cluster([pod, namespace, *classes]), pod))


LABELLED = {names.REWRITES_LIMITS: "true"}


def test_devices_become_a_connected_set() -> None:
    assert after(labels=LABELLED, neuron=4, cpu="1") == {"cpu": "1", f"{PREFIX}/connected-4.neuron.aws.com": "1"}


def test_cores_become_a_part() -> None:
    assert after(labels=LABELLED, core="2") == {f"{PREFIX}/cores-2.neuron.aws.com": "1"}


@pytest.mark.parametrize(("labels", "count"), [({}, 4), (LABELLED, 5), ({names.REWRITES_LIMITS: "false"}, 4)])
def test_other_pods_stay_as_they_are(labels: dict[str, str], count: int) -> None:
    """No label, or no class of this size."""
    assert after(labels=labels, neuron=count) == {"aws.amazon.com/neuron": count}


def test_namespace_that_was_not_read_is_named_where_its_policy_matters() -> None:
    pods = []
    for namespace, resource in (("team", "aws.amazon.com/neuron"), ("other", "cpu")):
        pod = small.pod("p", namespace=namespace)
        pod["spec"]["containers"][0]["resources"]["limits"] = {resource: 4}
        pods.append(pod)
    device_class = {"apiVersion": small.API, "kind": "DeviceClass", "metadata": {"name": DEVICE_CLASSES[0]}, "spec": {}}
    label = "neuron.aws.com/rewrite-limits=true"
    assert rewritten.unknown(small.cluster([*pods, device_class]), pods) == [
        f"Namespace team was not read: if it has the label {label}, a policy rewrites aws.amazon.com/neuron"
    ]
    namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}]
    assert rewritten.unknown(small.cluster([*pods, *namespaces, device_class]), pods) == []
