"""Kueue's controller with its CRDs and webhooks, as a process beside the control plane of `bench_api`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hack.bed import build, network, objects, pki
from hack.bed.errors import BedError
from hack.bed.processes import wait_until
from hack.bench import api as bench_api

PROCESS: Final = "kueue"
NAMESPACE: Final = "kueue-system"
READY_TIMEOUT_S: Final = 300
# The groups whose webhooks are registered; the others are of kinds that this cluster does not have.
GROUPS: Final = ("", "batch", "kueue.x-k8s.io")
# Kueue reads the certificate of its metrics from a fixed path; a mount namespace provides it without a change of /etc.
WITH_CERTIFICATES: Final = 'mount -t overlay overlay -o "lowerdir=$0:/etc" /etc && exec "$@"'


def up(plane: bench_api.Plane, resources: Mapping[str, Any]) -> None:
    """Build Kueue if it is missing, install it, and wait until its webhooks answer; needs root.

    `resources` is the section of that name in Kueue's configuration.
    """
    module = build.kueue(plane.layout)
    build.build_modules(plane.layout, (module,), "Kueue")
    plane.kubectl("create", "namespace", NAMESPACE)
    for path in build.KUEUE_CRDS:
        # Server-side, because the CRDs are too long for the annotation of a client-side apply.
        plane.kubectl("apply", "--server-side", "-f", str(module.bin_dir / path.rpartition("/")[2]))
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=50s")
    ready, webhooks = network.free_port(), network.free_port()
    _start(plane, resources, ready, webhooks)
    url = f"http://127.0.0.1:{ready}/readyz"
    plane.processes.wait_ready(PROCESS, lambda: network.answers(plane.layout, url), READY_TIMEOUT_S)
    found = _webhooks(plane, str(module.bin_dir / build.KUEUE_WEBHOOKS.rpartition("/")[2]), webhooks)
    plane.kubectl("apply", "-f", "-", stdin=objects.as_list(found))
    wait_until("the webhooks of Kueue answer", lambda: _answers(plane), READY_TIMEOUT_S, interval_s=0.5)


def _start(plane: bench_api.Plane, resources: Mapping[str, Any], ready: int, webhooks: int) -> None:
    layer = plane.layout.state_dir / PROCESS
    certificates = layer / "kueue" / "metrics" / "certs"
    certificates.mkdir(parents=True)
    pki.issue(plane.layout, PROCESS, f"/CN={PROCESS}", "subjectAltName=IP:127.0.0.1")
    for name in ("crt", "key"):
        (certificates / f"tls.{name}").write_bytes((plane.layout.pki_dir / f"{PROCESS}.{name}").read_bytes())
    config = plane.layout.state_dir / "kueue.json"
    config.write_text(json.dumps({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{ready}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job", "pod"]},
        "featureGates": {"VisibilityOnDemand": False},  # it would listen on a fixed port
        "resources": resources,
    }))  # fmt: skip
    program = build.kueue(plane.layout).bin_dir / PROCESS
    words: list[str | Path] = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        WITH_CERTIFICATES,
        layer,
        program,
        f"--config={config}",
    ]
    plane.processes.start(PROCESS, words, plane.environment())


def _webhooks(plane: bench_api.Plane, manifest: str, port: int) -> list[dict[str, Any]]:
    """Return the webhook configurations for a server that is a process and not a Service."""
    text = plane.kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", manifest)
    trust = base64.b64encode((plane.layout.pki_dir / "ca.crt").read_bytes()).decode()
    found = list(objects.parse(text))
    for item in found:
        item["metadata"]["name"] = f"kueue-{item['metadata']['name']}"
        item["webhooks"] = [
            each for each in item["webhooks"] if {*GROUPS}.issuperset(*(rule["apiGroups"] for rule in each["rules"]))
        ]
        for each in item["webhooks"]:
            path = each["clientConfig"]["service"]["path"]
            each["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": trust}
            names = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]}
            each["namespaceSelector"] = {"matchExpressions": [names]}
    return found


def _answers(plane: bench_api.Plane) -> bool:
    """Return True if the webhook for flavors, which are cluster-scoped, accepts one."""
    probe = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
    try:
        plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(probe))
    except BedError:
        return False
    return True
