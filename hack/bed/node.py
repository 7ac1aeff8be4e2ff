"""One node: its cgroup, its mount namespace, containerd and kubelet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.bed import build, cgroups, hardware, mounts, network, node_config, pki
from hack.bed.controlplane import ControlPlane
from hack.bed.errors import BedError
from hack.bed.layout import Layout
from hack.bed.processes import Processes, end, inside
from hack.bed.state import NodeSpec, State

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"  # in the node's mount namespace
KUBELET_HEALTH_PORT = 10248
READY_TIMEOUT_S = 240  # an idle machine takes 2 s; a process that died is noticed at once


class Node:
    """A node of the test bed, by its name."""

    def __init__(self, layout: Layout, state: State, processes: Processes, plane: ControlPlane, spec: NodeSpec) -> None:
        self.layout = layout
        self.state = state
        self.processes = processes
        self.plane = plane
        self.spec = spec
        self.name = spec.name
        self.directory = layout.node_dir(spec.name)
        self.hardware_dir = self.directory / "hardware"
        self.addresses = [network.node_address(spec.index)]
        self.pod_subnets = [network.pod_subnet(spec.index)]
        if spec.ipv6:
            self.addresses.insert(0, network.node_address_ipv6(spec.index))
            self.pod_subnets.insert(0, network.pod_subnet_ipv6(spec.index))

    @property
    def address(self) -> str:
        """The main address, at which its kubelet listens. It decides which address of a pod is the main one, too."""
        return self.addresses[0]

    # Names of its processes.
    @property
    def namespace(self) -> str:
        return f"{self.name}/namespace"

    @property
    def containerd(self) -> str:
        return f"{self.name}/containerd"

    @property
    def kubelet(self) -> str:
        return f"{self.name}/kubelet"

    def up(self, archives: Sequence[Path] = ()) -> None:
        """Start the processes that do not run, import images, and wait until the node is Ready in the API server."""
        if not self.processes.is_running(self.namespace):
            self.stop()  # ends the rest of a namespace that died
            self._make_namespace()
        self._start_containerd()
        for archive in archives:
            self._import_image(archive)
        self._start_kubelet()
        self.wait_ready()

    def _make_namespace(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        hardware.write(self.hardware_dir, self.spec)
        if self.spec.ipv6:
            network.forward_ipv6(self.layout)
        for address in self.addresses:
            network.add_address(self.layout, address)
        network.forget_pods(self.layout, self.pod_subnets)
        cgroups.make(self.layout, self.name)
        ready = self.directory / mounts.READY
        ready.unlink(missing_ok=True)
        self.processes.start(self.namespace, [
            "nsenter", f"--net={self.layout.netns_file}", "--", "unshare", "--mount", "--propagation", "private", "--",
            sys.executable, "-I", mounts.__file__, self.directory, self.hardware_dir,
        ])  # fmt: skip
        self.processes.wait_ready(self.namespace, ready.exists, 20)

    def enter(self) -> Sequence[str]:
        """Return the command prefix that runs a command in the node's mount and network namespaces."""
        return ("nsenter", f"--target={self.processes.pid(self.namespace)}", "--mount", "--net", "--")

    def environment(self) -> Mapping[str, str]:
        return {**self.plane.environment(), "CONTAINERD_ADDRESS": CONTAINERD_SOCKET, "CONTAINERD_NAMESPACE": "k8s.io"}

    def run(self, *command: str | Path, timeout_s: float = 60) -> str:
        """Run `command` in the node and return its output.

        Raises:
            BedError: it failed.
        """
        words = [str(word) for word in command]
        done = subprocess.run([*self.enter(), *words], env={**os.environ, **self.environment()}, cwd="/",
                              capture_output=True, text=True, timeout=timeout_s, check=False)  # fmt: skip
        if done.returncode != 0:
            raise BedError(f"on node {self.name}: `{' '.join(words)}` failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def _succeeds(self, *command: str) -> bool:
        try:
            self.run(*command, timeout_s=20)
        except (BedError, subprocess.TimeoutExpired):
            return False
        return True

    def _start_containerd(self) -> None:
        if self.processes.is_running(self.containerd):
            return
        base_spec = self.directory / "base-spec.json"
        if not base_spec.exists():
            node_config.write_base_spec(base_spec, json.loads(self.run("ctr", "oci", "spec")))
        config = self.directory / "containerd.toml"
        node_config.write_containerd(config, self.directory / "cni", base_spec, cdi=not self.without_cdi.exists())
        node_config.write_cni(self.directory / "cni", *self.pod_subnets)
        self.processes.start(self.containerd, [*self.enter(), "containerd", "--config", config], self.environment())
        self.processes.wait_ready(self.containerd, lambda: self._succeeds("ctr", "version"), 30)

    def _import_image(self, archive: Path) -> None:
        """Import all images of `archive` unless this containerd has them."""
        done = self.directory / f"{archive.stem}.imported"
        if not done.exists():
            # Unpacked only: the nodes' disks may be in memory.
            self.run("ctr", "images", "import", "--local", "--discard-unpacked-layers", archive, timeout_s=300)
            done.touch()

    def _start_kubelet(self) -> None:
        if self.processes.is_running(self.kubelet):
            return
        kubeconfig = self.directory / "kubelet.kubeconfig"
        user = pki.node_user(self.layout, self.name, self.addresses)
        pki.write_kubeconfig(self.layout, kubeconfig, self.plane.url, user)
        config = self.directory / "kubelet.json"
        node_config.write_kubelet(config, node_config.KubeletSettings(
            kubernetes=self.spec.kubernetes or self.state.kubernetes, gates=self.state.gates, address=self.address,
            cgroup_root=cgroups.kubelet_root(self.layout, self.name), certificate=user["client-certificate"],
            key=user["client-key"], ca=str(self.layout.pki_dir / "ca.crt"), resolv_conf=self.directory / "resolv.conf",
            socket=CONTAINERD_SOCKET,
        ))  # fmt: skip
        labels = ",".join(f"{key}={value}" for key, value in hardware.labels(self.layout, self.spec).items())
        self.processes.start(self.kubelet, [
            *self.enter(), self._kubelet_program(), f"--config={config}", f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}", f"--node-ip={','.join(self.addresses)}", f"--node-labels={labels}",
            "--root-dir=/var/lib/kubelet", "--cert-dir=/var/lib/kubelet/pki", "--v=2",
            # Its statistics read all processes of the machine: every 10 s they are a third of an idle kubelet's time.
            "--housekeeping-interval=60s",
        ], self.environment())  # fmt: skip

    def _kubelet_program(self) -> Path:
        """Return the kubelet's file, which may be of an older version than the control plane."""
        kubernetes, *_ = build.modules(self.layout, self.spec.kubernetes or self.state.kubernetes)
        return kubernetes.bin_dir / "kubelet"

    def wait_ready(self) -> None:
        """Wait until the kubelet answers and its current boot is Ready in the API server."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        health = f"http://{host}:{KUBELET_HEALTH_PORT}/healthz"
        self.processes.wait_ready(self.kubelet, lambda: network.answers(self.layout, health), READY_TIMEOUT_S)
        self.processes.wait_ready(self.kubelet, self.is_ready, READY_TIMEOUT_S, interval_s=0.2)

    def is_ready(self) -> bool:
        """Return True if the node is Ready in the API server; a status from before a reboot does not count."""
        try:
            node = self.plane.read(f"/api/v1/nodes/{self.name}")
        except BedError:
            return False
        conditions = {entry["type"]: entry["status"] for entry in node["status"].get("conditions", [])}
        taints = [taint["key"] for taint in node["spec"].get("taints", [])]
        return (
            conditions.get("Ready") == "True"
            and not any(key.startswith("node.kubernetes.io/") for key in taints)
            and node["status"]["nodeInfo"]["bootID"] == (self.hardware_dir / mounts.BOOT_ID).read_text().strip()
        )

    def restart_kubelet(self) -> None:
        """Kill and restart the kubelet."""
        self.stop_kubelet()
        self._start_kubelet()
        self.wait_ready()

    def stop_kubelet(self) -> None:
        """Kill the kubelet."""
        self.processes.stop([self.kubelet], signal.SIGKILL)

    @property
    def without_cdi(self) -> Path:
        """The file that makes containerd look for CDI files in another folder, which is empty."""
        return self.directory / "without-cdi"

    def restart_containerd(self) -> None:
        """Kill and restart containerd; containers and their shims stay."""
        self.processes.stop([self.containerd], signal.SIGKILL)
        self._start_containerd()

    def stop(self) -> None:
        """End everything on the node as a power cut does: kubelet, containerd, shims, containers, and all mounts."""
        others = [name for name in self.state.processes if name.startswith(f"{self.name}/") and name != self.kubelet]
        self.processes.stop([self.kubelet], signal.SIGKILL)
        self.processes.stop(others, signal.SIGKILL)
        end(inside(f"/{self.layout.state_dir.name}/nodes/{self.name}/"), signal.SIGKILL, 5)
        cgroups.remove(self.layout, self.name)
