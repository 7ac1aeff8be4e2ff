"""`neuron-dra explain NAME`: what an attribute, a configuration field, a condition or a reason means."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from neuron_dra.ask.explain.meanings import Meaning

EXAMPLES = """\
examples:
  neuron-dra explain topology_x
  neuron-dra explain UltraServerConfig
  kubectl neuron explain NoSpareGroup
  kubectl neuron explain reasons

Fields of custom resources: kubectl explain nusw.spec, kubectl explain nus.status

Exit code 0; 2: there is no such name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra explain`."""
    parser.description = (
        "Print the meaning of a name of the driver or the UltraServer controller: an attribute of a device, a field of "
        "the configuration in claims, a condition, a reason, an Event, an alert, a state, a code, or why a device is "
        "unhealthy."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="a name or a topic; without one, the names")
    parser.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text", help="form of the output")


def run(args: argparse.Namespace) -> int:
    """Print the meaning, or the names."""
    from neuron_dra.ask.explain import meanings
    from neuron_dra.ask.render import terminal, words

    entries = meanings.find(args.name) if args.name else meanings.entries()
    if not entries:
        near = words.nearest(args.name, meanings.known())
        if near:
            hint = f"; did you mean {near}?"
        else:
            hint = f"; topics: {', '.join(meanings.TOPICS)}"
        raise SettingsError(f"{args.name}: neither the driver nor the controller uses this name{hint}")
    if args.output != "text":
        terminal.write_data("Explanation", [entry.to_wire() for entry in entries], args.output)
    elif not args.name:
        for topic in meanings.TOPICS:
            listed = dict.fromkeys(entry.name for entry in entries if entry.topic == topic)
            terminal.write(
                [terminal.colored(topic, "bold"), *terminal.wrapped(", ".join(listed), first="  ", rest="  ")]
            )
    else:
        for entry in entries:
            terminal.write(_lines(entry))
    return 0


def _lines(entry: Meaning) -> list[str]:
    from neuron_dra.ask.render import report_text, terminal
    from neuron_dra.ask.render.findings import Finding

    lines = [terminal.colored(entry.name, "bold"), *terminal.wrapped(entry.what, first="  ", rest="  ")]
    return lines + report_text.details(Finding("", "", (("meaning", entry.text), *entry.facts)))
