"""The parts of Kubernetes objects that placement depends on, decoded from resource.k8s.io/v1 dictionaries.

Decoding is lenient: what the API server has admitted is not validated again, unknown fields are ignored.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

import msgspec

from neuron_dra.core.wire import Wire
from neuron_dra.simulate import quantity


class DeviceId(NamedTuple):
    """Identifies a device in the cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


device_id: Final[Callable[[tuple[str, str, str]], DeviceId]] = functools.partial(tuple.__new__, DeviceId)
"""Makes a DeviceId of its parts without a step of Python, as a fleet has 100,000s."""


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """A taint of a device or a node."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class DeviceToleration:
    """A toleration of a request or a pod. An empty key with the operator Exists tolerates every taint."""

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Return True if the toleration covers the taint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Where:
    """The nodes that can use a slice or a device. `selector` is a core/v1 NodeSelector."""

    node_name: str = ""
    all_nodes: bool = False
    selector: Wire | None = None


Counters = Mapping[tuple[str, str], Fraction]
"""Amounts by counter set and counter."""


class PoolDevice(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A published device; a Struct, because a fleet has 100,000s. With equal `key`, every selector is equal."""

    id: DeviceId
    attributes: Mapping[str, Wire]
    capacity: Mapping[str, str]
    key: object
    taints: tuple[DeviceTaint, ...]
    where: Where  # of the device if its slice selects nodes per device, else of the slice
    per_device_nodes: bool
    binds_to_node: bool
    binding: Wire  # bindingConditions and bindingFailureConditions, as published
    unsupported: str  # why the simulator cannot allocate this device; empty if it can
    consumes: Counters = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class SliceSummary:
    """What is known of the devices of a slice together. `twice` is the first name that several have, empty if none."""

    twice: str = ""
    consume: bool = False  # counters
    bind: bool = False  # have binding conditions


def twice(names: Sequence[str]) -> str:
    """Return the first of these names that occurs more than once; empty if none does."""
    if len(set(names)) == len(names):
        return ""
    return next(name for name in names if names.count(name) > 1)


def facts(devices: Sequence[PoolDevice]) -> SliceSummary:
    """Return the facts of devices."""
    consume = any(device.consumes for device in devices)
    bind = any(device.binding for device in devices)
    return SliceSummary(twice([device.id.device for device in devices]), consume, bind)


@dataclass(frozen=True, slots=True, eq=False)
class PoolSlice:
    """A ResourceSlice."""

    name: str
    driver: str
    pool: str
    generation: int
    slice_count: int
    where: Where
    per_device_nodes: bool
    has_counters: bool
    compatibility_groups: bool
    devices: tuple[PoolDevice, ...]
    facts: SliceSummary
    counters: tuple[Counters, ...] = ()  # of each counter set


@dataclass(frozen=True, slots=True)
class NodeTraits:
    """The parts of a Node that scheduling depends on."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[DeviceTaint, ...] = ()
    unschedulable: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class DeviceSubRequest:
    """One subrequest, or a whole request, whose `name` is empty."""

    name: str
    class_name: str
    selectors: tuple[str | None, ...]
    mode: str
    count: int
    admin_access: bool
    tolerations: tuple[DeviceToleration, ...]
    wire_tolerations: tuple[Wire, ...]
    unsupported: str
    capacity: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRequest:
    """A request: one alternative, or if `prioritized` its subrequests in order of preference."""

    name: str
    alternatives: tuple[DeviceSubRequest, ...]
    prioritized: bool

    def result_name(self, alternative: DeviceSubRequest) -> str:
        """Return the name that allocation results use."""
        if self.prioritized:
            return f"{self.name}/{alternative.name}"
        return self.name


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint. `kind` is matchAttribute, distinctAttribute, or empty for an unknown one."""

    kind: str
    attribute: str
    requests: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class ClaimDemand:
    """A ResourceClaim. `allocation` is its status.allocation, undecoded."""

    namespace: str
    name: str
    requests: tuple[DeviceRequest, ...]
    constraints: tuple[Constraint, ...]
    config: tuple[Wire, ...]
    allocation: Wire | None
    reserved_for: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class DeviceClass:
    """A DeviceClass. A selector is a CEL expression; None is a selector of another kind."""

    name: str
    selectors: tuple[str | None, ...]
    config: tuple[Wire, ...]


def qualified(name: str, driver: str) -> tuple[str, str]:
    """Return the domain and the identifier of a published name; the driver's name is the default domain."""
    domain, slash, local = name.rpartition("/")
    if slash:
        return (domain, local)
    return (driver, local)


def taints(items: Iterable[Wire] | None) -> tuple[DeviceTaint, ...]:
    """Decode taints of a node or a device."""
    if not items:
        return ()
    return tuple(
        DeviceTaint(taint.get("key", ""), taint.get("value") or "", taint.get("effect", "")) for taint in items
    )


def tolerations(items: Iterable[Wire] | None) -> tuple[DeviceToleration, ...]:
    """Decode tolerations of a pod or a request."""
    return tuple(
        DeviceToleration(
            toleration.get("key") or "",
            toleration.get("operator") or "",
            toleration.get("value") or "",
            toleration.get("effect") or "",
        )
        for toleration in items or ()
    )


def node(wire: Wire) -> NodeTraits:
    """Decode a core/v1 Node."""
    spec = wire.get("spec") or {}
    meta = wire["metadata"]
    return NodeTraits(
        meta["name"], meta.get("labels") or {}, taints(spec.get("taints")), bool(spec.get("unschedulable"))
    )


def device_class(wire: Wire) -> DeviceClass:
    """Decode a DeviceClass."""
    spec = wire.get("spec") or {}
    return DeviceClass(wire["metadata"]["name"], _selectors(spec), tuple(spec.get("config") or ()))


def claim(wire: Wire) -> ClaimDemand:
    """Decode a ResourceClaim."""
    devices = (wire.get("spec") or {}).get("devices") or {}
    status = wire.get("status") or {}
    return ClaimDemand(
        namespace=wire["metadata"].get("namespace") or "default",
        name=wire["metadata"]["name"],
        requests=tuple(_request(request) for request in devices.get("requests") or ()),
        constraints=tuple(_constraint(constraint) for constraint in devices.get("constraints") or ()),
        config=tuple(devices.get("config") or ()),
        allocation=status.get("allocation"),
        reserved_for=len(status.get("reservedFor") or ()),
    )


def resource_slice(wire: Wire, shared_decoder: DeviceDecoder | None = None) -> PoolSlice:
    """Decode a ResourceSlice; `shared_decoder` has the devices of other slices."""
    decoder = shared_decoder or DeviceDecoder()
    spec = wire["spec"]
    pool = spec["pool"]
    per_device = bool(spec.get("perDeviceNodeSelection"))
    where = _where(spec)
    listed = decoder.listed(spec.get("devices") or (), spec["driver"])
    places = map(_where, listed.wires) if per_device else itertools.repeat(where)
    return PoolSlice(
        name=wire["metadata"]["name"],
        driver=spec["driver"],
        pool=pool["name"],
        generation=int(pool.get("generation") or 0),
        slice_count=int(pool["resourceSliceCount"]),
        where=where,
        per_device_nodes=per_device,
        has_counters=bool(spec.get("sharedCounters")),
        compatibility_groups=listed.compatibility_groups,
        devices=listed.devices(spec["driver"], pool["name"], places, per_device=per_device),
        facts=listed.facts,
        counters=tuple(_counters(counter_set["name"], counter_set) for counter_set in spec.get("sharedCounters") or ()),
    )


def _counters(counter_set: str, wire: Wire) -> dict[tuple[str, str], Fraction]:
    return {
        (counter_set, name): quantity.parse(str(entry.get("value", "0"))).value
        for name, entry in (wire.get("counters") or {}).items()
    }


def _where(wire: Wire) -> Where:
    return Where(wire.get("nodeName") or "", bool(wire.get("allNodes")), wire.get("nodeSelector"))


@dataclass(frozen=True, slots=True, eq=False)
class _Decoded:
    """What devices have that are published as the same object, and the object itself, which keeps its identity."""

    wire: Wire
    attributes: Mapping[str, Wire]
    capacity: Mapping[str, str]
    key: object
    taints: tuple[DeviceTaint, ...]
    binds_to_node: bool
    binding: Wire
    unsupported: str
    consumes: Counters


class _Listed:
    """The devices of a list, which equal nodes of a snapshot share, each field in a list of its own."""

    def __init__(self, wires: Sequence[Wire], decoded: Sequence[_Decoded]) -> None:
        self.wires = wires
        self._names = [wire["name"] for wire in wires]
        seen = ("attributes", "capacity", "key", "taints")
        rest = ("binds_to_node", "binding", "unsupported", "consumes")
        self._seen = [[getattr(device, name) for device in decoded] for name in seen]
        self._rest = [[getattr(device, name) for device in decoded] for name in rest]
        consume, bind = any(device.consumes for device in decoded), any(device.binding for device in decoded)
        self.facts = SliceSummary(twice(self._names), consume, bind)
        self.compatibility_groups = any(wire.get("compatibilityGroups") for wire in wires)

    def devices(self, driver: str, pool: str, places: Iterable[Where], *, per_device: bool) -> tuple[PoolDevice, ...]:
        """Return the devices as those of a pool for these nodes."""
        ids = map(device_id, zip(itertools.repeat(driver), itertools.repeat(pool), self._names, strict=False))
        return tuple(map(PoolDevice, ids, *self._seen, places, itertools.repeat(per_device), *self._rest))


MOST_TEXTS: Final = 4096
"""Texts of devices that are remembered: equal nodes have the same few, and other nodes each their own."""


class DeviceDecoder:
    """Decodes devices; those that nodes share in a snapshot, or that have equal fields, once."""

    def __init__(self, keys: dict[object, object] | None = None) -> None:
        self._known: dict[int, _Decoded] = {}
        self._texts: dict[tuple[str, bytes], _Decoded] = {}
        self._lists: dict[tuple[str, int], _Listed] = {}
        self.keys: dict[object, object] = {} if keys is None else keys
        """What stands for the attributes of equal devices; decoders that share it find devices of each other equal."""

    def listed(self, wires: Sequence[Wire], driver: str) -> _Listed:
        """Return the devices of a list, decoded once."""
        listed_devices = self._lists.get((driver, id(wires)))
        if listed_devices is None:
            listed_devices = _Listed(wires, [self._decoded(wire, driver) for wire in wires])
            self._lists[driver, id(wires)] = listed_devices
        return listed_devices

    def _decoded(self, wire: Wire, driver: str) -> _Decoded:
        decoded = self._known.get(id(wire))
        if decoded is None:
            decoded = self._equal(wire, driver)
        return decoded

    def _equal(self, wire: Wire, driver: str) -> _Decoded:
        """Return what was decoded of an equal device, or of this one."""
        text = driver, msgspec.json.encode(wire)
        decoded = self._texts.get(text)
        if decoded is None:
            if len(self._texts) == MOST_TEXTS:
                self._texts.clear()
            decoded = self._texts[text] = self._known[id(wire)] = self._first(wire, driver)
        return decoded

    def _first(self, wire: Wire, driver: str) -> _Decoded:
        attributes = wire.get("attributes") or {}
        capacity = {name: str(entry.get("value", "0")) for name, entry in (wire.get("capacity") or {}).items()}
        key = (driver, msgspec.json.encode((attributes, capacity), order="sorted"))  # JSON: 1 is not true
        consumes: dict[tuple[str, str], Fraction] = {}
        for consumption in wire.get("consumesCounters") or ():
            consumes |= _counters(consumption["counterSet"], consumption)
        return _Decoded(
            wire,
            attributes,
            capacity,
            self.keys.setdefault(key, key),  # the same object, so that comparing it is quick
            taints(wire.get("taints")),
            bool(wire.get("bindsToNode")),
            {name: wire[name] for name in ("bindingConditions", "bindingFailureConditions") if wire.get(name)},
            _unsupported_device(wire, wire["name"]),
            consumes,
        )


def _unsupported_device(wire: Wire, name: str) -> str:
    if wire.get("allowMultipleAllocations"):
        return f"device {name} allows multiple allocations (consumable capacity), which is not supported here"
    return ""


def _selectors(wire: Wire) -> tuple[str | None, ...]:
    return tuple((selector.get("cel") or {}).get("expression") for selector in wire.get("selectors") or ())


def _request(wire: Wire) -> DeviceRequest:
    if wire.get("firstAvailable"):
        return DeviceRequest(
            wire["name"], tuple(_alternative(sub, sub["name"]) for sub in wire["firstAvailable"]), True
        )
    return DeviceRequest(wire["name"], (_alternative(wire.get("exactly") or {}, ""),), False)


def _alternative(wire: Wire, name: str) -> DeviceSubRequest:
    unsupported = ""
    if wire.get("derivedAttributes"):
        unsupported = "derived attributes are not supported here"
    return DeviceSubRequest(
        name=name,
        class_name=wire.get("deviceClassName") or "",
        selectors=(*_selectors(wire), *_of_capacity(wire)),
        mode=wire.get("allocationMode") or "ExactCount",
        count=int(wire.get("count") or 1),
        admin_access=bool(wire.get("adminAccess")),
        tolerations=tolerations(wire.get("tolerations")),
        wire_tolerations=tuple(wire.get("tolerations") or ()),
        unsupported=unsupported,
        capacity=_capacity(wire),
    )


def _capacity(wire: Wire) -> Mapping[str, str]:
    """Return the least capacities of a device that a request names."""
    requests = (wire.get("capacity") or {}).get("requests") or {}
    return {str(name): str(amount) for name, amount in requests.items()}


def _of_capacity(wire: Wire) -> list[str]:
    """Return the selectors that capacity.requests stands for, as the API says: a device is allocated as a whole.

    Devices that allow multiple allocations, which would give a share, are not supported (`_unsupported_device`).
    """
    expressions = []
    for name, amount in _capacity(wire).items():
        domain, _, local_name = name.rpartition("/")
        capacity = f"device.capacity[{json.dumps(domain) if domain else 'device.driver'}]"
        key = json.dumps(local_name)
        enough = f"{capacity}[{key}].compareTo(quantity({json.dumps(amount)})) >= 0"
        expressions.append(f"{key} in {capacity} && {enough}")
    return expressions


def _constraint(wire: Wire) -> Constraint:
    requests = frozenset(wire.get("requests") or ())
    for kind in ("matchAttribute", "distinctAttribute"):
        if wire.get(kind):
            return Constraint(kind, wire[kind], requests)
    return Constraint("", "", requests)
