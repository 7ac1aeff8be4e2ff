"""Fleets that do not exist: `10 x trn2.48xlarge` as the Nodes and slices that healthy nodes would publish. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from neuron_dra import __version__
from neuron_dra.core import catalogue, devices, names
from neuron_dra.core.catalogue import InstanceType, Platform
from neuron_dra.core.facts import UltraServerFacts
from neuron_dra.emulation import objects
from neuron_dra.errors import SettingsError
from neuron_dra.node.slices_command import slice_objects

MOST_NODES: Final = 20_000
_LINE: Final = re.compile(r"(\d+)\s*x\s+(ultraserver\s+)?(\S+)", re.IGNORECASE)
_PLACE: Final = "neuron-dra-imagined-node"  # replaced by the node's name in a copy of its type's slices
MODES: Final = (1, 2, 3, 4)


def fleet(text: str, source: str) -> list[dict[str, Any]]:
    """Return Nodes, slices and DeviceClasses of the fleet that `text` describes, a line for each type.

    Raises SettingsError, which names `source`.
    """
    items: list[dict[str, Any]] = [{**each} for each in objects.DEVICE_CLASSES]
    numbers: Counter[str] = Counter()
    for line in text.replace(",", "\n").splitlines():
        wanted = line.partition("#")[0].strip()
        if not wanted:
            continue
        match = _LINE.fullmatch(wanted)
        spec = catalogue.lookup(match[3]) if match else None
        if match is None:
            raise SettingsError(f"{source}: {wanted!r}: write 10 x trn2.48xlarge, or 2 x ultraserver trn2u.48xlarge")
        if spec is None:
            raise SettingsError(f"{source}: the instance type {match[3]} is unknown{catalogue.nearest(match[3])}")
        if match[2] and not spec.whole_node:
            raise SettingsError(f"{source}: {spec.name} forms no UltraServers")
        number = int(match[1]) * (4 if match[2] else 1)
        if sum(numbers.values()) + number > MOST_NODES:
            raise SettingsError(f"{source}: more than {MOST_NODES} nodes")
        items += _nodes(spec, number, numbers, grouped=bool(match[2]))
    if not numbers:
        raise SettingsError(f"{source}: it names no nodes; write 10 x trn2.48xlarge")
    return items


def _nodes(spec: InstanceType, number: int, numbers: Counter[str], *, grouped: bool) -> Iterable[dict[str, Any]]:
    family = spec.name.removeprefix(catalogue.SAGEMAKER).partition(".")[0]
    made = {}
    for _ in range(number):
        place = numbers[family]
        numbers[family] += 1
        name, position = f"{family}-{place}", place % 4 if grouped else 0
        server = f"{family}-ultraserver-{place // 4}" if grouped else ""
        if position not in made:
            made[position] = json.dumps(_slices(spec, position if grouped else None))
        yield _node(name, spec)
        yield from json.loads(made[position].replace(_PLACE, name).replace(f"{_PLACE}-server".upper(), server))


def _node(name: str, spec: InstanceType) -> dict[str, Any]:
    labels = {names.INSTANCE_TYPE_LABEL: spec.name, "kubernetes.io/hostname": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}, "status": {}}


def _slices(spec: InstanceType, position: int | None) -> list[dict[str, Any]]:
    """Return the slices of a node; `position` is that in a complete UltraServer, None outside of one."""
    node = objects.healthy_node(spec.name, ultraserver=_facts(spec, position))
    published = devices.published(node, driver_version=__version__)
    return [{**item, "metadata": {"name": item["metadata"]["name"]}} for item in slice_objects(_PLACE, published)]


def _facts(spec: InstanceType, position: int | None) -> UltraServerFacts | None:
    if position is None:
        return UltraServerFacts(modes=(names.RUNTIME_MODE_SINGLE,)) if spec.whole_node else None
    server = f"{_PLACE}-server".upper()
    if spec.platform is Platform.ULTRASERVER:
        pair = position // 2
        return UltraServerFacts(
            modes=MODES,
            node_id_2=position % 2,
            node_id_4=position,
            server_id_2=f"{server}-{pair}",
            server_id_4=server,
        )
    return UltraServerFacts(modes=MODES, node_id=position, reservation_id=server)
