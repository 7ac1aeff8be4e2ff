"""Ids of device groups: which devices are close, said in the words that the EFA driver says too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from neuron_dra.core.catalogue import InstanceType

SIZES = (1, 4, 8, 16)


def group_id(efa_functions: Iterable[str]) -> str:
    """Return the id shared by the devices behind these EFA functions: 16 hex digits, order-free.

    The EFA driver publishes the same value; one differing byte and `matchAttribute` never pairs the two.
    Source: connected-device-maps-over-efa-for-neuron@2eb56e4, lookup.
    """
    return hashlib.sha256(",".join(sorted(set(efa_functions))).encode()).hexdigest()[:16]


def group_ids(spec: InstanceType) -> dict[int, dict[int, str]]:
    """Return device id -> group size -> id; empty where AWS publishes no EFA map for the type.

    A group of one is named by its EFA function; larger ones are the blocks of N consecutive ids.
    """
    if spec.efa is None:
        return {}
    blocks = {
        size: [group_id(spec.efa[start : start + size]) for start in range(0, spec.device_count, size)]
        for size in SIZES[1:]
    }
    return {
        device_id: {1: spec.efa[device_id], **{size: blocks[size][device_id // size] for size in SIZES[1:]}}
        for device_id in range(spec.device_count)
    }
