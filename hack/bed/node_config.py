"""Configuration files of one node: containerd, CNI, the containers' base spec, kubelet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.bed import images, mounts, network

# The longest delay between restarts: otherwise a container that a test kills waits for minutes.
CRASH_LOOP_MAXIMUM = "1s"

CONTAINERD = """\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
]

[grpc]
address = "/run/containerd/containerd.sock"

[ttrpc]
address = "/run/containerd/containerd.sock.ttrpc"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{pause}"

[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ["{cdi}"]
# Without CAP_SYS_RESOURCE runc dies otherwise: "can't get final child's PID from pipe: EOF".
restrict_oom_score_adj = true
# Pods' network namespaces then end with the node's mount namespace.
netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
conf_dir = "{cni}"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{base_spec}"
"""


def write_containerd(path: Path, cni: Path, base_spec: Path, *, cdi: bool = True) -> None:
    """Write containerd's configuration; without `cdi` it finds no CDI files."""
    folder = "/var/run/cdi" if cdi else "/var/run/no-cdi"
    path.write_text(CONTAINERD.format(pause=images.PAUSE, cni=cni, base_spec=base_spec, cdi=folder))


def write_base_spec(path: Path, default: dict[str, Any]) -> None:
    """Write the base spec of the node's containers: containerd's default with the simulated sysfs.

    A container mounts a new sysfs, which shows the devices on real hardware but not here.
    """
    default["process"].pop("rlimits", None)  # `ctr oci spec` limits files to 1,024, unlike the kubelet's containers
    default["mounts"] += [
        {"destination": path, "source": path, "type": "bind", "options": ["rbind", "ro"]} for path in mounts.OVERLAYS
    ]
    path.write_text(json.dumps(default))


def write_cni(directory: Path, *subnets: str) -> None:
    """Write a point-to-point network with a subnet per node, or one of each address family.

    As on most hosts, a reboot clears the addresses.
    """
    directory.mkdir(exist_ok=True)
    everywhere = ("::/0" if ":" in subnet else "0.0.0.0/0" for subnet in subnets)
    plugin = {
        "type": "ptp",
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": subnet}] for subnet in subnets],
            "routes": [{"dst": destination} for destination in everywhere],
            "dataDir": "/run/cni",
        },
    }
    content = {"cniVersion": "1.0.0", "name": "testbed", "plugins": [plugin]}
    (directory / "10-testbed.conflist").write_text(json.dumps(content, indent=1))


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """The values that differ between nodes."""

    kubernetes: str
    gates: Sequence[str]
    address: str
    cgroup_root: str
    certificate: str
    key: str
    ca: str
    resolv_conf: Path
    socket: str


def write_kubelet(path: Path, settings: KubeletSettings) -> None:
    settings.resolv_conf.write_text("")  # the host's resolvers cannot be reached from here
    content: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": settings.address,
        "healthzBindAddress": settings.address,
        "tlsCertFile": settings.certificate,
        "tlsPrivateKeyFile": settings.key,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": settings.ca},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{settings.socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": settings.cgroup_root,
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": str(settings.resolv_conf),
        "clusterDNS": [network.DNS_ADDRESS],  # without any, every pod would get an Event
        "clusterDomain": network.DNS_DOMAIN,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "nodeLeaseDurationSeconds": 16,
        "serializeImagePulls": False,
        "crashLoopBackOff": {"maxContainerRestartPeriod": CRASH_LOOP_MAXIMUM},
    }
    gates = [*settings.gates, *(["KubeletCrashLoopBackOffMax"] if settings.kubernetes == "1.34" else [])]
    content["featureGates"] = dict.fromkeys(gates, True)
    path.write_text(json.dumps(content, indent=1))
