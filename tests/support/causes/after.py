"""What keeps a pod from running once it has a node: kubelet, driver and runtime, by what is known of each.

The kubelet and the runtimes are not asked: their rules are those of Kubernetes' documentation, and messages of theirs
are in the Events of the pod. The driver's own code judges its configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from neuron_dra.api import config
from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from neuron_dra.errors import ClaimError
from tests.support.cluster_faults import all_of, the

_OF_CLASSES: Final = "deviceclass.resource.kubernetes.io/"
_FIRST_WITH_CLASSES: Final = 36
"""The kubelet's feature gate DRAExtendedResource is on from 1.36 on."""
GAVE_UP: Final = "context deadline exceeded"


def objection(items: Sequence[Obj], pod: Obj, node_name: str) -> str:
    """Return why the pod does not run on the node, or an empty string."""
    node = the(items, "Node", node_name)
    if node is None:
        return "its node is gone"
    started = bool(pod["spec"].get("nodeName"))
    texts = (
        _of_node(node),
        _of_kubelet(node, pod),
        _of_claims(items, pod) if started else "",
        _of_driver(items),
        _of_messages(items, pod),
    )
    return next((text for text in texts if text), "")


def _of_node(node: Obj) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    if any(each["type"] == "Ready" and each["status"] != "True" for each in conditions):
        return "its node is not ready"
    info = (node.get("status") or {}).get("nodeInfo") or {}
    if str(info.get("containerRuntimeVersion") or "").startswith("docker://"):
        return "cri-dockerd injects no CDI devices"
    return ""


def _of_kubelet(node: Obj, pod: Obj) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    version = str(info.get("kubeletVersion") or "v1.37.0").split(".")
    limits = [name for each in pod["spec"]["containers"] for name in (each.get("resources") or {}).get("limits") or ()]
    if int(version[1]) < _FIRST_WITH_CLASSES and any(name.startswith(_OF_CLASSES) for name in limits):
        return "its kubelet does not admit resources of DeviceClasses"
    return ""


def _of_claims(items: Sequence[Obj], pod: Obj) -> str:
    """The kubelet lets a pod use claims that are allocated and reserved for it."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    made = {each["name"]: each["resourceClaimName"] for each in statuses}
    for entry in pod["spec"].get("resourceClaims") or ():
        name = entry.get("resourceClaimName") or made.get(entry["name"])
        claim = the(items, "ResourceClaim", name) if name else None
        status = (claim or {}).get("status") or {}
        users = [each.get("uid") for each in status.get("reservedFor") or ()]
        if not status.get("allocation") or pod["metadata"]["uid"] not in users:
            return "the kubelet does not let it use its claim"
    return ""


def _of_driver(items: Sequence[Obj]) -> str:
    """The driver rejects what it cannot decode in the configuration of the pod's claims."""
    own = [
        each
        for each in all_of(items, "ResourceClaim")
        if any(owner["name"] == "p" for owner in each["metadata"].get("ownerReferences", ()))
    ]
    for claim in own:
        for entry in (claim["spec"].get("devices") or {}).get("config") or ():
            opaque = entry.get("opaque") or {}
            if opaque.get("driver") != names.DRIVER:
                continue
            try:
                config.decode(opaque.get("parameters"), "parameters")
            except ClaimError as err:
                return f"the driver rejects its claim: {err}"
    return ""


def _of_messages(items: Sequence[Obj], pod: Obj) -> str:
    """What kubelet, runtime or scheduler have reported of the pod, and nothing of it can be made again here."""
    for each in all_of(items, "Event"):
        if each["involvedObject"]["name"] == "p" and each["type"] == "Warning":
            return str(each["message"])
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        if waiting := (each.get("state") or {}).get("waiting"):
            return str(waiting["reason"])
    for each in (pod.get("status") or {}).get("conditions") or ():
        if GAVE_UP in str(each.get("message")):
            return str(each["message"])
    return ""
