"""The numbers of devices and cores that an instance type serves to one container, and the message about any other
number.

Source: docs of the Neuron scheduler extension: on rings and lines every number of consecutive devices, on a torus 1, 4,
8 or all; one and all are valid on every type. Cores are logical cores at the type's default LNC.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.partitions import GROUPS

DEVICE: Final = "device"
CORE: Final = "core"
KINDS: Final = {
    "aws.amazon.com/neuron": DEVICE,
    "aws.amazon.com/neurondevice": DEVICE,
    "aws.amazon.com/neuroncore": CORE,
}
"""What each resource of the device plugin counts; neurondevice is the name of old releases."""

CLASS_PREFIX: Final = {DEVICE: "connected-", CORE: "cores-"}
RESOURCE_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that a pod may use to request one device of a DeviceClass (Kubernetes 1.36)."""


def resource_name(kind: str, count: int) -> str:
    """Return the extended resource that stands for `count` connected devices, or cores."""
    return f"{RESOURCE_PREFIX}{CLASS_PREFIX[kind]}{count}.neuron.aws.com"


def cores_per_device(spec: InstanceType) -> int:
    """Return the number of logical cores of a device at the type's default LNC."""
    return spec.cores_per_device // spec.lnc_default


def device_counts(spec: InstanceType) -> frozenset[int]:
    """Return the numbers of connected devices that one container can have."""
    total = spec.device_count
    if spec.shape in ("ring", "line"):
        return frozenset(range(1, total + 1))
    return frozenset({1, total, *(size for size in GROUPS if size < total and spec.shape != "none")})


def core_counts(spec: InstanceType) -> frozenset[int]:
    """Return the numbers of contiguous logical cores that one container can have."""
    per_device = cores_per_device(spec)
    if spec.shape in ("ring", "line"):
        return frozenset(range(1, spec.device_count * per_device + 1))
    return frozenset(range(1, per_device)) | {count * per_device for count in device_counts(spec)}


def counts(spec: InstanceType, kind: str) -> frozenset[int]:
    """Return the numbers of devices, or of cores, that one container can have."""
    if kind == DEVICE:
        return device_counts(spec)
    return core_counts(spec)


def refusal(instance_type: str, kind: str, count: int) -> str:
    """Return the message about a number that is not served; for devices, that of the scheduler extension."""
    return (
        f"Instance type {instance_type} does not support requests for {kind}: {count}. "
        f"Please request a different number of {kind}s."
    )


def unserved(spec: InstanceType, kind: str, count: int) -> str:
    """Return the message about a number that a type does not serve, with those that it serves."""
    numbers = counts(spec, kind)
    noun = kind if numbers == {1} else f"{kind}s"
    return f"{refusal(spec.name, kind, count)} {spec.name} serves {in_words(numbers)} {noun}."


def in_words(numbers: Iterable[int]) -> str:
    """Return numbers as text, those in a row as a range: 1, 4 to 7 or 12."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = []
    for run in runs:
        texts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(number) for number in run]
    if len(texts) == 1:
        return texts[0]
    return f"{', '.join(texts[:-1])} or {texts[-1]}"
