#!/usr/bin/env python3
"""Write the reference pages and pictures of docs/ from the code; with --check, only list those that are out of date."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller import metrics as controller_metrics
from controller.settings import ControllerSettings, WatcherSettings
from hack.generate import alerts as chart_alerts
from hack.generate import output_schema, topology_pictures
from neuron_dra.core import advice, catalogue, devices, groups, health, limits, metadata, names, vocabulary
from neuron_dra.core.catalogue import GIB
from neuron_dra.metric_table import Series
from neuron_dra.node import metrics as plugin_metrics
from neuron_dra.node.endpoints import telemetry
from neuron_dra.setting_table import Setting, settings_of
from neuron_dra.settings import PluginSettings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MADE = "<!-- Written by hack/generate/docs.py from the code; change the texts there. -->\n\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def attributes() -> str:
    """Return docs/attributes.md."""
    rows = [(f"`{each.name}`", each.kind, each.when, each.text) for each in devices.ATTRIBUTES]
    tags = [(f"`{each.name}`", each.kind, each.text) for each in devices.TAGS]
    sizes_of = [(f"`{each.name}`", each.kind, each.when, each.text) for each in devices.SIZES]
    marks = [(f"`{each.name}`", each.kind, each.text) for each in devices.MARKS]
    capacities = [(f"`{name}`", text) for name, text in devices.CAPACITIES]
    sizes = ", ".join(map(str, groups.SIZES))
    return f"""{MADE}# Published attributes of a device

The driver publishes a node's devices in ResourceSlices, in a pool with the node's name. Selectors read an attribute as
`device.attributes['{names.DRIVER}'].deviceId`, and a group id as
`device.attributes['{names.GROUP_DOMAIN}'].devicegroup4_id`. **If a selector reads an attribute that a device does not
have, this is an error and blocks the pod on every node**: write
`has(device.attributes['{names.DRIVER}'].topology_x) && ...`.

## Names

- `{names.DEVICE_PREFIX}N` is `/dev/neuronN`. Devices are published in the order of their ids, in which the scheduler
  allocates them.
- `{names.NODE_DEVICE}` is a whole UltraServer node with all its devices.
- `{names.SET_PREFIX}3-1` is the [connected set](connected-sets.md) of three devices that begins with device 1, and
  `{names.CORES_PREFIX}9-0` the nine logical cores of the node that begin with core 0.

## Attributes

Names without a domain belong to the domain `{names.DRIVER}`. Types never change.

{table(["attribute", "type", "published", "meaning"], rows)}
An unknown value is not published. A device may have {limits.ATTRIBUTES_AND_CAPACITIES} attributes and capacities
together; the driver keeps space for the {limits.WORKLOAD_TAGS} tags of an UltraServer workload and for the attribute of
an unhealthy device.

An [unhealthy device](health.md) has one more attribute, on every version of the API server, and a taint if the API
server keeps taints:

{table(["attribute", "type", "meaning"], marks)}

With [connected sets](connected-sets.md), devices have their sizes too:

{table(["attribute", "type", "published", "meaning"], sizes_of)}
Groups have {sizes} devices with consecutive ids. Their ids are equal on every node of a type, and equal to those that
the EFA driver publishes, so `matchAttribute` pairs Neuron devices with their EFA interfaces.

## Capacities

{table(["capacity", "meaning"], capacities)}
## UltraServers

Nodes of UltraServer types publish one device, `{names.NODE_DEVICE}` (`resourceType` is `neuron_node`). With
`--ultraserver-devices=devices` they publish each device instead, never both, because these overlap. `ultraserverModes`
lists numbers of nodes in ascending order, separated by `_`: `1_2_4` is a complete UltraServer, `1` a node that works
alone. While the kernel driver discovers its neighbors, these attributes are absent, and no selector matches them.

When the UltraServer controller has reserved a node for a workload, each of the node's devices has five more attributes,
see [UltraServers](ultraservers.md):

{table(["attribute", "type", "meaning"], tags)}
{in_files()}
{instance_types()}"""


def in_files() -> str:
    """Return the section about the attributes of metadata files."""
    rows = [(f"`{each.name}`", each.kind, each.when, each.text) for each in metadata.JOB]
    return f"""## In metadata files

A container's [metadata file](device-metadata.md) has the attributes of its devices, and these, which slices do not have:

{table(["attribute", "type", "present", "meaning"], rows)}"""


def instance_types() -> str:
    """Return the section about the instance types of the catalogue."""
    rows = [
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
    return f"""## Instance types

{table(["type", "devices", "cores", "memory", "logical core size", "links", "EFA groups", "publishes"], rows)}
Cores and memory are those of one device; cores are physical ones. Devices of other instance types are published without
groups, coordinates and memory.
"""


def settings_page() -> str:
    """Return docs/settings.md."""
    rows = [
        (f"`{one.flag}`", f"`{one.variable}`", f"`{one.default}`" if one.default else "empty", one.text + choices(one))
        for one in settings_of(PluginSettings)
    ]
    operator = [
        (f"`{one.flag}`", f"`{one.default}`" if one.default else "empty", one.text)
        for one in settings_of(ControllerSettings)
    ]
    shared = [f"`{one.flag}`" for one in settings_of(WatcherSettings)]
    watcher = f"{', '.join(shared[:-1])} and {shared[-1]}"
    return f"""{MADE}# Settings

## The plugin

A flag has precedence over its variable, and a variable over the default. Flags may also have Go's form: `-kubeconfig=x`,
`-v=4`. An empty variable counts as not set, except `METRICS_BIND_ADDRESS`. If a setting is unknown, malformed or in
contradiction with another one, the program prints which and ends with exit code 2. The settings in force are logged at
the start.

{table(["flag", "variable", "default", "meaning"], rows)}
## The UltraServer controller

These are the flags of `neuron-ultraserver-controller run` and of `k8s-neuron-ultraserver-operator`.
`neuron-ultraserver-controller watch-limits` has {watcher}.

{table(["flag", "default", "meaning"], operator)}"""


def choices(setting: Setting) -> str:
    """Return the texts that a setting accepts, if there is a choice."""
    return f" ({setting.metavar.replace('|', ' or ')})" if "|" in setting.metavar else ""


def series_row(series: Series) -> tuple[str, str, str, str]:
    """Return a metric as a row of a table."""
    name, kind, labels, text = series.row()
    return f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels) or "-", text


COUNTERS = """\
## Counters of devices and cores

The series `neuron_dra_core_*`, `neuron_dra_device_host_memory_bytes`, `neuron_dra_device_power_ratio` and
`neuron_dra_device_ecc_errors_total` are the kernel driver's own counters, which the plugin reads from sysfs whenever the
metrics are read. `kubectl neuron top` shows them.

- They name the pod and its container, so no join is needed. The names come from the kubelet's pod-resources API; without
  it, or before Kubernetes 1.34, `pod` is the pod for which the claim was prepared, and `container` is empty. If
  several pods share a device or core, the series names the first one, and `users` is their number.
- They do not start at 0 with a pod, so use `rate` or `increase`. Counters of memory errors start with the firmware. All other counters
  start when the kernel driver is loaded.
- `core` is the number of a physical core in its device, as in sysfs. Results and categories that are 0 have no series.
- On a trn2.48xlarge with 128 cores in use, one reading took 40 ms of CPU and the page 25 ms more, with 1,100 series.
  `draDriver.deviceCounters` in the chart limits them: with `devices` there are at most 256 and a reading takes 2 ms.
- Another process reads them, with a deadline of 3 s. A device with a read that hangs is left out for a minute.

Busy share of each pod's cores, and errors per second:

```
avg by (namespace, pod) (rate(neuron_dra_core_busy_seconds_total{pod!=""}[5m]))
sum by (namespace, pod) (rate(neuron_dra_core_executions_total{result!="success"}[5m]))
```

"""


ALERTS_AND_DASHBOARDS = """## Alerts and dashboards

The chart contains both, for the Prometheus operator and for Grafana. Both are off by default:

```
helm upgrade neuron-dra deploy/helm/neuron-dra --namespace neuron-dra-driver --reset-then-reuse-values \\
  --set draDriver.podMonitor.enabled=true --set ultraserverOperator.podMonitor.enabled=true \\
  --set monitoring.prometheusRule.enabled=true --set monitoring.dashboards.enabled=true
```

- Each alert has a section in [runbooks](runbooks.md). `monitoring.prometheusRule.runbooks` is the address at which you
  publish that page; the alerts link to it.
- A device fault is an alert within 30 s: the driver reads devices every 10 s, Prometheus reads the driver every 15 s
  (`draDriver.podMonitor.interval`), and evaluates this alert every 5 s. On eight nodes of the test bed three faults took
  15, 15 and 24 s.
- The dashboards are *fleet*, *node*, *UltraServers* and *job*. Each is a ConfigMap with the label `grafana_dashboard`, for
  Grafana's sidecar; their JSON is in `deploy/helm/neuron-dra/files/dashboards`, to import by hand.
- Alerts and dashboards need the label `node`, which the chart's PodMonitors add, and `NeuronPluginDown` needs the label
  `job` that the Prometheus operator sets for them. The PodMonitors also keep the labels `namespace` and
  `pod` of `neuron_dra_device_info` (`honorLabels`), so that these name the pod that has the device.
- `make night ONLY=monitoring` tries them with Prometheus 3.15.1, which it builds first. `promtool` checks the rules,
  and fires and resolves every alert with synthetic series; a rolling update and a change of the leader fire none. A running
  Prometheus reads the metrics of four plugins and a controller with the labels of the PodMonitors; every panel's query has
  data there, and on nine nodes of the test bed. Faults there (a killed plugin, missing rights, another driver's checkpoint, old
  CRDs and others) fire and resolve every alert, most of them with seconds in place of minutes. They were not tried in
  Grafana.
"""


def metrics() -> str:
    """Return docs/metrics.md."""
    rows = [series_row(series) for series in sorted([*plugin_metrics.ROWS.all, *telemetry.ALL], key=Series.row)]
    of_controller = [series_row(series) for series in controller_metrics.ROWS.all]
    return f"""{MADE}# Metrics

[What to monitor](monitoring.md) chooses five metrics and five alerts, and lists all alerts. This page lists all metrics.

{ALERTS_AND_DASHBOARDS}
## The plugin

The plugin serves these at `/metrics` of `--metrics-bind-address`, in Prometheus' format.

{table(["metric", "type", "labels", "meaning"], rows)}
To find the pod of another exporter's series, join that series with `neuron_dra_device_info` on `neuron_device`, the
number of the Neuron device:

```
neuron_dra_device_fault * on(instance, neuron_device) group_left(namespace, pod, claim) neuron_dra_device_info
```

{COUNTERS}## The UltraServer controller

Every replica serves these at `/metrics` of its `--metrics-bind-address`; only the leader keeps its gauges up to date.

{table(["metric", "type", "labels", "meaning"], sorted(of_controller))}
`neuron-ultraserver-controller watch-limits` serves one metric: `neuron_dra_unserved_pods`, the number of pods that wait for
a number of devices or cores that no node serves.
"""


def conditions() -> str:
    """Return docs/conditions.md."""
    types = [(f"`{each.name}`", each.of, each.text) for each in vocabulary.CONDITIONS]
    reasons = {}
    for kind in (vocabulary.WORKLOAD, vocabulary.ULTRASERVER, vocabulary.QUALIFICATION):
        words = [word for word in vocabulary.REASONS if word.of == kind]
        reasons[kind] = [(f"`{word.name}`", word.condition, word.text, advice.TO_DO[word.name]) for word in words]
    events = [(f"`{word.name}`", word.of, word.text, advice.TO_DO[word.name]) for word in vocabulary.EVENTS]
    unhealthy = []
    for name, text in vocabulary.UNHEALTHY.items():
        _, _, repair = health.ADVICE.get(name, "").partition("; ")
        unhealthy.append((f"`{name}`", text, repair or "read the Event on the Node; if it lasts, replace the instance"))
    return f"""{MADE}# Conditions, reasons and Events

`neuron-dra explain NAME` prints the same. [Runbooks](runbooks.md) list more steps for each alert.

## Conditions

{table(["condition", "of", "meaning"], types)}
## Reasons of a NeuronUltraServerWorkload

They are reasons of its Events, too.

{table(["reason", "condition", "meaning", "what to do"], reasons[vocabulary.WORKLOAD])}
## Reasons of a NeuronUltraServer

{table(["reason", "condition", "meaning", "what to do"], reasons[vocabulary.ULTRASERVER])}
## Reasons of a NeuronUltraServerQualification

{table(["reason", "condition", "meaning", "what to do"], reasons[vocabulary.QUALIFICATION])}
## Other Events

{table(["reason", "on", "meaning", "what to do"], events)}
## Unhealthy devices

The values of the attribute `unhealthy` and of the [taint](health.md):

{table(["value", "meaning", "what to do"], unhealthy)}"""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert of the chart; `cause` completes "It fires when", and `duration` is how long the cause must last."""

    name: str
    severity: str
    cause: str
    duration: str


_CAUSE = re.compile(r"# Fires when (.+)\n +- alert: (\w+)\n")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}
_TABLE_OF_ALERTS = re.compile(r"(?<=<!-- from the chart's alerts -->\n).*?(?=\n\n)", re.DOTALL)
_RUNBOOK = re.compile(r"(?<=^### )(Neuron\w+)\n\n(?:Severity: .*\n\n)?", re.MULTILINE)


def alerts() -> Iterator[Alert]:
    """Yield the alerts in the order of the chart's files; the cause is the comment above a rule."""
    cause_by_name: dict[str, str] = {}
    for path in chart_alerts.RULES.glob("*.yaml"):
        cause_by_name.update((name, cause) for cause, name in _CAUSE.findall(path.read_text(encoding="utf-8")))
    for rule in chart_alerts.rules():
        number, unit = int(rule["for"][:-1]), rule["for"][-1]
        unit_name = _UNITS[unit] if number != 1 else _UNITS[unit].removesuffix("s")
        duration = f"{number} {unit_name}" if number else ""
        yield Alert(rule["alert"], rule["labels"]["severity"], cause_by_name[rule["alert"]], duration)


def monitoring() -> str:
    """Return docs/monitoring.md with the table of all alerts; people write the remaining page."""
    rows = [
        (
            f"[`{alert.name}`](runbooks.md#{alert.name.lower()})",
            alert.severity,
            alert.cause,
            alert.duration or "immediately",
        )
        for alert in alerts()
    ]
    page = table(["alert", "severity", "it fires when", "after"], rows).rstrip("\n")
    return _TABLE_OF_ALERTS.sub(lambda _: page, read(DOCS / "monitoring.md"))


def runbooks() -> str:
    """Return docs/runbooks.md, where a line below each heading says when the alert fires; people write the rest."""
    lines = {}
    for alert in alerts():
        lasts = f", and this lasts {alert.duration}" if alert.duration else ""
        lines[alert.name] = f"Severity: {alert.severity}. The alert fires when {alert.cause}{lasts}."
    return _RUNBOOK.sub(lambda match: f"{match[1]}\n\n{lines[match[1]]}\n\n", read(DOCS / "runbooks.md"))


PAGES = {
    "attributes.md": attributes,
    "conditions.md": conditions,
    "settings.md": settings_page,
    "metrics.md": metrics,
    "output.schema.json": output_schema.page,
    **topology_pictures.pages(),
}

WITH_PARTS = {
    "monitoring.md": monitoring,
    "runbooks.md": runbooks,
}
"""Pages that people write, except for a table or some lines."""


def main(arguments: Sequence[str]) -> int:
    """Write the pages and return 0; with --check, return 1 if one of them is out of date."""
    page_of = {**PAGES, **WITH_PARTS}
    stale = [name for name, page in page_of.items() if read(DOCS / name) != page()]
    if arguments == ["--check"]:
        for name in stale:
            print(f"docs/{name} is out of date; run: make docs")
        return 1 if stale else 0
    if arguments:
        print(f"usage: gen_docs.py [--check], not {' '.join(arguments)}")
        return 2
    for name in stale:
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(page_of[name](), encoding="utf-8")
        print(f"wrote docs/{name}")
    return 0


def read(path: Path) -> str:
    """Return the text of a page, or an empty string if it does not exist."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
