"""ResourceClaimTemplates for the usual numbers of devices of each instance type, from Kubernetes 1.34 on. Pure.

They are those that `neuron-dra migrate` writes, so that there is one form of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neuron_dra.api.problems import CannotMigrate
from neuron_dra.ask.migrate import claims
from neuron_dra.ask.migrate.limits import LimitsDemand
from neuron_dra.core import catalogue, groups, names, sizes
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.errors import SettingsError

NODES = (1, 2, 4)
EFA_CLASS = "efa.networking.k8s.aws"


@dataclass(frozen=True, slots=True)
class LibraryTemplate:
    """A template, and in words what a pod gets by it."""

    type: InstanceType
    text: str
    wire: dict[str, Any]

    @property
    def name(self) -> str:
        """The template's name."""
        return str(self.wire["metadata"]["name"])


def of_type(spec: InstanceType) -> Iterator[LibraryTemplate]:
    """Yield the templates of an instance type: numbers of devices, or groups of UltraServer nodes."""
    if spec.whole_node:
        for number in NODES:
            yield _nodes(spec, number)
        return
    for count in sorted(sizes.device_counts(spec)):
        try:
            wire = claims.template(LimitsDemand({}, "", sizes.DEVICE, "", count), [spec], "")
        except CannotMigrate:
            continue  # connected devices of this number need the sets of Kubernetes 1.36
        grouped = "constraints" in wire["spec"]["spec"]["devices"]
        which = "all " if count == spec.device_count > 1 else ""
        text = f"{which}{count} {'connected ' if grouped else ''}device{'s' if count > 1 else ''}"
        yield LibraryTemplate(spec, text, wire)


def _nodes(spec: InstanceType, number: int) -> LibraryTemplate:
    wire = claims.template(LimitsDemand({}, "", sizes.DEVICE, "", spec.device_count), [spec], "")
    if number == 1:
        return LibraryTemplate(spec, f"a node with all {spec.device_count} devices", wire)
    wire["metadata"]["name"] += f"-group-of-{number}"
    add_config(wire, {"kind": "UltraServerConfig", "ultraserverMode": number})
    return LibraryTemplate(spec, f"a node of a group of {number} in one UltraServer", wire)


def add_config(wire: dict[str, Any], parameters: dict[str, Any]) -> None:
    """Add configuration for the driver to a template."""
    opaque = {"driver": names.DRIVER, "parameters": {"apiVersion": f"{names.DRIVER}/v1", **parameters}}
    devices = wire["spec"]["spec"]["devices"]
    requests = [request["name"] for request in devices["requests"]]
    devices.setdefault("config", []).append({"requests": requests, "opaque": opaque})


def with_cores(template: LibraryTemplate, size: int) -> LibraryTemplate:
    """Return the template with a size of logical NeuronCores. Raises SettingsError if the type has another one only."""
    allowed = template.type.lnc_allowed
    if size not in allowed:
        offered = "its size is fixed"
        if allowed:
            offered = f"it offers {' and '.join(map(str, allowed))}"
        raise SettingsError(f"--lnc {size}: {template.type.name} does not offer it; {offered}")
    wire = {**template.wire, "metadata": {**template.wire["metadata"], "name": f"{template.name}-lnc-{size}"}}
    add_config(wire, {"kind": "NeuronConfig", "logicalNeuronCore": size})
    return LibraryTemplate(
        template.type, f"{template.text}, {size} physical core{'s' if size > 1 else ''} in a logical one", wire
    )


def with_efa(template: LibraryTemplate) -> LibraryTemplate:
    """Return the template with the EFA interfaces beside the devices. Raises SettingsError for types without a map."""
    devices = template.wire["spec"]["spec"]["devices"]
    counts = {request["name"]: request["exactly"].get("count") for request in devices["requests"]}
    if template.type.efa is None or template.type.whole_node or None in counts.values():
        raise SettingsError(f"--efa: {template.name} has no EFA interfaces of its own devices; see templates list")
    devices.setdefault("constraints", [{"requests": [*counts], "matchAttribute": claims.group_attribute(1)}])
    beside = {name: name.replace("neurons", "efas") for name in counts}
    for constraint in devices["constraints"]:
        constraint["requests"] += [beside[name] for name in constraint["requests"]]
    devices["requests"] += [
        {"name": beside[name], "exactly": {"deviceClassName": EFA_CLASS, "count": _interfaces(template.type, count)}}
        for name, count in counts.items()
    ]
    wire = {**template.wire, "metadata": {**template.wire["metadata"], "name": f"{template.name}-efa"}}
    return LibraryTemplate(template.type, f"{template.text}, and the EFA interfaces beside them", wire)


def _interfaces(spec: InstanceType, count: int) -> int:
    """Return the number of EFA interfaces beside `count` devices of a group: two devices of a trn1 share one."""
    every = {ids[1] for ids in groups.group_ids(spec).values()}
    return max(1, count * len(every) // spec.device_count)


def all_of_them() -> list[LibraryTemplate]:
    """Return the templates of every type."""
    templates: list[LibraryTemplate] = []
    for spec in catalogue.all_types():
        templates += of_type(spec)
    return templates
