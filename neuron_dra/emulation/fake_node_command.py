"""`neuron-dra fake-node`: create a simulated Neuron node, break it, and repair it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from neuron_dra.core import catalogue, names
from neuron_dra.emulation import hanging, moved_layout
from neuron_dra.emulation.simulated_driver import DEFAULT_LOAD_TIMING, SimulatedDriver
from neuron_dra.emulation.simulated_node import (
    COMPONENTS,
    DEFAULT_DRIVER_VERSION,
    SimulatedNode,
    write,
)
from neuron_dra.emulation.simulated_tree import ECC_COUNTERS
from neuron_dra.errors import NeuronDraError, SettingsError

WHAT = (
    "link:A,B device:N file:N busy firmware:N ones:N ecc:N[,COUNTER] reset:N components:N,NAME[,NAME] modes:1,3,4 "
    "hang:N[,FILE]"
)

EPILOG = f"""
faults that --break adds to an existing node, and --repair removes:
  link:A,B                the link between two devices is down, on both ends
  device:N                a device disappears
  file:N                  a device's file disappears from /dev
  busy                    the UltraServer files read as during the election
  firmware:N              the firmware of a device does not answer
  ones:N                  every read of a device returns ones
  ecc:N[,COUNTER]         one uncorrectable error; COUNTER is one of
                          {", ".join(ECC_COUNTERS)}
  reset:N                 the kernel driver calls the device invalid
  components:N,NAME,...   failed components, of: {", ".join(COMPONENTS[:4])},
                          {", ".join(COMPONENTS[4:])}
  modes:LIST              only these UltraServer modes remain, such as 3,4
  hang:N[,FILE]           reads of a device's FILE hang (default core_count)

examples:
  neuron-dra fake-node --instance-type trn2.48xlarge --root /tmp/node
  neuron-dra slices --host-root /tmp/node --node-name node -o table
  neuron-dra fake-node --root /tmp/node --break link:0,1 --break ecc:7
  neuron-dra fake-node --instance-type trn2u.48xlarge --root /tmp/us1 \\
    --node-id 1 --server-id 5a7b1c2d3e4f6070
  neuron-dra fake-node --root /tmp/node --loading --silent 4:120

Exit code 0; 1: the folder has no node, or cannot be written; 2: a flag is wrong.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra fake-node`."""
    parser.description = (
        "Write what the Neuron kernel driver, udev and DMI show on a node: sys, dev and proc below a "
        "folder, for --host-root of the other commands. Device files are character devices for root, "
        "plain files otherwise."
    )
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--root", required=True, type=Path, metavar="DIR", help="folder to write below; required")
    parser.add_argument("--instance-type", metavar="TYPE", help="write a node of this type, such as trn2.48xlarge")
    parser.add_argument(
        "--node-id",
        type=int,
        metavar="N",
        help="number of the node in its UltraServer, 0 to 3; without it, the node is in none",
    )
    parser.add_argument(
        "--server-id", metavar="HEX", help="id that the UltraServer's nodes share, at most 16 hex digits"
    )
    parser.add_argument(
        "--capacity-block-id", metavar="ID", help="id of the UltraServer's capacity block; printed as a node label"
    )
    parser.add_argument(
        "--driver-version",
        default=DEFAULT_DRIVER_VERSION,
        metavar="V",
        help=f"version of the kernel driver; decides files and modes (default {DEFAULT_DRIVER_VERSION})",
    )
    parser.add_argument(
        "--nodes",
        type=int,
        choices=(2, 4),
        default=4,
        help="number of nodes of the UltraServer (default 4)",
    )
    parser.add_argument(
        "--missing",
        type=_ids,
        default=(),
        metavar="N,...",
        help="devices that were not found when the kernel driver loaded: then no device reports links",
    )
    parser.add_argument(
        "--statistics", action="store_true", help="write all statistics of cores too: 13,000 files on a Trn2"
    )
    parser.add_argument(
        "--layout",
        choices=("known", "moved"),
        default="known",
        help="where the kernel driver's files are: moved is a shuffle of them, with decoys, as a driver that is not "
        "known yet might have them (default known)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the shuffle (default 0)")
    _add_load_arguments(parser)
    parser.add_argument("--break", dest="breaks", action="append", default=[], metavar="WHAT", help="see below")
    parser.add_argument("--repair", dest="repairs", action="append", default=[], metavar="WHAT", help="see below")


def _add_load_arguments(parser: argparse.ArgumentParser) -> None:
    loading = parser.add_argument_group("loads of the kernel driver")
    loading.add_argument(
        "--loading",
        action="store_true",
        help="unload the kernel driver and load it again, as slowly as the real one: its devices appear one by one",
    )
    loading.add_argument("--unload", action="store_true", help="unload the kernel driver; --loading loads it again")
    loading.add_argument(
        "--probe-seconds",
        type=float,
        default=DEFAULT_LOAD_TIMING.probe_s,
        metavar="S",
        help=f"from one device of a load to the next (default {DEFAULT_LOAD_TIMING.probe_s:g})",
    )
    loading.add_argument(
        "--silent",
        type=_delays,
        default={},
        metavar="N:S,...",
        help="devices whose firmware does not answer for S seconds, which holds up the load",
    )
    loading.add_argument(
        "--keep-folders",
        action="store_true",
        help="empty the kernel driver's folders where the real ones vanish, for nodes that mount them",
    )


def run(args: argparse.Namespace) -> int:
    """Write a node, break, repair or load an existing one, or several of these; print what was done."""
    if args.instance_type is None and not (args.breaks or args.repairs or args.loading or args.unload):
        raise SettingsError(
            "--instance-type is required, or --break, --repair, --unload or --loading for an existing node"
        )
    if args.instance_type is not None:
        _write(args)
    for what in args.breaks:
        apply(SimulatedNode.found(args.root), what, up=False)
        print(f"{args.root}: broke {what}")
    for what in args.repairs:
        apply(SimulatedNode.found(args.root), what, up=True)
        print(f"{args.root}: repaired {what}")
    if args.unload or args.loading:
        _load(args)
    return 0


def _load(args: argparse.Namespace) -> None:
    """Unload the kernel driver, and load it again if that is wanted."""
    driver = SimulatedDriver(SimulatedNode.found(args.root), keeps_folders=args.keep_folders)
    driver.unload()
    print(f"{args.root}: the kernel driver is unloaded", flush=True)
    if not args.loading:
        return
    began = time.monotonic()

    def wait_until(at_s: float) -> None:
        time.sleep(max(0.0, began + at_s - time.monotonic()))

    timing = dataclasses.replace(DEFAULT_LOAD_TIMING, probe_s=args.probe_seconds)
    for step in driver.loading(args.missing, args.silent, timing, wait_until):
        what = step.what if step.device_id is None else f"{step.what} {step.device_id}"
        print(f"{args.root}: {step.at_s:.1f} s: {what}", flush=True)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _delays(text: str) -> dict[int, float]:
    """Return the delays of devices in seconds. Raises ValueError for a malformed text."""
    delays = {}
    for part in text.split(","):
        device_id, _, seconds = part.partition(":")
        delays[int(device_id)] = float(seconds)
    return delays


def _write(args: argparse.Namespace) -> None:
    write(
        args.root,
        args.instance_type,
        node_id=args.node_id,
        server_id=args.server_id,
        capacity_block_id=args.capacity_block_id,
        driver_version=args.driver_version,
        nodes=args.nodes,
        missing=() if args.loading else args.missing,
        statistics=args.statistics,
    )
    if args.layout == "moved":
        moved_layout.apply(args.root, args.seed)
    spec = catalogue.lookup(args.instance_type)
    count = (spec.device_count if spec else 0) - (0 if args.loading else len(set(args.missing)))
    print(f"{args.root}: {args.instance_type}, {count} device{'s' if count != 1 else ''}, driver {args.driver_version}")
    if args.capacity_block_id:
        print(f"label the Node: {names.CAPACITY_BLOCK_LABEL}={args.capacity_block_id}")


def apply(node: SimulatedNode, what: str, *, up: bool) -> None:
    """Add one `--break` fault, or remove it. Raises NeuronDraError for an invalid one."""
    kind, _, arguments = what.partition(":")
    parts = [part.strip() for part in arguments.split(",") if part.strip()]
    try:
        if kind == "link":
            device_id, linked_id = map(int, parts)
            node.repair_link(device_id, linked_id) if up else node.break_link(device_id, linked_id)
        elif kind == "busy" and not parts:
            node.busy(not up)
        elif kind == "modes":
            node.set_modes(arguments)
        else:
            _apply_to_device(node, kind, int(parts[0]), parts[1:], up=up)
    except (ValueError, IndexError):
        raise SettingsError(f"{what!r} is not one of: {WHAT}") from None


def _apply_to_device(node: SimulatedNode, kind: str, device_id: int, arguments: list[str], *, up: bool) -> None:
    if kind == "device" and not arguments:
        node.restore_device(device_id) if up else node.remove_device(device_id)
    elif kind == "file" and not arguments:
        node.restore_device(device_id) if up else node.remove_device_file(device_id)
    elif kind == "ecc" and len(arguments) <= 1:
        counter = arguments[0] if arguments else "mem_ecc_uncorrected"
        node.add_ecc(device_id, counter, -(2**31) if up else 1)
    elif kind in ("firmware", "ones") and not arguments:
        node.start_firmware(device_id) if up else node.stop_firmware(device_id, all_ones=kind == "ones")
    elif kind == "reset" and not arguments:
        node.set_reset_state(device_id, 1 if up else 2)
    elif kind == "components" and (arguments or up):
        node.set_unhealthy_components(device_id, "" if up else ",".join(arguments))
    elif kind == "hang" and len(arguments) <= 1:
        path = node.device_path(device_id, arguments[0] if arguments else "core_count")
        hanging.release(path) if up else hanging.hang(path)
    else:
        raise ValueError(kind)


def main() -> int:
    """Run the command with the standard library alone. Errors go to standard error."""
    parser = argparse.ArgumentParser(prog="fake-node", allow_abbrev=False)
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except NeuronDraError as err:
        print(f"fake-node: {err}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
