"""Ids of device groups, which say which devices are close; the EFA driver publishes the same ids."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

from neuron_dra.core.catalogue import InstanceType

SIZES = (1, 4, 8, 16)


def group_id(efa_functions: Iterable[str]) -> str:
    """Return the id of the devices behind these EFA functions: 16 hex digits, whatever the order of the functions.

    The EFA driver publishes the same value; if one byte differs, `matchAttribute` never pairs the two.
    Source: connected-device-maps-over-efa-for-neuron@2eb56e4, lookup.
    """
    return hashlib.sha256(",".join(sorted(set(efa_functions))).encode()).hexdigest()[:16]


@functools.cache
def group_ids(spec: InstanceType) -> dict[int, dict[int, str]]:
    """Return the group ids by device id and group size; empty if AWS publishes no EFA map for the type.

    The id of a group of one is its EFA function, such as `0000:c9:00.0`. Larger groups are blocks of consecutive device
    ids, of 4, 8 and 16 devices; their ids are hashes (`group_id`).
    """
    if spec.efa is None:
        return {}
    ids_by_device = {device_id: {1: spec.efa[device_id]} for device_id in range(spec.device_count)}
    for size in SIZES[1:]:
        for start in range(0, spec.device_count, size):
            block = group_id(spec.efa[start : start + size])
            for device_id in range(start, min(start + size, spec.device_count)):
                ids_by_device[device_id][size] = block
    return ids_by_device
