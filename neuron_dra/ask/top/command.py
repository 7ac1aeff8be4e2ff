"""`neuron-dra top`: how busy devices and cores are, by pod, from the counters that the plugins export."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from neuron_dra.ask.read.timing import DEFAULT_TIMING, InspectTiming
from neuron_dra.core import program
from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from neuron_dra.ask.read.pod_views import PodView
    from neuron_dra.ask.top.usage import Sample
    from neuron_dra.kube.client import KubeClient

EXAMPLES = """\
examples:
  kubectl neuron top
  kubectl neuron top -w
  kubectl neuron top ip-10-0-12-34.us-east-2.compute.internal --by core
  kubectl neuron top pod/llm-0 -n ml -o wide
  kubectl neuron top --most 50

It needs the rights of the Role neuron-dra-top in the driver's namespace.
Exit code 0; 1: a node cannot be read; 2: none can."""
DRIVER_NAMESPACE: Final = "neuron-dra-driver"
SELECTOR: Final = "app.kubernetes.io/component=kubelet-plugin"
MOST_NODES: Final = 500
AT_ONCE: Final = 16
"""Nodes that are read at the same time."""
FLEET: Final = 8
"""More nodes than this are one table, with the busiest lines first."""
CLEAR = "\x1b[H\x1b[2J"


@dataclass(frozen=True, slots=True)
class PluginPod:
    """The pod of the driver on a node, and the port of its metrics."""

    node: str
    namespace: str
    name: str
    port: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra top`."""
    parser.description = (
        "Show busy time, memory, executions, errors and power of the Neuron devices, by the pod that has them. The "
        "plugins on the nodes are read twice, --interval apart, through the API server."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("targets", nargs="*", metavar="NODE|pod/NAME", help="nodes, or a pod's node (default: all)")
    parser.add_argument("--by", choices=("pod", "device", "core"), default="pod", help="what a line is (default pod)")
    parser.add_argument(
        "-o", "--output", choices=("text", "wide", "json", "yaml"), default="text", help="wide: claims, kinds of memory"
    )
    text = f"lines for more than {FLEET} nodes, the busiest first; 0: all, by node (default 20)"
    parser.add_argument("--most", type=int, default=20, metavar="NUMBER", help=text)
    parser.add_argument("-w", "--watch", action="store_true", help="show it again every --interval, until interrupted")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="between readings (default 2)")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="pods of all namespaces, the default")
    parser.add_argument("-n", "--namespace", metavar="NAME", default="", help="pods of this namespace only")
    text = f"namespace of the driver (default {DRIVER_NAMESPACE})"
    parser.add_argument("--driver-namespace", metavar="NAME", default=DRIVER_NAMESPACE, help=text)
    parser.add_argument("--kubeconfig", metavar="FILE", default="", help="default $KUBECONFIG, then ~/.kube/config")
    parser.add_argument("--context", metavar="NAME", default="", help="context of the kubeconfig")


def run(args: argparse.Namespace) -> int:
    """Print the use of the devices and return the exit code."""
    if args.all_namespaces and args.namespace:
        raise SettingsError("-A and -n: give one of them")
    if not 1 <= args.interval <= 3600:
        raise SettingsError(f"--interval {args.interval:g}: from 1 to 3600 seconds")
    if args.watch and args.output in ("json", "yaml"):
        raise SettingsError("--watch: needs the output text or wide")
    if args.most < 0:
        raise SettingsError(f"--most {args.most}: a number of lines, or 0 for all")
    return asyncio.run(_run(args, DEFAULT_TIMING))


async def _run(args: argparse.Namespace, timing: InspectTiming) -> int:
    from neuron_dra.ask.read import cluster
    from neuron_dra.kube.client import KubeClient

    kube = cluster.connection(args.kubeconfig, args.context)
    async with KubeClient(kube) as client:
        plugins = await _plugins(client, args, args.namespace or kube.namespace or "default")
        if sys.stderr.isatty():
            sys.stderr.write(f"{program.NAME}: reading {len(plugins)} nodes, twice ...\n")
        before = (await _read(client, plugins, timing))[0]
        while True:
            await asyncio.sleep(args.interval)
            after, failures = await _read(client, plugins, timing)
            if not after and not args.watch:
                from neuron_dra.ask.top import text as top_text

                raise SettingsError(f"no node can be read: {'; '.join(top_text.unread(failures))}")
            _show(args, before, after, failures)
            if not args.watch:
                if failures:
                    return 1
                return 0
            sys.stdout.flush()
            before = after


def _show(
    args: argparse.Namespace,
    before: Mapping[str, Sample],
    after: Mapping[str, Sample],
    failures: Mapping[str, str],
) -> None:
    from neuron_dra.ask.render import terminal
    from neuron_dra.ask.top import text as top_text

    usage_rows = top_text.rows(before, after, args.by, args.namespace)
    if args.output in ("json", "yaml"):
        answer = {"usage": [row.data() for row in usage_rows], "unread": dict(failures)}
        terminal.write_data("Usage", answer, args.output)
        return
    if args.watch and sys.stdout.isatty():
        sys.stdout.write(CLEAR)
    if args.most and len(after) + len(failures) > FLEET:
        is_wide = args.output == "wide"
        terminal.write(top_text.fleet(after, usage_rows, failures, by=args.by, wide=is_wide, most=args.most))
        return
    terminal.write(top_text.lines(after, usage_rows, failures, by=args.by, wide=args.output == "wide"))


async def _plugins(client: KubeClient, args: argparse.Namespace, namespace: str) -> list[PluginPod]:
    """Return the driver's pods on the wanted nodes. Raises SettingsError."""

    from neuron_dra.ask.read import cluster
    from neuron_dra.ask.read.pod_views import PodView
    from neuron_dra.ask.render import words
    from neuron_dra.errors import ApiError, Forbidden
    from neuron_dra.kube.requests import PODS

    plugin_by_node: dict[str, tuple[tuple[bool, str], PluginPod]] = {}
    try:
        async for page in client.list(PODS, args.driver_namespace, labelSelector=SELECTOR):
            for pod in page.decoded(dict).objects:
                pod_view = PodView.of(pod)
                plugin = _plugin(pod_view, args.driver_namespace)
                rank = pod_view.is_ready, str(pod_view.metadata.creation_timestamp or "")
                if plugin is not None and (plugin.node not in plugin_by_node or plugin_by_node[plugin.node][0] < rank):
                    plugin_by_node[plugin.node] = rank, plugin
    except Forbidden as err:
        if err.status == 401:
            hint = ""
        else:
            hint = f": bind the Role neuron-dra-top to yourself in {args.driver_namespace}"
        raise SettingsError(cluster.reason(err) + hint) from err
    except (ApiError, ValueError, KeyError, TypeError) as err:
        raise SettingsError(f"cannot list the driver's pods in {args.driver_namespace}: {err}") from err
    if not plugin_by_node:
        raise SettingsError(
            f"no pod of the driver runs in namespace {args.driver_namespace}; --driver-namespace names another one"
        )
    named_nodes = [await _node_of(client, target, namespace) for target in args.targets]
    chosen_nodes = [words.host(node, plugin_by_node) for node in named_nodes] or sorted(
        plugin_by_node, key=words.natural
    )
    for node in chosen_nodes:
        if node not in plugin_by_node:
            raise SettingsError(f"no pod of the driver runs on node {node}; {program.NAME} why node/{node} explains it")
    if len(chosen_nodes) > MOST_NODES:
        raise SettingsError(
            f"{len(chosen_nodes)} nodes: name at most {MOST_NODES} of them, or pods; for a fleet, query the same "
            "series in Prometheus (docs/metrics.md)"
        )
    return [plugin_by_node[node][1] for node in dict.fromkeys(chosen_nodes)]


def _plugin(pod: PodView, namespace: str) -> PluginPod | None:
    """Return a running pod of the driver, None for others."""
    if pod.status.phase != "Running" or not pod.spec.node_name:
        return None
    for container in pod.spec.containers:
        for port in container.ports:
            if port.name == "metrics" and "neuron" in container.name:
                return PluginPod(pod.spec.node_name, namespace, pod.metadata.name, port.container_port)
    return None


async def _node_of(client: KubeClient, target: str, namespace: str) -> str:
    """Return the node that a target names. Raises SettingsError."""

    from neuron_dra.errors import ApiError
    from neuron_dra.kube.requests import PODS

    kind, slash, name = target.partition("/")
    if not slash:
        return target
    if kind in ("node", "no", "nodes"):
        return name
    if kind not in ("pod", "po", "pods"):
        raise SettingsError(f"{target}: name a node, node/NAME or pod/NAME")
    try:
        node = (await client.read(PODS, namespace, name)).get("spec", {}).get("nodeName")
    except ApiError as err:
        raise SettingsError(f"pod {namespace}/{name}: {err}") from err
    if not node:
        raise SettingsError(f"pod {namespace}/{name} has no node yet; {program.NAME} why pod/{name} explains it")
    return str(node)


async def _read(
    client: KubeClient, plugins: list[PluginPod], timing: InspectTiming
) -> tuple[dict[str, Sample], dict[str, str]]:
    """Return the readings by node, and why others could not be read."""
    from neuron_dra.ask.top import usage
    from neuron_dra.errors import ApiError, Forbidden, NotFound, NotServed
    from neuron_dra.kube.requests import PODS

    slots = asyncio.Semaphore(AT_ONCE)
    sample_by_node: dict[str, Sample] = {}
    failures: dict[str, str] = {}

    async def read_one(plugin: PluginPod) -> None:
        path = PODS.path(plugin.namespace, f"{plugin.name}:{plugin.port}", "proxy/metrics")
        try:
            async with slots:
                text = (await client.request("GET", path, timeout_s=timing.counters_s)).decode(errors="replace")
            sample_by_node[plugin.node] = usage.sample(text)
        except Forbidden:
            failures[plugin.node] = f"forbidden: bind the Role neuron-dra-top to yourself in {plugin.namespace}"
        except (NotFound, NotServed):
            failures[plugin.node] = f"its pod {plugin.name} is gone"
        except (ApiError, ValueError) as err:
            failures[plugin.node] = str(err)

    readings = {asyncio.create_task(read_one(plugin)): plugin for plugin in plugins}
    _, late = await asyncio.wait(readings, timeout=timing.fleet_s)
    for reading in late:
        reading.cancel()
        failures[readings[reading].node] = f"not read within {timing.fleet_s:g} s: name fewer nodes"
    for result in await asyncio.gather(*readings, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    return dict(sorted(sample_by_node.items())), dict(sorted(failures.items()))
