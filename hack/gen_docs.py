"""Write the documentation that comes from code: docs/attributes.md. `--check` compares, and fails on a difference."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from neuron_dra.core import catalogue, devices, limits, names
from neuron_dra.core.catalogue import GIB, InstanceType

ROOT = Path(__file__).resolve().parent.parent

HEAD = f"""\
<!-- Written by hack/gen_docs.py from neuron_dra/core/devices.py and neuron_dra/data/instances.toml. Do not edit. -->
# What a node publishes

Names without a domain belong to `{names.DRIVER}`. A selector reads them so:

```yaml
selectors:
- cel:
    expression: >-
      has(device.attributes['{names.DRIVER}'].topology_x) &&
      device.attributes['{names.DRIVER}'].topology_x == 1
```

Begin with `has(...)` whenever not every device of the cluster has the attribute: a selector that reads an absent one is
an error, and the pod then stays pending on **all** nodes, not only on those without it.

Types never change; a value that is not known is absent, never empty or zero. A device has at most
{limits.ATTRIBUTES_AND_CAPACITIES} attributes and capacities together, {limits.WORKLOAD_TAGS} of which are kept free for the tags of an UltraServer workload.

## Attributes
"""

CAPACITY = f"""
## Capacity

| name | what it says |
|---|---|
| `neuronCores` | physical NeuronCores of the device; for `{names.NODE_DEVICE}` of all its devices |
| `memory` | device memory, such as `96Gi`; for `{names.NODE_DEVICE}` of all its devices |

## Instance types

UltraServer types publish one device `{names.NODE_DEVICE}` for the whole node, or with `--ultraserver-devices=devices` the
single devices instead; never both. *Groups* are the `{names.GROUP_DOMAIN}` ids, which the EFA driver publishes too, with the
same values. *LNC* is the number of physical NeuronCores that make a logical one: the default, and what a claim may ask
for. A type that is not here is published with what is true of it: devices without groups, coordinates and memory.
"""


def attributes_page() -> str:
    """Return docs/attributes.md."""
    rows = [f"| `{row.name}` | {row.kind} | {row.when} | {row.text} |" for row in devices.ATTRIBUTES]
    types = [_type_row(spec) for spec in catalogue.all_types()]
    return "\n".join(
        [
            HEAD,
            "| name | type | on | what it says |\n|---|---|---|---|",
            *rows,
            CAPACITY,
            "| type | devices | cores | memory | connected as | groups | LNC | published as |\n"
            "|---|---|---|---|---|---|---|---|",
            *types,
            "",
        ]
    )


def _type_row(spec: InstanceType) -> str:
    lnc = str(spec.lnc_default)
    if spec.lnc_allowed:
        lnc += f", may be {' or '.join(map(str, spec.lnc_allowed))}"
    shape = {"none": "–", "torus": "4 × 4 torus", "switch": "all to all"}.get(spec.shape, spec.shape)
    published = f"`{names.NODE_DEVICE}`" if spec.whole_node else f"`{names.DEVICE_PREFIX}<id>`"
    cells = (
        f"`{spec.name}`",
        str(spec.device_count),
        str(spec.cores_per_device),
        f"{spec.memory_bytes_per_device // GIB} GiB",
        shape,
        "yes" if spec.efa else "–",
        lnc,
        published,
    )
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Write the pages, or compare them with those in the tree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the files in the tree instead of writing")
    check = parser.parse_args().check
    path = ROOT / "docs" / "attributes.md"
    page = attributes_page()
    if not check:
        path.parent.mkdir(exist_ok=True)
        path.write_text(page)
        print(path.relative_to(ROOT))
        return 0
    if not path.exists() or path.read_text() != page:
        print(f"{path.relative_to(ROOT)} is not what the code says; run hack/gen_docs.py and read the difference")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
