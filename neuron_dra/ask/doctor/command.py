"""`neuron-dra doctor`: what is wrong with an installation, and what to do."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuron_dra.arguments import documented
from neuron_dra.ask.read import source
from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    import asyncio

    from neuron_dra.ask.doctor.lines import Line
    from neuron_dra.ask.doctor.seen import Seen
    from neuron_dra.kube.config import KubeConfig

EXAMPLES = """\
examples:
  kubectl neuron doctor
  kubectl neuron doctor node/ip-10-0-1-20.ec2.internal
  kubectl neuron doctor --bundle doctor.tar.gz
  kubectl exec -n neuron-dra-driver POD -- neuron-dra doctor --local
  neuron-dra doctor --snapshot cluster.json -o json
  neuron-dra doctor --upgrade-to 1.36

Exit code 0: everything is ok; 1: something is wrong or unknown; 2: it cannot be looked at."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra doctor`."""
    parser.description = (
        "Check an installation: versions, custom resources, policies, classes, the driver's pods, the controller, and "
        "every Neuron node. With a NODE, also check that node, in the driver's pod there. Each line is ok, wrong or "
        "unknown; a wrong one says what to do. Nothing is changed."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("node", nargs="?", default="", metavar="NODE", help="only this node: node/NAME, or its name")
    parser.add_argument("--local", action="store_true", help="check this node; run it in the driver's container")
    parser.add_argument("--socket", default="", metavar="FILE", help="with --local: the plugin's socket")
    parser.add_argument("--bundle", default="", metavar="FILE", help="write report and redacted objects, as a tar.gz")
    parser.add_argument(
        "--upgrade-to",
        default="",
        metavar="VERSION",
        help="print what an upgrade of Kubernetes to this version does instead, such as 1.36 or 1.36.4",
    )
    parser.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text", help="form of the output")
    source.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the lines and return the exit code."""
    if args.local:
        return _shown(args, _local(args))
    if args.socket:
        raise SettingsError("--socket: only with --local")
    node = args.node.removeprefix("node/")
    if "/" in node or (args.node and not node):
        raise SettingsError(f"{args.node}: write node/NAME")
    if args.upgrade_to:
        return _upgrade(args)
    seen, connection = _gathered(args)
    node = _host(seen, node)
    report_lines = _outside(seen, node)
    if connection is not None and node:
        report_lines += _inside(*connection, seen, node)
    source.keep(seen.snapshot)
    if args.bundle:
        from neuron_dra.ask.doctor import bundle

        bundle.write(Path(args.bundle), report_lines, seen)
    return _shown(args, report_lines)


def _upgrade(args: argparse.Namespace) -> int:
    """Print what an upgrade does, and return the exit code. Raises SettingsError for flags that make no sense here."""
    for name in ("node", "bundle"):
        if getattr(args, name):
            flag = "" if name == "node" else "--"
            raise SettingsError(f"--upgrade-to is about the whole cluster: leave out {flag}{name}")
    from neuron_dra.ask.doctor import upgrade
    from neuron_dra.core import upgrades

    try:
        target = upgrades.target(args.upgrade_to)
    except ValueError as err:
        raise SettingsError(f"--upgrade-to {err}") from err
    seen, _ = _gathered(args)
    source.keep(seen.snapshot)
    answer = upgrade.answer(seen, target)
    return _shown(args, list(answer.lines), upgrade=answer.to_wire())


def _gathered(args: argparse.Namespace) -> tuple[Seen, tuple[KubeConfig, asyncio.Runner] | None]:
    """Return what a file has, or a cluster and the connection to it. Raises SettingsError."""
    from neuron_dra.ask.doctor import gather

    if args.snapshot:
        source.reader(args)  # rejects flags of a cluster
        return gather.from_file(args.snapshot, args.kubernetes or ""), None
    kube, namespace, runner = gather.connected(args)
    return gather.live(kube, namespace, runner.run), (kube, runner)


def _local(args: argparse.Namespace) -> list[Line]:
    """Return the lines about this node. Raises SettingsError for flags that have no meaning here."""
    for name in ("node", "snapshot", "kubeconfig", "context", "namespace", "bundle", "upgrade_to"):
        if getattr(args, name):
            flag = name if name == "node" else f"--{name.replace('_', '-')}"
            raise SettingsError(f"--local checks this node only: leave out {flag}")
    import asyncio

    from neuron_dra.ask.doctor import local

    return asyncio.run(local.lines(args.socket))


def _inside(kube: KubeConfig, runner: asyncio.Runner, seen: Seen, node: str) -> list[Line]:
    """Return the lines that the driver's pod prints about its node."""
    from neuron_dra.ask.doctor import remote
    from neuron_dra.ask.doctor.lines import Line
    from neuron_dra.ask.world.world import World

    pod = remote.chosen(World(seen.snapshot, proposes=False).driver_pods.get(node, ()))
    if isinstance(pod, Line):
        return [pod]
    return runner.run(remote.look(kube, pod))


def _host(seen: Seen, name: str) -> str:
    """Return the Node that a name means, which may lack the domain."""
    from neuron_dra.ask.render import words

    return words.host(name, [node["metadata"]["name"] for node in seen.snapshot.all("Node")])


def _outside(seen: Seen, node: str) -> list[Line]:
    """Return the lines about a cluster, or about one node of it. Raises SettingsError if there is no such Node."""
    from neuron_dra.ask.doctor import efa_interfaces, installed, known_releases, nodes
    from neuron_dra.ask.world import unseen
    from neuron_dra.ask.world.world import World

    if node and seen.snapshot.get("Node", node) is None and "Node" not in unseen.kinds(seen.snapshot):
        near = seen.snapshot.near("Node", node)
        raise SettingsError(f"there is no Node {node}" + (f"; did you mean {near}?" if near else ""))
    world = World(seen.snapshot, proposes=False)
    of_cluster = [] if node else [*installed.lines(seen), *known_releases.lines(world)]
    return [*of_cluster, *nodes.lines(world, node), *efa_interfaces.lines(seen, world, node)]


def _shown(args: argparse.Namespace, report_lines: list[Line], **more_fields: Any) -> int:
    """Print the lines and return the exit code; `more_fields` follow the lines in the data."""
    from neuron_dra.ask.doctor import lines, text
    from neuron_dra.ask.render import terminal

    shown = []
    for line in report_lines:
        shown.append(dataclasses.replace(line, text=documented(line.text), todo=documented(line.todo)))
    if args.output == "text":
        terminal.write(text.screen(shown))
    else:
        terminal.write_data("DoctorReport", lines.to_wire(shown), args.output, **more_fields)
    return lines.exit_code(shown)
