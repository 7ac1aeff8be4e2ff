"""UltraServers as API objects: Nodes, and the ResourceSlices of their plugins, with tags."""

from __future__ import annotations

import uuid

from hack.oracle.connected_slices import slices_of
from neuron_dra.core import devices, names, partitions, slices
from neuron_dra.core.catalogue import Platform, lookup
from neuron_dra.core.facts import DeviceFacts, NodeFacts, NodeLabels, UltraServerFacts
from neuron_dra.core.topology import build
from neuron_dra.core.wire import Obj

MODES_OF_GROUP = {4: (1, 3, 4), 2: (3, 4), 1: (4,)}
"""`ultraserver_mode` by number of nodes in a complete group; a pair is within one rack."""


def facts(instance_type: str, node_id: int, server_id: str, group: int = 4) -> UltraServerFacts:
    """Return the kernel driver's facts on node `node_id` of a healthy group of 4, 2 or 1 nodes."""
    spec = lookup(instance_type)
    modes = MODES_OF_GROUP[group]
    if spec is not None and spec.platform is Platform.PDS:
        return UltraServerFacts(modes=modes, node_id=node_id, reservation_id=server_id)
    pair = f"{int(server_id, 16) - node_id // 2:016x}"
    return UltraServerFacts(
        modes=modes, node_id_2=node_id % 2, node_id_4=node_id, server_id_2=pair, server_id_4=server_id
    )


def ultraserver(
    block: str,
    instance_type: str = "trn3.48xlarge",
    *,
    group: int = 4,
    layers: tuple[str | None, str | None, str | None] = ("nn-1", "nn-2", "nn-3"),
    whole_nodes: bool = True,
    parts: bool = False,
) -> list[Obj]:
    """Return the Nodes `<block>-0`, `<block>-1`, ... of one UltraServer, each with its slice; with `parts`, slices."""
    server_id = uuid.uuid5(uuid.NAMESPACE_DNS, block).hex[:15] + "8"
    made = []
    for node_id in range(group):
        found = facts(instance_type, node_id, server_id, group)
        name = f"{block}-{node_id}"
        made += node_and_slice(name, instance_type, block, found, layers, whole_nodes=whole_nodes, parts=parts)
    return made


def node_and_slice(
    name: str,
    instance_type: str,
    block: str | None,
    found: UltraServerFacts,
    layers: tuple[str | None, str | None, str | None] = (None, None, None),
    *,
    whole_nodes: bool = True,
    parts: bool = False,
) -> list[Obj]:
    """Return a Ready Node in capacity block `block` and the slice of its plugin.

    With `parts` it publishes sets, single devices and cores too, in several slices.
    """
    spec = lookup(instance_type)
    if spec is None:
        raise ValueError(f"{instance_type} is not in the catalogue")
    labels = {names.INSTANCE_TYPE_LABEL: instance_type}
    labels |= {key: layer for key, layer in zip(names.NETWORK_LAYER_LABELS, layers, strict=True) if layer}
    if block:
        labels[names.CAPACITY_BLOCK_LABEL] = block
    hardware = tuple(
        DeviceFacts(i, spec.cores_per_device, spec.links[i] if spec.links else (), (243, i), True)
        for i in range(spec.device_count)
    )
    node = build(NodeFacts(instance_type, "2.30.2.0", hardware, found), NodeLabels.from_labels(labels))
    published = devices.published(
        node, driver_version="0.1.0", ultraserver_devices="node" if whole_nodes else "devices"
    )
    uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"node {name}"))
    pool = slices.Pool(name, uid)
    divided = partitions.partitioned(node, published, parts=True) if parts else None
    if divided is None:
        wire = slices.desired(pool, [device.to_wire() for device in published], 1)
    else:
        wire = slices_of(divided, pool)
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "uid": uid, "labels": labels},
            "spec": {"providerID": f"aws:///us-west-2d/i-{uid.replace('-', '')[:17]}"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        },
        *wire,
    ]
