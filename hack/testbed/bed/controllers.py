"""Controllers of sets of pods (LeaderWorkerSet, JobSet), as processes beside the control plane, with their webhooks."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bed import build, network, objects, pki
from bed.errors import BedError
from bed.parts import Bed
from bed.processes import wait_until

READY_TIMEOUT_S = 60
TEMPLATE = {"spec": {"containers": [{"name": "a", "image": "a"}]}}


@dataclass(frozen=True, slots=True)
class Controller:
    """One controller."""

    process: str
    kind: str
    api_version: str
    config_group: str
    label: str
    """The label of its pods: as in its default installation, its webhooks get only these."""
    smallest: Mapping[str, Any]
    """The spec of an object that its webhooks accept."""
    webhook_port: int
    health_port: int
    arguments: tuple[str, ...] = ()


LEADERWORKERSET = Controller(
    process="lws-manager",
    kind="LeaderWorkerSet",
    api_version="leaderworkerset.x-k8s.io/v1",
    config_group="config.lws.x-k8s.io",
    label="leaderworkerset.sigs.k8s.io/name",
    smallest={"leaderWorkerTemplate": {"size": 1, "workerTemplate": TEMPLATE}},
    webhook_port=9443,
    health_port=9440,
    arguments=("--leader-elect=false", "--zap-log-level=info"),
)
JOBSET = Controller(
    process="jobset-manager",
    kind="JobSet",
    api_version="jobset.x-k8s.io/v1alpha2",
    config_group="config.jobset.x-k8s.io",
    label="jobset.sigs.k8s.io/jobset-name",
    smallest={
        "replicatedJobs": [
            {"name": "a", "template": {"spec": {"template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}}}
        ]
    },
    webhook_port=9444,
    health_port=9441,
)


def up(bed: Bed, controller: Controller) -> None:
    """Install its CRD, start it unless it runs, and register its webhooks with the API server. Builds it first."""
    if bed.processes.is_running(controller.process):
        return
    module = build.lws(bed.layout) if controller is LEADERWORKERSET else build.jobset(bed.layout)
    build.build_modules(bed.layout, [module], controller.kind)
    crd, webhooks = (module.bin_dir / name.rpartition("/")[2] for name in module.manifests)
    # Server-side, because the CRD is too long for the annotation of a client-side apply.
    bed.plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(crd))
    group, _, version = controller.api_version.partition("/")
    resource = f"{controller.kind.lower()}s.{version}.{group}"
    wait_until(f"the API server serves {resource}", lambda: _succeeds(bed, "get", resource), READY_TIMEOUT_S)
    _start(bed, controller, module.bin_dir / controller.process)
    url = f"http://127.0.0.1:{controller.health_port}/readyz"
    bed.processes.wait_ready(controller.process, lambda: network.answers(bed.layout, url), READY_TIMEOUT_S)
    as_json = bed.plane.kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", str(webhooks))
    bed.plane.kubectl("apply", "-f", "-", stdin=objects.as_list(_with_our_server(bed, controller, as_json)))
    what = f"the webhooks of {controller.kind} answer"
    wait_until(what, lambda: _answers(bed, controller), READY_TIMEOUT_S, interval_s=0.2)


def _start(bed: Bed, controller: Controller, program: Path) -> None:
    directory = bed.layout.state_dir / controller.process
    certificates = directory / "certificates"
    certificates.mkdir(parents=True, exist_ok=True)
    pki.issue(bed.layout, controller.process, f"/CN={controller.process}", "subjectAltName=IP:127.0.0.1")
    for name in ("crt", "key"):
        issued = bed.layout.pki_dir / f"{controller.process}.{name}"
        (certificates / f"tls.{name}").write_bytes(issued.read_bytes())
    config = directory / "config.json"
    config.write_text(json.dumps({
        "apiVersion": f"{controller.config_group}/v1alpha1",
        "kind": "Configuration",
        "webhook": {"host": "127.0.0.1", "port": controller.webhook_port, "certDir": str(certificates)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{controller.health_port}"},
        "metrics": {"bindAddress": "0"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }))  # fmt: skip
    words = [*network.enter(bed.layout), program, f"--config={config}", *controller.arguments]
    bed.processes.start(controller.process, words, bed.plane.environment())


def _with_our_server(bed: Bed, controller: Controller, as_json: str) -> list[dict[str, Any]]:
    """Return the webhook configurations for a server that is a process and not a Service."""
    found = list(objects.parse(as_json))
    trust = base64.b64encode((bed.layout.pki_dir / "ca.crt").read_bytes()).decode()
    for item in found:
        item["metadata"]["name"] = f"{controller.process}-{item['metadata']['name']}"
        for webhook in item["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            url = f"https://127.0.0.1:{controller.webhook_port}{path}"
            webhook["clientConfig"] = {"url": url, "caBundle": trust}
            if any("pods" in rule["resources"] for rule in webhook["rules"]):
                webhook["objectSelector"] = {"matchExpressions": [{"key": controller.label, "operator": "Exists"}]}
    return found


def _answers(bed: Bed, controller: Controller) -> bool:
    """Return True if the API server accepts an object of the controller's kind."""
    probe = {
        "apiVersion": controller.api_version,
        "kind": controller.kind,
        "metadata": {"name": "probe", "namespace": "default"},
        "spec": controller.smallest,
    }
    return _succeeds(bed, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(probe))


def _succeeds(bed: Bed, *words: str, stdin: str | None = None) -> bool:
    try:
        bed.plane.kubectl(*words, stdin=stdin, timeout_s=20)
    except BedError:
        return False
    return True
