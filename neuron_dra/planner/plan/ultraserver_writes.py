"""Plans the writes of NeuronUltraServers: creation, topology, finalizer, status with reservations, deletion. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neuron_dra.core.ultraserver import UnreadAllocation
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import (
    Action,
    CreateUltraServer,
    DeleteUltraServer,
    SetUltraServerFinalizers,
    UpdateTopology,
    WriteUltraServerStatus,
)
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.observed.discovery import Group, Problem
from neuron_dra.planner.observed.model import RESERVED, Reservation, UltraServer, shortened
from neuron_dra.planner.plan import isolation
from neuron_dra.planner.plan.ledger import Ledger


def writes(ledger: Ledger, ultraserver_names: Sequence[str]) -> tuple[list[Action], list[WriteUltraServerStatus]]:
    """Return the writes of NeuronUltraServers, at most one for each object.

    The first list has creations, deletions, finalizers and topologies, the second one statuses with reservations. If
    reservations change, the object's other writes wait for the next plan, except that spec.topology does not wait for a
    status that cannot be written.
    """
    others: list[Action] = []
    statuses: list[WriteUltraServerStatus] = []
    for ultraserver_name in ultraserver_names:
        group = ledger.index.group_by_name.get(ultraserver_name)
        stored = ledger.index.ultraserver_by_name.get(ultraserver_name)
        if stored is None:
            others += [CreateUltraServer(objects.ultraserver(group))] if group is not None else []
            continue
        other_writes, status = _ultraserver_alone(ledger, group, stored)
        others += other_writes
        statuses += status
    return others, statuses


def _ultraserver_alone(
    ledger: Ledger, group: Group | None, stored: UltraServer
) -> tuple[list[Action], list[WriteUltraServerStatus]]:
    """Return the writes of one NeuronUltraServer; an error becomes its condition."""
    error = ledger.index.broken.get(stored.name)
    if error is None and group is not None:
        try:
            return _ultraserver(ledger, group, stored)
        except Exception as err:
            error = err
    if error is None:
        return [], []
    ledger.errors[stored.name] = error
    return [], isolation.of_ultraserver(stored, error, ledger.sight.now)


def _ultraserver(
    ledger: Ledger, group: Group, stored: UltraServer
) -> tuple[list[Action], list[WriteUltraServerStatus]]:
    """Return the writes of one NeuronUltraServer, in two lists as `writes` does."""
    finalizers = _finalizers(ledger, stored)
    topology = objects.topology(group)
    is_stale = (stored.spec.get("topology") or []) != topology
    if is_stale and stored.name in ledger.sight.known.unwritable:
        return [UpdateTopology(stored.name, stored.version, tuple(topology))], []
    if _reservations_change(ledger, stored):
        return [], _status(ledger, group, stored, finalizers)
    if finalizers is not None:
        return [SetUltraServerFinalizers(stored.name, stored.version, finalizers)], []
    if not group.topology and not stored.reserved:
        return [] if stored.deleting else [DeleteUltraServer(stored.name, stored.uid, stored.version)], []
    if is_stale:
        return [UpdateTopology(stored.name, stored.version, tuple(topology))], []
    return [], _status(ledger, group, stored, None)


def _status(
    ledger: Ledger, group: Group, stored: UltraServer, finalizers: tuple[str, ...] | None
) -> list[WriteUltraServerStatus]:
    """Return the write of a NeuronUltraServer's status, if the status changes.

    Its owners are the workloads whose reservations change.
    """
    reservations, unread_entries = ledger.holdings.at(stored.name), ledger.holdings.unread.get(stored.name, ())
    error = ledger.unrestored.ultraservers.get(stored.name)
    problems = (*_problems(stored, reservations, unread_entries), *([isolation.of_restoration(error)] if error else []))
    spares = [node_name for slot in ledger.spares.get(stored.name, ()) for node_name in slot.nodes]
    status = objects.ultraserver_status(
        group, stored, reservations, ledger.index.in_use, ledger.sight.now, unread_entries, problems, spares
    )
    if status == dict(stored.status):
        return []
    changed = frozenset(reservation.allocation.holder for reservation in {*reservations} ^ {*stored.reservations})
    stored_ids = {reservation.allocation.allocation_id for reservation in stored.reservations}
    added = tuple(reservation for reservation in reservations if reservation.allocation.allocation_id not in stored_ids)
    return [
        WriteUltraServerStatus(stored.name, stored.version, stored.status, status, finalizers, added, owners=changed)
    ]


def _is_reserved(ledger: Ledger, stored: UltraServer) -> bool:
    """Return True if it has a reservation, stored or planned."""
    return stored.reserved or bool(ledger.holdings.at(stored.name) or ledger.holdings.unread.get(stored.name))


def _finalizers(ledger: Ledger, stored: UltraServer) -> tuple[str, ...] | None:
    """Return the finalizers that the object needs, or None if it has them.

    Ours stays while there is any reservation, readable or not, so `kubectl delete` waits for the workloads. An object
    that is being deleted accepts no new ones.
    """
    needs_finalizer = _is_reserved(ledger, stored)
    if needs_finalizer == (RESERVED in stored.finalizers) or (needs_finalizer and stored.deleting):
        return None
    other_finalizers = tuple(finalizer for finalizer in stored.finalizers if finalizer != RESERVED)
    return (*other_finalizers, RESERVED) if needs_finalizer else other_finalizers


def object_of(action: Action) -> str:
    """Return the name of the NeuronUltraServer that an action writes."""
    match action:
        case CreateUltraServer(body=body):
            return str(body["metadata"]["name"])
        case UpdateTopology(name=name) | DeleteUltraServer(name=name) | WriteUltraServerStatus(name=name):
            return name
        case SetUltraServerFinalizers(name=name):
            return name
    raise TypeError(f"{type(action).__name__} writes no NeuronUltraServer")


def _reservations_change(ledger: Ledger, stored: UltraServer) -> bool:
    """Return True if reservations change. A plan writes an object once, and reservations before anything else."""
    reservations, unread_entries = ledger.holdings.at(stored.name), ledger.holdings.unread.get(stored.name, ())
    return {*reservations} != {*stored.reservations} or len(unread_entries) != len(stored.unread)


def _problems(
    stored: UltraServer, reservations: Iterable[Reservation], unread: Iterable[UnreadAllocation]
) -> tuple[Problem, ...]:
    """Return what delays an UltraServer's deletion, and what cannot be read in its status.

    Both are given as reasons of its condition Degraded.
    """
    problems = []
    unread = tuple(unread)
    if stored.deleting:
        refs = sorted({reservation.allocation.workload for reservation in reservations})
        unreadable = [f"{len(unread)} entries that cannot be read"] if unread else []
        waits = shortened([*(f"NeuronUltraServerWorkload {ref}" for ref in refs), *unreadable])
        problems.append(
            Problem(
                Reason.DELETION_WAITS,
                f"its deletion waits for {waits or 'its last write'}: delete the workloads to release the nodes; "
                "until then their pods keep running, and nothing new is reserved here",
            )
        )
    if unread:
        texts = [f"{unread_entry.problem} (nodes {shortened(unread_entry.nodes)})" for unread_entry in unread]
        problems.append(
            Problem(
                Reason.UNREADABLE_RESERVATION,
                f"reservations that this release cannot read keep their nodes: {shortened(texts)}; use the release "
                "that wrote them, or remove the entries from status.allocations when nothing runs on the nodes",
            )
        )
    return tuple(problems)
