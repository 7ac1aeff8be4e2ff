"""The reservations that the controller makes for annotated jobs of manifests (docs/ultraservers.md). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from neuron_dra.ask.read.manifests import Manifests
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.render import words
from neuron_dra.core import job_wish
from neuron_dra.core.job_wish import InvalidWish, Wish
from neuron_dra.core.wire import Obj, Wire

TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
KUEUE: Final = "kueue.x-k8s.io/queue-name"


@dataclass(slots=True)
class Annotated:
    """The NeuronUltraServerWorkloads of annotated jobs, and notes about them."""

    objects: list[Obj] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def workloads(manifests: Manifests, snapshot: Snapshot) -> Annotated:
    """Return the reservations of the jobs, as if their namespaces allowed them and their queues had quota."""
    annotated_jobs = Annotated()
    for raw_job in manifests.raw:
        text = (raw_job["metadata"].get("annotations") or {}).get(job_wish.ANNOTATION)
        if text is None:
            continue
        name = f"{raw_job['kind']} {raw_job['metadata']['name']}"
        try:
            annotated_jobs.objects.append(_workload(raw_job, str(text), manifests, snapshot))
        except InvalidWish as err:
            annotated_jobs.notes.append(f"{name}: reserves no nodes: {err}")
        else:
            needs = "its reservation needs the namespace's right and limit, and quota of its queue"
            annotated_jobs.notes.append(f"{name}: {needs}")
    return annotated_jobs


def _workload(raw_job: Wire, text: str, manifests: Manifests, snapshot: Snapshot) -> Obj:
    """Return the reservation of a job. Raises InvalidWish if there is none."""
    meta, wish = raw_job["metadata"], job_wish.wish(text)
    if KUEUE in (meta.get("labels") or {}):
        raise InvalidWish(f"Kueue manages it: replace the label by the annotation {job_wish.QUEUE_ANNOTATION}")
    owner = f"{raw_job['kind']} {meta['name']}"
    pods = []
    for pod in manifests.pods:
        if pod["metadata"]["annotations"].get("owner") == owner:
            pods.append(pod)
    template = wish.template or _template(pods, manifests, snapshot)
    using = [pod for pod in pods if template in _templates(pod)]
    if not using or len(using) % wish.size:
        raise InvalidWish(
            f"{words.count(len(using), 'pod')} with the template {template}: write a multiple of {wish.size}"
        )
    spec: Obj = {
        "instanceType": _instance_type(wish, using),
        "topologySize": wish.size,
        "serverCount": len(using) // wish.size,
        "resourceClaimTemplate": {"name": template},
    }
    if wish.priority_class:
        spec["priorityClassName"] = wish.priority_class
    return {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": meta["name"], "namespace": using[0]["metadata"]["namespace"]},
        "spec": spec,
    }


def _template(pods: list[Obj], manifests: Manifests, snapshot: Snapshot) -> str:
    """Return the template that pods name and that does not exist. Raises InvalidWish unless there is one."""
    template_names = set()
    for raw_object in manifests.objects:
        if raw_object["kind"] == "ResourceClaimTemplate":
            template_names.add(raw_object["metadata"]["name"])
    named = dict.fromkeys(name for pod in pods for name in _templates(pod))
    absent = []
    for name in named:
        namespace = pods[0]["metadata"]["namespace"]
        if name not in template_names and snapshot.get("ResourceClaimTemplate", name, namespace) is None:
            absent.append(name)
    if len(absent) != 1:
        raise InvalidWish(f"its pods name {words.count(len(absent), 'template')} that do not exist, and need one")
    return absent[0]


def _templates(pod: Wire) -> list[str]:
    template_names = []
    for pod_claim in pod["spec"].get("resourceClaims") or ():
        template_names.append(str(pod_claim.get("resourceClaimTemplateName")))
    return template_names


def _instance_type(wish: Wish, pods: list[Obj]) -> str:
    """Return the instance type. Raises InvalidWish if neither the annotation nor all pods name the same one."""
    types = set()
    for pod in pods:
        types.add(str((pod["spec"].get("nodeSelector") or {}).get(TYPE_LABEL) or ""))
    kinds = {wish.instance_type} if wish.instance_type else types
    if len(kinds) != 1 or "" in kinds:
        raise InvalidWish(f"write instanceType=TYPE, or {TYPE_LABEL} into the node selector of its pods")
    return kinds.pop()
