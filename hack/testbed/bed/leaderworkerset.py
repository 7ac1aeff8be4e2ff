"""The LeaderWorkerSet controller (sigs.k8s.io/lws), as a process beside the control plane, with its webhooks."""

from __future__ import annotations

import base64
import json
from typing import Any

from bed import build, network, objects, pki
from bed.errors import BedError
from bed.parts import Bed
from bed.processes import wait_until

PROCESS = "lws-manager"
RESOURCE = "leaderworkersets.v1.leaderworkerset.x-k8s.io"
WEBHOOKS = "https://127.0.0.1:9443"
READY_TIMEOUT_S = 60
# As in its default installation: its webhooks get only the pods of LeaderWorkerSets.
OF_A_SET = {"matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]}
SMALLEST = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1",
    "kind": "LeaderWorkerSet",
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {
        "leaderWorkerTemplate": {"size": 1, "workerTemplate": {"spec": {"containers": [{"name": "a", "image": "a"}]}}}
    },
}


def up(bed: Bed) -> None:
    """Install its CRD, start it unless it runs, and register its webhooks with the API server."""
    if bed.processes.is_running(PROCESS):
        return
    manifests = build.lws(bed.layout).bin_dir
    crd, webhooks = (manifests / name.rpartition("/")[2] for name in build.LWS_MANIFESTS)
    # Server-side, because the CRD is too long for the annotation of a client-side apply.
    bed.plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(crd))
    wait_until("the API server serves LeaderWorkerSets", lambda: _succeeds(bed, "get", RESOURCE), READY_TIMEOUT_S)
    _start(bed)
    url = "http://127.0.0.1:9440/readyz"
    bed.processes.wait_ready(PROCESS, lambda: network.answers(bed.layout, url), READY_TIMEOUT_S)
    as_json = bed.plane.kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", str(webhooks))
    bed.plane.kubectl("apply", "-f", "-", stdin=objects.as_list(_with_our_server(bed, as_json)))
    wait_until("the webhooks of LeaderWorkerSet answer", lambda: _answers(bed), READY_TIMEOUT_S, interval_s=0.2)


def _start(bed: Bed) -> None:
    directory = bed.layout.state_dir / "lws"
    certificates = directory / "certificates"
    certificates.mkdir(parents=True, exist_ok=True)
    pki.issue(bed.layout, PROCESS, f"/CN={PROCESS}", "subjectAltName=IP:127.0.0.1")
    for name in ("crt", "key"):
        (certificates / f"tls.{name}").write_bytes((bed.layout.pki_dir / f"{PROCESS}.{name}").read_bytes())
    config = directory / "config.json"
    config.write_text(json.dumps({
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "webhook": {"host": "127.0.0.1", "port": 9443, "certDir": str(certificates)},
        "health": {"healthProbeBindAddress": "127.0.0.1:9440"},
        "metrics": {"bindAddress": "0"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }))  # fmt: skip
    program = build.lws(bed.layout).bin_dir / PROCESS
    words = [program, f"--config={config}", "--leader-elect=false", "--zap-log-level=info"]
    bed.processes.start(PROCESS, [*network.enter(bed.layout), *words], bed.plane.environment())


def _with_our_server(bed: Bed, as_json: str) -> list[dict[str, Any]]:
    """Return the webhook configurations for a server that is a process and not a Service."""
    found = list(objects.parse(as_json))
    trust = base64.b64encode((bed.layout.pki_dir / "ca.crt").read_bytes()).decode()
    for item in found:
        item["metadata"]["name"] = f"lws-{item['metadata']['name']}"
        for webhook in item["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": WEBHOOKS + path, "caBundle": trust}
            if any("pods" in rule["resources"] for rule in webhook["rules"]):
                webhook["objectSelector"] = OF_A_SET
    return found


def _answers(bed: Bed) -> bool:
    return _succeeds(bed, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(SMALLEST))


def _succeeds(bed: Bed, *words: str, stdin: str | None = None) -> bool:
    try:
        bed.plane.kubectl(*words, stdin=stdin, timeout_s=20)
    except BedError:
        return False
    return True
