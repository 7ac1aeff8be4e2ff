"""Findings for pods that no node could serve even if idle: what the claim requests, and what is available. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from neuron_dra.ask.render import words
from neuron_dra.ask.render.findings import AVAILABLE, Facts, Finding, ProposedChange
from neuron_dra.ask.why import sizes, trials
from neuron_dra.ask.world import absent, drivers, expressions, selection
from neuron_dra.ask.world.demand import PodClaim
from neuron_dra.ask.world.selection import Asked, PublishedDevices
from neuron_dra.ask.world.world import World
from neuron_dra.core import groups, names, program
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import constraints, quantity
from neuron_dra.simulate.failures import CompileError, EvaluationError
from neuron_dra.simulate.model import Constraint, PoolDevice


def selector_error(world: World, pod: Wire) -> Finding | None:
    """Return the finding for a selector that cannot be evaluated: it blocks the pod on every node."""
    return _selector_error(world, pod, PublishedDevices(world))


def _selector_error(world: World, pod: Wire, published: PublishedDevices) -> Finding | None:
    for claim, ask in selection.requests(world, pod):
        failure = published.error(ask)
        if failure is None:
            continue
        expression, err, device = failure
        where = f"the selector of request {ask.name}"
        if expression not in ask.alternative.selectors:
            where = f"the selector of DeviceClass {ask.alternative.class_name}"
        facts = (("selector", expression), ("device", str(device) if device is None else str(device.id)))
        if isinstance(err, CompileError):
            return Finding("SelectorInvalid", f"{where} is not valid CEL: {err}", facts[:1])
        if not isinstance(err, EvaluationError):
            return Finding("Unknown", f"unknown: {where} cannot be evaluated here: {err}", facts[:1])
        changes: list[ProposedChange] = []
        replacements = selection.replacements(published, expression, published.devices)
        guarded_replacements = map(expressions.guarded, replacements)
        for better in (*replacements, *guarded_replacements, expressions.guarded(expression)):
            if better == expression:
                change = None
            else:
                change = _with_expression(world, pod, claim, ask, expression, better)
            if change is not None:
                changes.append(change)
        why = str(err).partition(". Guard")[0]
        text = f"{where} fails on a device, which blocks the pod on every node: {why}"
        remedy = "" if changes else selection.misspelled(published, expression) or expressions.remedy(expression, why)
        return Finding("SelectorFails", f"{text}; {remedy}" if remedy else text, facts, tuple(changes[:1]))
    return None


def _with_expression(world: World, pod: Wire, claim: PodClaim, ask: Asked, old: str, new: str) -> ProposedChange | None:
    text = f"{trials.place_of(claim)}, request {ask.name}, write the selector: {new.strip()}"
    return trials.attempt(world, pod, text, trials.with_expression(claim, ask.name, old, new))


def findings(world: World, pod: Wire) -> list[Finding]:
    """Return why no node could serve the claims."""
    if selector_finding := selector_error(world, pod):
        return [selector_finding]
    published = unreserved = PublishedDevices(world)
    if world.tags and all(name in world.tags for name, devices in published.by_node.items() if devices):
        # The reservations are not why no node could serve the claims. They keep the class from selecting any device,
        # and so hide a selector that fails on each.
        unreserved = PublishedDevices(world, world.untagged)
        if selector_finding := _selector_error(world, pod, unreserved):
            return [selector_finding]
    by_text: dict[tuple[str, str], Finding] = {}
    for claim, ask in selection.requests(world, pod):
        # A class of reserved devices selects none of the others.
        device_class = world.classes.get(ask.alternative.class_name)
        judged_devices = published if published.of_class(device_class) else unreserved
        for finding in _of_request(world, pod, judged_devices, claim, ask):
            by_text.setdefault((finding.code, finding.text), finding)
    if by_text:
        return list(by_text.values())
    if unreserved.unusable:
        return [_unusable(unreserved)]
    if shared := _shared_group(world, pod, unreserved):
        return [shared]
    facts = Facts()
    asks = [ask for _, ask in selection.requests(world, pod)]
    for ask in asks:
        for constraint in ask.claim.constraints:
            facts.add("constraint", f"{constraint.kind} {constraint.attribute}")
    if len(asks) == 1:
        text = f"nodes have the devices of request {asks[0].name}, and no node has them under its constraints"
    else:
        text = "a node can satisfy each request on its own, and no node can satisfy all requests of the pod"
    return [Finding("RequestsConflict", text, tuple(dict.fromkeys(facts.done())))]


def _shared_group(world: World, pod: Wire, published: PublishedDevices) -> Finding | None:
    """Return the finding for a constraint that several requests share, and that no node's devices can meet."""
    by_claim: dict[int, list[Asked]] = {}
    claims: dict[int, PodClaim] = {}
    for claim, ask in selection.requests(world, pod):
        by_claim.setdefault(id(ask.claim), []).append(ask)
        claims[id(ask.claim)] = claim
    for number, asks in by_claim.items():
        for constraint in asks[0].claim.constraints:
            covered = [ask for ask in asks if _covers(constraint, ask)]
            if any(ask.alternative.mode != "ExactCount" or ask.request.prioritized for ask in covered):
                continue
            requested_count = sum(ask.alternative.count for ask in covered)
            matching = [published.matching(ask) for ask in covered]
            together = 0
            for name in published.by_node:
                unique = {}
                for devices_by_node in matching:
                    for device in devices_by_node[name]:
                        unique[device.id] = device
                together = max(together, _together(constraint, list(unique.values())))
            if together < requested_count:
                same = "different"
                if constraint.kind == "matchAttribute":
                    same = "the same"
                which = ", ".join(ask.name for ask in covered)
                count_text = words.count(requested_count, "device")
                text = f"requests {which} want {count_text} with {same} {constraint.attribute}"
                lacking = _requests_without(constraint.attribute, covered, matching)
                text += f", which no device of request {lacking} publishes" if lacking else _at_most(together)
                changes = _paired_by_group(world, pod, claims[number], constraint) if lacking else []
                return Finding("GroupTooSmall", text, changes=tuple(changes))
    return None


def _requests_without(
    attribute: str, covered: Sequence[Asked], matching: Sequence[Mapping[str, Sequence[PoolDevice]]]
) -> str:
    """Return the first of these requests whose devices do not publish an attribute; empty if those of all do."""
    for ask, by_node in zip(covered, matching, strict=True):
        devices = (device for node_devices in by_node.values() for device in node_devices)
        if all(constraints.attribute(device, attribute) is None for device in devices):
            return ask.name
    return ""


def _paired_by_group(world: World, pod: Wire, claim: PodClaim, constraint: Constraint) -> list[ProposedChange]:
    """Return the change to the smallest device group that pairs the devices, of those that both drivers publish."""
    for size in groups.SIZES:
        attribute = f"{names.GROUP_DOMAIN}/devicegroup{size}_id"
        text = f"{trials.place_of(claim)}, write {constraint.kind}: {attribute}"
        replaced = trials.with_constraint(claim, constraint.kind, constraint.attribute, attribute)
        change = trials.attempt(world, pod, text, replaced)
        if change is not None:
            return [change]
    return []


def _at_most(together: int) -> str:
    """Return how many devices meet a constraint, as the end of a sentence about it."""
    return f"; at most {together} have" if together else ", which none of the devices publishes"


def _covers(constraint: Constraint, ask: Asked) -> bool:
    """Return True if a constraint holds for a request, or for one of its alternatives."""
    return not constraint.requests or bool({ask.name, ask.request.name} & constraint.requests)


def _of_request(world: World, pod: Wire, published: PublishedDevices, claim: PodClaim, ask: Asked) -> list[Finding]:
    """Return the findings for one request that no node could satisfy."""
    if ask.alternative.unsupported:
        return [Finding("Unknown", f"unknown: request {ask.name}: {ask.alternative.unsupported}")]
    device_class = world.classes.get(ask.alternative.class_name)
    of_class = published.of_class(device_class)
    selectors = device_class.selectors if device_class is not None else ()
    driver = drivers.foreign([*selectors, *ask.alternative.selectors])
    if driver and not any(device.id.driver == driver for device in published.devices):
        return [_driver_not_seen(world, published, ask, driver)]
    if not published.devices or (not of_class and not _publishes(published, ask)):
        return [_nothing_published(world, published)]
    if not of_class:
        return [_class_matches_nothing(world, pod, published, ask)]
    matching = published.matching(ask)
    most = max((len(devices) for devices in matching.values()), default=0)
    if not most and (lacking := _capacity_lacking(ask, of_class)):
        return [lacking]
    if not most:
        return [_selector_matches_nothing(world, pod, published, claim, ask, of_class)]
    if ask.alternative.mode != "ExactCount":
        return []
    request_findings = []
    if most < ask.alternative.count:
        request_findings.append(_too_many(world, pod, published, ask, matching, most))
    for constraint in ask.claim.constraints:
        if _alone(constraint, ask):
            together = max(_together(constraint, devices) for devices in matching.values())
            # A group of all devices of the largest node is too small only because the node is.
            if together < min(ask.alternative.count, most):
                too_small = _group_too_small(world, pod, published, claim, ask, constraint, matching, together)
                request_findings.append(too_small)
    return request_findings


def _capacity_lacking(ask: Asked, devices: Sequence[PoolDevice]) -> Finding | None:
    """Return the finding for a capacity that no device has, or none in this amount."""
    for name, amount in ask.alternative.capacity.items():
        short_name = name.rpartition("/")[2]
        texts = {key.rpartition("/")[2]: text for device in devices for key, text in device.capacity.items()}
        if short_name not in texts:
            near = words.nearest(short_name, texts)
            hint = f", did you mean {near}?" if near else f"; they have {words.listed(sorted(texts))}"
            text = f"request {ask.name}: no device has the capacity {name}{hint}"
            return Finding("CapacityLacking", text)
        amounts = []
        for device in devices:
            amounts += [text for key, text in device.capacity.items() if key.rpartition("/")[2] == short_name]
        largest = max(amounts, key=quantity.parse)
        if quantity.parse(largest) < quantity.parse(amount):
            text = f"request {ask.name} wants {amount} of {name}, and the largest device has {largest}"
            return Finding("CapacityLacking", text)
    return None


def _driver_not_seen(world: World, published: PublishedDevices, ask: Asked, driver: str) -> Finding:
    """Return the finding for devices of another driver, about which its slices alone would say something."""
    if published.unusable:
        return _unusable(published)
    text = (
        f"request {ask.name} is for devices of the driver {driver}, and no ResourceSlice of that driver is known: "
        "whether the pod fits is unknown"
    )
    command = f"kubectl get resourceslices --field-selector spec.driver={driver}"
    return Finding("DriverNotSeen", text, (("see", f"{command}; without slices, check that this driver runs"),))


def _publishes(published: PublishedDevices, ask: Asked) -> bool:
    """Return True if a device of the driver that the class is named after is published."""
    is_our_class = ask.alternative.class_name.endswith(names.DRIVER)
    return not is_our_class or any(device.id.driver == names.DRIVER for device in published.devices)


def _nothing_published(world: World, published: PublishedDevices) -> Finding:
    if published.unusable:
        return _unusable(published)
    facts = Facts()
    silent = absent.silent_nodes(world)
    facts.some("node", (f"{name} ({kind}) publishes no devices" for name, kind in silent))
    if silent:
        node, kind = silent[0]
        text = f"no node publishes devices of {names.DRIVER}: node {node} ({kind}) publishes no devices"
        if len(silent) > 1:
            text += f", nor do {len(silent) - 1} more"
        facts.add("see", f"{program.NAME} why node/{node}")
    else:
        text = f"no node publishes devices of {names.DRIVER}, and no Node has a Neuron instance type"
    return Finding("NoDevicesPublished", text, facts.done())


def _unusable(published: PublishedDevices) -> Finding:
    facts = Facts()
    facts.some("pool", published.unusable.values())
    return Finding("PoolIncomplete", next(iter(published.unusable.values())), facts.done())


def _class_matches_nothing(world: World, pod: Wire, published: PublishedDevices, ask: Asked) -> Finding:
    facts = Facts()
    for expression in world.classes[ask.alternative.class_name].selectors:
        if expression and (failed := published.failed_part(expression, published.devices)):
            facts.add("selector", failed[1].strip())
            _values(facts, published, failed[1], published.devices)
    text = f"DeviceClass {ask.alternative.class_name} selects no published device"
    return Finding("ClassMatchesNothing", text, facts.done(), sizes.changes(world, pod, ask.alternative.class_name))


def _values(facts: Facts, published: PublishedDevices, part: str, devices: Sequence[PoolDevice]) -> None:
    """Add the values that are available for the attributes of a part of a selector."""
    read = [(domain, name) for domain, name, _ in expressions.reads(part)]
    for domain, name in dict.fromkeys(read):
        values = published.values(domain, name, devices)
        if values:
            facts.add(AVAILABLE, f"{domain}/{name}: {selection.there(values)}")
            continue
        at, near = published.nearest_attribute(domain, name, devices)
        if not near:
            facts.add(AVAILABLE, f"{domain}/{name}: no device publishes it")
            continue
        near_text = near if at == domain else f"{at}/{near}"
        facts.add(AVAILABLE, f"{domain}/{name}: no device publishes it, did you mean {near_text}?")
        facts.add(AVAILABLE, f"{at}/{near}: {selection.there(published.values(at, near, devices))}")


def _selector_matches_nothing(
    world: World, pod: Wire, published: PublishedDevices, claim: PodClaim, ask: Asked, of_class: Sequence[PoolDevice]
) -> Finding:
    facts, changes = Facts(), []
    for expression in ask.alternative.selectors:
        if expression is None or any(published.true(expression, device) for device in of_class):
            continue
        failed = published.failed_part(expression, of_class)
        place, part = failed or (0, expression)
        facts.add("selector", part.strip())
        _values(facts, published, part, of_class)
        if failed:
            respelled = selection.respelled(published, expression)
            if respelled != expression:
                changes.append(_with_expression(world, pod, claim, ask, expression, respelled))
            for better in selection.replacements(published, part, of_class):
                whole = expression[:place] + better + expression[place + len(part) :]
                changes.append(_with_expression(world, pod, claim, ask, expression, whole))
        else:
            facts.add("", "each part of the selector matches a device, but no device matches all parts")
    if not facts.items:
        facts.add("", "each selector matches a device, but no device matches all selectors")
    confirmed_changes = tuple(change for change in changes if change is not None)
    return Finding(
        "SelectorMatchesNothing",
        f"the selector of request {ask.name} matches no device",
        facts.done(),
        confirmed_changes[:2],
    )


def _too_many(
    world: World,
    pod: Wire,
    published: PublishedDevices,
    ask: Asked,
    matching: Mapping[str, Sequence[PoolDevice]],
    most: int,
) -> Finding:
    largest = sorted(matching, key=lambda name: (-len(matching[name]), words.natural(name)))
    facts = Facts()
    if all(_is_whole(device) for devices in matching.values() for device in devices):
        node_count = words.count(ask.alternative.count, "node")
        text = f"request {ask.name} wants {node_count} as a whole, and a claim has devices of one node: "
        text += "use a pod with a claim of its own for each node"
        return Finding("CountTooLarge", text)
    of_node = {name: [device.id.device for device in devices] for name, devices in matching.items()}
    serving = [name for name in largest if of_node[name]]
    facts.some(AVAILABLE, (f"node {name}: {words.amount(of_node[name])}" for name in serving), most=3)
    others = len(largest) - len(serving)
    if serving and others:
        facts.add("", f"{words.count(others, 'other node')}: none that match")
    facts.some("pool", published.unusable.values(), most=2)
    device_count = sizes.amount(ask.alternative.class_name, ask.alternative.count)
    text = f"request {ask.name} wants {device_count} of one node, and the largest node has {most} that match"
    changes = [change for change in trials.fewer(world, pod) if change is not None]
    return Finding("CountTooLarge", text, facts.done(), tuple(changes[:1]))


def _is_whole(device: PoolDevice) -> bool:
    """Return True for a node that is published as one device."""
    return device.id.device == names.NODE_DEVICE


def _alone(constraint: Constraint, ask: Asked) -> bool:
    """Return True if the constraint holds for this request and no other."""
    covered = []
    for request in ask.claim.requests:
        named = {request.name, *(request.result_name(alternative) for alternative in request.alternatives)}
        if not constraint.requests or named & constraint.requests:
            covered.append(request.name)
    return covered == [ask.request.name]


def _together(constraint: Constraint, devices: Sequence[PoolDevice]) -> int:
    values: dict[object, int] = {}
    for device in devices:
        value = constraints.attribute(device, constraint.attribute)
        if value is not None:
            values[value] = values.get(value, 0) + 1
    if constraint.kind == "matchAttribute":
        return max(values.values(), default=0)
    return len(values)


def _group_too_small(
    world: World,
    pod: Wire,
    published: PublishedDevices,
    claim: PodClaim,
    ask: Asked,
    constraint: Constraint,
    matching: Mapping[str, Sequence[PoolDevice]],
    together: int,
) -> Finding:
    facts = Facts()
    domain, _, name = constraint.attribute.rpartition("/")
    selected = [device for devices in matching.values() for device in devices]
    values = published.values(domain, name, selected)
    facts.add("constraint", f"{constraint.kind} {constraint.attribute}")
    if values:
        facts.add(AVAILABLE, selection.there(values))
    same = "the same" if constraint.kind == "matchAttribute" else "different"
    count_text = words.count(ask.alternative.count, "device")
    text = f"request {ask.name} wants {count_text} with {same} {constraint.attribute}{_at_most(together)}"
    changes = []
    for change in _group_changes(world, pod, published, claim, ask, constraint):
        if change is not None:
            changes.append(change)
    return Finding("GroupTooSmall", text, facts.done(), tuple(changes[:2]))


def _group_changes(
    world: World, pod: Wire, published: PublishedDevices, claim: PodClaim, ask: Asked, constraint: Constraint
) -> Iterator[ProposedChange | None]:
    domain, _, name = constraint.attribute.rpartition("/")
    groups: set[str] = set()
    for device in published.devices[:64]:
        groups.update(attribute for attribute in device.attributes if "devicegroup" in attribute)
    # Shorter names come first, so that devicegroup4 is tried before devicegroup16.
    group_attributes = sorted(groups, key=lambda attribute: (len(attribute), attribute))
    candidates = [attribute for attribute in group_attributes if attribute.rpartition("/")[0] == domain or not domain]
    at, near = published.nearest_attribute(domain, name, published.devices)
    if near:
        candidates.insert(0, f"{at}/{near}")
    for attribute in dict.fromkeys(candidates):
        if attribute != constraint.attribute:
            text = f"{trials.place_of(claim)}, write {constraint.kind}: {attribute}"
            replaced = trials.with_constraint(claim, constraint.kind, constraint.attribute, attribute)
            yield trials.attempt(world, pod, text, replaced)
    yield from trials.fewer(world, pod)
