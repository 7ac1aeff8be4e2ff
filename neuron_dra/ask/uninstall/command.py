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
    found = holders(source.load(args)[0])
    if args.output == "text":
        terminal.write(lines(found))
    else:
        terminal.write_data("UninstallCheck", found, args.output)
    if any(found.values()):
        return 1
    return 0


def holders(snapshot: Snapshot) -> dict[str, Any]:
    """Return the claims that have devices of this driver, the workloads and the reserved UltraServers.

    `notSeen` are kinds and objects that could not be read, and why.
    """
    from neuron_dra.ask.read.views import UltraServerView, WorkloadView
    from neuron_dra.ask.world import unseen

    claims = [_claim(snapshot, each) for each in snapshot.all("ResourceClaim")]
    workloads = []
    for each in snapshot.all("NeuronUltraServerWorkload"):
        workloads.append({"workload": _name(each), "state": WorkloadView.of(each).status.state})
    reserved = []
    for each in snapshot.all("NeuronUltraServer"):
        allocations = UltraServerView.of(each).status.allocations
        if allocations or _is_kept(each):
            of = {str(entry.workload_ref) for entry in allocations}
            reserved.append({"ultraServer": _name(each), "workloads": sorted(of)})
    not_seen = [each for each in unseen.data(snapshot) if each["kind"] in NEEDED]
    return {
        "claims": [row for row in claims if row],
        "workloads": workloads,
        "ultraServers": reserved,
        "notSeen": not_seen,
    }


def _is_kept(item: Wire) -> bool:
    """Return True if only the controller lets this object be deleted, and with it the driver's namespace."""
    from neuron_dra.ask.read.views import MetaView

    finalizers = MetaView.of(item["metadata"]).finalizers
    return any(each.startswith(f"{names.DRIVER}/") for each in finalizers)


def _name(item: Wire) -> str:
    from neuron_dra.ask.read.views import MetaView

    meta = MetaView.of(item["metadata"])
    return f"{meta.namespace}/{meta.name}"


def _claim(snapshot: Snapshot, claim: Wire) -> dict[str, Any]:
    """Return a claim's devices by node and its pods; an empty dictionary if it has no device of this driver."""
    from neuron_dra.ask.read.claim_views import ClaimView

    seen = ClaimView.of(claim)
    devices: dict[str, list[str]] = {}
    for each in seen.results:
        if each.driver == names.DRIVER:
            devices.setdefault(each.pool, []).append(each.device)
    if not devices:
        return {}
    namespace = seen.metadata.namespace
    users = [_user(snapshot, namespace, each.resource, each.name) for each in seen.status.reserved_for]
    return {"claim": _name(claim), "devices": devices, "heldBy": users}


def _user(snapshot: Snapshot, namespace: str, resource: str, name: str) -> dict[str, str]:
    """Return who holds a claim: of a pod also its owner, and whether it ends already."""
    found = {"resource": resource, "name": name}
    if resource != "pods":
        return found
    from neuron_dra.ask.read.pod_views import PodView

    meta = PodView.of(snapshot.get("Pod", name, namespace)).metadata
    for owner in meta.owner_references[:1]:
        found["owner"] = f"{owner.kind} {owner.name}"
    if meta.deletion_timestamp:
        found["deletedAt"] = meta.deletion_timestamp
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """Return the text for a person."""
    from neuron_dra.ask.render import terminal, words

    made: list[str] = []
    if found["claims"]:
        made += ["Claims that have devices; end their pods:"]
        rows = [("CLAIM", "NODE", "DEVICES", "HELD BY")]
        for each in found["claims"]:
            users = words.listed(map(_text, each["heldBy"])) or "no pod; Kubernetes frees it soon"
            for node, devices in each["devices"].items():
                rows.append((each["claim"], node, words.devices(devices), users))
        made += terminal.table(rows, indent="  ", hosts=1)
    if found["workloads"]:
        made += ["NeuronUltraServerWorkloads; delete them, and wait until they are gone:"]
        rows2 = [("WORKLOAD", "STATE"), *((each["workload"], each["state"]) for each in found["workloads"])]
        made += terminal.table(rows2, indent="  ")
    if found["ultraServers"]:
        made += ["NeuronUltraServers with reservations, which end with their workloads:"]
        rows2 = [("ULTRASERVER", "WORKLOADS")]
        ended = "none; the controller removes its finalizer soon"
        rows2 += [(each["ultraServer"], words.listed(each["workloads"]) or ended) for each in found["ultraServers"]]
        made += terminal.table(rows2, indent="  ")
    for each in found["notSeen"]:
        if "name" in each:
            what = f"{each['kind']} {each['name']}"
        else:
            what = f"{each['kind']}s"
        text = f"{what} could not be read ({each['reason']}): the driver may still be needed"
        made += terminal.wrapped(text, rest="  ")
    return made or ["Nothing needs the driver: no claim has its devices, and no workload reserves nodes."]


def _text(user: dict[str, str]) -> str:
    if user["resource"] != "pods":
        return f"{user['resource']} {user['name']}"
    notes = [user.get("owner", ""), "Terminating" if "deletedAt" in user else ""]
    inside = ", ".join(note for note in notes if note)
    return f"pod {user['name']}" + (f" ({inside})" if inside else "")
