"""What the driver would reject on the node, in the words of prepare, before a pod is there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from neuron_dra.core import config, decision, names, topology
from neuron_dra.core.config import Entry, Source
from neuron_dra.core.facts import NodeFacts, NodeLabels, UltraServerFacts
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ClaimError


def of_allocation(allocation: Mapping[str, Any], types: Mapping[str, str]) -> str:
    """Return why the driver would reject an allocation because of its configuration, or an empty string.

    `types` are the instance types by pool. Tags, links and hardware faults are not judged: they are the node's own.
    """
    devices = allocation.get("devices") or {}
    results = [each for each in devices.get("results") or () if each.get("driver") == names.DRIVER]
    if not results:
        return ""
    try:
        entries = decoded(devices.get("config") or ())
        for result in results:
            wanted = config.effective(entries, result["request"]).neuron
            if wanted is not None and types.get(result["pool"]):
                decision.environment(config.Settings(neuron=wanted), _node(types[result["pool"]]))
    except ClaimError as err:
        return str(err)
    return ""


def decoded(entries: Iterable[Wire]) -> list[Entry]:
    """Return the configuration that is addressed to this driver. Raises ClaimError, as prepare does."""
    found = []
    for index, entry in enumerate(entries):
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") == names.DRIVER:
            from neuron_dra.api import config as user_config  # pydantic's validator: only where it is needed

            settings = user_config.decode(opaque.get("parameters"), f"config[{index}].opaque.parameters")
            source = Source.CLASS if entry.get("source") == "FromClass" else Source.CLAIM
            found.append(Entry(source, tuple(entry.get("requests") or ()), settings))
    return found


def _node(instance_type: str) -> topology.Node:
    return topology.build(NodeFacts(instance_type, "", (), UltraServerFacts()), NodeLabels())


def instance_types(slices: Iterable[Wire]) -> dict[str, str]:
    """Return the instance type of each pool of this driver, as its devices publish it."""
    found = {}
    for item in slices:
        spec = item["spec"]
        if spec["driver"] == names.DRIVER:
            for device in (spec.get("devices") or ())[:1]:
                found[spec["pool"]["name"]] = (device.get("attributes") or {}).get("instanceType", {}).get("string", "")
    return found
