"""Safety invariants, checked after every change: a violation ends the run."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_dra.core import durations, names
from neuron_dra.core.ultraserver import NAMESPACE, Allocation, Phase, tag_on
from neuron_dra.core.wire import Wire
from neuron_dra.planner.observed.model import FINALIZER
from tests.support.fleet import notices, qualify_laws, spares
from tests.support.fleet.address_laws import Names
from tests.support.fleet.nodes import MODES, FleetNode
from tests.support.fleet.pods import Container, Pods
from tests.support.fleet.view import Held, View, condition, is_test, parsed, workload_uid

ORDER = {Phase.PENDING: 0, Phase.BOUND: 1, Phase.DRAINING: 2}
SOON_S = 20.0  # before that no node is late
REPORTED_S = 60.0  # by then every leader has seen what an agent reports
TAKEN_BACK = datetime.timedelta(hours=1)  # before the end of a capacity block
SLACK = datetime.timedelta(seconds=60)
SAME_PLAN_S = 1.0  # the writes of one plan
LATE_S = 5.0  # the largest lag between two watches of one server


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class _Known:
    held: Held
    gone_at_s: float | None = None  # by the loop's clock

    @property
    def gone(self) -> bool:
        return self.gone_at_s is not None


class Safety:
    """Keeps all reservations and tags of the run, and checks each change. `found` are the violations."""

    def __init__(
        self,
        view: View,
        pods: Pods,
        nodes: Mapping[str, FleetNode],
        report: Callable[[str], None],
        clock: Callable[[], datetime.datetime],
    ) -> None:
        self._view = view
        self._pods = pods
        self._nodes = nodes
        self._report = report
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._tagged: dict[
            tuple[str, str], int
        ] = {}  # node and allocation id: the revision at which it was first shown
        self._protected: set[str] = set()  # allocation ids that must not be removed now
        self._given_up: dict[str, datetime.datetime] = {}  # when a workload lost a reservation that was Pending
        self._may_vanish: set[str] = set()  # NeuronUltraServers that users have deleted
        self._shown_again: set[str] = set()  # allocation ids of tags that may outlive their reservation
        self._limits: dict[str, list[tuple[float, int | None]]] = {}  # by namespace: since when, how many nodes
        self._names = Names()
        self.keeps_spares = False  # spares are kept for groups that must move
        self.has_tests = False  # free groups are tested
        self._spares: set[str] = set()  # the NeuronUltraServers that were last shown as spares
        self.found: list[str] = []

    def check(self) -> None:
        """Raise what was found. Raises Violation."""
        if self.found:
            raise Violation("; ".join(dict.fromkeys(self.found)))

    def violated(self, text: str) -> None:
        """Record a violation."""
        self._report(f"VIOLATION: {text}")
        self.found.append(text)

    # What the fleet did

    def protect(self, allocation_ids: set[str]) -> None:
        """While most kubelets are unavailable, or most nodes reported, these reservations must stay."""
        self._protected = allocation_ids

    def may_vanish(self, ultraserver: str) -> None:
        """Record that a user deleted this NeuronUltraServer: lost reservations may be restored."""
        self._may_vanish.add(ultraserver)

    def may_be_shown_again(self, allocation_id: str) -> None:
        """Record that a tag may outlive its reservation, so that the controller closes the node again.

        A user edits it, or removes the slice: a plugin that was down publishes the tag of its checkpoint.
        """
        self._shown_again.add(allocation_id)

    def limited(self, namespace: str, limit: int | None) -> None:
        """Record the limit of a namespace from now on."""
        now = asyncio.get_running_loop().time()
        self._limits.setdefault(namespace, [(now, None)]).append((now, limit))

    def evicted(self, path: str) -> None:
        """Check an eviction by the controller."""
        namespace, name = path.split("/namespaces/")[1].split("/")[0], path.split("/pods/")[1].split("/")[0]
        for text in notices.evicted_untold(self._view, self._pods, self._nodes, f"{namespace}/{name}"):
            self.violated(text)
        for container in self._pods.running.values():
            held = self._view.holders().get(container.node)
            if (
                container.pod == f"{namespace}/{name}"
                and held is not None
                and container.workload_uid == held.allocation.workload_uid
                and held.allocation.allocation_id in self._protected
                and self._is_wanted(held.allocation)
            ):
                self.violated(f"pod {container.pod} of {_text(held)} is evicted during an outage")

    def _is_wanted(self, allocation: Allocation) -> bool:
        """True if the workload exists, is not being deleted, and has this index."""
        workload = self._view.workloads().get(allocation.holder)
        if workload is None or workload["metadata"].get("deletionTimestamp"):
            return False
        return allocation.ultraserver_index < int(workload["spec"]["serverCount"])

    # Names

    def endpoints_changed(self) -> None:
        """Check where the names of ranks 0 lead."""
        for text in self._names.lost(self._view, self._pods.running, asyncio.get_running_loop().time()):
            self.violated(text)

    # Slices

    def slices_changed(self) -> None:
        """Note the tags."""
        for item in self._view.all("resourceslices"):
            tag = tag_on(item["spec"].get("devices") or ())
            if tag is not None:
                self._tagged.setdefault((item["spec"]["nodeName"], tag.allocation_id), _revision(item))

    # Reservations

    def ultraservers_changed(self) -> None:
        """Judge the reservations."""
        held = self._view.held()
        owner: dict[str, Held] = {}
        for each in held:
            for node in each.allocation.nodes:
                other = owner.setdefault(node, each)
                if other is not each:
                    self.violated(f"node {node} is in two reservations: {_text(other)} and {_text(each)}")
        bound: dict[tuple[str, int], Held] = {}
        for each in held:
            self._judge(each)
            key = (each.allocation.holder, each.allocation.ultraserver_index)
            if each.allocation.phase is Phase.BOUND and bound.setdefault(key, each) is not each:
                self.violated(f"two groups are bound under one index: {_text(bound[key])} and {_text(each)}")
        present = {each.allocation.allocation_id for each in held}
        ended = [known for each, known in self._known.items() if each not in present and not known.gone]
        for known in ended:
            known.gone_at_s = asyncio.get_running_loop().time()
            self._report(f"{_text(known.held)} is gone")
            self._kept(known.held, [each.held for each in ended])
        if self.keeps_spares:
            self._spares = spares.shown(self._view)

    def _all(self, texts: Iterable[str], held: Held) -> None:
        for text in texts:
            self.violated(f"{_text(held)} {text}")

    def _leaves_spares(self, now: Held) -> None:
        """Only a group that replaces another one is on a spare."""
        if not self._replaces(now) and not is_test(now) and self._is_on_a_spare(now):
            self.violated(f"{_text(now)} is new, and is on a spare")

    def _replaces(self, held: Held) -> bool:
        """Return True if a group of the same workload and index was reserved before."""
        key = held.allocation.holder, held.allocation.ultraserver_index
        others = (known.held.allocation for known in self._known.values() if known.held is not held)
        return any((other.holder, other.ultraserver_index) == key for other in others)

    def _is_on_a_spare(self, now: Held) -> bool:
        """Return True if a new group is on a spare that no group took which replaces another, in the same write."""
        beside = [known.held for known in self._known.values() if known.held.ultraserver == now.ultraserver]
        if any(held is not now and held.allocation.phase is Phase.PENDING and self._replaces(held) for held in beside):
            return False
        return spares.must_leave(self._view, now, self._spares, self._nodes, self._clock())

    def _is_not_reported(self, now: Held) -> None:
        """No node is reserved of which an agent has reported a fault for a while."""
        for name in now.allocation.nodes:
            since = self._nodes[name].reported_since
            if since is not None and (self._clock() - since).total_seconds() > REPORTED_S:
                self.violated(
                    f"{_text(now)} is reserved, and an agent reports a fault of {name} since {since:%H:%M:%S}"
                )

    def _has_finalizer(self, now: Held) -> None:
        """The status of an UltraServer is one write for several workloads: none of them may wait for another's write.

        So a workload's finalizer is stored before it has nodes.
        """
        workload = self._view.workloads().get(now.allocation.holder)
        if workload is not None and FINALIZER not in (workload["metadata"].get("finalizers") or ()):
            self.violated(f"{_text(now)} is reserved before the finalizer of its workload is stored")

    def _lasts(self, now: Held) -> None:
        """A workload that says how long it runs is not on nodes that EC2 takes back before."""
        workload = self._view.workloads().get(now.allocation.holder)
        if workload is None:
            return
        moment, status = self._clock(), workload.get("status") or {}
        began = parsed(status["allocatedAt"]) if status.get("allocatedAt") else moment
        expected = durations.parse(workload["spec"].get("expectedDuration") or "0")
        until = max(moment, began + expected) + TAKEN_BACK
        for name in now.allocation.nodes:
            node = self._nodes[name]
            known = node.block_end_since is not None and (moment - node.block_end_since).total_seconds() > REPORTED_S
            if known and node.block_end is not None and node.block_end + SLACK < until:
                self.violated(f"{_text(now)} needs {name} until {until:%H:%M:%S}, and its block ends before")

    def _judge(self, now: Held) -> None:
        allocation = now.allocation
        known = self._known.get(allocation.allocation_id)
        if known is None:
            self._report(f"{_text(now)} reserved on {now.ultraserver}")
            self._known[allocation.allocation_id] = _Known(now)
            self._shape(now)
            self._within_limit(now)
            self._is_not_reported(now)
            self._lasts(now)
            self._has_finalizer(now)
            if self.has_tests:
                self._all(qualify_laws.chosen_against(self._view, now, self._clock()), now)
            if self.keeps_spares:
                self._leaves_spares(now)
            if allocation.phase is not Phase.PENDING:
                self.violated(f"{_text(now)} did not begin as Pending")
            return
        before = known.held.allocation
        if known.gone and (now.ultraserver in self._may_vanish or allocation.allocation_id in self._shown_again):
            known.gone_at_s = None
            self._report(f"{_text(now)} is written again")
            same = before.workload_uid == allocation.workload_uid and {*allocation.nodes} <= {*before.nodes}
            if same and allocation.phase is Phase.DRAINING:
                known.held = now  # nodes that were unavailable when it ended show it, and are closed
                return
        if known.gone:
            self.violated(f"{_text(now)} came back after it was gone")
        if _identity(before) != _identity(allocation) or known.held.ultraserver != now.ultraserver:
            self.violated(f"a reservation changed what it reserves: {_text(known.held)} became {_text(now)}")
        if ORDER[allocation.phase] < ORDER[before.phase]:
            self.violated(f"{_text(now)} was {before.phase.value} before")
        if allocation.phase is not before.phase:
            self._report(f"{_text(now)}")
            if allocation.phase is Phase.BOUND:
                self._bound(now)
            if allocation.phase is Phase.DRAINING:
                self._kept(now)
                self._restarts_for_a_reason(now)
        known.held = now

    def _restarts_for_a_reason(self, held: Held) -> None:
        """Nodes that EC2 takes back at the announced end of their block restart nothing: there would be no place."""
        workload = self._view.workloads().get(held.allocation.holder) or {}
        restarting = (workload.get("status") or {}).get("restarting") or {}
        told = condition(workload, "EndsSoon")
        if restarting.get("reason") not in ("NodeGone", "NodeNotReady") or told.get("status") != "True":
            return
        began_s = (parsed(restarting["since"]) - parsed(told["lastTransitionTime"])).total_seconds()
        if began_s > LATE_S and "; " not in restarting["message"]:
            self.violated(f"{_text(held)} restarts because of nodes that were to be taken back")

    def _kept(self, held: Held, ended: Sequence[Held] = ()) -> None:
        """Check the removal of a reservation; `ended` are those that one write removed together."""
        if held.allocation.phase is Phase.PENDING and self._is_wanted(held.allocation):
            self._dropped(held, ended)
        if held.allocation.allocation_id in self._protected and self._is_wanted(held.allocation):
            self.violated(f"{_text(held)} is removed while the kubelets of the fleet are down")

    def _dropped(self, held: Held, ended: Sequence[Held]) -> None:
        """Claims that requested reserved devices cause no removal of a healthy reservation.

        A fault of one group removes all groups; the first removal is checked. Growth that cannot be satisfied also
        removes the groups that are not bound yet.
        """
        now = self._clock()
        before = self._given_up.get(held.allocation.holder)
        self._given_up[held.allocation.holder] = now
        if before is not None and (now - before).total_seconds() < LATE_S:
            return
        allocation, found = held.allocation, self._view.find("neuronultraservers", held.ultraserver, NAMESPACE)
        same = [each for each in ended if each.allocation.holder == allocation.holder]
        mine = [*self._view.of(allocation.holder), *same, held]
        nodes = {name for each in mine for name in each.allocation.nodes}
        uses = [use for name in nodes for use in self._view.uses().get(name, ())]
        strangers = [use for use in uses if workload_uid(use) != allocation.workload_uid]
        if not strangers or not all(_asks_for_reserved(use) for use in strangers) or found is None:
            return
        if any(self._is_replaced(each.allocation) for each in mine):
            return
        index = allocation.ultraserver_index
        if any(each.allocation.phase is Phase.BOUND and each.allocation.ultraserver_index == index for each in mine):
            return  # it was to replace that group, which is healthy again: `well` below covers its nodes
        spec = self._view.workloads()[allocation.holder]["spec"]
        if int(spec["serverCount"]) > len({each.allocation.ultraserver_index for each in mine}):
            return
        size = int(spec["topologySize"])
        there = [self._nodes[name] for name in nodes]
        well = all(node.healthy and node.modes == MODES and not node.reported for node in there)
        age_s = (now - parsed(allocation.allocated_at)).total_seconds()
        if well and size == allocation.node_count and age_s < SOON_S and "deletionTimestamp" not in found["metadata"]:
            self.violated(f"{_text(held)} is removed by claims for reserved devices of others")

    def _is_replaced(self, allocation: Allocation) -> bool:
        """Return True if a node is not the one that was reserved: it is gone, or another instance has its name."""
        present = [self._view.find("nodes", name) for name in allocation.nodes]
        uids = [node["metadata"]["uid"] if node is not None else "" for node in present]
        return bool(allocation.node_uids) and uids != list(allocation.node_uids)

    def _within_limit(self, new: Held) -> None:
        """A namespace stays within its limit; a slot and its replacement count once.

        The controller may have used an earlier limit.
        """
        namespace, now = new.allocation.workload_namespace, asyncio.get_running_loop().time()
        said = self._limits.get(namespace) or [(0.0, None)]
        older = [limit for at, limit in said if at <= now - LATE_S]
        recent = [*older[-1:], *(limit for at, limit in said if at > now - LATE_S)]
        if any(limit is None for limit in recent):
            return
        most = max(limit for limit in recent if limit is not None)
        mine = {
            (each.allocation.holder, each.allocation.ultraserver_index): len(each.allocation.nodes)
            for each in self._view.held()
            if each.allocation.workload_namespace == namespace
        }
        key = new.allocation.holder, new.allocation.ultraserver_index
        replaces = any(
            (known.held.allocation.holder, known.held.allocation.ultraserver_index) == key
            for known in self._known.values()
            if known.held.allocation.allocation_id != new.allocation.allocation_id
            # One plan may remove the slot that this one replaces, on another NeuronUltraServer too: the namespace then
            # has as many nodes as before.
            and (known.gone_at_s is None or known.gone_at_s > now - SAME_PLAN_S)
        )
        if not replaces and sum(mine.values()) > most:
            self.violated(f"{_text(new)} makes {sum(mine.values())} reserved nodes of namespace {namespace}, of {most}")

    def _shape(self, held: Held) -> None:
        """A slot has 1, 2 or 4 nodes of one UltraServer with consecutive numbers from a multiple of the size."""
        allocation = held.allocation
        nodes = [self._nodes[name] for name in allocation.nodes if name in self._nodes]
        numbers = [node.node_id for node in nodes]
        size, first = len(allocation.nodes), min(numbers, default=0)
        if (
            len(nodes) != size
            or size not in (1, 2, 4)
            or len({node.block for node in nodes}) != 1
            or numbers != list(range(first, first + size))
            or first % size
        ):
            self.violated(f"{_text(held)} is no slot of {size} nodes: numbers {numbers}")

    def _bound(self, held: Held) -> None:
        """Nodes show a reservation before it is bound; the watch of slices may be late, so revisions are compared."""
        allocation, found = held.allocation, self._view.find("neuronultraservers", held.ultraserver, NAMESPACE)
        revision = _revision(found) if found is not None else 0

        def judge() -> None:
            shown = {name: self._tagged.get((name, allocation.allocation_id)) for name in allocation.nodes}
            unseen = [name for name, at in shown.items() if at is None or at > revision]
            if unseen:
                self.violated(f"{_text(held)} was bound before its nodes showed it: {', '.join(unseen)}")

        asyncio.get_running_loop().call_later(LATE_S, judge)
        if is_test(held):
            self._all(qualify_laws.in_company(self._view, self._nodes, held), held)
        for container in self._pods.running.values():
            if container.node in allocation.nodes and self._is_stranger(container, allocation):
                self.violated(f"{_text(held)} was bound while {container.pod} runs on {container.node}")

    # Containers

    def container_started(self, container: Container) -> None:
        """Check a container: its node, its rank, and the other containers."""
        holder = self._view.holders().get(container.node)
        closed = holder is not None and holder.allocation.phase is not Phase.PENDING
        closed = closed and self._nodes[container.node].tags_its_devices  # an older release rejects no claim
        if holder is not None and closed and self._is_stranger(container, holder.allocation):
            self.violated(f"{container.pod} started on {container.node}, which is of {_text(holder)}")
        for each in self._view.of(container.workload_uid or ""):
            if is_test(each):
                self._all(qualify_laws.in_company(self._view, self._nodes, each), each)
        if container.workload_uid is not None and container.rank is None:
            self.violated(f"{container.pod} of a workload started without a rank")
        for other in self._pods.running.values():
            if other is container:
                continue
            shared = _devices(other) & _devices(container)
            if other.node == container.node and shared:
                self.violated(f"{container.pod} and {other.pod} both have {', '.join(sorted(shared))} of {other.node}")
            if (
                container.workload_uid is not None
                and (other.workload_uid, other.rank) == (container.workload_uid, container.rank)
                and other.has_claims(self._view.claim_uids())
            ):
                self.violated(f"{container.pod} and {other.pod} both have rank {container.rank} of their workload")

    def _is_stranger(self, container: Container, allocation: Allocation) -> bool:
        """True if it is not of this workload; containers whose claims users deleted by force do not count."""
        return container.workload_uid != allocation.workload_uid and container.has_claims(self._view.claim_uids())


def _asks_for_reserved(claim: Wire) -> bool:
    requests = claim["spec"]["devices"].get("requests") or ()
    return all((each.get("exactly") or {}).get("deviceClassName") == names.WORKLOAD_CLASS for each in requests)


def _revision(item: Wire) -> int:
    """Of an object: revisions of one etcd, or of one embedded server, are those of all its objects."""
    return int(item["metadata"]["resourceVersion"])


def _identity(allocation: Allocation) -> tuple[Any, ...]:
    return allocation.holder, allocation.nodes, allocation.ultraserver_index


def _devices(container: Container) -> set[str]:
    return {f"neuron{number}" for claim in container.claims for d in claim.devices for number in d.device_ids}


def _text(held: Held) -> str:
    allocation = held.allocation
    return (
        f"{allocation.workload_name}[{allocation.ultraserver_index}] {allocation.phase.value} "
        f"{','.join(allocation.nodes)} ({allocation.allocation_id[:6]})"
    )
