"""CPU, memory and other node resources: what pods request, and what a node has left. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

from neuron_dra.ask.read import node_views
from neuron_dra.ask.read.pod_views import PodPlace, PodView
from neuron_dra.ask.read.snapshot import Key, Snapshot
from neuron_dra.ask.world import demand
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import quantity

Amounts = Mapping[str, Fraction]
Lacking = Mapping[str, tuple[Fraction, Fraction]]
"""What is free and what is requested, by resource."""


def requested(pod: Wire) -> dict[str, Fraction]:
    """Return what a pod requests of its node, as the scheduler counts it: containers, init containers, overhead."""
    spec = PodView.of(pod).spec
    total: dict[str, Fraction] = defaultdict(Fraction)
    for container in spec.containers:
        _add(total, _amounts(container.resources.wanted))
    started: dict[str, Fraction] = defaultdict(Fraction)  # sidecars run beside everything that starts later
    peak: dict[str, Fraction] = {}
    for container in spec.init_containers:
        container_amounts = _amounts(container.resources.wanted)
        if container.restart_policy == "Always":
            _add(started, container_amounts)
            container_amounts = {}
        for name in {*container_amounts, *started}:
            amount = container_amounts.get(name, Fraction(0)) + started.get(name, Fraction(0))
            peak[name] = max(peak.get(name, Fraction(0)), amount)
    _add(total, started)
    for name, amount in peak.items():
        total[name] = max(total[name], amount)
    _add(total, _amounts(spec.overhead))
    total["pods"] = Fraction(1)
    return dict(total)


def _amounts(texts: Mapping[str, object]) -> dict[str, Fraction]:
    amounts = {}
    for name, text in texts.items():
        try:
            amounts[name] = _parsed(str(text))
        except ValueError:
            continue
    return amounts


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Fraction:
    return quantity.parse(text).value


def _add(total: dict[str, Fraction], more: Amounts) -> None:
    for name, amount in more.items():
        total[name] += amount


def _counts(pod: PodPlace) -> bool:
    return bool(pod.spec.node_name) and not pod.has_ended


class _Requests:
    """What pods request, of pods with the same containers once; the pods of equal nodes share the sum."""

    def __init__(self) -> None:
        self._of_pod: dict[tuple[int, ...], tuple[Wire, Amounts]] = {}  # each with a pod, which keeps the identities
        self._together: dict[tuple[int, ...], Amounts] = {}

    def of(self, pod: Wire) -> Amounts:
        """Return what a pod requests."""
        part_ids = tuple([id(pod["spec"].get(name)) for name in ("containers", "initContainers", "overhead")])
        pod_and_amounts = self._of_pod.get(part_ids)
        if pod_and_amounts is None:
            pod_and_amounts = self._of_pod[part_ids] = pod, requested(pod)
        _, amounts = pod_and_amounts
        return amounts

    def together(self, pods: Iterable[Wire]) -> Amounts:
        """Return what pods request together."""
        amounts_of_pods = [self.of(pod) for pod in pods]
        key = tuple(map(id, amounts_of_pods))
        if key not in self._together:
            total: dict[str, Fraction] = defaultdict(Fraction)
            for amounts in amounts_of_pods:
                _add(total, amounts)
            self._together[key] = total
        return self._together[key]


class NodeRoom:
    """What each node of a snapshot has left of the resources that it reports, beside the pods that are `placed`."""

    def __init__(self, snapshot: Snapshot, placed: Iterable[tuple[Wire, PodPlace]] = ()) -> None:
        self._snapshot = snapshot
        self._pods: dict[str, list[Wire]] = defaultdict(list)  # by node; they are summed up when the node is looked at
        self._used: dict[str, Amounts] = {}
        self._lacking: dict[tuple[int, int], Lacking] = {}  # for the last pod, by what is used and what a node reports
        self._last: tuple[Wire | None, Amounts] = (None, {})
        self._requests = _Requests()
        for pod, pod_place in placed:
            if _counts(pod_place):
                self._pods[pod_place.spec.node_name].append(pod)

    def after(self, before: Snapshot, snapshot: Snapshot, changed: Iterable[Key]) -> NodeRoom:
        """Return the room in another snapshot, in which only the objects with these keys differ from `before`."""
        room_after = NodeRoom(Snapshot({}))
        room_after._snapshot = snapshot
        room_after._used, room_after._pods, room_after._requests = dict(self._used), self._pods, self._requests
        for key in {key for key in changed if key[0] == "Pod"}:
            for source, sign in ((before, -1), (snapshot, 1)):
                if (pod := source.objects.get(key)) is not None:
                    room_after._count(pod, sign)
        return room_after

    def copy(self) -> NodeRoom:
        """Return the same room, to be filled on its own."""
        copied_room = NodeRoom(Snapshot({}))
        copied_room._snapshot, copied_room._pods, copied_room._used = self._snapshot, self._pods, dict(self._used)
        copied_room._requests = self._requests
        return copied_room

    def add(self, pod: Wire) -> None:
        """Count a pod that has been placed."""
        self._count(pod, 1)

    def _count(self, pod: Wire, sign: int) -> None:
        pod_place = PodPlace.of(pod)
        if _counts(pod_place):
            node = pod_place.spec.node_name
            used = dict(self._on(node))
            for name, amount in requested(pod).items():
                used[name] = used.get(name, Fraction(0)) + sign * amount
            self._used[node] = used
            self._lacking.clear()  # its keys are identities of what may be gone now

    def _on(self, node: str) -> Amounts:
        """Return what the pods of a node request."""
        used = self._used.get(node)
        if used is None:
            used = self._used[node] = self._requests.together(self._pods.get(node, ()))
        return used

    def lacking(self, pod: Wire, node: Wire) -> Lacking:
        """Return the resources that the node has too little of: what is free, and what the pod requests.

        A resource that a DeviceClass serves is not one of them. A node that reports no amounts has room, but no
        devices of the Neuron device plugin.
        """
        reports = node_views.allocatable(node)
        if self._last[0] is not pod:
            self._last = (pod, requested(pod))
            self._lacking.clear()
        if not reports:
            if any(name in self._last[1] for name in demand.PLUGIN_LIMITS):
                return self._lacks({}, {})
            return {}
        used = self._on(node["metadata"]["name"])
        key = id(used), id(reports)  # equal nodes of a snapshot have the same values, not only equal ones
        if key not in self._lacking:
            self._lacking[key] = self._lacks(reports, used)
        return self._lacking[key]

    def _lacks(self, allocatable: Wire, used: Amounts) -> Lacking:
        """Return what the last pod lacks on a node that reports these amounts, of which some are used."""
        lacking: dict[str, tuple[Fraction, Fraction]] = {}
        for name, amount in self._last[1].items():
            reported = name in demand.PLUGIN_LIMITS or ("/" in name and bool(allocatable))
            counted = name in allocatable or (reported and not demand.class_of(self._snapshot, name))
            free = _amounts({name: allocatable.get(name, "0")}).get(name, Fraction(0)) - used.get(name, Fraction(0))
            if counted and amount and free < amount:
                lacking[name] = (free, amount)
        return lacking


def compared(name: str, free: Fraction, wanted: Fraction) -> tuple[str, str]:
    """Return two amounts of a resource in one unit: CPUs, or the unit of memory that the wanted amount has.

    They have as many decimals as it takes to tell them apart.
    """
    if name == "cpu":
        return _rounded(free, 3), _rounded(wanted, 3)
    suffix, size = next((unit for unit in _UNITS if wanted >= unit[1]), ("", 1))
    for decimals in (1, 2, 3, 9):
        free_text, wanted_text = (_rounded(amount / size, decimals) for amount in (free, wanted))
        if free_text != wanted_text:
            break
    return free_text + suffix, wanted_text + suffix


def whole(name: str, amount: Fraction) -> str:
    """Return the largest amount of a resource that is at most `amount`, as a manifest has it."""
    if name == "cpu":
        return str(int(amount)) if amount >= 1 else f"{int(amount * 1000)}m"
    suffix, size = next((unit for unit in _UNITS if amount >= unit[1]), ("", 1))
    return f"{int(amount / size)}{suffix}"


_UNITS: Final = (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def _rounded(amount: Fraction, decimals: int) -> str:
    text = f"{float(amount):.{decimals}f}"
    return text.rstrip("0").rstrip(".") or "0"
