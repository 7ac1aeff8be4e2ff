"""The chart and a workload as Flux and Argo CD get them: from a registry, with the settings of docs/gitops.md."""

from __future__ import annotations

import gzip
import re

import yaml

from hack.bed.real_cluster import REPOSITORY, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import CONTROLLER, NAMESPACE
from tests.bed.fleet import TRN3
from tests.bed.releases import ADDRESS, IMAGE, VERSIONS, Shell

VALUES = {"draDriver": {"image": {"repository": IMAGE}}, "ultraserverOperator": {"enabled": True}}
CRDS = tuple(f"neuronultraserver{suffix}.neuron.aws.com" for suffix in ("s", "workloads"))
OBJECTS = f"{ADDRESS}/neuron/objects"


def up(bed: TestBed, tool: str) -> None:
    """Start an UltraServer, a GitOps tool, and what the jobs need."""
    extras = [word for extra in ("dns", "job-image", tool) for word in ("--with", extra)]
    bed.command("up", "--ultraserver", f"u1={TRN3}", *extras, timeout_s=3600)


def text() -> str:
    """Return docs/gitops.md."""
    return (REPOSITORY / "docs/gitops.md").read_text()


def objects(section: str) -> list[Obj]:
    """Return the objects in a section of docs/gitops.md, with the test's registry."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", text().partition(f"## {section}\n")[2], re.MULTILINE | re.DOTALL)
    return list(yaml.safe_load_all(blocks[0].replace("REGISTRY", f"{ADDRESS}/neuron")))


def push(shell: Shell, tag: str, objects: list[Obj]) -> None:
    """Push manifests to the registry, as an artifact that Flux and Argo CD read."""
    from hack.bed import oci

    layer = oci.Layer()
    layer.file("objects.yaml", yaml.safe_dump_all(objects).encode())
    layout = oci.Layout()
    packed = layout.blob(gzip.compress(layer.close(), mtime=0), oci.LAYER_GZIP)
    layout.entries.append(layout.image({}, [packed]))
    file = shell.folder / f"{tag}.tar"
    file.write_bytes(layout.archive())
    shell.run(f"skopeo copy --quiet --dest-tls-verify=false oci-archive:{file} docker://{OBJECTS}:{tag}")


def condition(found: Obj, kind: str = "Ready") -> tuple[str, str, str]:
    """Return the status, reason and message of an object's condition."""
    for each in found.get("status", {}).get("conditions", []):
        if each["type"] == kind:
            return each["status"], each["reason"], each["message"]
    return "", "", ""


def one_ultraserver(bed: TestBed) -> None:
    """Wait until the controller knows the fleet's UltraServer."""
    eventually("the UltraServer is known", lambda: len(bed.get("nus", "--namespace", NAMESPACE)["items"]) == 1, 120)


def without_controller(bed: TestBed) -> None:
    """Stop all replicas of the UltraServer controller."""
    where = ("--namespace", NAMESPACE)
    bed.kubectl("scale", f"deployment/{CONTROLLER}", "--replicas=0", *where)
    bed.kubectl("wait", "pod", f"--selector=app={CONTROLLER}", "--for=delete", *where, timeout_s=100)


def pod_uids(place: Namespace, number: int) -> set[str]:
    """Wait until the pods of a job run, and return their UIDs."""

    def found() -> set[str]:
        items = place.get("pods")["items"]
        running = [item["metadata"]["uid"] for item in items if item["status"].get("phase") == "Running"]
        return set(running) if len(running) == len(items) == number else set()

    return eventually(f"{number} running pods", found, 120)


def left(shell: Shell, namespace: str) -> set[str]:
    """Return which objects of the chart are in the cluster, as kubectl names them."""
    (shell.folder / "values.yaml").write_text(yaml.safe_dump(VALUES))
    chart = f"oci://REGISTRY/neuron-dra --version {VERSIONS[1]} --values ../values.yaml --namespace {namespace}"
    version = shell.bed.parts.state.kubernetes
    shell.run(f"helm template neuron-dra {chart} --kube-version {version} --skip-tests > ../rendered.yaml")
    return set(shell.run("kubectl get --ignore-not-found --output=name -f ../rendered.yaml").split())


def uninstalled(shell: Shell, namespace: str, *also: str) -> None:
    """Wait until of the chart only the CRDs are left, and what the test names; remove them."""
    crds = {f"customresourcedefinition.apiextensions.k8s.io/{name}" for name in CRDS}
    eventually("no slices", lambda: not shell.bed.get("resourceslices")["items"], 120)
    eventually("the chart is gone", lambda: left(shell, namespace) == crds | set(also), 60)
    shell.bed.kubectl("delete", "--timeout=100s", f"namespace/{NAMESPACE}", *sorted(crds), timeout_s=110)


def split(objects: list[Obj]) -> tuple[list[Obj], list[Obj]]:
    """Return the workloads among some objects, and the others."""
    workloads = [item for item in objects if item["kind"] == "NeuronUltraServerWorkload"]
    return workloads, [item for item in objects if item not in workloads]


def named(workload: Obj, name: str) -> Obj:
    """Return a second workload that names the ResourceClaimTemplate of this one: it cannot be served."""
    template = {"resourceClaimTemplate": {"name": workload["metadata"]["name"]}}
    return {**workload, "metadata": {**workload["metadata"], "name": name}, "spec": {**workload["spec"], **template}}
