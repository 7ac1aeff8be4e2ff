"""`plan --snapshot FILE`: prints what the controller would do in a cluster, and why. Reads a file, changes nothing."""

from __future__ import annotations

import argparse
import datetime
import sys

from controller.query import dry_run, input_checks, plan_text
from neuron_dra import object_files
from neuron_dra.errors import SettingsError
from neuron_dra.planner.observed import decode
from neuron_dra.planner.plan.planning import DEFAULT_LIMITS


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
        objects = object_files.read(parsed.snapshot)
        snapshot = input_checks.snapshot(objects)
        pods = input_checks.pods(objects)
    except input_checks.Malformed as err:
        raise SettingsError(f"--snapshot {parsed.snapshot}: {err}; see --help for the command that prints one") from err
    if pods:
        snapshot = dry_run.with_pods(snapshot, pods)
    sys.stdout.write(plan_text.text(*dry_run.plan(snapshot, now, DEFAULT_LIMITS)))
    return 0
