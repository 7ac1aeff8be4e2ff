"""`neuron-dra why TYPE/NAME`: why it waits, was rejected, or is broken, and what helps."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neuron_dra.ask.read import source
from neuron_dra.core import labels
from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from neuron_dra.ask.read.snapshot import Snapshot
    from neuron_dra.core.wire import Wire

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
        "Explain why a pod, claim, node or UltraServer workload is not as it should be: the cause first, then what was "
        "there. A change is printed only if a simulation of it helps."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    text = "pod/NAME, claim/NAME, node/NAME, workload/NAME or nus/NAME; with -l only the type"
    parser.add_argument("what", metavar="TYPE/NAME", help=text)
    parser.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text", help="form of the output")
    source.add_selector(parser, of="the objects")
    source.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report and return the exit code."""
    from neuron_dra.ask.read import snapshot as snapshots

    word, slash, name = args.what.partition("/")
    kind = snapshots.ABBREVIATIONS.get(word.lower().removesuffix("s")) or snapshots.ABBREVIATIONS.get(word.lower())
    by_label = args.selector is not labels.EVERY
    if kind is None or bool(slash) == by_label or bool(name) == by_label:
        known = ", ".join(f"{each}/NAME" for each in ("pod", "claim", "node", "workload", "nus"))
        raise SettingsError(f"{args.what}: write TYPE/NAME, one of {known}, or TYPE -l SELECTOR")
    snapshot, namespace = source.load(args)
    from neuron_dra.ask.render import report_text, terminal
    from neuron_dra.ask.why import answer

    namespace = "" if kind == "Node" else namespace
    found = _selected(snapshot, kind, namespace, args.selector) if by_label else [snapshot.get(kind, name, namespace)]
    reports = [answer.report(snapshot, kind, each) for each in found if each is not None]
    if not reports:
        raise SettingsError(_absent(snapshot, kind, name, namespace))
    if args.output == "text":
        terminal.write("\n\n".join("\n".join(report_text.lines(each)) for each in reports).split("\n"))
    else:
        data = [each.to_wire() for each in reports]
        terminal.write_data(data if by_label else data[0], args.output)
    return 0 if all(each.fine for each in reports) else 1


def _selected(snapshot: Snapshot, kind: str, namespace: str, selector: labels.Test) -> list[Wire]:
    """Return the objects of a kind and namespace with the labels, by name."""
    mine = [each for each in snapshot.all(kind) if each["metadata"].get("namespace", "") == namespace]
    found = [each for each in mine if selector(each["metadata"].get("labels") or {})]
    return sorted(found, key=lambda each: str(each["metadata"]["name"]))


def _absent(snapshot: Snapshot, kind: str, name: str, namespace: str) -> str:
    """Return the message for an object that is not there."""
    from neuron_dra.ask.read.snapshot import NOT_SERVED

    where = f" in namespace {namespace}" if namespace else ""
    if not snapshot.all(kind) and kind in snapshot.left_out:
        why = snapshot.left_out[kind]
        hint = (
            "; install the CRDs of the UltraServer controller"
            if why == NOT_SERVED and kind.startswith("Neuron")
            else ""
        )
        return f"{kind} {name or '-l'}: {why}{hint}"
    if not name:
        return f"no {kind}{where} has these labels"
    for damaged in snapshot.damaged:
        if (damaged.kind, damaged.namespace, damaged.name) == (kind, namespace, name):
            return f"{kind} {damaged.key} cannot be decoded: {damaged.why}"
    near = snapshot.near(kind, name, namespace)
    others = sorted({key[1] for key in snapshot.objects if key[0] == kind and key[2] == name})
    hint = f"; did you mean {near}?" if near else f"; namespace {others[0]} has one: -n {others[0]}" if others else ""
    return f"there is no {kind} {name}{where}{hint}"
