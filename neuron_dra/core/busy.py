"""Nodes whose kernel driver does not know their place in an UltraServer: `ultraserver_mode` reads `busy` or is empty.

After a load the driver is busy until the nodes of a Trn2 UltraServer have elected their ids, or until the configuration
of a PDS or MAX type is known. A node with a device that is missing or invalid stays busy for ever (seen on 2.26.5).
Source: aws-neuron-driver, v3/neuron_pelect.c and v4/neuron_dhal_v4.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from neuron_dra.core import health, names
from neuron_dra.core.catalogue import InstanceType, Platform
from neuron_dra.core.facts import NodeFacts, UltraServerFacts, Unread
from neuron_dra.core.signals import RESET_INVALID

LIMIT_S: Final = 600.0 + 2 * 120.0
"""The driver's own limit: an election, and one each for the right and the left links alone."""

BUSY_KIND: Final = "ultraserver-busy"
EMPTY_KIND: Final = "ultraserver-mode-empty"

TAINT: Final[Mapping[str, str]] = {"key": f"{names.DRIVER}/busy", "value": "ultraserver", "effect": "NoSchedule"}
"""The taint of devices that no program can open: those of PDS and MAX types while the driver is busy."""


def is_closed(spec: InstanceType | None, ultraserver: UltraServerFacts) -> bool:
    """Return True if no program can open the node's devices, because the driver is busy."""
    return spec is not None and spec.platform in (Platform.PDS, Platform.MAX) and ultraserver.modes is Unread.BUSY


def tainted(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return a published device with the taint."""
    taints = [TAINT, *(device.get("taints") or ())]
    return {**device, "taints": [dict(taint) for taint in taints[: health.TAINTS]]}


def finding(facts: NodeFacts, spec: InstanceType, busy_for_s: float) -> tuple[str, str] | None:
    """Return the kind and the message of a finding about the node's place; None if there is none, or not yet.

    `busy_for_s` is for how long the driver has been busy.
    """
    if not spec.whole_node or not facts.devices:
        return None
    if facts.ultraserver.modes == ():
        return EMPTY_KIND, f"ultraserver_mode is empty: {_unknown_type(facts.driver_version, spec.name)}"
    if facts.ultraserver.modes is not Unread.BUSY:
        return None
    if cause := _cause(facts, spec):
        return BUSY_KIND, (
            f"ultraserver_mode reads busy, and {cause}: the kernel driver never finds the place of such a node in its "
            "UltraServer. Check the kernel log, and replace the instance"
        )
    if busy_for_s > LIMIT_S:
        return BUSY_KIND, (
            f"ultraserver_mode has read busy for more than {LIMIT_S / 60:.0f} min, the kernel driver's own limit: it "
            "does not find the node's place in its UltraServer. Check the kernel log; load the kernel driver again, or "
            "reboot the node"
        )
    return None


def _cause(facts: NodeFacts, spec: InstanceType) -> str:
    """Return which devices keep the driver busy for ever; empty if none does."""
    present = {device.device_id for device in facts.devices}
    missing = sorted(set(range(spec.device_count)) - present)
    invalid = sorted(device.device_id for device in facts.devices if device.reset_state == RESET_INVALID)
    parts = [_are(ids, what) for ids, what in ((missing, "missing"), (invalid, "invalid")) if ids]
    return " and ".join(parts)


def _are(device_ids: list[int], what: str) -> str:
    listed = ", ".join(f"neuron{device_id}" for device_id in device_ids)
    return f"{listed} {'is' if len(device_ids) == 1 else 'are'} {what}"


def _unknown_type(driver_version: str | None, instance_type: str) -> str:
    return (
        f"kernel driver {driver_version or 'of unknown version'} does not know that {instance_type} is a type of "
        "UltraServers, so the node is in none. Update the kernel driver"
    )


def why_not_offered(node_findings: Mapping[str, str], ultraserver: UltraServerFacts) -> str:
    """Return why a node offers no group of any size; `node_findings` are the messages of its findings, by kind."""
    if ultraserver.modes is Unread.BUSY:
        return node_findings.get(BUSY_KIND) or (
            "the kernel driver is still joining the UltraServer (ultraserver_mode reads busy); the kubelet tries again"
        )
    if ultraserver.modes == ():
        return node_findings.get(EMPTY_KIND) or "ultraserver_mode is empty; update the kernel driver"
    if isinstance(ultraserver.modes, Unread):
        return "ultraserver_mode cannot be read; check the kernel driver and its version"
    return ""
