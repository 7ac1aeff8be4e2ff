"""The driver on the nodes: none, a process on each node, or the DaemonSet that users install."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from hack.bed import network, objects, pki, plugin_image
from hack.bed.errors import BedError
from hack.bed.layout import REPOSITORY, short_hash
from hack.bed.node import Node
from hack.bed.parts import Bed
from hack.bed.processes import wait_until

HOLD_S = 5  # a repaired device is offered again after this long, so that tests need not wait a minute
CHART = REPOSITORY / "deploy" / "helm" / "neuron-dra"
CRDS = REPOSITORY / "deploy" / "crds"
RELEASE = "neuron-dra"
NAMESPACE = "neuron-dra-driver"
DAEMONSET = "neuron-dra-driver-kubelet-plugin"
CONTROLLER = "neuron-ultraserver-controller"
ONLY_PLUGINS = f"--selector=app!={CONTROLLER}"  # among the pods in the driver's namespace
SERVICE_ACCOUNT = "neuron-dra-driver-sa"
COMMAND = "k8s-neuron-dra-driver"
CONTROLLER_COMMAND = "k8s-neuron-ultraserver-operator"
METRICS_PORT = 8080
HEALTHCHECK_PORT = 51515
READY_TIMEOUT_S = 240
KINDS = ("none", "process", "daemonset")
NAMESPACE_OBJECT = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def process_name(node: str) -> str:
    return f"{node}/plugin"


def image_archives(bed: Bed, kind: str) -> list[Path]:
    """Return the archives of images that the nodes must import before they are Ready."""
    return [plugin_image.archive(bed.layout)] if kind == "daemonset" else []


def apply(bed: Bed, kind: str) -> None:
    """Run the driver as `kind` on every node, and end any other kind."""
    if kind != "daemonset" and bed.state.driver == "daemonset":
        helm(bed, "uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found")
    if kind != "process" and bed.state.driver == "process":
        bed.processes.stop([process_name(name) for name in bed.state.nodes], signal.SIGTERM, grace_s=30)
        # Helm does not adopt objects that it did not create.
        bed.plane.kubectl(
            "delete", "--ignore-not-found", "-f", "-", stdin=objects.as_list(_chart_without_daemonset(bed))
        )
    with bed.state.change():
        bed.state.driver = kind
    if kind == "process":
        _install_without_daemonset(bed)
        for node in bed.nodes.values():
            start_process(bed, node)
        for node in bed.nodes.values():
            wait_process_ready(bed, node)
    elif kind == "daemonset":
        _install_daemonset(bed)


# -- as a process ------------------------------------------------------------------------------------------------------


def start_process(bed: Bed, node: Node) -> None:
    """Start the plugin in the node's namespaces, with a token like that of its pod."""
    program = REPOSITORY / ".venv" / "bin" / "neuron-dra"
    if not program.exists():
        raise BedError(f"{program} is missing; run `make setup` first")
    name = process_name(node.name)
    if bed.processes.is_running(name):
        return
    kubeconfig = node.directory / "plugin.kubeconfig"
    # Bound to the Node: the chart's admission policy reads the node's name from the token.
    token = bed.plane.kubectl("create", "token", SERVICE_ACCOUNT, "--namespace", NAMESPACE, "--duration=24h",
                              "--bound-object-kind=Node", f"--bound-object-name={node.name}")  # fmt: skip
    pki.write_kubeconfig(bed.layout, kubeconfig, bed.plane.url, {"token": token.strip()})
    settings = {
        "NODE_NAME": node.name,
        "UNHEALTHY_DEVICE_HOLD_SECONDS": str(HOLD_S),
        "POD_UID": "00000000-0000-4000-8000-" + short_hash("pod", node.name),
        "KUBECONFIG": str(kubeconfig),
        "HOST_DEV": "/dev",
        "BOOT_ID_FILE": "/proc/sys/kernel/random/boot_id",
        "HEALTHCHECK_ADDRESS": node.address,
        "HEALTHCHECK_PORT": str(HEALTHCHECK_PORT),
        "METRICS_BIND_ADDRESS": f"{node.address}:{METRICS_PORT}",
        "PYTHONPATH": str(REPOSITORY),
    }
    bed.processes.start(name, [*node.enter(), program, "plugin"], settings)


def wait_process_ready(bed: Bed, node: Node) -> None:
    """Wait until the plugin on `node` is ready: registered, with its slices published."""
    url = f"http://{node.address}:{METRICS_PORT}/readyz"
    bed.processes.wait_ready(process_name(node.name), lambda: network.answers(bed.layout, url), READY_TIMEOUT_S)


def _install_without_daemonset(bed: Bed) -> None:
    """Apply the chart without its DaemonSet: namespace, service account, roles, policy and device classes."""
    bed.plane.kubectl("apply", "-f", "-", stdin=objects.as_list([NAMESPACE_OBJECT]))
    bed.plane.kubectl("apply", "-f", "-", stdin=objects.as_list(_chart_without_daemonset(bed)))


def _chart_without_daemonset(bed: Bed) -> list[dict[str, Any]]:
    """Return the chart's other objects; without the namespace, which outlives a change of the driver."""
    rendered = helm(bed, "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--skip-tests", *_values("unused"))
    as_json = bed.plane.kubectl(
        "create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", stdin=rendered
    )
    return [item for item in objects.parse(as_json) if item["kind"] not in ("DaemonSet", "Namespace")]


# -- as the DaemonSet --------------------------------------------------------------------------------------------------


def _install_daemonset(bed: Bed) -> None:
    """Install the chart with the UltraServer controller, and wait for the controller if there is an UltraServer."""
    bed.plane.kubectl("apply", "-f", str(CRDS))
    values = [f"{name}={value}" for name, value in bed.state.chart_values.items()]
    helm(bed, "upgrade", "--install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--create-namespace",
          "--set", "ultraserverOperator.enabled=true,ultraserverOperator.crds.enabled=false", *_values(plugin_image.tag()),
          *(word for value in values for word in ("--set", value)))  # fmt: skip
    _wait_rolled_out(bed, f"daemonset/{DAEMONSET}")
    if any(spec.ultraserver for spec in bed.state.nodes.values()):
        _wait_rolled_out(bed, f"deployment/{CONTROLLER}")


def _wait_rolled_out(bed: Bed, what: str) -> None:
    """Wait until the DaemonSet has a ready pod of the current image on each node, and the Deployment all its replicas.

    Raises:
        BedError: they are not ready in time; the message has the pods' status.
    """
    try:
        bed.plane.kubectl("rollout", "status", what, "--namespace", NAMESPACE,
                          f"--timeout={READY_TIMEOUT_S}s", timeout_s=READY_TIMEOUT_S + 10)  # fmt: skip
    except BedError as err:
        pods = bed.plane.kubectl("describe", "pods", "--namespace", NAMESPACE)
        logs = bed.plane.kubectl("logs", "--namespace", NAMESPACE, what, "--tail=30")
        raise BedError(f"{err}\n{pods[-3000:]}\n{logs}") from err


def controller_replicas(bed: Bed) -> tuple[int, int] | None:
    """Return how many replicas of the UltraServer controller are ready, and how many are wanted."""
    text = bed.plane.kubectl("get", "deployment", CONTROLLER, "--namespace", NAMESPACE, "--ignore-not-found",
                             "-o", "jsonpath={.status.readyReplicas}/{.spec.replicas}")  # fmt: skip
    ready, _, wanted = text.partition("/")
    return (int(ready or 0), int(wanted)) if wanted else None


def controller_logs(bed: Bed) -> str:
    """Return the logs of all replicas of the UltraServer controller, each line with its pod's name."""
    return bed.plane.kubectl("logs", "--namespace", NAMESPACE, f"--selector=app={CONTROLLER}", "--prefix",
                             "--tail=-1", "--max-log-requests=20")  # fmt: skip


def pod_logs(bed: Bed, node: Node) -> str:
    """Return the logs of the plugin's pods on `node`, including that of the container before a restart."""
    text = bed.plane.kubectl("get", "pods", "--namespace", NAMESPACE, f"--field-selector=spec.nodeName={node.name}",
                             ONLY_PLUGINS, "-o", "name")  # fmt: skip
    result = []
    for pod in text.split():
        for which in (["--previous"], []):
            with contextlib.suppress(BedError):  # there is no previous container
                result.append(bed.plane.kubectl("logs", "--namespace", NAMESPACE, pod, *which))
    return "".join(result)


def _values(tag: str) -> list[str]:
    return [
        "--set",
        f"draDriver.image.repository={plugin_image.REPOSITORY_NAME}",
        "--set",
        f"draDriver.image.tag={tag}",
        "--set",
        f"draDriver.unhealthyDevices.holdSeconds={HOLD_S}",
    ]


def helm(bed: Bed, *arguments: str) -> str:
    """Run helm on the test bed's cluster, and return its output."""
    if not CHART.exists():
        raise BedError(f"there is no chart at {CHART}")
    helm_home = bed.layout.state_dir / "helm"
    environment = {
        **os.environ,
        **bed.plane.environment(),
        "HELM_CACHE_HOME": str(helm_home / "cache"),
        "HELM_CONFIG_HOME": str(helm_home / "config"),
        "HELM_DATA_HOME": str(helm_home / "data"),
    }
    done = subprocess.run([*network.enter(bed.layout), "helm", *arguments], env=environment, capture_output=True,
                          text=True, timeout=180, check=False)  # fmt: skip
    if done.returncode != 0:
        raise BedError(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


# -- both --------------------------------------------------------------------------------------------------------------


def plugin_pids(bed: Bed, node: Node, in_pods: set[int]) -> list[int]:
    """Return the plugin's processes on `node`: the recorded one, or those in the node's pods."""
    if bed.state.driver == "process":
        return [bed.processes.pid(process_name(node.name))]
    return _running(COMMAND, in_pods)


def controller_pids(in_pods: set[int]) -> list[int]:
    """Return the UltraServer controller's processes among those of a node's pods."""
    return _running(CONTROLLER_COMMAND, in_pods)


def _running(command: str, pids: set[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(Path(os.fsdecode(word)).name == command for word in words[:2]):
            found.append(pid)
    return found


def wait_controller_ready(bed: Bed) -> None:
    """Wait until all replicas of the UltraServer controller are ready."""
    _wait_rolled_out(bed, f"deployment/{CONTROLLER}")


def wait_ready(bed: Bed, node: Node) -> None:
    """Wait until the driver, if there is one, is ready on `node` again."""
    if bed.state.driver == "process":
        start_process(bed, node)
        wait_process_ready(bed, node)
    elif bed.state.driver == "daemonset":
        wait_until(f"driver on {node.name}", lambda: _pod_answers(bed, node.name), READY_TIMEOUT_S, interval_s=0.2)


def _pod_answers(bed: Bed, node: str) -> bool:
    """Return True if the plugin's pod on `node` answers; after a kill its status in the API server is out of date."""
    text = bed.plane.kubectl(
        "get", "pods", "--namespace", NAMESPACE, f"--field-selector=spec.nodeName={node}", ONLY_PLUGINS, "-o", "json"
    )
    addresses = [
        pod["status"].get("podIP") for pod in json.loads(text)["items"] if "deletionTimestamp" not in pod["metadata"]
    ]
    return any(
        address and network.answers(bed.layout, f"http://{address}:{METRICS_PORT}/readyz") for address in addresses
    )
