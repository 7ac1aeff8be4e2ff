"""Requests and deletions of pods: a real kubelet gives each pod its devices and leaves no files behind."""

from __future__ import annotations

from typing import Any

import pytest

from hack.bed.deployed import cdi_claims, is_ready, lnc, neurons, pod, prepared, template
from hack.bed.errors import BedError
from hack.bed.real_cluster import IMAGE, BedNode, Namespace, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import environment, prepares

LOOK = "ls /dev | grep -E '^neuron[0-9]+$' | sort -V | xargs echo"
TRN2 = "trn2.48xlarge"
LNC_1 = {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}


def container(name: str, script: str, *claims: str, **more: Any) -> Obj:
    wanted = {"claims": [{"name": claim} for claim in claims], **more.pop("resources", {})}
    return {"name": name, "image": IMAGE, "command": ["bash", "-c", script], "resources": wanted, **more}


def pod_of(name: str, node: BedNode, containers: list[Obj], claims: list[Obj], **spec: Any) -> Obj:
    content = {
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": node.name},
        "containers": containers,
        "resourceClaims": claims,
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": content}


def shared_claim(name: str, count: int) -> Obj:
    made = template(name, count)
    return {**made, "kind": "ResourceClaim", "spec": made["spec"]["spec"]}


def uid_of(place: Namespace, claim: str) -> str:
    return str(place.get("resourceclaim", claim)["metadata"]["uid"])


@pytest.mark.contract("P24")
@pytest.mark.contract("P31")
def test_pods_sharing_a_claim_see_the_same_devices(trn2: BedNode, namespace: Namespace) -> None:
    fails_once = f"{LOOK}; if [ -e /state/again ]; then sleep infinity; fi; touch /state/again; exit 1"
    state = {"volumeMounts": [{"name": "state", "mountPath": "/state"}]}
    first = pod_of(
        "first",
        trn2,
        [container("main", fails_once, "shared", **state)],
        [{"name": "shared", "resourceClaimName": "shared"}],
        initContainers=[container("init", LOOK, "shared")],
        volumes=[{"name": "state", "emptyDir": {}}],
    )
    namespace.apply(shared_claim("shared", 2))
    namespace.apply(first)
    eventually("it failed once", lambda: namespace.restarts("first") == 1 and is_ready(namespace.get("pod", "first")))
    asked = prepares(trn2)

    second = pod_of(
        "second", trn2, [container("main", f"{LOOK}; sleep infinity", "shared")], first["spec"]["resourceClaims"]
    )
    namespace.apply(second)
    namespace.wait_ready("second")

    looked = [("first", "-c", "init"), ("first", "-c", "main", "--previous"), ("first", "-c", "main"), ("second",)]
    for words in looked:  # a container is ready before its first line is there
        eventually(f"{words} sees both", lambda words=words: namespace.logs(*words) == "neuron0 neuron1\n")
    assert prepares(trn2) == asked
    namespace.delete("pod", "first")
    assert neurons(namespace, "second") == [0, 1]
    assert prepared(trn2) == cdi_claims(trn2) == {uid_of(namespace, "shared")}


@pytest.mark.contract("P23")
@pytest.mark.contract("C6")
def test_container_gets_exactly_the_claims_it_names(trn2: BedNode, namespace: Namespace) -> None:
    """Three claims: one container has two, one of which sets logical cores; no container has the third."""
    for name, count, config in (("plain", 2, None), ("cores", 1, lnc(1)), ("unused", 1, None)):
        namespace.apply(template(name, count, config=config))
    claims = [{"name": name, "resourceClaimTemplateName": name} for name in ("plain", "cores", "unused")]
    both = container("both", "sleep infinity", "plain", "cores")
    none = container("none", "sleep infinity")
    namespace.apply(pod_of("p", trn2, [both, none], claims))
    namespace.wait_ready("p")

    assert len(prepared(trn2)) == 3
    assert len(neurons(namespace, "p")) == 3
    assert environment(namespace, "p") == LNC_1
    assert "neuron" not in namespace.kubectl("exec", "p", "-c", "none", "--", "sh", "-c", "ls /dev; env")


@pytest.mark.contract("P28")
@pytest.mark.contract("A8")
def test_container_gets_devices_of_limit_and_claim(trn2: BedNode, namespace: Namespace) -> None:
    if int(trn2.bed.parts.state.kubernetes.split(".")[1]) < 36:
        pytest.skip("extended resources by DRA are on by default from Kubernetes 1.36 on")
    resource = f"{namespace.name}.example.com/neuron"
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": namespace.name},
        "spec": {
            "selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}],
            "extendedResourceName": resource,
        },
    }
    namespace.apply(template("one"))
    namespace.apply(device_class)
    try:
        main = container("main", "sleep infinity", "one", resources={"limits": {resource: "2"}})
        namespace.apply(pod_of("p", trn2, [main], [{"name": "one", "resourceClaimTemplateName": "one"}]))
        namespace.wait_ready("p")
        made = {
            claim["spec"]["devices"]["requests"][0]["name"]: claim["metadata"]["uid"]
            for claim in namespace.get("resourceclaims")["items"]
        }
        assert set(made) == {"neurons", "container-0-request-0"}
        assert prepared(trn2) == set(made.values())
        assert neurons(namespace, "p") == [0, 1, 2]
        namespace.delete("pod", "p")
    finally:
        trn2.bed.kubectl("delete", "deviceclass", namespace.name)
    eventually("both claims are unprepared", lambda: prepared(trn2) == cdi_claims(trn2) == set())


@pytest.mark.contract("N10")
@pytest.mark.contract("N13")
def test_devices_are_free_after_any_pod_deletion(trn2: BedNode, namespace: Namespace) -> None:
    namespace.apply(template("one"))
    for name in ("ordinary", "stubborn"):
        namespace.apply(pod(name, "one", node=trn2.name))
    deaf = pod("deaf", "one", node=trn2.name)
    deaf["spec"]["containers"][0]["args"] = ["trap '' TERM; while true; do sleep 1; done"]
    namespace.apply(deaf)
    for name in ("ordinary", "stubborn", "deaf"):
        namespace.wait_ready(name)
    assert len(prepared(trn2)) == 3

    namespace.kubectl("delete", "pod", "ordinary", "deaf", "--timeout=20s")
    assert len(prepared(trn2)) == 1
    namespace.kubectl("delete", "pod", "stubborn", "--force", "--grace-period=0")
    with pytest.raises(BedError, match="NotFound"):
        namespace.get("pod", "stubborn")
    eventually("the force-deleted pod's claim is unprepared", lambda: prepared(trn2) == cdi_claims(trn2) == set(), 60)
    namespace.apply(pod("next", "one", node=trn2.name))
    namespace.wait_ready("next")
    assert neurons(namespace, "next") == [0]


@pytest.mark.contract("C8")
def test_missing_cdi_folder_fails_the_first_pod(trn2: BedNode, namespace: Namespace) -> None:
    """The container does not start, and the reason is in its events."""
    namespace.apply(template("four", 4, group=4))
    trn2.break_("cdi")
    namespace.apply(pod("first", "four", node=trn2.name))
    eventually("the reason", lambda: "unresolvable CDI devices" in " ".join(namespace.events("first")), 60)
    assert not is_ready(namespace.get("pod", "first"))
    assert len(prepared(trn2)) == 1

    trn2.repair("cdi")
    namespace.wait_ready("first", 90)
    check = ("bash", "-c", "ls /dev/neuron*")  # README, "One pod"
    assert namespace.exec("first", *check).split() == [f"/dev/neuron{number}" for number in range(4)]
