"""The examples of AWS's documents, from deploy/examples.

Nothing runs LeaderWorkerSets in the demo, and the pods of a Deployment have random names. So the pods of both are made
from the templates here: all pods of a Deployment, and the first group of a LeaderWorkerSet.
"""

from __future__ import annotations

import copy
from pathlib import Path

import yaml

from neuron_dra.core.wire import Obj


def folder() -> Path:
    """Return the folder of the examples."""
    return Path(__file__).parent / "examples"  # a link to deploy/examples in a checkout, a copy in a wheel


def load(name: str) -> list[Obj]:
    """Return the objects of one example file, with pods in place of LeaderWorkerSets and Deployments."""
    objects = [item for item in yaml.safe_load_all((folder() / name).read_text()) if item]
    objects_to_apply = []
    for item in objects:
        objects_to_apply += _pods(item)
    return objects_to_apply


def _pods(item: Obj) -> list[Obj]:
    if item["kind"] == "Deployment":
        pods = []
        for index in range(int(item["spec"]["replicas"])):
            pods.append(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    **_named(item["spec"]["template"], f"{item['metadata']['name']}-{index}"),
                }
            )
        return pods
    if item["kind"] != "LeaderWorkerSet":
        return [item]
    name, spec = item["metadata"]["name"], item["spec"]["leaderWorkerTemplate"]
    return [
        _pod(spec["leaderTemplate" if index == 0 and "leaderTemplate" in spec else "workerTemplate"], name, index)
        for index in range(int(spec["size"]))
    ]


def _pod(template: Obj, name: str, index: int) -> Obj:
    named = _named(template, f"{name}-0" if index == 0 else f"{name}-0-{index}")
    return {"apiVersion": "v1", "kind": "Pod", **named}


def _named(template: Obj, name: str) -> Obj:
    pod: Obj = copy.deepcopy(template)
    pod["metadata"] = {**pod.get("metadata", {}), "name": name}
    return pod


def renamed(objects: list[Obj], pod_name: str) -> list[Obj]:
    """Return a copy of the objects with another name for the pod, as a second pod for the same template."""
    out = copy.deepcopy(objects)
    for item in out:
        if item["kind"] == "Pod":
            item["metadata"]["name"] = pod_name
    return out


def with_count(objects: list[Obj], count: int, name: str) -> list[Obj]:
    """Return a copy of the template and the pod, both with the name `name`, that requests `count` devices."""
    out = renamed(objects, name)
    for item in out:
        if item["kind"] == "ResourceClaimTemplate":
            item["metadata"]["name"] = name
            for request in item["spec"]["spec"]["devices"]["requests"]:
                request["exactly"]["count"] = count
        else:
            for claim in item["spec"]["resourceClaims"]:
                claim["resourceClaimTemplateName"] = name
    return out
