"""`validate` compares a pod's claims with what its containers name, and with what they see besides (4.08)."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.validate import rules
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small


def pod(*uses: Obj, entry: str = "neurons", template: str = "four", **container: Any) -> Obj:
    made = small.pod("train")
    made["spec"]["resourceClaims"] = [{"name": entry, "resourceClaimTemplateName": template}]
    made["spec"]["containers"][0]["resources"] = {"claims": list(uses)}
    made["spec"]["containers"][0].update(container)
    return made


def problems(made: Obj, *others: Obj) -> list[tuple[str, bool]]:
    found = rules.Checker(snapshot.build([made, small.template("four", 4), *others]), (1, 37)).run()
    return [(problem.code, problem.warning) for problem in found]


def test_claim_that_a_container_names_is_right() -> None:
    assert problems(pod({"name": "neurons"})) == []
    assert problems(pod({"name": "neurons", "request": "neurons"})) == []


def test_claim_that_no_container_names_gives_nobody_its_devices() -> None:
    assert problems(pod()) == [("ClaimNotNamed", False)]
    init = pod()
    init["spec"]["initContainers"] = [{"name": "copy", "image": "i", "resources": {"claims": [{"name": "neurons"}]}}]
    assert problems(init) == []


def test_claims_of_other_drivers_need_no_container() -> None:
    network = small.template("network")
    network["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "efa.example.com"
    network_class = {
        "apiVersion": small.API,
        "kind": "DeviceClass",
        "metadata": {"name": "efa.example.com"},
        "spec": {},
    }
    assert "ClaimNotNamed" not in dict(problems(pod(template="network"), network, network_class))


def test_request_that_the_claim_does_not_have_gives_the_container_nothing() -> None:
    assert problems(pod({"name": "neurons", "request": "neuron"})) == [("RequestUnknown", False)]


@pytest.mark.parametrize(
    ("path", "sees"), [("/dev", True), ("/dev/", True), ("/", True), ("/dev/neuron3", True), ("/dev/shm", False)]
)
def test_host_folder_with_the_device_files_shows_all_devices(path: str, sees: bool) -> None:
    made = pod({"name": "neurons"}, volumeMounts=[{"name": "host", "mountPath": "/host"}])
    made["spec"]["volumes"] = [{"name": "host", "hostPath": {"path": path}}]
    assert problems(made) == ([("SeesAllDevices", True)] if sees else [])


def test_folder_that_no_container_mounts_shows_nothing() -> None:
    made = pod({"name": "neurons"})
    made["spec"]["volumes"] = [{"name": "host", "hostPath": {"path": "/dev"}}]
    assert problems(made) == []


def test_privileged_container_sees_all_devices() -> None:
    privileged: Any = {"securityContext": {"privileged": True}}
    assert problems(pod({"name": "neurons"}, **privileged)) == [("SeesAllDevices", True)]
    without_claims = small.pod("train")
    without_claims["spec"]["containers"][0].update(privileged)
    assert problems(without_claims) == []
    limits = {"limits": {"deviceclass.resource.kubernetes.io/neuron.aws.com": 1}}
    with_limits = small.pod("train")
    with_limits["spec"]["containers"][0].update({**privileged, "resources": limits})
    assert ("SeesAllDevices", True) in problems(with_limits)


def test_equal_pods_of_an_owner_are_named_once() -> None:
    made = pod()
    made["metadata"]["annotations"] = {"owner": "Deployment ml/web"}
    second = {**made, "metadata": {**made["metadata"], "name": "other", "uid": "uid-other"}}
    assert problems(made, second) == [("ClaimNotNamed", False)]
