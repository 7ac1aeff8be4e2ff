"""`neuron-dra templates`: ResourceClaimTemplates for the usual jobs."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from neuron_dra.ask.templates.library import LibraryTemplate

EXAMPLES = """\
examples:
  neuron-dra templates list trn2.48xlarge
  neuron-dra templates show neuron-4-trn2-48xlarge
  neuron-dra templates show neuron-16-trn2-48xlarge --lnc 1 | kubectl apply -f -
  neuron-dra templates write neuron-4-trn2-48xlarge --dir templates

Exit code 0; 2: there is no such type or template, or a file exists already."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra templates`."""
    parser.description = (
        "List or print ResourceClaimTemplates for the usual numbers of devices of an instance type, and for groups of "
        "UltraServer nodes. They work on Kubernetes 1.34 and later."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("action", choices=("list", "show", "write"), help="list names, print manifests, or write files")
    parser.add_argument("names", nargs="*", metavar="NAME", help="list: instance types; show, write: templates")
    parser.add_argument("--lnc", type=int, default=0, metavar="N", help="physical cores in a logical NeuronCore")
    parser.add_argument("--efa", action="store_true", help="with the EFA interfaces beside the devices")
    parser.add_argument("--dir", default="", metavar="FOLDER", help="write: where (default: the current folder)")


def run(args: argparse.Namespace) -> int:
    """Print the list or the manifests, or write them to files."""
    if args.dir and args.action != "write":
        raise SettingsError("--dir: only with write")
    if args.action == "list":
        return _list(args)
    text_by_name = {template.name: _text(template) for template in _chosen(args)}
    if args.action == "write":
        _write(Path(args.dir or "."), text_by_name)
        return 0
    from neuron_dra.ask.render import terminal

    terminal.write(["---\n".join(text_by_name.values()).rstrip("\n")])
    return 0


def _list(args: argparse.Namespace) -> int:
    from neuron_dra.ask.render import terminal
    from neuron_dra.ask.templates import library
    from neuron_dra.core import catalogue

    if args.lnc or args.efa:
        raise SettingsError("--lnc and --efa: only with show and write")
    for name in args.names:
        if catalogue.lookup(name) is None:
            raise SettingsError(f"the instance type {name} is unknown{catalogue.nearest(name)}")
    rows = [["TEMPLATE", "A POD GETS"]]
    for template in library.all_of_them():
        if not args.names or template.type.name in args.names:
            rows.append([template.name, template.text])
    terminal.write(terminal.table(rows))
    return 0


def _chosen(args: argparse.Namespace) -> Iterator[LibraryTemplate]:
    """Yield the templates that are named, with what the flags add. Raises SettingsError."""
    from neuron_dra.ask.templates import library

    template_by_name = {template.name: template for template in library.all_of_them()}
    if not args.names:
        raise SettingsError(f"templates {args.action}: name a template; see templates list")
    for name in args.names:
        if name not in template_by_name:
            near = difflib.get_close_matches(name, template_by_name, n=1)
            raise SettingsError(f"there is no template {name}" + (f"; did you mean {near[0]}?" if near else ""))
        shown = library.with_cores(template_by_name[name], args.lnc) if args.lnc else template_by_name[name]
        yield library.with_efa(shown) if args.efa else shown


def _text(template: LibraryTemplate) -> str:
    import yaml

    return f"# A pod gets {template.text}.\n{yaml.safe_dump(template.wire, sort_keys=False, width=120)}"


def _write(folder: Path, text_by_name: Mapping[str, str]) -> None:
    """Write a file for each template, and print its name. Raises SettingsError if a file has another content."""
    from neuron_dra.ask.render import terminal

    paths = {folder / f"{name}.yaml": text for name, text in text_by_name.items()}
    for path, text in paths.items():
        if path.exists() and path.read_text() != text:
            raise SettingsError(f"{path} exists and has another content: remove it, or name another folder with --dir")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        path.write_text(text)
    terminal.write([str(path) for path in paths])
