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
            made = claims.template(LimitsDemand({}, "", sizes.DEVICE, "", count), [spec], "")
        except CannotMigrate:
            continue  # connected devices of this number need the sets of Kubernetes 1.36
        grouped = "constraints" in made["spec"]["spec"]["devices"]
        which = "all " if count == spec.device_count > 1 else ""
        text = f"{which}{count} {'connected ' if grouped else ''}device{'s' if count > 1 else ''}"
        yield LibraryTemplate(spec, text, made)


def _nodes(spec: InstanceType, number: int) -> LibraryTemplate:
    made = claims.template(LimitsDemand({}, "", sizes.DEVICE, "", spec.device_count), [spec], "")
    if number == 1:
        return LibraryTemplate(spec, f"a node with all {spec.device_count} devices", made)
    made["metadata"]["name"] += f"-group-of-{number}"
    add_config(made, {"kind": "UltraServerConfig", "ultraserverMode": number})
    return LibraryTemplate(spec, f"a node of a group of {number} in one UltraServer", made)


def add_config(made: dict[str, Any], parameters: dict[str, Any]) -> None:
    """Add configuration for the driver to a template."""
    opaque = {"driver": names.DRIVER, "parameters": {"apiVersion": f"{names.DRIVER}/v1", **parameters}}
    devices = made["spec"]["spec"]["devices"]
    requests = [each["name"] for each in devices["requests"]]
    devices.setdefault("config", []).append({"requests": requests, "opaque": opaque})


def with_cores(found: LibraryTemplate, size: int) -> LibraryTemplate:
    """Return the template with a size of logical NeuronCores. Raises SettingsError if the type has another one only."""
    allowed = found.type.lnc_allowed
    if size not in allowed:
        offered = "its size is fixed"
        if allowed:
            offered = f"it offers {' and '.join(map(str, allowed))}"
        raise SettingsError(f"--lnc {size}: {found.type.name} does not offer it; {offered}")
    made = {**found.wire, "metadata": {**found.wire["metadata"], "name": f"{found.name}-lnc-{size}"}}
    add_config(made, {"kind": "NeuronConfig", "logicalNeuronCore": size})
    return LibraryTemplate(
        found.type, f"{found.text}, {size} physical core{'s' if size > 1 else ''} in a logical one", made
    )


def with_efa(found: LibraryTemplate) -> LibraryTemplate:
    """Return the template with the EFA interfaces beside the devices. Raises SettingsError for types without a map."""
    devices = found.wire["spec"]["spec"]["devices"]
    counts = {each["name"]: each["exactly"].get("count") for each in devices["requests"]}
    if found.type.efa is None or found.type.whole_node or None in counts.values():
        raise SettingsError(f"--efa: {found.name} has no EFA interfaces of its own devices; see templates list")
    devices.setdefault("constraints", [{"requests": [*counts], "matchAttribute": claims.group_attribute(1)}])
    beside = {name: name.replace("neurons", "efas") for name in counts}
    for constraint in devices["constraints"]:
        constraint["requests"] += [beside[name] for name in constraint["requests"]]
    devices["requests"] += [
        {"name": beside[name], "exactly": {"deviceClassName": EFA_CLASS, "count": _interfaces(found.type, count)}}
        for name, count in counts.items()
    ]
    made = {**found.wire, "metadata": {**found.wire["metadata"], "name": f"{found.name}-efa"}}
    return LibraryTemplate(found.type, f"{found.text}, and the EFA interfaces beside them", made)


def _interfaces(spec: InstanceType, count: int) -> int:
    """Return the number of EFA interfaces beside `count` devices of a group: two devices of a trn1 share one."""
    every = {ids[1] for ids in groups.group_ids(spec).values()}
    return max(1, count * len(every) // spec.device_count)


def all_of_them() -> list[LibraryTemplate]:
    """Return the templates of every type."""
    found: list[LibraryTemplate] = []
    for spec in catalogue.all_types():
        found += of_type(spec)
    return found
