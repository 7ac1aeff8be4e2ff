"""Which published devices a request selects, and what is available where its selector matches nothing. Pure."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from neuron_dra.ask.render import words
from neuron_dra.ask.world import expressions
from neuron_dra.ask.world.demand import PodClaim
from neuron_dra.ask.world.expressions import Comparison
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import model, selectors
from neuron_dra.simulate.failures import SelectorError
from neuron_dra.simulate.model import ClaimDemand, DeviceClass, DeviceId, DeviceRequest, DeviceSubRequest, PoolDevice
from neuron_dra.simulate.pools import PoolInventory


@dataclass(frozen=True, slots=True)
class Asked:
    """One alternative of one request of a claim."""

    claim: ClaimDemand
    request: DeviceRequest
    alternative: DeviceSubRequest

    @property
    def name(self) -> str:
        """The request's name as results have it."""
        return self.request.result_name(self.alternative)


def asked(claims: Sequence[ClaimDemand]) -> list[Asked]:
    """Return every alternative of every request."""
    asks = []
    for claim in claims:
        for request in claim.requests:
            asks += [Asked(claim, request, alternative) for alternative in request.alternatives]
    return asks


def requests(world: World, pod: Wire) -> list[tuple[PodClaim, Asked]]:
    """Return the requests of a pod's claims that are not allocated."""
    claims_and_asks = []
    for pod_claim in world.claims_of(pod):
        if pod_claim.claim is not None and not pod_claim.seen.is_allocated:
            claims_and_asks += [(pod_claim, ask) for ask in asked([model.claim(pod_claim.claim)])]
    return claims_and_asks


class PublishedDevices:
    """The devices of all nodes, in usable pools."""

    def __init__(self, world: World, inventory: PoolInventory | None = None) -> None:
        self._world = world
        self.by_node: dict[str, Sequence[PoolDevice]] = {}
        self.unusable: dict[str, str] = {}  # by node: a pool that is incomplete or invalid
        for name, node in world.nodes.items():
            traits = world.decoded(node)
            pools = world.likeness.pools(traits) if inventory is None else inventory.pools(traits)
            usable = [pool.devices for pool in pools if pool.usable]
            self.by_node[name] = usable[0] if len(usable) == 1 else list(itertools.chain.from_iterable(usable))
            for pool in pools:
                if not pool.usable:
                    why = pool.invalid or "slices of it are missing: the driver is updating it, or stopped"
                    self.unusable[name] = f"pool {pool.driver}/{pool.name} of node {name}: {why}"

    @cached_property
    def devices(self) -> list[PoolDevice]:
        """The devices of all nodes, each once: several nodes can use a device of a shared pool."""
        unique: dict[DeviceId, PoolDevice] = {}
        for node_devices in self.by_node.values():
            for device in node_devices:
                unique[device.id] = device
        return list(unique.values())

    def error(self, ask: Asked) -> tuple[str, SelectorError, PoolDevice | None] | None:
        """Return the first selector of class or request that cannot be evaluated, its error, and the device."""
        chain = self._chain(ask)
        for expression in chain:
            try:
                selectors.compile_selector(expression)
            except SelectorError as err:
                return expression, err, None
        for device in self.devices:
            for expression in chain:  # a device that one selector excludes never meets the next one
                try:
                    if not self.holds(expression, device):
                        break
                except SelectorError as err:
                    return expression, err, device
        return None

    def _chain(self, ask: Asked) -> list[str]:
        """Return the selectors of the class, then those of the request."""
        device_class = self._world.classes.get(ask.alternative.class_name)
        of_class = device_class.selectors if device_class is not None else ()
        chain = []
        for expression in (*of_class, *ask.alternative.selectors):
            if expression is not None:
                chain.append(expression)
        return chain

    def holds(self, expression: str, device: PoolDevice) -> bool:
        """Return the result of a selector. Raises SelectorError."""
        make_value = partial(selectors.device_value, device.id.driver, device.attributes, device.capacity)
        return self._world.memo.matches(expression, device.key, make_value)

    def true(self, expression: str, device: PoolDevice) -> bool:
        """Return True if a selector is true for the device; an error is not."""
        try:
            return self.holds(expression, device)
        except SelectorError:
            return False

    def of_class(self, device_class: DeviceClass | None) -> list[PoolDevice]:
        """Return the devices that a class selects."""
        chain = [expression for expression in (device_class.selectors if device_class else ()) if expression]
        selected = []
        for device in self.devices:
            if all(self.true(expression, device) for expression in chain):
                selected.append(device)
        return selected

    def matching(self, ask: Asked) -> Mapping[str, list[PoolDevice]]:
        """Return the devices that class and request select, by node."""
        chain = self._chain(ask)
        devices_by_node = {}
        for name, devices in self.by_node.items():
            devices_by_node[name] = self._selected(devices, chain)
        return devices_by_node

    def on(self, node: str, ask: Asked) -> list[PoolDevice]:
        """Return the devices of one node that class and request select."""
        return self._selected(self.by_node.get(node, ()), self._chain(ask))

    def _selected(self, devices: Sequence[PoolDevice], chain: Sequence[str]) -> list[PoolDevice]:
        selected = []
        for device in devices:
            if all(self.true(expression, device) for expression in chain):
                selected.append(device)
        return selected

    def failed_part(self, expression: str, devices: Sequence[PoolDevice]) -> tuple[int, str] | None:
        """Return the part of an && chain that no device satisfies, and its place; None if each part has one."""
        for place, part in expressions.parts(expression):
            if not any(self.true(part, device) for device in devices):
                return place, part
        return None

    def values(self, domain: str, name: str, devices: Sequence[PoolDevice]) -> Counter[Any]:
        """Return the values that devices publish for an attribute, with the number of devices."""
        value_counts: Counter[Any] = Counter()
        for device in devices:
            value = attribute(device, domain, name)
            if value is not None:
                value_counts[value] += 1
        return value_counts

    def nearest_attribute(self, domain: str, name: str, devices: Sequence[PoolDevice]) -> tuple[str, str]:
        """Return domain and name of a published attribute that resembles this one; empty if none does."""
        # Devices of one kind have the same attributes, so few of these tuples differ.
        attributes_by_driver = {(device.id.driver, tuple(device.attributes)) for device in devices}
        published_names: set[tuple[str, str]] = set()
        for driver, attribute_names in attributes_by_driver:
            published_names.update(model.qualified(published, driver) for published in attribute_names)
        for at, published_name in sorted(published_names):
            if published_name == name and at != domain:
                return at, published_name
        same = [published_name for at, published_name in sorted(published_names) if at == domain]
        near = words.nearest(name, same)
        if near:
            return (domain, near)
        return ("", "")


def attribute(device: PoolDevice, domain: str, name: str) -> Any:
    """Return the value of an attribute, without its type; None if the device does not publish it."""
    is_of_own_driver = domain == device.id.driver
    typed_value = device.attributes.get(f"{domain}/{name}")
    if not typed_value and is_of_own_driver:
        typed_value = device.attributes.get(name)
    if not typed_value:
        return None
    return next((value for value in typed_value.values() if value is not None), None)


def misspelled(published: PublishedDevices, expression: str) -> str:
    """Return which attribute of an expression no device publishes, and the nearest one; empty if all are published."""
    for domain, name, _ in expressions.reads(expression):
        if published.values(domain, name, published.devices):
            continue
        at, near = published.nearest_attribute(domain, name, published.devices)
        if not near:
            return f"no device publishes {domain}/{name}"
        near_text = near if at == domain else f"{at}/{near}"
        return f"no device publishes {name}, did you mean {near_text}?"
    return ""


def respelled(published: PublishedDevices, expression: str) -> str:
    """Return the expression with the nearest published name for each attribute that no device publishes."""
    for domain, name, (start, end) in reversed(expressions.reads(expression)):
        at, near = published.nearest_attribute(domain, name, published.devices)
        if near and at == domain and not published.values(domain, name, published.devices):
            expression = expression[:start] + near + expression[end:]
    return expression


def there(values: Counter[Any], most: int = 4) -> str:
    """Return the values that were there, the most frequent first: "'a' (32 devices), 'b' (1 device)"."""
    texts = []
    for value, number in values.most_common():
        texts.append(f"{words.cell(value)} ({words.count(number, 'device')})")
    return words.listed(texts, most)


def replacements(published: PublishedDevices, part: str, devices: Sequence[PoolDevice]) -> list[str]:
    """Return forms of a part that some device satisfies, the smallest changes first."""
    candidates: list[str] = []
    compared = expressions.comparison(part)
    for domain, name, (start, end) in expressions.reads(part):
        at, near = published.nearest_attribute(domain, name, devices)
        if near and not published.values(domain, name, devices):
            text = part[:start] + near + part[end:]
            candidates.append(text.replace(domain, at, 1) if at != domain else text)
    if compared is not None:
        for value in _near(published, compared, devices):
            candidates.append(part[: compared.start] + words.cell(value) + part[compared.end :])
    satisfied = []
    for text in dict.fromkeys(candidates):
        if any(published.true(text, device) for device in devices):
            satisfied.append(text)
    return satisfied


def _near(published: PublishedDevices, compared: Comparison, devices: Sequence[PoolDevice]) -> list[Any]:
    """Return published values near the one in a comparison: of other type but equal, resembling, the only one."""
    values = [value for value, _ in published.values(compared.domain, compared.name, devices).most_common()]
    wanted_text = str(compared.value).lower()
    equal = [value for value in values if str(value).lower() == wanted_text]
    texts = [value for value in values if isinstance(value, str)]
    near = difflib.get_close_matches(str(compared.value), texts, n=2, cutoff=0.6)
    numbers: list[int] = []
    if type(compared.value) is int:
        numbers = [value for value in values if type(value) is int]
        numbers.sort(key=lambda value: (abs(value - compared.value), value))
    only = values if len(values) == 1 else []
    return list(dict.fromkeys([*equal, *near, *numbers[:2], *only]))
