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
    found = []
    for claim in claims:
        for request in claim.requests:
            found += [Asked(claim, request, each) for each in request.alternatives]
    return found


def requests(world: World, pod: Wire) -> list[tuple[PodClaim, Asked]]:
    """Return the requests of a pod's claims that are not allocated."""
    found = []
    for each in world.claims_of(pod):
        if each.claim is not None and not each.seen.is_allocated:
            found += [(each, ask) for ask in asked([model.claim(each.claim)])]
    return found


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
        for found in self.by_node.values():
            for device in found:
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
        found = self._world.classes.get(ask.alternative.class_name)
        of_class = found.selectors if found is not None else ()
        made = []
        for each in (*of_class, *ask.alternative.selectors):
            if each is not None:
                made.append(each)
        return made

    def holds(self, expression: str, device: PoolDevice) -> bool:
        """Return the result of a selector. Raises SelectorError."""
        value = partial(selectors.device_value, device.id.driver, device.attributes, device.capacity)
        return self._world.memo.matches(expression, device.key, value)

    def true(self, expression: str, device: PoolDevice) -> bool:
        """Return True if a selector is true for the device; an error is not."""
        try:
            return self.holds(expression, device)
        except SelectorError:
            return False

    def of_class(self, found: DeviceClass | None) -> list[PoolDevice]:
        """Return the devices that a class selects."""
        chain = [each for each in (found.selectors if found else ()) if each]
        made = []
        for device in self.devices:
            if all(self.true(each, device) for each in chain):
                made.append(device)
        return made

    def matching(self, ask: Asked) -> Mapping[str, list[PoolDevice]]:
        """Return the devices that class and request select, by node."""
        chain = self._chain(ask)
        found = {}
        for name, devices in self.by_node.items():
            found[name] = self._selected(devices, chain)
        return found

    def on(self, node: str, ask: Asked) -> list[PoolDevice]:
        """Return the devices of one node that class and request select."""
        return self._selected(self.by_node.get(node, ()), self._chain(ask))

    def _selected(self, devices: Sequence[PoolDevice], chain: Sequence[str]) -> list[PoolDevice]:
        found = []
        for device in devices:
            if all(self.true(each, device) for each in chain):
                found.append(device)
        return found

    def failed_part(self, expression: str, devices: Sequence[PoolDevice]) -> tuple[int, str] | None:
        """Return the part of an && chain that no device satisfies, and its place; None if each part has one."""
        for place, part in expressions.parts(expression):
            if not any(self.true(part, device) for device in devices):
                return place, part
        return None

    def values(self, domain: str, name: str, devices: Sequence[PoolDevice]) -> Counter[Any]:
        """Return the values that devices publish for an attribute, with the number of devices."""
        found: Counter[Any] = Counter()
        for device in devices:
            value = attribute(device, domain, name)
            if value is not None:
                found[value] += 1
        return found

    def nearest_attribute(self, domain: str, name: str, devices: Sequence[PoolDevice]) -> tuple[str, str]:
        """Return domain and name of a published attribute that resembles this one; empty if none does."""
        known: set[tuple[str, str]] = set()
        for device in devices[:64]:
            known.update(model.qualified(published, device.id.driver) for published in device.attributes)
        for wanted in sorted(known):
            if wanted[1] == name and wanted[0] != domain:
                return wanted
        same = [each for at, each in sorted(known) if at == domain]
        near = words.nearest(name, same)
        if near:
            return (domain, near)
        return ("", "")


def attribute(device: PoolDevice, domain: str, name: str) -> Any:
    """Return the value of an attribute, without its type; None if the device does not publish it."""
    own = domain == device.id.driver
    found = device.attributes.get(f"{domain}/{name}")
    if not found and own:
        found = device.attributes.get(name)
    if not found:
        return None
    return next((value for value in found.values() if value is not None), None)


def there(values: Counter[Any], most: int = 4) -> str:
    """Return the values that were there, the most frequent first: "'a' (32 devices), 'b' (1 device)"."""
    texts = []
    for value, number in values.most_common():
        texts.append(f"{words.cell(value)} ({words.count(number, 'device')})")
    return words.listed(texts, most)


def replacements(published: PublishedDevices, part: str, devices: Sequence[PoolDevice]) -> list[str]:
    """Return forms of a part that some device satisfies, the smallest changes first."""
    found: list[str] = []
    compared = expressions.comparison(part)
    for domain, name, (start, end) in expressions.reads(part):
        at, near = published.nearest_attribute(domain, name, devices)
        if near and not published.values(domain, name, devices):
            text = part[:start] + near + part[end:]
            found.append(text.replace(domain, at, 1) if at != domain else text)
    if compared is not None:
        for value in _near(published, compared, devices):
            found.append(part[: compared.start] + words.cell(value) + part[compared.end :])
    satisfied = []
    for text in dict.fromkeys(found):
        if any(published.true(text, device) for device in devices):
            satisfied.append(text)
    return satisfied


def _near(published: PublishedDevices, compared: Comparison, devices: Sequence[PoolDevice]) -> list[Any]:
    """Return published values near the one in a comparison: of other type but equal, resembling, the only one."""
    values = [value for value, _ in published.values(compared.domain, compared.name, devices).most_common()]
    wanted = str(compared.value).lower()
    equal = [value for value in values if str(value).lower() == wanted]
    texts = [value for value in values if isinstance(value, str)]
    near = difflib.get_close_matches(str(compared.value), texts, n=2, cutoff=0.6)
    numbers: list[int] = []
    if type(compared.value) is int:
        numbers = [value for value in values if type(value) is int]
        numbers.sort(key=lambda value: (abs(value - compared.value), value))
    only = values if len(values) == 1 else []
    return list(dict.fromkeys([*equal, *near, *numbers[:2], *only]))
