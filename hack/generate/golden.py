#!/usr/bin/env python3
"""Write tests/golden, the slices that a node of every instance type publishes: `make golden`, then read the difference."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from neuron_dra.api import objects
from neuron_dra.core import catalogue, devices, limits, partitions, topology
from neuron_dra.core.facts import NodeLabels
from neuron_dra.emulation import simulated_node
from neuron_dra.node import slices_command
from neuron_dra.node.hardware import sysfs

FOLDER = Path(__file__).resolve().parents[2] / "tests/golden"
ALIKE = "alike.txt"
SAME_AS = " publishes the same as "
DRIVER_VERSION = "1.2.3"  # of this driver; fixed, so that a release changes no golden file
BLOCK = "cr-0123456789abcdef0"
LABELS = {f"topology.k8s.aws/network-node-layer-{n}": f"nn-000000000000000{n}" for n in (1, 2, 3)}
IN_ULTRASERVERS = ("trn2u.48xlarge", "trn3.48xlarge", "trn3e.24xlarge")  # one of each platform


def slices(instance_type: str, *, mode: str = "node", node_id: int | None = None) -> str:
    """Return the slices of a simulated node, as YAML."""
    labels = LABELS if node_id is None else LABELS | {"topology.k8s.aws/capacity-block-id": BLOCK}
    with tempfile.TemporaryDirectory() as folder:
        simulated_node.write(folder, instance_type, node_id=node_id)
        node = topology.build(sysfs.read_node(Path(folder)), NodeLabels.from_labels(labels))
    published = devices.published(node, driver_version=DRIVER_VERSION, ultraserver_devices=mode)
    kept, problems = limits.check_devices(published)
    if problems or node.findings:
        raise SystemExit(f"{instance_type}: {problems} {node.findings}")
    items = [slices_command.as_published(item) for item in objects.slice_objects("node", kept)]
    return yaml.safe_dump(
        {"apiVersion": "v1", "kind": "List", "items": items}, sort_keys=False, default_flow_style=None, width=110
    )


def connected_sets(instance_type: str) -> str:
    """Return what a node publishes with connected sets: the names by size, in order, and the number of slices."""
    node = objects.healthy_node(instance_type)
    shape = "both" if node.spec is not None and node.spec.whole_node else "devices"
    published = devices.published(node, driver_version=DRIVER_VERSION, ultraserver_devices=shape)
    found = partitions.partitioned(node, published)
    if found is None:
        raise SystemExit(f"{instance_type}: cannot be divided")
    by_size: dict[str, list[str]] = {}
    for one in found.partitions:
        by_size.setdefault(one.device.name.rpartition("-")[0], []).append(one.device.name.rpartition("-")[2])
    counters = {each.name: len(each.counters) for each in found.counters}
    content = {
        "slices": len(objects.slice_objects("node", published, found)),
        "devices": len(found.partitions),
        "counters": counters,
        "left_out": " ".join(found.left_out),
        "published": {size: " ".join(numbers) for size, numbers in by_size.items()},
    }
    return yaml.safe_dump(content, sort_keys=False, width=110)


def every_file() -> Iterator[tuple[str, str]]:
    """Yield what every type publishes: the path of its file below the folder, and the text."""
    for spec in catalogue.all_types():
        yield f"{spec.name}/slices.yaml", slices(spec.name)
        yield f"{spec.name}/connected-sets.txt", connected_sets(spec.name)
    for name in IN_ULTRASERVERS:
        yield f"{name}/node-2-of-4.yaml", slices(name, node_id=2)
        yield f"{name}/node-2-of-4-devices.yaml", slices(name, node_id=2, mode="devices")


def wanted() -> dict[str, str]:
    """Return the texts of the golden files by their paths below the folder.

    Of types that publish the same but for their own names, the first has files; ALIKE names the others.
    """
    texts_by_type: dict[str, dict[str, str]] = {}
    for path, text in every_file():
        texts_by_type.setdefault(path.partition("/")[0], {})[path] = text
    first_by_texts: dict[str, str] = {}
    files: dict[str, str] = {}
    alike = []
    for name, texts in texts_by_type.items():
        first = first_by_texts.setdefault(str(sorted(texts.items())).replace(name, "NAME"), name)
        if first == name:
            files |= texts
        else:
            alike.append(f"{name}{SAME_AS}{first}\n")
    return files | {ALIKE: "".join(alike)}


def kept() -> dict[str, str]:
    """Return the texts of the golden files in the folder by their paths below it."""
    paths = [*FOLDER.glob("*/*.yaml"), *FOLDER.glob("*/connected-sets.txt"), *FOLDER.glob(ALIKE)]
    return {str(path.relative_to(FOLDER)): path.read_text(encoding="utf-8") for path in sorted(paths)}


def main() -> int:
    """Write the files that differ, and remove those that are no longer made."""
    texts, before = wanted(), kept()
    for name in sorted(before.keys() - texts.keys()):
        (FOLDER / name).unlink()
        print(f"removed {name}")
    for name, text in texts.items():
        if before.get(name) != text:
            path = FOLDER / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
