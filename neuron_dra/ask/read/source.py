"""The flags that choose a cluster or a file, the same for all commands that look at one."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import gc
import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from neuron_dra import object_files
from neuron_dra.ask.read import printed
from neuron_dra.ask.read.kubectl_words import PRINTED
from neuron_dra.core import labels, program
from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from neuron_dra.ask.read.snapshot import Key, Snapshot

MOST_AT_ONCE: Final = 2**24
"""Bytes of standard input that are read as a whole; a longer list as kubectl prints it is read object by object."""
LARGE_YAML_MIB: Final = 8
"""The size of a YAML file from which on a line says that it is read slowly."""
DUMP: Final = f"kubectl get {','.join(PRINTED.values())} -A -o json"
"""Prints a snapshot; a cluster without the CRDs or DeviceTaintRules needs fewer kinds."""


def printing(*plurals: str) -> str:
    """Return the command that prints a snapshot with more kinds."""
    return f"kubectl get {','.join((*PRINTED.values(), *plurals))} -A -o json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group(
        "the cluster", f"The kubeconfig's current context, or a file with what `{DUMP}` printed."
    )
    group.add_argument(
        "--snapshot",
        metavar="FILE",
        default="",
        help="read a file, or a bundle of doctor, not the cluster; - for stdin",
    )
    group.add_argument("--kubeconfig", metavar="FILE", default="", help="default $KUBECONFIG, then ~/.kube/config")
    group.add_argument("--context", metavar="NAME", default="", help="context of the kubeconfig")
    add_version(group, "of the API server, for a file that does not have it (default: what the objects prove)")
    group.add_argument("-n", "--namespace", metavar="NAME", default="", help="namespace (default: the context's)")


def add_version(parser: argparse._ActionsContainer, text: str) -> None:
    """Add --kubernetes, the one flag for a version of Kubernetes."""
    parser.add_argument("--kubernetes", type=_version, metavar="VERSION", help=text)
    parser.add_argument("--kubernetes-version", type=_version, dest="kubernetes", help=argparse.SUPPRESS)


def _version(text: str) -> str:
    """Return the text of a version of which the driver supports the first two numbers."""
    from neuron_dra.core import versions

    parsed = versions.parse(text)
    if parsed is None or not versions.OLDEST <= parsed <= versions.NEWEST:
        supported = f"{versions.text(versions.OLDEST)} to {versions.text(versions.NEWEST)}"
        raise argparse.ArgumentTypeError(f"{text}: write a version from {supported}")
    return text


def add_selector(parser: argparse.ArgumentParser, of: str = "the nodes") -> None:
    """Add -l, which selects objects by label; without it, `selector` is labels.EVERY."""
    parser.add_argument(
        "-l", "--selector", type=_selector, metavar="SELECTOR", default=labels.EVERY, help=f"labels of {of}"
    )


def _selector(text: str) -> labels.Test:
    try:
        return labels.written(text)
    except ValueError as err:
        raise argparse.ArgumentTypeError(str(err)) from err


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add manifests: as arguments, or as kubectl has them with -f."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="manifests or folders of them; - for standard input")
    text = "the same, as in kubectl"
    parser.add_argument("-f", "--filename", action="append", default=[], metavar="FILE", help=text)


def files(args: argparse.Namespace) -> list[str]:
    """Return the names of the manifests, of a folder those of its files. Raises SettingsError if there are none."""
    names: list[str] = []
    for name in dict.fromkeys([*args.files, *args.filename]):
        names += object_files.in_folder(name, name) if Path(name).is_dir() else [name]
    if not names:
        raise SettingsError("name a manifest: FILE, or -f FILE")
    return names


def load(args: argparse.Namespace, jobs: Sequence[Key] = ()) -> tuple[Snapshot, str]:
    """Return the snapshot and the namespace for names without one; standard error has what was left out.

    `jobs` are workloads that are read from the cluster too; one without a namespace is in this one. Raises
    SettingsError.
    """
    loaded, namespace = reader(args, jobs)()
    keep(loaded)
    return loaded, namespace


def keep(snapshot_or_world: object) -> None:
    """Leave a snapshot, or its world, to the end of the process: freeing its objects takes a tenth of a command's time.

    A command that ends soon calls this.
    """
    kept: list[object] = [snapshot_or_world]
    kept.append(kept)  # a cycle, which the collector does not see after this
    gc.freeze()


def reader(args: argparse.Namespace, jobs: Sequence[Key] = ()) -> Callable[[], tuple[Snapshot, str]]:
    """Return a function that reads the cluster or the file, as `load` does, with one login. Raises SettingsError."""
    gc.disable()  # a snapshot has millions of values, none of which is garbage
    if args.snapshot:
        for flag in ("kubeconfig", "context"):
            if getattr(args, flag):
                raise SettingsError(f"--{flag} and --snapshot: give one of them")
        return lambda: (_given(from_file(args.snapshot)[0], args), args.namespace or "default")
    import asyncio

    from neuron_dra.ask.read import cluster

    kube = cluster.connection(args.kubeconfig, args.context)
    namespace = args.namespace or kube.namespace or "default"
    runner = asyncio.Runner()  # one event loop: the locks of the credentials belong to it

    def read() -> tuple[Snapshot, str]:
        if sys.stderr.isatty():
            sys.stderr.write(f"{program.NAME}: reading {kube.url} ...\n")
        cluster_snapshot = cluster.read(kube, namespace, runner.run, jobs)
        for kind, why in cluster_snapshot.left_out.items():
            sys.stderr.write(f"{program.NAME}: left out: {kind} ({why})\n")
        return _given(cluster_snapshot, args), namespace

    return read


def taken(file: str) -> str:
    """Return the time of what is read: now for a cluster, else when the file was written; empty for standard input."""
    seconds = time.time()
    if file:
        try:
            seconds = os.stat(file).st_mtime
        except OSError:
            return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


def _given(cluster_snapshot: Snapshot, args: argparse.Namespace) -> Snapshot:
    """Return the snapshot with the version of the flag, if there is one."""
    if args.kubernetes:
        return dataclasses.replace(cluster_snapshot, version=args.kubernetes)
    return cluster_snapshot


def _items(name: str, *, whole: bool) -> list[dict[str, Any]]:
    """Return the objects in a file: a list as kubectl prints it one by one, in little memory. Raises SettingsError."""
    if name == object_files.STDIN:
        given = sys.stdin.buffer
        begin = given.read(MOST_AT_ONCE)
        if len(begin) < MOST_AT_ONCE:
            return object_files.decoded(begin, f"--snapshot {name}")
        joined = io.BufferedReader(_Joined(begin, given))
        if printed.is_printed(joined):
            return _streamed(joined, name, whole=whole)
        return object_files.decoded(joined.read(), f"--snapshot {name}")
    if not Path(name).is_file():
        return object_files.read(name)
    with open(name, "rb") as file:
        if printed.is_printed(file):
            with contextlib.suppress(SettingsError):  # such as two lists in one file, which are read as a whole
                return _streamed(file, name, whole=whole)
        elif file.peek()[:1] not in (b"{", b"["):
            _warn_of_yaml(name)
    return object_files.read(name)


class _Joined(io.RawIOBase):
    """What was read of a stream, and the rest of it."""

    def __init__(self, begin: bytes, rest: BinaryIO) -> None:
        self._begin = io.BytesIO(begin)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._begin.read(len(buffer)) or self._rest.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)


def _warn_of_yaml(name: str) -> None:
    """Say how to have a large file read faster, before it is read."""
    megabytes = Path(name).stat().st_size // 2**20
    if megabytes >= LARGE_YAML_MIB:
        text = f"{name} has {megabytes} MiB of YAML, which is read slowly: print it with -o json instead"
        sys.stderr.write(f"{program.NAME}: {text}\n")


def _streamed(file: io.BufferedReader[Any], name: str, *, whole: bool) -> list[dict[str, Any]]:
    from neuron_dra.ask.read import stream

    try:
        return list(object_files.objects(f"--snapshot {name}", stream.items(file, whole=whole)))
    except stream.NotAsPrinted as err:
        raise SettingsError(f"--snapshot {name}: {err}") from err


def from_file(name: str, *, whole: bool = False) -> tuple[Snapshot, list[dict[str, Any]]]:
    """Return the snapshot in a file, and all objects of the file; `whole` with all of their fields.

    Raises SettingsError.
    """
    from neuron_dra.ask.read import bundles, snapshot

    bundle = bundles.read(name) if bundles.is_bundle(name) else None
    try:
        if bundle is not None:
            items = list(object_files.objects(f"--snapshot {name}", [bundle.objects]))
        else:
            items = _items(name, whole=whole)
        file_snapshot = snapshot.build(items)
    except SettingsError as err:
        text = str(err)
        raise SettingsError(text if text.startswith("--") else f"--snapshot {name}: {text}") from err
    if not file_snapshot.objects:
        raise SettingsError(f"--snapshot {name}: it has no objects of a snapshot; print one with `{DUMP}`")
    left_out = snapshot.absent_from_file(file_snapshot)
    if bundle is not None:
        file_snapshot = dataclasses.replace(file_snapshot, version=bundle.version)
        left_out = {**left_out, **bundle.not_seen}
    return dataclasses.replace(file_snapshot, left_out=left_out), items
