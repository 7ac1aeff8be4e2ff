"""Kueue's controller with its CRDs and webhooks, as a process beside a control plane."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hack.bed import build, network, objects, pki
from hack.bed.controlplane import ControlPlane
from hack.bed.errors import BedError
from hack.bed.processes import wait_until

PROCESS: Final = "kueue"
NAMESPACE: Final = "kueue-system"
READY_TIMEOUT_S: Final = 300
# Kueue reads the certificate of its metrics from a fixed path; a mount namespace provides it without a change of /etc.
WITH_CERTIFICATES: Final = 'mount -t overlay overlay -o "lowerdir=$0:/etc" /etc && exec "$@"'


@dataclass(frozen=True, slots=True)
class Options:
    """How Kueue is configured.

    - `resources`: the section of that name.
    - `frameworks`: the kinds that it queues; the webhooks of other kinds are not registered.
    - `health`, `webhooks`: ports of 127.0.0.1.
    """

    health: int
    webhooks: int
    resources: Mapping[str, Any] = field(default_factory=dict)
    frameworks: Sequence[str] = ("batch/job",)

    @property
    def groups(self) -> set[str]:
        """The API groups whose webhooks are registered."""
        return {"kueue.x-k8s.io", *("batch" if name == "batch/job" else "" for name in self.frameworks)}


ON_A_BED: Final = Options(
    health=9447,
    webhooks=9448,
    resources={
        "deviceClassMappings": [{"name": "reserved-device", "deviceClassNames": ["workload.neuron.aws.com"]}],
    },
)
"""Of `up --with kueue`. Pods are not queued, so that none of them waits for its webhooks."""


def up(plane: ControlPlane, options: Options) -> None:
    """Build Kueue if it is missing, install it, start it unless it runs, and wait until its webhooks answer.

    It needs root.
    """
    if plane.processes.is_running(PROCESS):
        return
    module = build.kueue(plane.layout)
    build.build_modules(plane.layout, (module,), "Kueue")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(namespace))
    for path in build.KUEUE_CRDS:
        # Server-side, because the CRDs are too long for the annotation of a client-side apply.
        plane.kubectl("apply", "--server-side", "-f", str(module.bin_dir / path.rpartition("/")[2]))
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=50s")
    start(plane, options)
    found = _webhooks(plane, str(module.bin_dir / build.KUEUE_WEBHOOKS.rpartition("/")[2]), options)
    plane.kubectl("apply", "-f", "-", stdin=objects.as_list(found))
    wait_until("the webhooks of Kueue answer", lambda: _answers(plane), READY_TIMEOUT_S, interval_s=0.5)


def start(plane: ControlPlane, options: Options) -> None:
    """Start Kueue, which is installed, and wait until it is ready."""
    layer = plane.layout.state_dir / PROCESS
    certificates = layer / "kueue" / "metrics" / "certs"
    certificates.mkdir(parents=True, exist_ok=True)
    pki.issue(plane.layout, PROCESS, f"/CN={PROCESS}", "subjectAltName=IP:127.0.0.1")
    for name in ("crt", "key"):
        (certificates / f"tls.{name}").write_bytes((plane.layout.pki_dir / f"{PROCESS}.{name}").read_bytes())
    config = plane.layout.state_dir / "kueue.json"
    config.write_text(json.dumps({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{options.health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": options.webhooks, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": [*options.frameworks]},
        "featureGates": {"VisibilityOnDemand": False},  # it would listen on a fixed port
        "resources": options.resources,
    }))  # fmt: skip
    words: list[str | Path] = [
        *network.enter(plane.layout),
        "unshare",
        "--mount",
        "sh",
        "-c",
        WITH_CERTIFICATES,
        layer,
        build.kueue(plane.layout).bin_dir / PROCESS,
        f"--config={config}",
    ]
    plane.processes.start(PROCESS, words, plane.environment())
    url = f"http://127.0.0.1:{options.health}/readyz"
    plane.processes.wait_ready(PROCESS, lambda: network.answers(plane.layout, url), READY_TIMEOUT_S)


def _webhooks(plane: ControlPlane, manifest: str, options: Options) -> list[dict[str, Any]]:
    """Return the webhook configurations for a server that is a process and not a Service."""
    text = plane.kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", manifest)
    trust = base64.b64encode((plane.layout.pki_dir / "ca.crt").read_bytes()).decode()
    found = list(objects.parse(text))
    for item in found:
        item["metadata"]["name"] = f"kueue-{item['metadata']['name']}"
        item["webhooks"] = [
            each
            for each in item["webhooks"]
            if options.groups.issuperset(*(rule["apiGroups"] for rule in each["rules"]))
        ]
        for each in item["webhooks"]:
            path = each["clientConfig"]["service"]["path"]
            each["clientConfig"] = {"url": f"https://127.0.0.1:{options.webhooks}{path}", "caBundle": trust}
            names = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]}
            each["namespaceSelector"] = {"matchExpressions": [names]}
    return found


def _answers(plane: ControlPlane) -> bool:
    """Return True if the webhook for flavors, which are cluster-scoped, accepts one."""
    probe = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
    try:
        plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(probe))
    except BedError:
        return False
    return True
