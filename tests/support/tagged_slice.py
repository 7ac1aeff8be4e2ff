"""What a node's plugin publishes after it has read a NeuronUltraServer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuron_dra.core.ultraserver import next_tag, read_allocations, tag_on, tagged
from neuron_dra.core.wire import Obj


def tagged_slice(
    item: Mapping[str, Any], ultraserver_object: Mapping[str, Any] | None, *, occupied: bool = False
) -> Obj:
    """Return a node's slice with the tag that its plugin sets after reading the NeuronUltraServer."""
    spec = item["spec"]
    before = spec.get("devices") or []
    owners = item["metadata"].get("ownerReferences") or [{}]
    reading = read_allocations(ultraserver_object or {})
    reading = reading.without_predecessors_of(spec["nodeName"], str(owners[0].get("uid", "")))
    tag = next_tag(tag_on(before), reading, spec["nodeName"], occupied=occupied)
    return {**item, "spec": {**spec, "devices": [tagged(device, tag) for device in before]}}
