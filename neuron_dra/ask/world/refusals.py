"""What the driver would reject on the node, in the words of prepare, before a pod is there. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from neuron_dra.ask.read.claim_views import AllocationView, ConfigView, ResultView
from neuron_dra.ask.read.node_views import SliceView
from neuron_dra.core import catalogue, config, decision, names, topology
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef
from neuron_dra.core.config import Entry, EntrySource
from neuron_dra.core.facts import DeviceFacts, NodeFacts, NodeLabels, UltraServerFacts
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ClaimError

_NAMELESS: Final = ClaimRef("", "", "")
_BY_LIMITS: Final = re.compile(r"container-\d+-request-\d+", re.ASCII)
"""The requests of a claim that the scheduler makes for resource limits."""
_OF_ULTRASERVERS: Final = (
    "NEURON_RT_ULTRASERVER_MODE=?",
    "NEURON_RT_ULTRASERVER_SERVER_ID=?",
    "NEURON_RT_ULTRASERVER_NODE_ID=?",
)
"""What an UltraServerConfig sets, to values of the node."""


def of_allocation(allocation: Mapping[str, Any], types: Mapping[str, str]) -> str:
    """Return why the driver would reject an allocation because of its configuration, or an empty string.

    `types` are the instance types by pool. Tags, links and hardware faults are not judged: they are the node's own.
    """
    devices = AllocationView.of(allocation).devices
    results = [result for result in devices.results if result.driver == names.DRIVER]
    if not results:
        return ""
    try:
        entries = decoded_views(devices.config)
        for result in results:
            neuron_settings = config.effective(entries, result.request).neuron
            if neuron_settings is not None and types.get(result.pool):
                decision.environment(config.Settings(neuron=neuron_settings), _node(types[result.pool]))
        for pool in dict.fromkeys(result.pool for result in results):
            if types.get(pool):
                pool_results = [result for result in results if result.pool == pool]
                decision.core_environment(_claim(pool_results, entries), _node(types[pool]))
    except ClaimError as err:
        return str(err).removeprefix(f"claim {_NAMELESS}: ")  # the caller says which claim or template it is
    return ""


def variables(allocation: Mapping[str, Any], instance_type: str) -> dict[str, tuple[str, ...]]:
    """Return the variables that a container gets with an allocation on a node of this type, by request.

    Values that only the node knows are "?". The result is empty if the driver would reject the allocation.
    """
    devices = AllocationView.of(allocation).devices
    results = [result for result in devices.results if result.driver == names.DRIVER]
    node = _node(instance_type)
    by_request: dict[str, tuple[str, ...]] = {}
    try:
        entries = decoded_views(devices.config)
        for result in results:
            settings = config.effective(entries, result.request)
            if settings.ultraserver is None:
                by_request[result.request] = decision.environment(settings, node)
            else:
                size = settings.neuron.logical_neuron_core if settings.neuron is not None else None
                core_size = decision.core_size(size) if size is not None else ()
                by_request[result.request] = (*core_size, *_OF_ULTRASERVERS)
        for request, cores in decision.core_environment(_claim(results, entries), node).items():
            by_request[request] = (*by_request.get(request, ()), *cores)
    except ClaimError:
        return {}
    return by_request


def _claim(results: Sequence[ResultView], entries: Sequence[Entry]) -> Claim:
    """Return the claim of these results, as far as the cores of its containers depend on it."""
    devices = tuple(AllocatedDevice(result.request, result.pool, result.device) for result in results)
    by_limits = all(_BY_LIMITS.fullmatch(result.request) for result in results)
    return Claim(_NAMELESS, devices, tuple(entries), extended_resources=by_limits)


def decoded(entries: Iterable[Wire]) -> list[Entry]:
    """Return the configuration that is addressed to this driver. Raises ClaimError, as prepare does."""
    return decoded_views([ConfigView.of(entry) for entry in entries])


def decoded_views(entries: Sequence[ConfigView]) -> list[Entry]:
    """Return the same of entries that are decoded as far as Kubernetes knows their form."""
    own_entries = []
    for index, entry in enumerate(entries):
        if entry.opaque.driver == names.DRIVER:
            own_entries.append((index, entry))
    return [setting(index, entry) for index, entry in own_entries]


def setting(index: int, entry: ConfigView) -> Entry:
    """Return an entry of the configuration, one for this driver. Raises ClaimError, which names it by its index."""
    from neuron_dra.api import config as user_config  # pydantic's validator: only where it is needed

    settings = user_config.decode(entry.opaque.parameters, f"config[{index}].opaque.parameters")
    source = EntrySource.CLASS if entry.source == "FromClass" else EntrySource.CLAIM
    return Entry(source, entry.requests, settings)


@functools.cache  # a fleet has a few types
def _node(instance_type: str) -> topology.Node:
    """Return a healthy node of a type."""
    spec = catalogue.lookup(instance_type)
    devices: tuple[DeviceFacts, ...] = ()
    if spec is not None:
        links = spec.links or ((),) * spec.device_count
        cores = spec.cores_per_device
        devices = tuple(
            DeviceFacts(number, cores, links[number], None, device_file=True) for number in range(spec.device_count)
        )
    return topology.build(NodeFacts(instance_type, "", devices, UltraServerFacts()), NodeLabels())


def instance_types(slices: Iterable[Wire]) -> dict[str, str]:
    """Return the instance type of each pool of this driver, as its devices publish it."""
    type_by_pool = {}
    for raw_slice in slices:
        spec = SliceView.of(raw_slice).spec
        if spec.is_ours and spec.published:
            type_by_pool[spec.pool.name] = spec.text("instanceType")
    return type_by_pool
