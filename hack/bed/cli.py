"""The commands."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from hack.bed import build, driver, faults, images, layout, lifecycle, network, plugin_image, state
from hack.bed.errors import BedError, NotPossibleHereError
from hack.bed.lifecycle import Wanted
from hack.bed.parts import Bed


def _pair(text: str) -> tuple[str, str]:
    name, separator, instance_type = text.partition("=")
    if not (name and separator and instance_type):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=INSTANCE_TYPE")
    return name, instance_type


def _value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise argparse.ArgumentTypeError(f"{text!r} is not VALUE=TEXT, such as ultraserverOperator.tagTimeout=10s")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="testbed", description="A real Kubernetes on this machine with simulated Neuron nodes."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    sub = commands.add_parser("build", help="build what is not cached")
    sub.add_argument("--kubernetes", choices=build.KUBERNETES, default=build.DEFAULT_KUBERNETES)

    sub = commands.add_parser("up", help="start, add nodes, restart what died")
    sub.add_argument("--kubernetes", choices=build.KUBERNETES, default=None)
    sub.add_argument("--node", metavar="NAME=INSTANCE_TYPE[@KUBERNETES]", type=_pair, action="append", default=[],
                     help="a node; with a version, its kubelet is of that one")  # fmt: skip
    sub.add_argument("--ultraserver", metavar="NAME=INSTANCE_TYPE", type=_pair, action="append", default=[],
                     help="four nodes NAME-0 to NAME-3 that are one UltraServer")  # fmt: skip
    sub.add_argument("--ipv6", action="store_true",
                     help="new nodes and their pods have IPv4 and IPv6 addresses, and the main one is IPv6")  # fmt: skip
    sub.add_argument("--driver", choices=("none", "process", "daemonset"), default=None)

    sub.add_argument("--set", metavar="VALUE=TEXT", type=_value, action="append", default=[], dest="values",
                     help="a value of the chart, for --driver daemonset; kept until `down`")  # fmt: skip

    sub.add_argument("--with", metavar="EXTRA", choices=lifecycle.EXTRAS, action="append", default=[], dest="extras",
                     help=f"what else to run, or to import on the nodes: {', '.join(lifecycle.EXTRAS)}")  # fmt: skip

    sub = commands.add_parser("exec", help="run a command inside, with kubectl, helm, grpcurl and ctr on the PATH")
    sub.add_argument("--node", help="in this node's mount namespace too")
    sub.add_argument("words", metavar="COMMAND", nargs="+")

    faults_text = "; ".join(f"{what} [{fault.argument}]: {fault.text}" if fault.argument else f"{what}: {fault.text}"
                            for what, fault in faults.FAULTS.items())  # fmt: skip
    for command, text in (("break", "make something fail on a node"), ("repair", "undo it")):
        sub = commands.add_parser(command, help=text, epilog=faults_text)
        sub.add_argument("node", metavar="NODE")
        sub.add_argument("what", metavar="WHAT", choices=faults.FAULTS, help=", ".join(faults.FAULTS))
        sub.add_argument("argument", metavar="WHICH", nargs="?", default="")

    commands.add_parser("status", help="what runs")
    sub = commands.add_parser("logs", help="the log of one component")
    what = "as `status` names it: kube-apiserver, a/kubelet, a/plugin, neuron-ultraserver-controller ..."
    sub.add_argument("what", metavar="WHAT", help=what)

    commands.add_parser("down", help="end everything and remove it")
    return parser


def _up(args: argparse.Namespace) -> int:
    started = time.monotonic()
    wanted = Wanted(
        kubernetes=args.kubernetes,
        nodes=args.node,
        ultraservers=args.ultraserver,
        driver=args.driver,
        chart_values=args.values,
        extras=args.extras,
        ipv6=args.ipv6,
    )
    bed = lifecycle.up(layout.from_environment(), wanted)
    nodes = ", ".join(f"{spec.name} ({spec.instance_type})" for spec in bed.state.nodes.values()) or "none"
    print(f"testbed: Kubernetes {bed.state.kubernetes} up in {time.monotonic() - started:.1f} s; nodes: {nodes}")
    print("testbed: use it with hack/testbed/testbed exec -- kubectl get nodes; end it with hack/testbed/testbed down")
    return 0


def _exec(args: argparse.Namespace) -> int:
    bed = Bed(layout.from_environment())
    if args.node:
        node = bed.node(args.node)
        prefix, environment = node.enter(), node.environment()
    else:
        prefix, environment = network.enter(bed.layout), bed.plane.environment()
    words = [*prefix, *args.words]
    os.environ.update(environment)
    sys.stdout.flush()
    os.execvp(words[0], words)


def _fault(args: argparse.Namespace) -> int:
    here = layout.from_environment()
    with state.exclusive(here.lock_file, "another testbed command"):
        act = faults.break_ if args.command == "break" else faults.repair
        print(f"testbed: {act(Bed(here), args.node, args.what, args.argument)}")
    return 0


def _status(args: argparse.Namespace) -> int:
    """Print what runs; the exit status is 1 if something that should run does not."""
    bed = Bed(layout.from_environment())
    if not bed.state.processes:
        print("testbed: nothing runs")
        return 1
    print(f"Kubernetes {bed.state.kubernetes}  driver: {bed.state.driver}  API server: {bed.plane.url}")
    dead = 0
    for name, process in bed.state.processes.items():
        running = bed.processes.is_running(name)
        dead += not running
        print(f"  {name:<26} {'running' if running else 'DEAD':<8} pid {process.pid}")
    for node in bed.nodes.values():
        node_ready = node.is_ready()
        dead += not node_ready
        print(
            f"  node {node.name:<21} {'Ready' if node_ready else 'NOT READY':<9} {node.spec.instance_type}  {node.address}"
        )
    replicas = driver.controller_replicas(bed) if bed.state.driver == "daemonset" else None
    if replicas is not None:
        ready, wanted_replicas = replicas
        dead += bool(bed.state.nodes) and ready < wanted_replicas
        print(f"  {driver.CONTROLLER}: {ready} of {wanted_replicas} replicas ready")
    return 1 if dead else 0


def _logs(args: argparse.Namespace) -> int:
    bed = Bed(layout.from_environment())
    node, _, part = args.what.partition("/")
    if part == "plugin" and bed.state.driver == "daemonset":
        sys.stdout.write(driver.pod_logs(bed, bed.node(node)))
        return 0
    if args.what == driver.CONTROLLER and bed.state.driver == "daemonset":
        sys.stdout.write(driver.controller_logs(bed))
        return 0
    log_file = bed.processes.log_file(args.what)
    if not log_file.exists():
        known = ", ".join(sorted([*bed.state.processes, *_of_pods(bed)])) or "none, nothing runs"
        raise BedError(f"no log of {args.what!r}; known: {known}")
    sys.stdout.write(log_file.read_text(errors="replace"))
    return 0


def _of_pods(bed: Bed) -> list[str]:
    """Return the names of the pods' logs."""
    if bed.state.driver != "daemonset":
        return []
    return [driver.CONTROLLER, *(driver.process_name(name) for name in bed.state.nodes)]


def _build(args: argparse.Namespace) -> int:
    here = layout.from_environment()
    build.build(here, args.kubernetes)
    if here.is_root:
        images.small_images(here)
        plugin_image.base_archive(here)
    return 0


def _down(args: argparse.Namespace) -> int:
    lifecycle.down(layout.from_environment())
    return 0


COMMANDS = {
    "build": _build, "up": _up, "exec": _exec, "break": _fault, "repair": _fault, "status": _status, "logs": _logs,
    "down": _down,
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run one command; if it fails, the exit status is 1 and the reason is on stderr."""
    args = _parser().parse_args(argv)
    try:
        if sys.platform != "linux":
            raise NotPossibleHereError(f"the test bed needs Linux, this is {sys.platform}; `make demo` needs neither")
        return COMMANDS[args.command](args)
    except BedError as err:
        print(f"testbed: {err}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("testbed: interrupted; `testbed down` removes what was started", file=sys.stderr)
        return 130
