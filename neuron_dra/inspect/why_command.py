"""`neuron-dra why TYPE/NAME`: why it waits, was rejected, or is broken, and what helps."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neuron_dra.errors import SettingsError
from neuron_dra.inspect import source

if TYPE_CHECKING:
    from neuron_dra.inspect.snapshot import Snapshot

EXAMPLES = """\
examples:
  kubectl neuron why pod/train-0 -n ml
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
    parser.add_argument("what", metavar="TYPE/NAME", help="pod/NAME, claim/NAME, node/NAME or workload/NAME")
    parser.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text", help="form of the output")
    source.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report and return the exit code."""
    from neuron_dra.inspect import snapshot as snapshots

    word, slash, name = args.what.partition("/")
    kind = snapshots.ABBREVIATIONS.get(word.lower().removesuffix("s")) or snapshots.ABBREVIATIONS.get(word.lower())
    if not slash or not name or kind is None:
        known = ", ".join(f"{each}/NAME" for each in ("pod", "claim", "node", "workload"))
        raise SettingsError(f"{args.what}: write TYPE/NAME, one of {known}")
    snapshot, namespace = source.load(args)
    from neuron_dra.inspect import terminal, why_other, why_text

    namespace = "" if kind == "Node" else namespace
    found = snapshot.get(kind, name, namespace)
    if found is None:
        raise SettingsError(_absent(snapshot, kind, name, namespace))
    report = why_other.report(snapshot, kind, found)
    if args.output == "text":
        terminal.write(why_text.lines(report))
    else:
        terminal.write_data(report.to_wire(), args.output)
    return 0 if report.fine else 1


def _absent(snapshot: Snapshot, kind: str, name: str, namespace: str) -> str:
    """Return the message for an object that is not there."""
    from neuron_dra.inspect.snapshot import NOT_SERVED

    where = f" in namespace {namespace}" if namespace else ""
    if not snapshot.all(kind) and kind in snapshot.left_out:
        why = snapshot.left_out[kind]
        hint = (
            "; install the CRDs of the UltraServer controller"
            if why == NOT_SERVED and kind.startswith("Neuron")
            else ""
        )
        return f"{kind} {name}: {why}{hint}"
    near = snapshot.near(kind, name, namespace)
    others = sorted({key[1] for key in snapshot.objects if key[0] == kind and key[2] == name})
    hint = f"; did you mean {near}?" if near else f"; namespace {others[0]} has one: -n {others[0]}" if others else ""
    return f"there is no {kind} {name}{where}{hint}"
