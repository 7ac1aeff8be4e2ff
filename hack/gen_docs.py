#!/usr/bin/env python3
"""Write the reference pages of docs/ from the code; with --check, only tell which are not what the code says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase

from controller import metrics as controller_metrics
from controller import settings as controller_settings
from neuron_dra import settings
from neuron_dra.core import catalogue, devices, groups, limits, names
from neuron_dra.core.catalogue import GIB
from neuron_dra.node.metrics import Metrics

DOCS = Path(__file__).resolve().parent.parent / "docs"
MADE = "<!-- Written by hack/gen_docs.py from the code: change it there. -->\n\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def attributes() -> str:
    """Return docs/attributes.md."""
    rows = [(f"`{each.name}`", each.kind, each.when, each.text) for each in devices.ATTRIBUTES]
    tags = [(f"`{each.name}`", each.kind, each.text) for each in devices.TAGS]
    marks = [(f"`{each.name}`", each.kind, each.text) for each in devices.MARKS]
    capacities = [(f"`{name}`", text) for name, text in devices.CAPACITIES]
    types = [
        (
            f"`{each.name}`",
            str(each.device_count),
            str(each.cores_per_device),
            f"{each.memory_bytes_per_device // GIB} GiB",
            " or ".join(map(str, each.lnc_allowed)) or "fixed",
            {"switch": "all to all", "torus": "4 x 4 torus", "none": "-"}.get(each.shape, each.shape),
            "yes" if each.efa else "-",
            f"`{names.NODE_DEVICE}`" if each.whole_node else "devices",
        )
        for each in catalogue.all_types()
    ]
    sizes = ", ".join(map(str, groups.SIZES))
    return f"""{MADE}# What is published of a device

The driver publishes its devices in ResourceSlices of the pool that is called like the node. Selectors read an
attribute as `device.attributes['{names.DRIVER}'].deviceId`, and a group id as
`device.attributes['{names.GROUP_DOMAIN}'].devicegroup4_id`. **An attribute that a device does not have is an error in
a selector, and blocks the pod on every node**: write `has(device.attributes['{names.DRIVER}'].topology_x) && ...`.

## Names

- `{names.DEVICE_PREFIX}N` is `/dev/neuronN`. Devices stand in the order of their ids, which is the order in which the
  scheduler takes them.
- `{names.NODE_DEVICE}` is a whole UltraServer node with all its devices.

## Attributes

Names without a domain are of the domain `{names.DRIVER}`. Types never change.

{table(["attribute", "type", "published", "says"], rows)}
A fact that the node cannot tell, or not yet, is not published. A device may have {limits.ATTRIBUTES_AND_CAPACITIES}
attributes and capacities together; room for {limits.WORKLOAD_TAGS} tags of an UltraServer workload and for the mark of a
sick device is kept free.

A [sick device](health.md) has one attribute more, on every version of the API server, and a taint where it keeps taints:

{table(["attribute", "type", "says"], marks)}

Groups have {sizes} devices with consecutive ids. Their ids are equal on every node of a type, and equal to those that
the EFA driver publishes, so that `matchAttribute` pairs Neuron devices with their EFA interfaces.

## Capacities

{table(["capacity", "says"], capacities)}
## UltraServers

Nodes of UltraServer types publish the one device `{names.NODE_DEVICE}` (`resourceType` is `neuron_node`), and with
`--ultraserver-devices=devices` each device instead; never both, since they overlap. `ultraserverModes` are numbers of
nodes, in ascending order with `_` between them: `1_2_4` is a complete UltraServer, `1` a node that works alone. While
the kernel driver is still finding out who its neighbours are, these attributes are absent, and nothing matches them.

A node that an UltraServer operator has reserved for a workload says so in five more attributes of each of its devices,
see [UltraServers](ultraservers.md):

{table(["attribute", "type", "says"], tags)}
## Instance types

{table(["type", "devices", "cores", "memory", "logical core size", "links", "EFA groups", "publishes"], types)}
Cores and memory are of one device; cores are physical ones. Of another type the devices are published without groups,
coordinates and memory.
"""


def settings_page() -> str:
    """Return docs/settings.md."""
    rows = [
        (f"`{row.flag}`", f"`{row.env}`", f"`{row.default}`" if row.default else "empty", row.text)
        for row in settings.reference()
    ]
    return f"""{MADE}# Settings

## The plugin

A flag beats its variable, which beats the default. Flags are accepted as Go programs write them, too: `-kubeconfig=x`,
`-v=4`. An empty variable is one that is not set, but for `METRICS_BIND_ADDRESS`. A setting that is unknown, malformed
or in contradiction with another ends the program with exit code 2 and a line that says which; those in force are
logged at the start.

{table(["flag", "variable", "default", "meaning"], rows)}
## The UltraServer controller

Flags of `neuron-ultraserver-controller run`, and of `k8s-neuron-ultraserver-operator`.

{table(["flag", "default", "meaning"], controller_flags())}"""


def controller_flags() -> Iterable[Sequence[str]]:
    """The flags of the controller: name, default and help."""
    parser = argparse.ArgumentParser(add_help=False)
    controller_settings.add_arguments(parser)
    for action in parser._actions:
        default = f"`{action.default}`" if action.default else "empty"
        text = (action.help or "").replace(" (default %(default)s)", "")
        yield f"`{action.option_strings[0]}`", default, text


def labels(metric: MetricWrapperBase) -> str:
    """Return the label names of a metric, for a table."""
    return ", ".join(f"`{label}`" for label in metric._labelnames) or "-"


def metrics() -> str:
    """Return docs/metrics.md."""
    rows = [
        (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels) or "-", text)
        for name, kind, labels, text in Metrics().reference()
    ]
    of_controller = [
        (
            f"`{family.name}{'_total' if family.type == 'counter' else ''}`",
            family.type,
            labels(each),
            family.documentation,
        )
        for each in vars(controller_metrics.Metrics()).values()
        if isinstance(each, MetricWrapperBase)
        for family in each.describe()
    ]
    return f"""{MADE}# Metrics

## The plugin

Served in Prometheus' format at `/metrics` of `--metrics-bind-address`.

{table(["metric", "type", "labels", "says"], rows)}
To see which pod a series of another exporter belongs to, join it with `neuron_dra_device_info` on
`neuron_device`, the number of the Neuron device:

```
neuron_dra_device_fault * on(instance, neuron_device) group_left(namespace, pod, claim) neuron_dra_device_info
```

## The UltraServer controller

Served at `/metrics` of its `--metrics-bind-address`, by every replica; only the leader's gauges are kept up to date.

{table(["metric", "type", "labels", "says"], sorted(of_controller))}"""


PAGES = {"attributes.md": attributes, "settings.md": settings_page, "metrics.md": metrics}


def main(arguments: Sequence[str]) -> int:
    """Write or check the pages; return 1 if --check finds one that is out of date."""
    stale = [name for name, page in PAGES.items() if read(DOCS / name) != page()]
    if arguments == ["--check"]:
        for name in stale:
            print(f"docs/{name} is not what the code says; run: make docs")
        return 1 if stale else 0
    if arguments:
        print(f"usage: gen_docs.py [--check], not {' '.join(arguments)}")
        return 2
    DOCS.mkdir(exist_ok=True)
    for name in stale:
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote docs/{name}")
    return 0


def read(path: Path) -> str:
    """Return a page, or nothing if there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
