"""What the containers of a pod see of its claims, in `validate`, `simulate`, `why`, `status` and `migrate` (4.08)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.validate import rules
from neuron_dra.core.wire import Obj
from tests.support import questions
from tests.support import small_clusters as small
from tests.support.questions import Answer

TRN2: Any = {"nodeSelector": {"node.kubernetes.io/instance-type": "trn2.48xlarge"}}


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


def with_containers(*containers: Obj, template: str = "four", **spec: Any) -> Obj:
    made = pod(template=template)
    made["spec"]["containers"] = [{"image": "train", **container} for container in containers]
    made["spec"].update(spec)
    return made


def container(name: str, request: str = "", **fields: Any) -> Obj:
    use = {"name": "neurons", **({"request": request} if request else {})}
    return {"name": name, "resources": {"claims": [use]}, **fields}


def env(name: str, value: str) -> Obj:
    return {"env": [{"name": name, "value": value}]}


def sized(name: str, size: int) -> Obj:
    made = small.template(name, 4)
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": size}
    made["spec"]["spec"]["devices"]["config"] = [{"opaque": {"driver": "neuron.aws.com", "parameters": parameters}}]
    return made


def in_two_requests() -> Obj:
    made = small.template("halves", 2)
    [request] = made["spec"]["spec"]["devices"]["requests"]
    made["spec"]["spec"]["devices"]["requests"] = [{**request, "name": "first"}, {**request, "name": "second"}]
    return made


def test_containers_that_share_a_request_are_named() -> None:
    shared = with_containers(container("a"), container("b"))
    assert problems(shared) == [("RequestShared", True)]
    divided = [
        container(name, **env("NEURON_RT_VISIBLE_CORES", cores)) for name, cores in (("a", "0-7"), ("b", "8-15"))
    ]
    assert problems(with_containers(*divided, **TRN2)) == []
    apart = with_containers(container("a", "first"), container("b", "second"), template="halves")
    assert problems(apart, in_two_requests()) == []


def test_init_container_may_use_the_devices_of_later_ones() -> None:
    made = with_containers(container("main"), initContainers=[{"image": "i", **container("warm")}])
    assert problems(made) == []
    made["spec"]["initContainers"][0]["restartPolicy"] = "Always"
    assert problems(made) == [("RequestShared", True)]


@pytest.mark.parametrize(
    ("variable", "value", "codes"),
    [
        ("NEURON_RT_VISIBLE_CORES", "0-15", []),
        ("NEURON_RT_VISIBLE_CORES", "0-16", ["CoresBeyondClaim"]),
        ("NEURON_RT_VISIBLE_CORES", "0,16", ["CoresBeyondClaim"]),
        ("NEURON_RT_VISIBLE_CORES", "$(CORES)", []),
        ("NEURON_RT_NUM_CORES", "16", []),
        ("NEURON_RT_NUM_CORES", "17", ["CoresBeyondClaim"]),
    ],
)
def test_cores_beyond_the_claim_are_named(variable: str, value: str, codes: list[str]) -> None:
    """Four devices of a Trn2 have 16 logical cores of two physical ones."""
    made = with_containers(container("main", **env(variable, value)), **TRN2)
    assert [code for code, _ in problems(made)] == codes


def test_cores_are_counted_in_the_size_of_the_claim() -> None:
    made = with_containers(container("main", **env("NEURON_RT_NUM_CORES", "32")), template="small", **TRN2)
    assert problems(made, sized("small", 1)) == []


def test_variable_with_another_core_size_than_the_claim_is_named() -> None:
    made = with_containers(container("main", **env("NEURON_LOGICAL_NC_CONFIG", "2")), template="small", **TRN2)
    assert problems(made, sized("small", 1)) == [("CoreSizesDiffer", True)]


def test_class_of_the_users_own_is_judged_by_its_selector() -> None:
    own = {"apiVersion": small.API, "kind": "DeviceClass", "metadata": {"name": "chips"}}
    own["spec"] = {"selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}]}
    template = small.template("own", deviceClassName="chips")
    assert ("ClaimNotNamed", False) in problems(pod(template="own"), template, own)


def test_types_of_the_pods_that_use_a_template_decide() -> None:
    """Of all types, only those that its pods select."""
    assert problems(with_containers(container("main"), template="small", **TRN2), sized("small", 1)) == []
    without_pods = rules.Checker(snapshot.build([sized("small", 1)]), (1, 37)).run()
    assert [(problem.code, problem.warning) for problem in without_pods] == [("DriverRejects", True)]
    assert ("remove" in without_pods[0].text, "instanceType" in without_pods[0].text) == (False, True)
    inf2: Any = {"nodeSelector": {"node.kubernetes.io/instance-type": "inf2.xlarge"}}
    assert problems(with_containers(container("main"), **inf2)) == [("TypeCannotServe", False)]


def simulated(capsys: pytest.CaptureFixture[str], folder: Path, *items: Obj, output: str = "text") -> Answer:
    file = folder / "manifest.yaml"
    file.write_text(yaml.safe_dump_all(items))
    return questions.ask(capsys, "simulate", str(file), "--fleet", "1 x trn2.48xlarge", "-o", output)


def test_simulate_shows_what_each_container_gets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = in_two_requests()
    apart = with_containers(container("a", "first"), container("b", "second"), template="halves")
    answer = simulated(capsys, tmp_path, template, apart)
    assert "devices 0-3 (a: devices 0 1; b: devices 2 3)" in answer.text
    data = json.loads(simulated(capsys, tmp_path, template, apart, output="json").out)
    assert [(seen["name"], len(seen["devices"])) for seen in data["items"][0]["containers"]] == [("a", 2), ("b", 2)]


def test_simulate_shows_the_variables_of_containers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = with_containers(container("main"), {"name": "side"}, template="small")
    answer = simulated(capsys, tmp_path, sized("small", 1), made)
    assert "container main gets NEURON_LOGICAL_NC_CONFIG=1, NEURON_RT_VIRTUAL_CORE_SIZE=1" in answer.text
    wide = simulated(capsys, tmp_path, sized("small", 1), made, output="wide")
    assert "side nothing" in wide.text


def test_simulate_says_that_no_container_sees_the_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing (holds devices 0-3)" in simulated(capsys, tmp_path, small.template("four", 4), pod()).text


def running(*, named: bool) -> list[Obj]:
    items = small.base("a")
    items += small.running(items, "train", 4, "a")
    if not named:
        items[-1] = copy.deepcopy(items[-1])
        del items[-1]["spec"]["containers"][0]["resources"]["claims"]
    return items


def asked(capsys: pytest.CaptureFixture[str], folder: Path, items: list[Obj], *words: str) -> Answer:
    return questions.ask(capsys, *words, "--snapshot", questions.snapshot(folder, items))


def test_why_shows_what_the_containers_of_a_running_pod_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(capsys, tmp_path, running(named=True), "why", "pod/train")
    assert (answer.first.split(" note:")[0], "container main sees devices 0-3" in answer.text) == (
        "pod default/train runs on node a",
        True,
    )


def test_why_and_status_mark_a_pod_that_does_not_see_its_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blind = running(named=False)
    why = asked(capsys, tmp_path, blind, "why", "pod/train")
    assert why.first.startswith("pod default/train runs on node a without its devices: no container names the claim")
    status = asked(capsys, tmp_path, blind, "status")
    assert "holds devices that none of its containers sees: pod default/train" in status.text
    assert "devices 0-3 (no container sees them)" in asked(capsys, tmp_path, blind, "status", "holders").text
    assert "no container sees" not in asked(capsys, tmp_path, running(named=True), "status", "holders").text


def test_migrate_notes_that_a_container_is_privileged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = small.pod("train")
    made["spec"]["containers"][0].update(
        securityContext={"privileged": True}, resources={"limits": {"aws.amazon.com/neuron": 4}}
    )
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(made))
    assert "spec.containers[0]: the container is privileged" in questions.ask(capsys, "migrate", str(file)).text
