"""`neuron-dra migrate`: rewrite manifests from the resources of the Neuron device plugin to those of this driver."""

from __future__ import annotations

import argparse
import contextlib
import copy
import difflib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuron_dra.arguments import documented
from neuron_dra.errors import SettingsError

MARK = "\ufeff"
STDIN = "-"
NEEDED = (
    "the new names need the chart's scheduler.enabled=true and Kubernetes 1.36.3 or later; without them the pods wait"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra migrate`."""
    from neuron_dra.core import versions

    newest = versions.text(versions.NEWEST)
    parser.description = (
        "Rewrite manifests that request aws.amazon.com/neuron, neuroncore or neurondevice, and manifests of "
        "resource.k8s.io/v1beta1 and v1beta2. For Kubernetes 1.36.3 and later the limits get names of DeviceClasses; "
        "for earlier releases they become claims. Prints a diff. Exit code 1: something could not be migrated, and is "
        "left as it was; 2: a file is wrong, and nothing is written."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="manifests, YAML or JSON; - for standard input")
    parser.add_argument(
        "--kubernetes", default=newest, metavar="VERSION", help=f"version of the cluster (default {newest})"
    )
    parser.add_argument(
        "--instance-type", default="", metavar="TYPE", help="for pods that name none in a node selector or affinity"
    )
    parser.add_argument(
        "--scheduler-name",
        default="my-scheduler",
        metavar="NAME",
        help='the scheduler extension\'s name, which is removed from pods (default my-scheduler; "" for none)',
    )
    parser.add_argument(
        "-o", "--output", choices=("diff", "yaml"), default="diff", help="form of the output (default diff)"
    )
    parser.add_argument("--in-place", action="store_true", help="change the files instead")


@dataclass(slots=True)
class File:
    """A file and its result."""

    name: str
    path: Path | None  # None: standard input
    raw: bytes
    text: str
    documents: list[Any] = field(default_factory=list)
    after: str = ""
    renamed: int = 0
    problems: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(args: argparse.Namespace) -> int:
    """Migrate the files and return the exit code; remarks go to standard error."""
    from neuron_dra.ask.migrate.rewrite import Options

    if args.in_place and STDIN in args.files:
        raise SettingsError("--in-place: standard input cannot be changed; name a file")
    why_no_sets = _why_no_sets(args.kubernetes)
    options = Options(not why_no_sets, args.instance_type, args.scheduler_name)
    files = [_read(name) for name in dict.fromkeys(args.files)]
    for file in files:
        _parse(file)
    places_by_object = _objects(files)
    for file in files:
        if not file.bad:
            _migrate(file, options, places_by_object)
        for text in (*file.bad, *file.problems, *dict.fromkeys(file.notes)):
            print(f"neuron-dra: {file.name}: {documented(text)}", file=sys.stderr)
    if any(file.bad for file in files):
        return 2
    if why_no_sets:
        print(f"neuron-dra: note: claims, because there are no connected sets: {why_no_sets}", file=sys.stderr)
    if any(file.renamed for file in files):
        print(f"neuron-dra: note: {NEEDED}", file=sys.stderr)
    if args.in_place:
        for file in files:
            _replace(file)
    elif args.output == "yaml":
        print("---\n".join(file.after if file.after.endswith("\n") else f"{file.after}\n" for file in files), end="")
    else:
        for file in files:
            sys.stdout.writelines(_diff(file))
    if any(file.problems for file in files):
        return 1
    return 0


def _why_no_sets(text: str) -> str:
    """Return why nodes publish no connected sets on this version; empty if they do. Raises SettingsError."""
    from neuron_dra.core import releases, versions

    version_match = re.fullmatch(r"v?(\d+)\.(\d+)([.+-].*)?", text)
    if version_match is None:
        raise SettingsError(f"--kubernetes {text}: write major and minor, such as 1.36")
    if (int(version_match[1]), int(version_match[2])) < versions.OLDEST:
        raise SettingsError(f"--kubernetes {text}: the driver needs Kubernetes 1.34 or later")
    return releases.why_no_sets_on(text)


def _read(name: str) -> File:
    if name != STDIN and Path(name).is_dir():
        return File(name, None, b"", "", bad=["this is a folder; name the files"])
    path = None if name == STDIN else Path(name).resolve()
    shown = "standard input" if path is None else name
    try:
        raw = sys.stdin.buffer.read() if path is None else path.read_bytes()
        return File(shown, path, raw, raw.decode("utf-8"))
    except UnicodeDecodeError as err:
        return File(shown, path, b"", "", bad=[f"not UTF-8, at byte {err.start}"])
    except OSError as err:
        return File(shown, path, b"", "", bad=[str(err.strerror)])


def _parse(file: File) -> None:
    """Set the documents of a file."""
    from neuron_dra.api.problems import BadInput
    from neuron_dra.ask.migrate import files

    try:
        if not file.bad:
            file.documents = files.read(file.text.removeprefix(MARK))
        else:
            file.documents = []
    except BadInput as err:
        file.bad.append(str(err))


def _objects(files: Sequence[File]) -> dict[Any, list[str]]:
    """Return the places of the objects that have an old name, by kind, namespace and name."""
    from neuron_dra.ask.migrate import patches

    places_by_object: dict[Any, list[str]] = {}
    for file in files:
        inside: dict[Any, list[Any]] = {}
        for document in file.documents:
            key = patches.key(document.value)
            if key is not None and patches.has_old(document.value):
                inside.setdefault(key, []).append(document.value)
        for key, values in inside.items():
            places = places_by_object.setdefault(key, [])
            places.append(file.name)
            if len(values) > 1 and any(map(patches.note, values)):
                places.append("another document there")
    return places_by_object


def _migrate(file: File, options: Any, places_by_object: dict[Any, list[str]]) -> None:
    """Set the result of a file; a document with a problem is unchanged, the others are rewritten.

    `places_by_object` has the places of all objects of this run that have an old name.
    """
    from neuron_dra.api.problems import BadInput
    from neuron_dra.ask.migrate import files, patches

    present = [document.value for document in file.documents]
    refused = patches.of_each(file.path, present, places_by_object)
    values: list[Any] = []
    added: list[Any] = []
    for number, (document, why) in enumerate(zip(file.documents, refused, strict=True), start=1):
        at = f"document {number}{_called(document.value)}"
        value = copy.deepcopy(document.value)
        if why:
            file.problems.append(f"{at}: left alone: {why}")
            value = document.value
        elif not _rewritten(file, at, value, options, present, added):
            value = document.value
        values.append(value)
    if file.bad:
        return
    file.after = file.text
    mark = MARK if file.text.startswith(MARK) else ""
    try:
        if added or any(old != new for old, new in zip(present, values, strict=True)):
            after, lossy = files.written(file.text.removeprefix(MARK), file.documents, values, added)
            file.after = mark + after
            if lossy:
                file.notes.append("note: comments, anchors and merge keys of changed documents are lost")
    except BadInput as err:
        file.bad.append(str(err))


def _rewritten(file: File, at: str, value: Any, options: Any, present: Sequence[Any], added: list[Any]) -> bool:
    """Rewrite a document in place, and record what there is to say; return False if it must stay as it was."""
    from neuron_dra.api.problems import BadInput, CannotMigrate
    from neuron_dra.ask.migrate import leftovers, patches
    from neuron_dra.ask.migrate.rewrite import rewrite

    before = copy.deepcopy(value)
    try:
        outcome = rewrite(value, options)
        _check_taken(outcome.templates, present)
    except BadInput as err:
        file.bad.append(f"{at}: {err}")
        return False
    except CannotMigrate as err:
        file.problems.append(f"{at}: {err}")
        return False
    added += [template for template in outcome.templates if template not in (*present, *added)]
    file.renamed += outcome.renamed
    remarks = leftovers.found(value)
    file.problems += [f"{at}: {line}" for line in leftovers.lines([remark for remark in remarks if remark.is_problem])]
    notes = [*outcome.notes, *leftovers.lines([remark for remark in remarks if not remark.is_problem])]
    notes += filter(None, [patches.note(before) if patches.has_old(before) else ""])
    file.notes += [f"{at}: note: {note}" for note in notes]
    return True


def _check_taken(templates: Sequence[dict[str, Any]], present: Sequence[Any]) -> None:
    """Raise CannotMigrate if the file has another object of a template's name."""
    from neuron_dra.api.problems import CannotMigrate

    for template in templates:
        for document in present:
            if (
                isinstance(document, dict)
                and document.get("kind") == template["kind"]
                and document.get("metadata") == template["metadata"]
                and document.get("spec") != template["spec"]
            ):
                raise CannotMigrate(
                    f"the ResourceClaimTemplate {template['metadata']['name']} exists with another spec"
                )


def _called(value: Any) -> str:
    """Return kind and name of an object, for messages."""
    if not isinstance(value, dict):
        return ""
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if value.get("kind") and name:
        return f", {value.get('kind')} {name}"
    return ""


def _diff(file: File) -> Iterator[str]:
    before, after = file.text.splitlines(keepends=True), file.after.splitlines(keepends=True)
    for line in difflib.unified_diff(before, after, fromfile=file.name, tofile=file.name):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _replace(file: File) -> None:
    """Write a file by renaming a complete one over it, with the same mode and owner."""
    path = file.path
    if path is None or file.after == file.text:
        return
    if path.read_bytes() != file.raw:
        raise SettingsError(f"{file.name} has changed since it was read; try again")
    before = path.stat()
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(file.after.encode())
            out.flush()
            os.fchmod(out.fileno(), stat.S_IMODE(before.st_mode))
            with contextlib.suppress(PermissionError):
                os.fchown(out.fileno(), before.st_uid, before.st_gid)
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
