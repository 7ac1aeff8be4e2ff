"""Pods with limits of the device plugin or of DeviceClasses, and what they get on the test bed."""

from __future__ import annotations

from typing import Any, Final

import pytest

from hack.bed.deployed import IMAGE
from hack.bed.real_cluster import BedError, Namespace
from neuron_dra.core.wire import Obj

NEURON: Final = "aws.amazon.com/neuron"
CORE: Final = "aws.amazon.com/neuroncore"
REWRITE: Final = "neuron.aws.com/rewrite-limits=true"
WAITING: Final = ["bash", "-c", "trap 'exit 0' TERM; sleep 9999 & wait"]


def container(limits: dict[str, int], name: str = "main", **fields: Any) -> Obj:
    """Return a container with these limits that waits."""
    return {
        "name": name,
        "image": IMAGE,
        "command": WAITING,
        "resources": {"limits": {key: str(value) for key, value in limits.items()}},
        **fields,
    }


def pod(name: str, limits: dict[str, int], *others: Obj, **spec: Any) -> Obj:
    """Return a pod as the documents of the scheduler extension have it, with its scheduler's name."""
    spec = {"terminationGracePeriodSeconds": 1, "schedulerName": "my-scheduler", **spec}
    spec["containers"] = [container(limits), *others]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def ended(place: Namespace, *names: str) -> None:
    """Delete pods, and return when they are gone."""
    place.delete("pod", *names)


def rejected(place: Namespace, wanted: Obj) -> str:
    """Create a pod that a policy rejects, and return the message."""
    with pytest.raises(BedError) as caught:
        place.apply(wanted)
    return str(caught.value)


def waits(place: Namespace, name: str) -> bool:
    """Return True if the scheduler has found no node for a pod."""
    found = place.get("pod", name)
    conditions = {each["type"]: each.get("reason") for each in found["status"].get("conditions", [])}
    return conditions.get("PodScheduled") == "Unschedulable" and "nodeName" not in found["spec"]


def in_container(place: Namespace, name: str, which: str) -> list[int]:
    """Return the devices that one container of a pod sees."""
    listed = place.kubectl("exec", name, "--container", which, "--", "sh", "-c", "ls /dev").split()
    return sorted(int(word.removeprefix("neuron")) for word in listed if word.removeprefix("neuron").isdecimal())


def is_arc(ids: list[int], total: int = 12) -> bool:
    """Return True if the devices are consecutive on a ring."""
    return any(sorted((first + step) % total for step in range(len(ids))) == ids for first in ids)
