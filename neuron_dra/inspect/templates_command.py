"""`neuron-dra templates`: ResourceClaimTemplates for the usual jobs."""

from __future__ import annotations

import argparse

from neuron_dra.errors import SettingsError

EXAMPLES = """\
examples:
  neuron-dra templates list trn2.48xlarge
  neuron-dra templates show neuron-4-trn2-48xlarge
  neuron-dra templates show neuron-16-trn2-48xlarge --lnc 1 | kubectl apply -n ml -f -

Exit code 0; 2: there is no such type or template."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra templates`."""
    parser.description = (
        "List or print ResourceClaimTemplates for the usual numbers of devices of an instance type, and for groups of "
        "UltraServer nodes. They work on Kubernetes 1.34 and later."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("action", choices=("list", "show"), help="list names, or print manifests")
    parser.add_argument("names", nargs="*", metavar="NAME", help="list: instance types; show: templates")
    parser.add_argument("--lnc", type=int, default=0, metavar="N", help="show: physical cores in a logical NeuronCore")
    parser.add_argument("--efa", action="store_true", help="show: with the EFA interfaces beside the devices")


def run(args: argparse.Namespace) -> int:
    """Print the list or the manifests."""
    import difflib

    import yaml

    from neuron_dra.core import catalogue
    from neuron_dra.inspect import templates, terminal

    if args.action == "list":
        if args.lnc or args.efa:
            raise SettingsError("--lnc and --efa: only with show")
        for name in args.names:
            if catalogue.lookup(name) is None:
                raise SettingsError(f"the instance type {name} is unknown{catalogue.nearest(name)}")
        found = [each for each in templates.all_of_them() if not args.names or each.type.name in args.names]
        terminal.write(terminal.table([["TEMPLATE", "A POD GETS"], *([each.name, each.text] for each in found)]))
        return 0
    known = {each.name: each for each in templates.all_of_them()}
    if not args.names:
        raise SettingsError("templates show: name a template; see templates list")
    texts = []
    for name in args.names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise SettingsError(f"there is no template {name}" + (f"; did you mean {near[0]}?" if near else ""))
        shown = templates.with_cores(known[name], args.lnc) if args.lnc else known[name]
        shown = templates.with_efa(shown) if args.efa else shown
        texts.append(f"# A pod gets {shown.text}.\n{yaml.safe_dump(shown.wire, sort_keys=False, width=120)}")
    terminal.write(["---\n".join(texts).rstrip("\n")])
    return 0
