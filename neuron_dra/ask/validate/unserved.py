"""Why no instance type, or none that its pods select, can serve a claim of a manifest. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import AVAILABLE, Finding
from neuron_dra.ask.validate import attributes, selected
from neuron_dra.ask.validate.specs import ClaimSpec, ManifestProblem
from neuron_dra.ask.why import impossible, situations
from neuron_dra.ask.why.conditions import Case
from neuron_dra.ask.world import selection
from neuron_dra.ask.world.selection import PublishedDevices
from neuron_dra.ask.world.world import World
from neuron_dra.core import catalogue, names
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import constraints, model

_FEW_TYPES: Final = 4
"""Types that a claim selects, and that are then named; a claim without such a choice has more."""


def by_no_type(
    world: World, published: PublishedDevices, spec: ClaimSpec, pod: Wire, claim: Wire
) -> Iterator[ManifestProblem]:
    """Yield why no node of any type can serve a claim, by the types that its selectors choose."""
    kinds = _kinds_chosen(world, published, claim)
    is_choice = 0 < len(kinds) <= _FEW_TYPES
    chosen = _of_types(world, kinds) if is_choice else world
    finding = _why(chosen.after([claim, pod]), pod)
    facts = "; ".join(text for name, text in finding.facts if name == AVAILABLE)
    if is_choice:
        text = f"{words.listed(kinds)} cannot serve it: {finding.text}"
        for more in (*_cores_as_count(spec, kinds), *_constraints_unmet(world, published, spec, kinds)):
            text += f"; {more}"
    else:
        text = f"no instance type can serve it: {finding.text}{f' ({facts})' if facts else ''}"
    yield ManifestProblem(spec.where, finding.code, text)


def _kinds_chosen(world: World, published: PublishedDevices, claim: Wire) -> list[str]:
    """Return the instance types that have devices for each request, whatever their number."""
    kinds: dict[str, set[str]] = defaultdict(set)  # by request
    for ask in selection.asked([model.claim(claim)]):
        for name, matching in published.matching(ask).items():
            if matching:
                kinds[ask.request.name].add(type_of(world.nodes[name]))
    request_names = {request.name for request in model.claim(claim).requests}
    if kinds.keys() != request_names:
        return []
    return sorted(set.intersection(*kinds.values()))


def _cores_as_count(spec: ClaimSpec, kinds: Sequence[str]) -> Iterator[str]:
    """Yield the change of each count that seems to be a number of cores: the type has as many, and fewer devices."""
    for name, alternative in spec.alternatives():
        for kind in map(catalogue.lookup, kinds):
            if kind is None or alternative.number <= kind.device_count or kind.cores_per_device == 1:
                continue
            devices, remainder = divmod(alternative.number, kind.cores_per_device)
            if remainder == 0 and devices <= kind.device_count:
                yield (
                    f"count is a number of devices, and a device of {kind.name} has {kind.cores_per_device} cores: if "
                    f"{alternative.number} cores are meant, write count: {devices} into request {name}"
                )
                return


def _constraints_unmet(
    world: World, published: PublishedDevices, spec: ClaimSpec, kinds: Sequence[str]
) -> Iterator[str]:
    """Yield the constraints on attributes that no device of these types has."""
    for index, constraint in enumerate(spec.devices.constraints):
        domain, _, attribute = constraint.match_attribute.rpartition("/")
        if not attribute or attributes.unknown(domain, attribute):
            continue  # another rule says so
        values: set[object] = set()
        for name, node_devices in published.by_node.items():
            if type_of(world.nodes[name]) in kinds:
                values |= {constraints.attribute(device, constraint.match_attribute) for device in node_devices}
        if values <= {None}:
            yield (
                f"constraints[{index}]: no device of {words.listed(kinds)} publishes {constraint.match_attribute}: "
                "remove the constraint"
            )


def by_selected_types(world: World, spec: ClaimSpec, pod: Wire, claim: Wire, able: Sequence[Wire]) -> ManifestProblem:
    """Return the problem of a claim whose pods select instance types that cannot serve it."""
    user = spec.users[0]
    placed = {**pod, "spec": {**pod["spec"], **selected.only_type(user)}}
    kinds = [type_of(node) for node in selected.admitted(list(world.nodes.values()), spec.users)]
    where = f"of {words.listed(kinds)}" if kinds else "that no known type has"
    finding = _why(_of_types(world, kinds).after([claim, placed]), placed)
    who = "it" if snapshot.named(user) == spec.where else f"{snapshot.named(user)}, which uses it,"
    text = (
        f"{who} selects nodes {where}, and they cannot serve it: {finding.text}; "
        f"types that can are {words.listed([type_of(node) for node in able], 5)}"
    )
    return ManifestProblem(spec.where, "TypeCannotServe", text)


def _of_types(world: World, kinds: Collection[str]) -> World:
    """Return a world without the nodes of other types, whose devices would be named as if they were there."""
    other_keys = []
    for name, node in world.nodes.items():
        if kinds and type_of(node) not in kinds:
            other_keys.append(snapshot.key_of(node))
            other_keys += [snapshot.key_of(raw_slice) for raw_slice in world.slices_of(name)]
    return world.after((), other_keys)


def type_of(node: Wire) -> str:
    return str(node["metadata"]["labels"][names.INSTANCE_TYPE_LABEL])


def _why(world: World, pod: Wire) -> Finding:
    findings = situations.CLASS_MISSING.findings(Case(world, pod))
    return (findings or impossible.findings(world, pod))[0]
