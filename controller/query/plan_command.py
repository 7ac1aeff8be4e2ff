"""`plan --snapshot FILE`: prints what the controller would do in a cluster, and why. Reads a file, changes nothing."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controller.observe import decode
from controller.plan.planning import DEFAULT_LIMITS
from controller.query import dry_run, input_checks, plan_text
from neuron_dra.errors import SettingsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `plan`."""
    parser.add_argument(
        "--snapshot",
        required=True,
        metavar="FILE",
        help="what `kubectl get resourceslices,resourceclaims,resourceclaimtemplates,deviceclasses,nodes,namespaces,"
        "nus,nusw -A -o yaml` printed; - reads standard input",
    )
    parser.add_argument("--at", metavar="TIME", help="plan for this time, such as 2026-03-01T12:00:00Z (default: now)")


def run(parsed: argparse.Namespace) -> int:
    """Print the plan. Raises SettingsError if the file is not a list of such objects."""
    now = datetime.datetime.now(datetime.UTC)
    if parsed.at:
        now = decode.time(parsed.at)
        if now == decode.EPOCH:
            raise SettingsError(f"--at {parsed.at}: write a time such as 2026-03-01T12:00:00Z")
    try:
        snapshot = input_checks.snapshot(_items(parsed.snapshot))
    except input_checks.Malformed as err:
        raise SettingsError(f"--snapshot {parsed.snapshot}: {err}; see --help for the command that prints one") from err
    sys.stdout.write(plan_text.text(*dry_run.plan(snapshot, now, DEFAULT_LIMITS)))
    return 0


def _items(path: str) -> list[dict[str, Any]]:
    """Return the objects in a file. Raises SettingsError."""
    import yaml

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        documents = list(yaml.load_all(text, loader))
    except (OSError, UnicodeDecodeError) as err:
        raise SettingsError(f"--snapshot {path}: {err}") from err
    except yaml.YAMLError as err:
        raise SettingsError(f"--snapshot {path}: not YAML: {err}") from err
    if all(document is None for document in documents):
        raise SettingsError(f"--snapshot {path}: it is empty; see --help for the command that prints one")
    return list(_objects(path, documents))


def _objects(path: str, documents: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of YAML documents and the Lists in them. Raises SettingsError."""
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict) or "kind" not in document:
            raise SettingsError(f"--snapshot {path}: not a list of Kubernetes objects; see --help for the command")
        if str(document["kind"]).endswith("List"):
            items = document.get("items") or []
            if not isinstance(items, list):
                raise SettingsError(f"--snapshot {path}: items of the {document['kind']} is not a list")
            yield from _objects(path, items)
        elif not isinstance(document.get("metadata"), dict) or not document["metadata"].get("name"):
            raise SettingsError(f"--snapshot {path}: a {document['kind']} without metadata.name")
        else:
            yield document
