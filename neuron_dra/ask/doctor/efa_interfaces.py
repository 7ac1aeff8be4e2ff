"""Checks the EFA interfaces of a cluster from outside: their DeviceClass, and who publishes them on each node. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from neuron_dra.ask.doctor.lines import Line, ok, unknown, wrong
from neuron_dra.ask.doctor.nodes import neuron_nodes
from neuron_dra.ask.doctor.seen import POLICIES, Seen
from neuron_dra.ask.read import node_views
from neuron_dra.ask.render import words
from neuron_dra.ask.world import events, interfaces, reported, unseen
from neuron_dra.ask.world.world import World
from neuron_dra.core import efa, program
from neuron_dra.core.dra_driver import EFA
from neuron_dra.simulate import selectors
from neuron_dra.simulate.failures import SelectorError
from neuron_dra.simulate.model import PoolDevice

AREA: Final = "EFA"
SLICE_POLICY: Final = "neuron-dra-driver-own-resourceslices"
POLICY_VARIABLE: Final = "efaPrefix"
"""A variable that the policy has only with efa.enabled, which is visible nowhere else in a cluster."""
MOST: Final = 8  # names of nodes in a line


@dataclass(slots=True)
class _Publishers:
    """The names of nodes by who publishes their EFA interfaces; a node with two publishers has a finding of its own."""

    ours: list[str] = field(default_factory=list)
    dranet: list[str] = field(default_factory=list)
    both: list[str] = field(default_factory=list)
    device_plugin: list[str] = field(default_factory=list)
    unpublished: list[str] = field(default_factory=list)


def lines(seen: Seen, world: World, only: str = "") -> Iterator[Line]:
    """Yield the line of each check, of all nodes or of one; none where nothing serves EFA interfaces."""
    missing = unseen.kinds(world.snapshot)
    if "ResourceSlice" in missing or "Node" in missing:
        return  # which other checks report
    publishers = _publishers(world, only)
    is_enabled = _is_enabled(seen)
    if not is_enabled and not (publishers.ours or publishers.dranet or publishers.both):
        return
    if not only:
        yield _class(seen, world)
    yield from _published(world, publishers)
    yield from _fewer(world, publishers.ours)
    if is_enabled:
        yield from _not_served(world, publishers)


def _is_enabled(seen: Seen) -> bool | None:
    """Return whether the chart was installed with efa.enabled; None if that cannot be seen."""
    policy = seen.named(POLICIES, SLICE_POLICY)
    variables = ((policy or {}).get("spec") or {}).get("variables")
    if not isinstance(variables, list) or not variables:
        return None
    return any(isinstance(variable, Mapping) and variable.get("name") == POLICY_VARIABLE for variable in variables)


def _publishers(world: World, only: str) -> _Publishers:
    publishers = _Publishers()
    with_neurons = set(neuron_nodes(world))
    for name in sorted(world.nodes, key=words.natural):
        if only not in ("", name):
            continue
        is_ours = interfaces.is_published_here(world, name)
        is_dranets = bool(interfaces.foreign_slices(world, name))
        if is_ours and is_dranets:
            publishers.both.append(name)
        elif is_ours:
            publishers.ours.append(name)
        elif is_dranets:
            publishers.dranet.append(name)
        elif node_views.offers(world.nodes[name], efa.DEVICE_PLUGIN_RESOURCE):
            publishers.device_plugin.append(name)
        elif name in with_neurons and (spec := world.type_of(name)) is not None and spec.efa is not None:
            publishers.unpublished.append(name)
    return publishers


def _class(seen: Seen, world: World) -> Line:
    """Return whether the DeviceClass exists and selects the published interfaces."""
    if (why := unseen.kinds(seen.snapshot).get("DeviceClass")) is not None:
        return unknown(AREA, f"DeviceClasses: {why}")
    device_class = world.classes.get(efa.CLASS)
    if device_class is None:
        text = f"the DeviceClass {efa.CLASS} does not exist, so no claim of it gets EFA interfaces"
        return wrong(AREA, "ClassMissing", text, "install the chart with efa.deviceClass=true (docs/efa.md)")
    expressions = [expression for expression in device_class.selectors if expression]
    published_count, left_out = 0, list[str]()
    for name in world.nodes:
        for device in _devices(world, name):
            published_count += 1
            if not all(_selects(world, expression, device) for expression in expressions):
                left_out.append(f"{name}/{device.id.device}")
    if left_out:
        text = (
            f"the DeviceClass {efa.CLASS} does not select {len(left_out)} of "
            f"{words.count(published_count, 'EFA interface')}, such as {left_out[0]}: {' && '.join(expressions)}"
        )
        return wrong(AREA, "ClassEdited", text, "correct its selectors, or delete it and install the chart again")
    return ok(AREA, f"the DeviceClass {efa.CLASS} selects all {words.count(published_count, 'EFA interface')}")


def _devices(world: World, name: str) -> Iterator[PoolDevice]:
    if not any(interfaces.slice_names(world, name)):
        return
    for pool in world.likeness.pools(world.decoded(world.nodes[name])):
        if pool.driver == EFA.name:
            yield from filter(interfaces.is_efa, pool.devices)


def _selects(world: World, expression: str, device: PoolDevice) -> bool:
    """Return True if a selector is true for the device; an error is not."""
    try:
        return world.memo.matches(
            expression,
            device.key,
            lambda: selectors.device_value(device.id.driver, device.attributes, device.capacity),
        )
    except SelectorError:
        return False


def _published(world: World, publishers: _Publishers) -> Iterator[Line]:
    for publisher, node_names in (("this driver", publishers.ours), ("DRANET", publishers.dranet)):
        if node_names:
            number = sum(len(interfaces.of_node(world, name)) for name in node_names)
            text = f"{publisher} publishes {words.count(number, 'EFA interface')} of {_nodes(node_names)}"
            yield ok(AREA, text)


def _fewer(world: World, node_names: Sequence[str]) -> Iterator[Line]:
    """Yield a line about nodes with fewer interfaces than another node of their type, or than the type can have.

    The launch template decides how many an instance has. From outside, an interface that it does not have looks like
    one that could never be used.
    """
    names_by_counts: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    most_by_type: dict[str, int] = defaultdict(int)
    for name in node_names:
        spec = world.type_of(name)
        if spec is not None and spec.efa is not None:
            number = len(interfaces.of_node(world, name))
            most_by_type[spec.name] = max(most_by_type[spec.name], number)
            names_by_counts[spec.name, number, len(set(spec.efa))].append(name)
    for (type_name, number, possible), names in names_by_counts.items():
        if number < most_by_type[type_name]:
            text = (
                f"{_nodes(names)}: {number} EFA interfaces, and {most_by_type[type_name]} on another {type_name}: "
                "the instance has fewer, or the others were never usable"
            )
            yield unknown(AREA, text, f"{program.NAME} doctor node/{names[0]}")
        elif number < possible:
            text = f"{_nodes(names)}: {number} of the {possible} EFA interfaces that a {type_name} can have"
            yield ok(AREA, text, "FewerInterfaces")


def _not_served(world: World, publishers: _Publishers) -> Iterator[Line]:
    """Yield lines about nodes of which this driver publishes no interfaces although efa.enabled is on."""
    offering = [name for name in publishers.device_plugin if not _stands_down(world, name)]
    if offering:
        text = (
            f"the EFA device plugin offers {efa.DEVICE_PLUGIN_RESOURCE} on {_nodes(offering)}, so the driver stands "
            "down"
        )
        yield wrong(
            AREA, "EfaDevicePluginAlive", text, "keep it off these nodes, or turn efa.enabled off (docs/efa.md)"
        )
    silent = [name for name in publishers.unpublished if not _stands_down(world, name)]
    if silent:
        text = (
            f"efa.enabled is on, and nothing publishes EFA interfaces of {_nodes(silent)}: the instance has none, or "
            "none can be used"
        )
        yield unknown(AREA, text, f"{program.NAME} doctor node/{silent[0]}")


def _stands_down(world: World, name: str) -> bool:
    """Return True if the driver reports that it stands down on a node, which is a line of the node."""
    return any(event.reason == reported.STANDS_DOWN for event in events.about(world, "Node", world.nodes[name]))


def _nodes(node_names: Sequence[str]) -> str:
    if len(node_names) == 1:
        return f"node {node_names[0]}"
    return f"{len(node_names)} nodes ({words.listed(node_names, MOST)})"
