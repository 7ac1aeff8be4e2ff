"""Controllers of jobs (LeaderWorkerSet, JobSet, MPIJob), Flux and Argo CD, as processes beside the control plane."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from hack.bed import build, network, objects, pki
from hack.bed.errors import BedError
from hack.bed.layout import Layout
from hack.bed.parts import Bed
from hack.bed.processes import wait_until

READY_TIMEOUT_S = 60
TEMPLATE = {"spec": {"containers": [{"name": "a", "image": "a"}]}}


@dataclass(frozen=True, slots=True)
class Webhooks:
    """The webhooks of a controller, and its configuration file, which says where they listen."""

    config_group: str
    label: str
    """The label of the controller's pods: as in its default installation, its webhooks get only these."""
    smallest: Mapping[str, Any]
    """The spec of an object that they accept."""
    port: int


@dataclass(frozen=True, slots=True)
class Controller:
    """One controller."""

    process: str
    kind: str
    api_version: str
    module: Callable[[Layout], build.Module]
    """Its first program is started. Its manifests are applied first; with webhooks, the last has these."""
    health: str
    """Host, port and path that answer when it runs."""
    arguments: tuple[str, ...] = ()
    """`{folder}` is the process's own folder."""
    webhooks: Webhooks | None = None
    namespace: str = "default"
    """Of its manifests."""
    environment: Mapping[str, str] = field(default_factory=dict)


def _flux(process: str, kind: str, api_version: str, port: int, *arguments: str) -> Controller:
    return Controller(
        process=process,
        kind=kind,
        api_version=api_version,
        module=partial(build.flux, controller=process),
        health=f"127.0.0.1:{port}/readyz",
        arguments=(f"--health-addr=127.0.0.1:{port}", "--metrics-addr=0", *arguments),
    )


def _argocd(process: str, health: str, *arguments: str) -> Controller:
    return Controller(
        process=f"argocd-{process}",
        kind="Application",
        api_version="argoproj.io/v1alpha1",
        module=build.argocd,
        health=health,
        arguments=(process, *arguments),
        namespace="argocd",
        # With the first it uses the kubeconfig as if it ran in the cluster.
        environment={"ARGOCD_FAKE_IN_CLUSTER": "true", "ARGOCD_GPG_ENABLED": "false"},
    )


CONTROLLERS: Final[Mapping[str, tuple[Controller, ...]]] = {
    "leaderworkersets": (
        Controller(
            process="lws-manager",
            kind="LeaderWorkerSet",
            api_version="leaderworkerset.x-k8s.io/v1",
            module=build.lws,
            health="127.0.0.1:9440/readyz",
            arguments=("--leader-elect=false", "--zap-log-level=info"),
            webhooks=Webhooks(
                config_group="config.lws.x-k8s.io",
                label="leaderworkerset.sigs.k8s.io/name",
                smallest={"leaderWorkerTemplate": {"size": 1, "workerTemplate": TEMPLATE}},
                port=9443,
            ),
        ),
    ),
    "jobsets": (
        Controller(
            process="jobset-manager",
            kind="JobSet",
            api_version="jobset.x-k8s.io/v1alpha2",
            module=build.jobset,
            health="127.0.0.1:9441/readyz",
            webhooks=Webhooks(
                config_group="config.jobset.x-k8s.io",
                label="jobset.sigs.k8s.io/jobset-name",
                smallest={
                    "replicatedJobs": [
                        {
                            "name": "a",
                            "template": {
                                "spec": {"template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}
                            },
                        }
                    ]
                },
                port=9444,
            ),
        ),
    ),
    "mpijobs": (
        Controller(
            process="mpi-operator",
            kind="MPIJob",
            api_version="kubeflow.org/v2beta1",
            module=build.mpi,
            health="127.0.0.1:8080/healthz",  # not a port that can be chosen
            arguments=("-lock-namespace=kube-system", "-kube-api-qps=50", "-kube-api-burst=100"),
        ),
    ),
    "flux": (
        _flux(
            "source-controller",
            "OCIRepository",
            "source.toolkit.fluxcd.io/v1",
            9442,
            "--storage-path={folder}",
            "--storage-addr=127.0.0.1:9790",
            "--storage-adv-addr=127.0.0.1:9790",
        ),
        _flux("kustomize-controller", "Kustomization", "kustomize.toolkit.fluxcd.io/v1", 9445),
        _flux("helm-controller", "HelmRelease", "helm.toolkit.fluxcd.io/v2", 9446),
    ),
    "argocd": (
        _argocd(
            "repo-server",
            "127.0.0.1:8084/healthz",
            "--address=127.0.0.1",
            "--metrics-address=127.0.0.1",
        ),
        _argocd(
            "application-controller",
            "127.0.0.1:8082/healthz",
            "--namespace=argocd",
            "--repo-server=127.0.0.1:8081",
            "--persist-resource-health",
        ),
    ),
}


def up(bed: Bed, extra: str) -> None:
    """Start the controllers of an extra, one after the other."""
    for controller in CONTROLLERS[extra]:
        _up(bed, controller)


def _up(bed: Bed, controller: Controller) -> None:
    """Apply its manifests, start it unless it runs, and register its webhooks with the API server. Builds it first."""
    if bed.processes.is_running(controller.process):
        return
    module = controller.module(bed.layout)
    build.build_modules(bed.layout, [module], controller.kind)
    files = [module.bin_dir / name.rpartition("/")[2] for name in module.manifests]
    _apply(bed, controller, files[: -1 if controller.webhooks else None])
    _start(bed, controller, module.bin_dir / module.programs[0].file)
    url = f"http://{controller.health}"
    bed.processes.wait_ready(controller.process, lambda: network.answers(bed.layout, url), READY_TIMEOUT_S)
    if controller.webhooks is not None:
        _register(bed, controller, controller.webhooks, files[-1])


def _apply(bed: Bed, controller: Controller, files: Sequence[Path]) -> None:
    """Apply its manifests, and wait until its kind is served."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": controller.namespace}}
    bed.plane.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(namespace))
    # Server-side, because CRDs are too long for the annotation of a client-side apply.
    words = [f"--filename={file}" for file in files]
    bed.plane.kubectl("apply", "--server-side", "--force-conflicts", "--namespace", controller.namespace, *words)
    group, _, version = controller.api_version.partition("/")
    resource = f"{controller.kind.lower()}.{version}.{group}"
    wait_until(f"the API server serves {resource}", lambda: _succeeds(bed, "get", resource), READY_TIMEOUT_S)


def _start(bed: Bed, controller: Controller, program: Path) -> None:
    folder = bed.layout.state_dir / controller.process
    folder.mkdir(exist_ok=True)
    arguments = [argument.format(folder=folder) for argument in controller.arguments]
    words: list[str | Path] = [*network.enter(bed.layout), program, *arguments]
    if controller.webhooks is not None:
        words.append(f"--config={_config(bed, controller, controller.webhooks)}")
    environment = {**bed.plane.environment(), **controller.environment, "TMPDIR": str(folder)}
    bed.processes.start(controller.process, words, environment)


def _config(bed: Bed, controller: Controller, webhooks: Webhooks) -> Path:
    """Write the configuration of a controller with webhooks, and their certificate."""
    process = controller.process
    directory = bed.layout.state_dir / process
    certificates = directory / "certificates"
    certificates.mkdir(parents=True, exist_ok=True)
    pki.issue(bed.layout, process, f"/CN={process}", "subjectAltName=IP:127.0.0.1")
    for name in ("crt", "key"):
        issued = bed.layout.pki_dir / f"{process}.{name}"
        (certificates / f"tls.{name}").write_bytes(issued.read_bytes())
    config = directory / "config.json"
    config.write_text(json.dumps({
        "apiVersion": f"{webhooks.config_group}/v1alpha1",
        "kind": "Configuration",
        "webhook": {"host": "127.0.0.1", "port": webhooks.port, "certDir": str(certificates)},
        "health": {"healthProbeBindAddress": controller.health.partition("/")[0]},
        "metrics": {"bindAddress": "0"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }))  # fmt: skip
    return config


def _register(bed: Bed, controller: Controller, webhooks: Webhooks, manifest: Path) -> None:
    as_json = bed.plane.kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", str(manifest))
    found = _with_our_server(bed, controller.process, webhooks, as_json)
    bed.plane.kubectl("apply", "-f", "-", stdin=objects.as_list(found))
    what = f"the webhooks of {controller.kind} answer"
    wait_until(what, lambda: _answers(bed, controller, webhooks), READY_TIMEOUT_S, interval_s=0.2)


def _with_our_server(bed: Bed, process: str, webhooks: Webhooks, as_json: str) -> list[dict[str, Any]]:
    """Return the webhook configurations for a server that is a process and not a Service."""
    found = list(objects.parse(as_json))
    trust = base64.b64encode((bed.layout.pki_dir / "ca.crt").read_bytes()).decode()
    for item in found:
        item["metadata"]["name"] = f"{process}-{item['metadata']['name']}"
        for webhook in item["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://127.0.0.1:{webhooks.port}{path}", "caBundle": trust}
            if any("pods" in rule["resources"] for rule in webhook["rules"]):
                webhook["objectSelector"] = {"matchExpressions": [{"key": webhooks.label, "operator": "Exists"}]}
    return found


def _answers(bed: Bed, controller: Controller, webhooks: Webhooks) -> bool:
    """Return True if the API server accepts an object of the controller's kind."""
    probe = {
        "apiVersion": controller.api_version,
        "kind": controller.kind,
        "metadata": {"name": "probe", "namespace": "default"},
        "spec": webhooks.smallest,
    }
    return _succeeds(bed, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(probe))


def _succeeds(bed: Bed, *words: str, stdin: str | None = None) -> bool:
    try:
        bed.plane.kubectl(*words, stdin=stdin, timeout_s=20)
    except BedError:
        return False
    return True
