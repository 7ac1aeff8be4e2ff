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

from neuron_dra.errors import SettingsError

OLDEST = (1, 34)
NEWEST = "1.37"
STDIN = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra migrate`."""
    parser.description = (
        "Rewrite manifests that request aws.amazon.com/neuron, neuroncore or neurondevice, and manifests of "
        "resource.k8s.io/v1beta1 and v1beta2. For Kubernetes 1.36.3 and later the limits get names of DeviceClasses; "
        "for earlier releases they become claims. Prints a diff. Exit code 1: something could not be migrated, and is "
        "left as it was; 2: a file is wrong, and nothing is written."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="manifests, YAML or JSON; - for standard input")
    parser.add_argument(
        "--kubernetes", default=NEWEST, metavar="VERSION", help=f"version of the cluster (default {NEWEST})"
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
    after: str = ""
    problems: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(args: argparse.Namespace) -> int:
    """Migrate the files and return the exit code; remarks go to standard error."""
    from neuron_dra.migrate.rewrite import Options

    if args.in_place and STDIN in args.files:
        raise SettingsError("--in-place: standard input cannot be changed; name a file")
    why_no_sets = _why_no_sets(args.kubernetes)
    options = Options(not why_no_sets, args.instance_type, args.scheduler_name)
    if why_no_sets:
        print(f"neuron-dra: note: claims, because there are no connected sets: {why_no_sets}", file=sys.stderr)
    files = [_read(name) for name in dict.fromkeys(args.files)]
    for file in files:
        if not file.bad:
            _migrate(file, options)
        for text in (*file.bad, *file.problems, *dict.fromkeys(file.notes)):
            print(f"neuron-dra: {file.name}: {text}", file=sys.stderr)
    if any(file.bad for file in files):
        return 2
    if args.in_place:
        for file in files:
            _replace(file)
    elif args.output == "yaml":
        print("---\n".join(file.after if file.after.endswith("\n") else f"{file.after}\n" for file in files), end="")
    else:
        for file in files:
            sys.stdout.writelines(_diff(file))
    return 1 if any(file.problems for file in files) else 0


def _why_no_sets(text: str) -> str:
    """Return why nodes publish no connected sets on this version; empty if they do. Raises SettingsError."""
    from neuron_dra.core import releases

    found = re.fullmatch(r"v?(\d+)\.(\d+)([.+-].*)?", text)
    if found is None:
        raise SettingsError(f"--kubernetes {text}: write major and minor, such as 1.36")
    if (int(found[1]), int(found[2])) < OLDEST:
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


def _migrate(file: File, options: Any) -> None:
    """Set the result of a file; a document with a problem is unchanged, the others are rewritten."""
    from neuron_dra.migrate import files
    from neuron_dra.migrate.problems import BadInput, CannotMigrate
    from neuron_dra.migrate.rewrite import rewrite

    mark = "\ufeff" if file.text.startswith("\ufeff") else ""
    text = file.text.removeprefix(mark)
    try:
        documents = files.read(text)
        values: list[Any] = []
        added: list[Any] = []
        for number, document in enumerate(documents, start=1):
            value = copy.deepcopy(document.value)
            try:
                outcome = rewrite(value, options)
                _check_taken(outcome.templates, [each.value for each in documents])
            except BadInput as err:
                file.bad.append(f"document {number}{_called(document.value)}: {err}")
                outcome, value = None, document.value
            except CannotMigrate as err:
                file.problems.append(f"document {number}{_called(document.value)}: {err}")
                outcome, value = None, document.value
            values.append(value)
            if outcome is not None:
                present = [*(each.value for each in documents), *added]
                added += [each for each in outcome.templates if each not in present]
                file.notes += [f"document {number}{_called(document.value)}: note: {note}" for note in outcome.notes]
        if file.bad:
            return
        changed = added or any(old.value != new for old, new in zip(documents, values, strict=True))
        file.after = file.text
        if changed:
            after, lossy = files.written(text, documents, values, added)
            file.after = mark + after
            if lossy:
                file.notes.append("note: comments in changed documents are lost")
    except BadInput as err:
        file.bad.append(str(err))


def _check_taken(templates: Sequence[dict[str, Any]], present: Sequence[Any]) -> None:
    """Raise CannotMigrate if the file has another object of a template's name."""
    from neuron_dra.migrate.problems import CannotMigrate

    for template in templates:
        for other in present:
            if (
                isinstance(other, dict)
                and other.get("kind") == template["kind"]
                and other.get("metadata") == template["metadata"]
                and other.get("spec") != template["spec"]
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
    return f", {value.get('kind')} {name}" if value.get("kind") and name else ""


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
