"""`neuron-dra why TYPE/NAME`: why it waits, was rejected, or is broken, and what helps."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from neuron_dra.ask.read import source
from neuron_dra.core import labels, program
from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neuron_dra.ask.read.snapshot import Snapshot
    from neuron_dra.ask.render.findings import Report
    from neuron_dra.ask.world.world import World
    from neuron_dra.core.wire import Wire

ULTRASERVER = "NeuronUltraServer"
EVERYWHERE = ("Node", ULTRASERVER)
"""Kinds that are not looked for in the namespace of the person who asks."""
EXAMPLES = """\
examples:
  kubectl neuron why pod/train-0 -n ml
  kubectl neuron why pods -n ml -l app=train
  kubectl neuron why node/ip-10-0-1-20.ec2.internal
  neuron-dra why workload/my-training-job --snapshot cluster.json

Exit code 0: nothing is wrong, 1: a cause was found, or it is unknown; 2: it cannot be looked at."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra why`."""
    parser.description = (
        "Explain why a pod, claim, node or UltraServer workload is not as it should be. The first line names the "
        "cause; facts and changes follow. A change is printed only if a simulation shows that it helps."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    text = (
        "pod/NAME, claim/NAME, node/NAME, workload/NAME, nus/NAME, or a job, as deploy/NAME, job/NAME or jobset/NAME; "
        "or TYPE NAME; or the type alone, for all objects of it that something is wrong with"
    )
    parser.add_argument("what", nargs="+", metavar="TYPE/NAME", help=text)
    forms = ("text", "wide", "name", "json", "yaml")
    parser.add_argument(
        "-o", "--output", choices=forms, default="text", help="form of the output; name: TYPE/NAME alone"
    )
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="with a type alone: in all namespaces")
    source.add_selector(parser, of="the objects")
    source.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report and return the exit code."""
    from neuron_dra.ask.read import snapshot as snapshots
    from neuron_dra.ask.why import jobs

    requested = _wanted(args.what, {**jobs.KINDS, **snapshots.ABBREVIATIONS})
    by_label = args.selector is not labels.EVERY
    _, first_name = requested[0]
    if by_label and any(name for _, name in requested):
        raise SettingsError(f"-l and {first_name}: give a name or labels")
    named_jobs = [(kind, "", name) for kind, name in requested if kind in jobs.KINDS.values() and name]
    snapshot, namespace = source.load(args, named_jobs)
    from neuron_dra.ask.why import answer
    from neuron_dra.ask.world.world import World

    world = World(snapshot, proposes=answer.proposes(snapshot))
    reports: list[tuple[str, Report]] = []
    for kind, name in requested:
        place = "" if kind == "Node" else namespace
        if kind in jobs.KINDS.values():
            if not name:
                raise SettingsError(f"{kind}: name one, as {kind.lower()}/NAME")
            job_report = jobs.report(world, kind, name, namespace)
            if job_report is None:
                raise SettingsError(_absent_job(snapshot, kind, name, namespace, from_file=bool(args.snapshot)))
            reports.append((f"{kind.lower()}/{name}", job_report))
        elif name:
            object_report = _of_name(world, kind, name, place)
            if object_report is None:
                raise SettingsError(_absent(snapshot, kind, name, place, from_file=bool(args.snapshot)))
            reports.append((f"{kind.lower()}/{name}", object_report))
        else:
            everywhere = args.all_namespaces or kind in EVERYWHERE
            every = _of_kind(world, kind, None if everywhere else place, args.selector)
            if not every and (by_label or kind in snapshot.left_out):
                raise SettingsError(_absent(snapshot, kind, "", place, from_file=bool(args.snapshot)))
            shown = [(label, report) for label, report in every if by_label or not report.fine]
            if not shown and args.output in ("text", "wide"):
                sys.stderr.write(f"{program.NAME}: {_nothing(kind, len(every), '' if everywhere else place)}\n")
            reports += shown
    return _print(reports, args.output, several=by_label or len(requested) > 1 or not first_name)


def _of_name(world: World, kind: str, name: str, namespace: str) -> Report | None:
    """Return the report about one object; None if there is none. A node needs no domain, an UltraServer no object."""
    from neuron_dra.ask.read.views import UltraServerView
    from neuron_dra.ask.render import words
    from neuron_dra.ask.why import answer

    snapshot = world.snapshot
    named_object = snapshot.get(kind, name, namespace)
    if named_object is None and kind == "Node":
        named_object = snapshot.get(kind, words.host(name, world.nodes), "")
    if named_object is not None:
        return answer.of(world, kind, named_object)
    if kind != ULTRASERVER:
        return None
    for raw_server in snapshot.all(kind):
        ultraserver = UltraServerView.of(raw_server)
        if name in (ultraserver.metadata.name, ultraserver.status.ultraserver_id):
            return answer.of(world, kind, raw_server)
    return answer.of_published(world, name)


def _of_kind(world: World, kind: str, namespace: str | None, selector: labels.Test) -> list[tuple[str, Report]]:
    """Return the reports about all objects of a kind, and about UltraServers that only nodes show, with their names."""
    from neuron_dra.ask.render import words
    from neuron_dra.ask.why import answer
    from neuron_dra.ask.world import faults

    reports = []
    for item in _selected(world.snapshot, kind, namespace, selector):
        reports.append((f"{kind.lower()}/{item['metadata']['name']}", answer.of(world, kind, item)))
    if kind == ULTRASERVER and selector is labels.EVERY:
        for name in sorted(world.ultraservers.keys() - faults.objects_by_id(world), key=words.natural):
            report = answer.of_published(world, name)
            if report is not None:
                reports.append((f"{kind.lower()}/{name}", report))
    return reports


def _nothing(kind: str, number: int, namespace: str) -> str:
    """Return the line for a type of which nothing is explained: a person would take no output for an error."""
    from neuron_dra.ask.render import words

    if number:
        return f"nothing is wrong with {words.count(number, kind)}"
    return f"there is no {kind}{f' in namespace {namespace}' if namespace else ''}"


def _wanted(words: Sequence[str], kinds: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return kind and name of each object that is asked for, as kubectl reads its arguments; a name may be empty."""
    if "/" not in words[0]:
        kind = _kind(words[0], kinds)
        return [(kind, name) for name in words[1:]] or [(kind, "")]
    requested = []
    for word in words:
        kind, slash, name = word.partition("/")
        if not slash or not name:
            raise SettingsError(_usage(word))
        requested.append((_kind(kind, kinds), name))
    return requested


def _kind(word: str, kinds: Mapping[str, str]) -> str:
    """Return the kind that a word means: singular, plural, short, or with its group."""
    plain = word.lower().partition(".")[0]
    kind = kinds.get(plain) or kinds.get(plain.removesuffix("s"))
    if kind is None:
        raise SettingsError(_usage(word))
    return kind


def _usage(word: str) -> str:
    texts = []
    for type_name in ("pod", "claim", "node", "workload", "nus", "deploy", "job"):
        texts.append(f"{type_name}/NAME")
    forms = ", ".join(texts)
    return f"{word}: write TYPE/NAME, one of {forms}, or TYPE -l SELECTOR"


def _print(reports: Sequence[tuple[str, Report]], form: str, *, several: bool) -> int:
    from neuron_dra.ask.render import report_text, terminal

    if form == "name":
        terminal.write([shown for shown, _ in reports])
    elif form in ("json", "yaml"):
        report_objects = [report.to_wire() for _, report in reports]
        terminal.write_data("WhyReport", report_objects if several else report_objects[0], form)
    elif reports:
        terminal.write(report_text.together([report for _, report in reports]))
    if all(report.fine for _, report in reports):
        return 0
    return 1


def _selected(snapshot: Snapshot, kind: str, namespace: str | None, selector: labels.Test) -> list[Wire]:
    """Return the objects of a kind and namespace, None for all, with the labels, by name."""
    from neuron_dra.ask.read.views import MetaView
    from neuron_dra.ask.render import words

    selected = []
    for item in snapshot.all(kind):
        meta = MetaView.of(item["metadata"])
        if namespace in (None, meta.namespace) and selector(meta.labels):
            selected.append(item)
    return sorted(selected, key=lambda item: words.natural(MetaView.of(item["metadata"]).name))


def _absent_job(snapshot: Snapshot, kind: str, name: str, namespace: str, *, from_file: bool) -> str:
    """Return the message for a workload of which nothing was read: that it does not exist needs a list of its kind."""
    from neuron_dra.ask.read import job_objects

    if from_file and not snapshot.all(kind):
        resource = job_objects.RESOURCES[kind]
        command = source.printing(f"{resource.plural}.{resource.group}")
        return (
            f"{kind} {namespace}/{name}: the file has no pods of it, no Events about it, and no {kind}; to write one "
            f"that has: {command}"
        )
    return _absent(snapshot, kind, name, namespace, from_file=from_file)


def _absent(snapshot: Snapshot, kind: str, name: str, namespace: str, *, from_file: bool = False) -> str:
    """Return the message for an object that is not there: a file without its kind does not show that it is absent."""
    from neuron_dra.ask.read.snapshot import NOT_IN_FILE, NOT_SERVED

    where = f" in namespace {namespace}" if namespace else ""
    is_unread = kind in snapshot.left_out or (from_file and not snapshot.damaged)
    if not snapshot.all(kind) and is_unread:
        why = snapshot.left_out.get(kind, NOT_IN_FILE)
        hint = f"; to write one that has: {source.printing()}" if why == NOT_IN_FILE else ""
        if why == NOT_SERVED and kind.startswith("Neuron"):
            hint = "; install the CRDs of the UltraServer controller"
        return f"{kind} {name or '-l'}: {why}{hint}"
    if not name:
        return f"no {kind}{where} has these labels"
    for damaged in snapshot.damaged:
        if (damaged.kind, damaged.namespace, damaged.name) == (kind, namespace, name):
            return f"{kind} {damaged.key} cannot be decoded: {damaged.why}"
    near = snapshot.near(kind, name, namespace)
    namespaces = set()
    for key in snapshot.objects:
        if key[0] == kind and key[2] == name:
            namespaces.add(key[1])
    other_namespaces = sorted(namespaces)
    hint = ""
    if near:
        hint = f"; did you mean {near}?"
    elif other_namespaces:
        hint = f"; namespace {other_namespaces[0]} has one: -n {other_namespaces[0]}"
    return f"there is no {kind} {name}{where}{hint}"
