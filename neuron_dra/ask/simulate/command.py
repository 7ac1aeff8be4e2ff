"""`neuron-dra simulate FILE...`: what pods would get, on this cluster, a snapshot, or a fleet that does not exist."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuron_dra.ask.read import source
from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from neuron_dra.ask.read.manifests import Manifests
    from neuron_dra.ask.read.snapshot import Key, Snapshot
    from neuron_dra.ask.simulate.simulation import PodOutcome
    from neuron_dra.ask.world.container_sight import ContainerSight
    from neuron_dra.ask.world.world import World
    from neuron_dra.core.wire import Wire
    from neuron_dra.simulate.semantics import Semantics

EXAMPLES = """\
examples:
  neuron-dra simulate job.yaml --fleet '4 x trn2.48xlarge'
  neuron-dra simulate template.yaml deployment.yaml --fleet fleet.txt
  kubectl neuron simulate job.yaml -n ml

A fleet has a line for each type: 10 x trn2.48xlarge, 3 x ultraserver
trn2u.48xlarge, or 2 x node for nodes without Neuron devices. Labels and taints
of the nodes may follow: 10 x trn2.48xlarge pool=a neuron=true:NoSchedule.
Nodes have the EFA interfaces of their type, as if the EFA driver were there.

Exit code 0: all pods run, 1: some wait, or the driver would reject them; 2: a file is wrong."""
OLD_NOTE = (
    "simulated as Kubernetes 1.34 and 1.35 allocate, without device taints and connected sets; a node on which the "
    "search takes too long is skipped"
)
LONGEST_NAME = 255  # of a file; longer texts are fleets
SHOWN = 12
MOST_CAUSES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra simulate`."""
    parser.description = (
        "Place the pods of manifests one after the other and print which devices each would get, or why it would wait. "
        "Simulated: devices, selectors, constraints, taints, node selectors and affinity, CPU and memory, quotas. "
        "Nothing is created."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    source.add_files(parser)
    parser.add_argument(
        "--fleet", default="", metavar="FILE", help="a fleet's file, or its text, in place of a cluster"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "wide", "json", "yaml"), default="text", help="wide: a line for every pod"
    )
    source.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate, print what the pods get, and return the exit code."""
    from neuron_dra import object_files
    from neuron_dra.ask.read import manifests
    from neuron_dra.ask.read.snapshot import build, key_of
    from neuron_dra.ask.render import terminal
    from neuron_dra.ask.simulate import annotated, deployed, reserved, rewritten, simulation
    from neuron_dra.ask.world import server
    from neuron_dra.ask.world.world import World

    gc.disable()  # a fleet has millions of values, none of which is garbage
    names = source.files(args)
    files = []
    for name in names:
        files += object_files.read(name, "FILE")
    if args.fleet:
        cluster_snapshot, namespace = None, args.namespace or "default"
    else:
        cluster_snapshot, namespace = source.load(args, [deployed.KEY] if any(map(_reserves, files)) else [])
    expanded = manifests.expand(files, namespace)
    checked = build([*expanded.objects, *expanded.pods, *expanded.daemons])  # checks the fields
    if not expanded.pods and not expanded.daemons:
        raise SettingsError(f"{', '.join(names)}: no pods to place{_without_pods(expanded)}")
    snapshot = cluster_snapshot or _imagined(args, checked)
    annotated_jobs = annotated.workloads(expanded, snapshot)
    workloads = build([*expanded.workloads, *annotated_jobs.objects]).all("NeuronUltraServerWorkload")
    reservations = reserved.reserve(workloads, snapshot, datetime.datetime.now(datetime.UTC), checked)
    daemons: list[Wire] = []
    for daemon in expanded.daemons:
        daemons += simulation.on_each_node(checked.objects[key_of(daemon)], snapshot)
    pods = [*daemons, *(rewritten.pod(snapshot, checked.objects[key_of(pod)]) for pod in expanded.pods)]
    rules = _rules(args, snapshot)
    daemon_keys = {key_of(daemon) for daemon in expanded.daemons}
    added = [raw_object for key, raw_object in checked.objects.items() if key not in daemon_keys]
    changed = snapshot.changed([*added, *pods, *reservations.objects], reservations.removed)
    trial = simulation.Simulation(World(changed, proposes=False, rules=rules))
    outcomes = trial.run(pods)
    notes = [
        *expanded.notes,
        *((*_without_interfaces(outcomes), *_without_ultraservers(outcomes)) if args.fleet else ()),
        *annotated_jobs.notes,
        *reservations.notes,
        *_about_the_cluster(snapshot, pods),
        *([OLD_NOTE] if rules.permutations else _faults(args)),
        *_unpredictable(outcomes, trial.world),
        *_of_the_scheduler(trial.world, args.kubernetes or snapshot.version),
        *filter(None, ["" if args.fleet else server.unknown(snapshot)]),
        "among nodes that serve a pod equally well, the scheduler may choose another one",
    ]
    if args.output in ("json", "yaml"):
        rows = [_data(outcome, trial.world) for outcome in outcomes]
        terminal.write_data("PodOutcome", rows, args.output, notes=notes)
    else:
        terminal.write(_lines(trial.world, outcomes, wide=args.output == "wide"))
        terminal.write(terminal.wrapped(_summary(outcomes, simulation.held(trial.world))))
        for note in notes:
            terminal.write(terminal.wrapped(note, first="note: ", rest="      "))
    if all(outcome.runs for outcome in outcomes):
        return 0
    return 1


def _without_pods(expanded: Manifests) -> str:
    """Return what manifests without pods lack, as the end of an error."""
    kinds = dict.fromkeys(str(raw_object["kind"]) for raw_object in (*expanded.objects, *expanded.workloads))
    hint = ""
    if kinds:
        hint = f"; a {' or '.join(kinds)} gets devices when a pod uses it: add a pod or a Job that names it"
    return hint + "".join(f"; {note}" for note in expanded.notes)


def _about_the_cluster(snapshot: Snapshot, pods: Sequence[Wire]) -> list[str]:
    """Return notes about what was not read, pods that the cluster has already, and quotas that nobody counts."""
    from neuron_dra.ask.read.pod_views import PodView
    from neuron_dra.ask.read.snapshot import key_of
    from neuron_dra.ask.read.views import QuotaView
    from neuron_dra.ask.render import words
    from neuron_dra.ask.simulate import rewritten
    from neuron_dra.ask.why import creating
    from neuron_dra.ask.world import unseen

    notes = list(filter(None, [*rewritten.unknown(snapshot, pods), unseen.note(snapshot)]))
    present_names = []
    for pod in pods:
        stored = snapshot.objects.get(key_of(pod))
        if stored is not None and not PodView.of(stored).has_ended:
            present_names.append(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
    if present_names:
        listed_names = words.listed(present_names)
        notes.append(f"in the cluster already, with the devices that they have, and placed once more: {listed_names}")
    namespaces = {pod["metadata"].get("namespace") for pod in pods}
    for quota in map(QuotaView.of, snapshot.all("ResourceQuota")):
        if quota.metadata.namespace in namespaces and creating.is_uncounted(quota):
            name = f"{quota.metadata.namespace}/{quota.metadata.name}"
            notes.append(f"not counted: ResourceQuota {name}, which has no status, as without a quota controller")
    return notes


def _reserves(raw_object: Wire) -> bool:
    """Return True for an object of a manifest that makes the UltraServer controller reserve nodes."""
    from neuron_dra.core import job_wish, ultraserver

    annotations = (raw_object.get("metadata") or {}).get("annotations") or {}
    return raw_object.get("kind") == ultraserver.WORKLOAD_KIND or job_wish.ANNOTATION in annotations


def _without_interfaces(outcomes: Sequence[PodOutcome]) -> list[str]:
    """Return the note about devices of other drivers that an imagined fleet lacks, if a pod waits for some."""
    from neuron_dra.ask.world.imagined import EFA_CLASS, EFA_DRIVER

    for outcome in outcomes:
        if outcome.finding is None or outcome.finding.code not in ("ClassMissing", "DriverNotSeen"):
            continue
        if "names no DeviceClass" in outcome.finding.text:
            continue
        if EFA_CLASS in outcome.finding.text or EFA_DRIVER in outcome.finding.text:
            return ["no type of --fleet has EFA interfaces that are known"]
        return ["nodes of --fleet have Neuron devices and the EFA interfaces of their type; others are not imagined"]
    return []


def _without_ultraservers(outcomes: Sequence[PodOutcome]) -> list[str]:
    """Return the note about UltraServers that an imagined fleet lacks, if a pod waits for one."""
    for outcome in outcomes:
        if outcome.finding is not None and ("reason", "NoUltraServers") in outcome.finding.facts:
            return [
                "nodes of --fleet form UltraServers with the word ultraserver before their type, as in 2 x ultraserver "
                "trn2u.48xlarge"
            ]
    return []


def _rules(args: argparse.Namespace, snapshot: Snapshot) -> Semantics:
    """Return the semantics of the scheduler, with the cost of its search; a fleet has the newest one."""
    from neuron_dra.ask.world import server
    from neuron_dra.core import versions
    from neuron_dra.simulate import semantics

    if args.fleet:
        return semantics.of(versions.parse(args.kubernetes or ""))
    rules = semantics.of(server.version(snapshot))
    return dataclasses.replace(rules, taints=server.rules(snapshot).taints)


def _imagined(args: argparse.Namespace, checked: Snapshot) -> Snapshot:
    """Return the fleet of --fleet, with the connected sets that manifests request."""
    for flag in ("snapshot", "kubeconfig", "context"):
        if getattr(args, flag):
            raise SettingsError(f"--{flag} and --fleet: give one of them")
    from neuron_dra.ask.read import snapshot
    from neuron_dra.ask.world import imagined

    path = Path(args.fleet)
    is_file = len(args.fleet) <= LONGEST_NAME and path.is_file()
    try:
        text = path.read_text() if is_file else args.fleet
    except (OSError, UnicodeDecodeError) as err:
        raise SettingsError(f"--fleet {args.fleet}: {err}") from err
    if not is_file and " x " not in text:
        raise SettingsError(
            f"--fleet {args.fleet}: there is no such file; or write a fleet, such as '4 x trn2.48xlarge'"
        )
    shown = f"--fleet {args.fleet}" if is_file else "--fleet"
    sets = () if _faults(args) else imagined.requested_sets(checked)
    return snapshot.build(imagined.fleet(text, shown, sets, shared=True, interfaces=True))


def _faults(args: argparse.Namespace) -> list[str]:
    """Return why nodes publish no connected sets on the version that was given; nothing if they do, or if none was."""
    from neuron_dra.core import releases

    why = releases.why_no_sets_on(args.kubernetes) if args.kubernetes else ""
    if why:
        return [f"nodes publish no connected sets: {why}"]
    return []


def _unpredictable(outcomes: Sequence[PodOutcome], world: World) -> list[str]:
    """Return the note about nodes on which the scheduler may choose other devices than the simulation."""
    from neuron_dra.ask.render import words
    from neuron_dra.ask.simulate.simulation import is_predictable

    nodes: dict[str, None] = {}
    for outcome in outcomes:
        if outcome.placement is None or outcome.placement.node in nodes:
            continue
        if not is_predictable(world, outcome.placement):
            nodes[outcome.placement.node] = None
    if not nodes:
        return []
    return [
        f"pods on {words.listed(nodes)} may get other devices than those shown: schedulers before 1.36 try the slices "
        "of a node in an order that changes; a pod whose selector fails on some of the devices may also wait"
    ]


def _of_the_scheduler(world: World, version: str) -> list[str]:
    """Return the known faults of a scheduler's version that meet the simulated cluster."""
    from neuron_dra.ask.why import known_faults
    from neuron_dra.core import releases

    versioned = world.following(dataclasses.replace(world.snapshot, version=version), frozenset())
    present_faults = known_faults.present(versioned)
    return [fault.text for fault in present_faults if fault.objects and fault.fault.component == releases.SCHEDULER]


def _lines(world: World, outcomes: Sequence[PodOutcome], *, wide: bool) -> list[str]:
    from neuron_dra.ask.render import report_text, terminal, words

    shown = outcomes if wide else outcomes[:SHOWN]
    shared = {key for outcome in outcomes for key in outcome.shared}
    rows = [["POD", "NODE", "GETS"]]
    variables: dict[str, None] = {}
    for outcome in shown:
        node = outcome.placement.node if outcome.placement else ""
        sights = _sights(outcome, world)
        rows.append([_name(outcome), node or "-", _gets(outcome, sights, world, shared)])
        if wide:
            rows += [[f"  {sight.container}", "", sight.text(world.type_of(node))] for sight in sights]
        for sight in sights:
            if sight.variables:
                variables[f"container {sight.container} gets {', '.join(sight.variables)}"] = None
    lines = terminal.table(rows, hosts=1)
    if len(outcomes) > len(shown):
        lines.append(f"and {words.count(len(outcomes) - len(shown), 'more pod')}: -o wide")
    for text in () if wide else list(variables)[:MOST_CAUSES]:
        lines += terminal.wrapped(text, rest="  ")
    failed = {_cause(outcome): outcome for outcome in reversed(outcomes) if not outcome.runs}
    number = Counter(_cause(outcome) for outcome in outcomes if not outcome.runs)
    for text in list(number)[:MOST_CAUSES]:
        outcome = failed[text]
        lines += ["", *terminal.wrapped(f"{words.count(number[text], 'pod')} cannot run: {text}", rest="  ")]
        lines += report_text.details(outcome.finding) if outcome.finding else []
        for also_text in outcome.also:
            lines += terminal.wrapped(f"also: {also_text}", rest="  ")
    return [*lines, ""]


def _summary(outcomes: Sequence[PodOutcome], held_by_unit: Mapping[str, tuple[int, int]]) -> str:
    """Return how many pods run, and how much is held then, each with its unit."""
    from neuron_dra.ask.render import words

    parts = []
    for unit, (taken, published) in held_by_unit.items():
        parts.append(f"{taken} of {words.count(published, unit)}")
    placed = sum(outcome.runs for outcome in outcomes)
    text = " and ".join(parts) or "0 of 0 devices"
    is_one = [published for _, published in held_by_unit.values()] == [1]
    return f"{placed} of {len(outcomes)} pods run; {text} {'is' if is_one else 'are'} held"


def _sights(outcome: PodOutcome, world: World) -> list[ContainerSight]:
    """Return what each container of a pod sees that runs; `world` is the one in which it has its devices."""
    from neuron_dra.ask.read.snapshot import key_of
    from neuron_dra.ask.world import container_sight

    placed = world.snapshot.objects.get(key_of(outcome.pod))
    if not outcome.runs or outcome.placement is None or placed is None:
        return []
    return container_sight.sights(placed, world.claims_of(placed), world.type_of(outcome.placement.node))


def _gets(outcome: PodOutcome, sights: Sequence[ContainerSight], world: World, shared: Collection[Key]) -> str:
    """Return the devices of a pod and the containers that see others than all of them, or why it has none.

    `shared` are the claims that several pods use.
    """
    from neuron_dra.ask.read.snapshot import key_of
    from neuron_dra.ask.render import words
    from neuron_dra.core.names import DRIVER

    if outcome.placement is None:
        return "waits"
    if not outcome.runs:
        return "rejected by the driver"
    spec = world.type_of(outcome.placement.node)
    own_names, shared_names = outcome.devices(shared)
    texts = [words.devices(own_names, spec)] if own_names else []
    if shared_names:
        texts.append(f"{words.devices(shared_names, spec)} (shared)")
    text = ", ".join(texts)
    claims = world.claims_of(world.snapshot.objects[key_of(outcome.pod)])
    own_devices = {result.device for claim in claims for result in claim.seen.results if result.driver == DRIVER}
    seeing = [sight for sight in sights if sight.devices or sight.sees_all]
    if own_devices and not seeing:
        return f"nothing (holds {text})"
    if not own_devices or (len(seeing) == 1 and set(seeing[0].devices) == own_devices):
        return text
    parts = [f"{sight.container}: {words.devices(sight.devices, spec) or 'nothing'}" for sight in seeing]
    return f"{text} ({'; '.join(parts)})"


def _cause(outcome: PodOutcome) -> str:
    if outcome.finding:
        return outcome.finding.text
    return f"the driver would reject the claim: {outcome.rejected}"


def _name(outcome: PodOutcome) -> str:
    meta = outcome.pod["metadata"]
    return f"{meta['namespace']}/{meta['name']}"


def _data(outcome: PodOutcome, world: World) -> dict[str, Any]:
    placed = outcome.placement
    sights = _sights(outcome, world)
    return {
        "pod": _name(outcome),
        "runs": outcome.runs,
        **({"node": placed.node, "allocations": dict(placed.allocations)} if placed else {}),
        **({"containers": [sight.to_wire() for sight in sights]} if sights else {}),
        **({"cause": outcome.finding.to_wire()} if outcome.finding else {}),
        **({"rejected": outcome.rejected} if outcome.rejected else {}),
    }
