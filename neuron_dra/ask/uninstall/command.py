"""`neuron-dra uninstall-check`: which claims, pods and workloads still need the driver."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from neuron_dra.ask.read import source
from neuron_dra.core import names
from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from neuron_dra.ask.read.snapshot import Snapshot
    from neuron_dra.core.wire import Wire

EXAMPLES = """\
examples:
  neuron-dra uninstall-check && helm uninstall neuron-dra -n neuron-dra-driver
  neuron-dra uninstall-check -o json

Exit code 0: nothing needs the driver; 1: something does, or could not be seen; 2: the cluster cannot be read."""
NEEDED: Final = ("ResourceClaim", "NeuronUltraServerWorkload", "NeuronUltraServer")
"""Kinds whose objects need the driver or the controller."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra uninstall-check`."""
    parser.description = (
        "Print what must end before the driver is uninstalled: claims that have its devices, with their pods, because "
        "the kubelet needs the driver to release them and such pods would stay Terminating; and, with the UltraServer "
        "controller, workloads and reservations, because only the controller removes their finalizers."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text", help="form of the output")
    source.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print what needs the driver, and return the exit code."""
    from neuron_dra.ask.render import terminal

    if args.namespace:
        raise SettingsError("-n: the driver serves all namespaces, and all are checked")
    needs = holders(source.load(args)[0])
    if args.output == "text":
        terminal.write(lines(needs))
    else:
        terminal.write_data("UninstallCheck", needs, args.output)
    if any(needs.values()):
        return 1
    return 0


def holders(snapshot: Snapshot) -> dict[str, Any]:
    """Return the claims that have devices of this driver, the workloads and the reserved UltraServers.

    `notSeen` are kinds and objects that could not be read, and why.
    """
    from neuron_dra.ask.read.views import UltraServerView, WorkloadView
    from neuron_dra.ask.world import unseen

    claims = [_claim(snapshot, claim) for claim in snapshot.all("ResourceClaim")]
    workloads = []
    for workload in snapshot.all("NeuronUltraServerWorkload"):
        workloads.append({"workload": _name(workload), "state": WorkloadView.of(workload).status.state})
    reserved = []
    for server in snapshot.all("NeuronUltraServer"):
        allocations = UltraServerView.of(server).status.allocations
        if allocations or _is_kept(server):
            of = {str(allocation.workload_ref) for allocation in allocations}
            reserved.append({"ultraServer": _name(server), "workloads": sorted(of)})
    not_seen = [row for row in unseen.data(snapshot) if row["kind"] in NEEDED]
    return {
        "claims": [row for row in claims if row],
        "workloads": workloads,
        "ultraServers": reserved,
        "notSeen": not_seen,
    }


def _is_kept(raw_object: Wire) -> bool:
    """Return True if only the controller lets this object be deleted, and with it the driver's namespace."""
    from neuron_dra.ask.read.views import MetaView

    finalizers = MetaView.of(raw_object["metadata"]).finalizers
    return any(finalizer.startswith(f"{names.DRIVER}/") for finalizer in finalizers)


def _name(raw_object: Wire) -> str:
    from neuron_dra.ask.read.views import MetaView

    meta = MetaView.of(raw_object["metadata"])
    return f"{meta.namespace}/{meta.name}"


def _claim(snapshot: Snapshot, claim: Wire) -> dict[str, Any]:
    """Return a claim's devices by node and its pods; an empty dictionary if it has no device of this driver."""
    from neuron_dra.ask.read.claim_views import ClaimView

    claim_view = ClaimView.of(claim)
    devices: dict[str, list[str]] = {}
    for result in claim_view.results:
        if result.driver == names.DRIVER:
            devices.setdefault(result.pool, []).append(result.device)
    if not devices:
        return {}
    namespace = claim_view.metadata.namespace
    consumers = claim_view.status.reserved_for
    users = [_user(snapshot, namespace, consumer.resource, consumer.name) for consumer in consumers]
    return {"claim": _name(claim), "devices": devices, "heldBy": users}


def _user(snapshot: Snapshot, namespace: str, resource: str, name: str) -> dict[str, str]:
    """Return who holds a claim: of a pod also its owner, and whether it ends already."""
    user = {"resource": resource, "name": name}
    if resource != "pods":
        return user
    from neuron_dra.ask.read.pod_views import PodView

    meta = PodView.of(snapshot.get("Pod", name, namespace)).metadata
    for owner in meta.owner_references[:1]:
        user["owner"] = f"{owner.kind} {owner.name}"
    if meta.deletion_timestamp:
        user["deletedAt"] = meta.deletion_timestamp
    return user


def lines(needs: dict[str, Any]) -> list[str]:
    """Return the text for a person."""
    from neuron_dra.ask.render import terminal, words

    text_lines: list[str] = []
    if needs["claims"]:
        text_lines += ["Claims that have devices; end their pods:"]
        rows = [("CLAIM", "NODE", "DEVICES", "HELD BY")]
        for claim in needs["claims"]:
            users = words.listed(map(_text, claim["heldBy"])) or "no pod; Kubernetes frees it soon"
            for node, devices in claim["devices"].items():
                rows.append((claim["claim"], node, words.devices(devices), users))
        text_lines += terminal.table(rows, indent="  ", hosts=1)
    if needs["workloads"]:
        text_lines += ["NeuronUltraServerWorkloads; delete them, and wait until they are gone:"]
        rows2 = [("WORKLOAD", "STATE"), *((workload["workload"], workload["state"]) for workload in needs["workloads"])]
        text_lines += terminal.table(rows2, indent="  ")
    if needs["ultraServers"]:
        text_lines += ["NeuronUltraServers with reservations, which end with their workloads:"]
        rows2 = [("ULTRASERVER", "WORKLOADS")]
        ended = "none; the controller removes its finalizer soon"
        for server in needs["ultraServers"]:
            rows2.append((server["ultraServer"], words.listed(server["workloads"]) or ended))
        text_lines += terminal.table(rows2, indent="  ")
    for unread in needs["notSeen"]:
        if "name" in unread:
            what = f"{unread['kind']} {unread['name']}"
        else:
            what = f"{unread['kind']}s"
        text = f"{what} could not be read ({unread['reason']}): the driver may still be needed"
        text_lines += terminal.wrapped(text, rest="  ")
    return text_lines or ["Nothing needs the driver: no claim has its devices, and no workload reserves nodes."]


def _text(user: dict[str, str]) -> str:
    if user["resource"] != "pods":
        return f"{user['resource']} {user['name']}"
    notes = [user.get("owner", ""), "Terminating" if "deletedAt" in user else ""]
    inside = ", ".join(note for note in notes if note)
    return f"pod {user['name']}" + (f" ({inside})" if inside else "")
