"""Other drivers' devices are judged by their ResourceSlices alone, and imagined EFA interfaces are DRANET's (4.08)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from neuron_dra.ask.world import drivers, imagined
from neuron_dra.core.dra_driver import EFA
from neuron_dra.core.wire import Obj
from tests.support import questions
from tests.support import small_clusters as small

TRN1 = "trn1.32xlarge"
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("selector", "driver"),
    [
        ("device.driver == 'dra.net'", "dra.net"),
        ("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'", "gpu.nvidia.com"),
        ("device.attributes['dra.net'].rdma == true", "dra.net"),
        ("device.driver == 'neuron.aws.com'", ""),
        ("device.driver == 'neuron.aws.com' || device.driver == 'dra.net'", ""),
        ("device.attributes['resource.aws.com'].devicegroup1_id == '0000:c9:00.0'", ""),
        ("true", ""),
    ],
)
def test_selector_names_the_driver_of_its_devices(selector: str, driver: str) -> None:
    assert drivers.foreign([selector]) == driver


def interfaces(fleet: str) -> list[Obj]:
    [item] = [
        item
        for item in imagined.fleet(fleet, "test")
        if item["kind"] == "ResourceSlice" and item["spec"]["driver"] == "dra.net"
    ]
    devices: list[Obj] = item["spec"]["devices"]
    return devices


def test_imagined_interfaces_of_a_trn1_are_those_that_dranet_published() -> None:
    """A device of the slice that was captured on a trn1.32xlarge, and the standard attribute of its NUMA node."""
    devices = {device["name"]: device["attributes"] for device in interfaces(f"1 x {TRN1} efa")}
    assert (len(devices), next(iter(devices))) == (8, "pci-0000-10-19-0")
    assert devices["pci-0000-10-19-0"] == {
        "dra.net/numaNode": {"int": 0},
        "dra.net/pciAddress": {"string": "0000:10:19.0"},
        "dra.net/pciDevice": {"string": "Elastic Fabric Adapter (EFA)"},
        "dra.net/pciSubsystem": {"string": "efa1"},
        "dra.net/pciVendor": {"string": "Amazon.com, Inc."},
        "dra.net/rdma": {"bool": True},
        "dra.net/rdmaDevice": {"string": "rdmap16s25"},
        "resource.aws.com/devicegroup16_id": {"string": "fb838249c99a6341"},
        "resource.aws.com/devicegroup1_id": {"string": "0000:10:19.0"},
        "resource.aws.com/devicegroup4_id": {"string": "178a9e264a26793e"},
        "resource.aws.com/devicegroup8_id": {"string": "aa86c05423d6e8cd"},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:10"},
    }


ALIGNED = str(REPOSITORY / "deploy/examples/aligned-efa-neuron.yaml")
AT_MOST_SIX = "want 8 devices with the same resource.aws.com/devicegroup4_id; at most 6 have"


@pytest.mark.parametrize(
    ("fleet", "answer"),
    [
        ("1 x trn2.48xlarge", "devices 0-3, pci-0000-b3-00-0 and 3 more"),
        ("1 x trn2.48xlarge efa", "devices 0-3, pci-0000-b3-00-0 and 3 more"),
        ("1 x trn1.32xlarge", AT_MOST_SIX),
        ("1 x trn1n.32xlarge", "devices 0-3"),
        ("1 x inf2.48xlarge", "no type of --fleet has EFA interfaces that are known"),
    ],
)
def test_nodes_of_a_fleet_have_the_interfaces_of_their_type(
    fleet: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer in questions.ask(capsys, "simulate", ALIGNED, "--fleet", fleet).text


@pytest.mark.parametrize("by", ["nodeSelector", "selector"])
def test_validate_reports_four_interfaces_for_four_devices_of_a_trn1(
    by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template, pod = list(yaml.safe_load_all(Path(ALIGNED).read_text()))
    if by == "nodeSelector":
        pod["spec"]["nodeSelector"] = {"node.kubernetes.io/instance-type": TRN1}
    else:
        expression = f"device.attributes['neuron.aws.com'].instanceType == '{TRN1}'"
        exactly = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump_all([template, pod]))
    assert AT_MOST_SIX in questions.ask(capsys, "validate", str(file)).text


def test_validate_says_nothing_where_the_interfaces_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template, pod = list(yaml.safe_load_all(Path(ALIGNED).read_text()))
    pod["spec"]["nodeSelector"] = {"node.kubernetes.io/instance-type": "inf2.48xlarge"}
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump_all([template, pod]))
    assert "efas" not in questions.ask(capsys, "validate", str(file)).text


def test_imagined_interfaces_of_other_types_publish_what_is_known() -> None:
    device = interfaces("1 x trn2.48xlarge efa")[0]
    assert (device["name"], device["attributes"]["dra.net/rdmaDevice"]) == ("pci-0000-56-00-0", {"string": "rdmap86s0"})
    assert not {"dra.net/numaNode", "resource.kubernetes.io/pcieRoot"} & device["attributes"].keys()


def requesting(driver: str) -> list[Obj]:
    own = {"apiVersion": small.API, "kind": "DeviceClass", "metadata": {"name": "nic"}}
    own["spec"] = {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}
    return [own, small.template("nic", deviceClassName="nic"), small.pod("p", "nic")]


def test_request_for_an_unseen_driver_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = questions.snapshot(tmp_path, [*small.base("a"), *requesting("nic.example.com")])
    answer = questions.ask(capsys, "why", "pod/p", "--snapshot", cluster)
    assert "no ResourceSlice of that driver is known: whether the pod fits is unknown" in answer.first


def test_request_for_a_driver_with_slices_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nics: Obj = {
        "apiVersion": small.API,
        "kind": "ResourceSlice",
        "metadata": {"name": "a-nics"},
        "spec": {"driver": EFA.name, "nodeName": "a", "pool": {"name": "a", "generation": 1}},
    }
    nics["spec"]["pool"]["resourceSliceCount"] = 1
    nics["spec"]["devices"] = [{"name": "nic-0", "attributes": {}}]
    [own, template, pod] = requesting(EFA.name)
    template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    cluster = questions.snapshot(tmp_path, [*small.base("a"), nics, own, template, pod])
    answer = questions.ask(capsys, "why", "pod/p", "--snapshot", cluster)
    assert "wants 2 devices of one node, and the largest node has 1" in answer.first


def test_why_proposes_the_group_that_both_drivers_publish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = imagined.fleet("1 x trn2.48xlarge efa", "test")
    template = small.template("pair", group="resource.kubernetes.io/pcieRoot")
    devices = template["spec"]["spec"]["devices"]
    devices["requests"].append(
        {"name": "nic", "exactly": {"deviceClassName": "efa.networking.k8s.aws", "allocationMode": "ExactCount"}}
    )
    devices["constraints"][0]["requests"] = ["neurons", "nic"]
    cluster = questions.snapshot(tmp_path, [*items, template, small.pod("p", "pair")])
    answer = questions.ask(capsys, "why", "pod/p", "--snapshot", cluster)
    assert "write matchAttribute: resource.aws.com/devicegroup1_id" in answer.text
