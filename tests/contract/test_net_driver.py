"""The second driver, on the embedded API server and the scripted kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.core import catalogue, groups
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.errors import SettingsError
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from tests.support import net_driver

TRN2 = "trn2.48xlarge"


def attributes(name: str) -> dict[str, dict[str, Any]]:
    """Return the attributes of each device of an instance type, bare values, by device name."""
    spec = catalogue.lookup(name)
    assert spec is not None
    return {
        device["name"]: {key: value["string"] for key, value in device["attributes"].items()}
        for device in net_driver.published(spec)
    }


def test_device_has_the_efa_drivers_attributes() -> None:
    assert attributes(TRN2)["pci-0000-c9-00-0"] == {
        "dra.net/pciDevice": "Elastic Fabric Adapter (EFA)",
        "dra.net/pciAddress": "0000:c9:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:c9",
        "resource.aws.com/devicegroup1_id": "0000:c9:00.0",
        "resource.aws.com/devicegroup4_id": "13713e551cd37c19",
        "resource.aws.com/devicegroup8_id": "3593812b8066a078",
        "resource.aws.com/devicegroup16_id": "821d14afaf11327d",
    }


@pytest.mark.parametrize("name", [t.name for t in catalogue.all_types() if t.efa is not None])
def test_each_device_has_an_interface_in_its_groups(name: str) -> None:
    spec = catalogue.lookup(name)
    assert spec is not None
    assert spec.efa is not None
    interfaces = attributes(name)
    assert len(interfaces) == len(set(spec.efa))
    for device_id, ids in groups.group_ids(spec).items():
        beside = interfaces[net_driver.device_name(spec.efa[device_id])]
        assert {size: beside[f"resource.aws.com/devicegroup{size}_id"] for size in ids} == ids


def test_type_without_an_efa_map_is_rejected() -> None:
    spec = catalogue.lookup("inf2.48xlarge")
    assert spec is not None
    with pytest.raises(SettingsError, match=r"inf2\.48xlarge: AWS publishes no map"):
        net_driver.published(spec)


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[EmbeddedApi, ScriptedKubelet]]:
    """Run the driver on node `a` until it is registered."""
    registry = folder / "registry"
    registry.mkdir()
    async with EmbeddedApi() as api:
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})
        flags = ["--node-name", "a", "--instance-type", TRN2, "--kube-api-server", api.url]
        flags += ["--cdi-root", str(folder / "cdi"), "--kubelet-plugins-directory-path", str(folder / "plugins")]
        flags += ["--kubelet-registrar-directory-path", str(registry)]
        async with KubeClient(KubeConfig(api.url)) as client, ScriptedKubelet(registry) as kubelet:
            driver = net_driver.NetDriver(net_driver.parser().parse_args(flags), client)
            task = asyncio.create_task(driver.run())
            try:
                await kubelet.registered("dra.net")
                yield api, kubelet
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def allocated(api: EmbeddedApi, *devices: str) -> dict[str, Any]:
    """Create a claim with these allocated devices, and return it."""
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})
    requests = [{"name": "nic", "exactly": {"deviceClassName": "efa.networking.k8s.aws", "count": len(devices)}}]
    results = [{"request": "nic", "driver": "dra.net", "pool": "a", "device": device} for device in devices]
    results.append({"request": "nic", "driver": "neuron.aws.com", "pool": "a", "device": "neuron-device-0"})
    return api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "job-0", "namespace": "ml"},
            "spec": {"devices": {"requests": requests}},
            "status": {"allocation": {"devices": {"results": results}}},
        }
    )


async def test_deleted_slice_is_published_again(tmp_path: Path) -> None:
    async with running(tmp_path) as (api, _):
        [published] = await api.until("ResourceSlice", len)
        assert [device["name"] for device in published["spec"]["devices"]] == list(attributes(TRN2))
        assert published["metadata"]["ownerReferences"][0]["uid"] == api.get("Node", "a")["metadata"]["uid"]
        api.delete("ResourceSlice", "a-dra.net")
        [again] = await api.until("ResourceSlice", len)
        assert again["spec"] == published["spec"]


async def test_claim_has_cdi_devices_and_one_variable(tmp_path: Path) -> None:
    async with running(tmp_path) as (api, kubelet):
        claim = allocated(api, "pci-0000-c9-00-0", "pci-0000-b4-00-0")
        uid = claim["metadata"]["uid"]
        answer = (await kubelet.prepare([claim]))[uid]
        assert [(d.pool_name, d.device_name, d.request_names) for d in answer.devices] == [
            ("a", "pci-0000-c9-00-0", ("nic",)),
            ("a", "pci-0000-b4-00-0", ("nic",)),
        ]
        [file] = (tmp_path / "cdi").iterdir()
        edits = {"env": ["DRA_NET_DEVICES=pci-0000-c9-00-0,pci-0000-b4-00-0"]}
        document = json.loads(file.read_text())
        assert [d["containerEdits"] for d in document["devices"]] == [edits, edits]
        ids = [f"{document['kind']}={d['name']}" for d in document["devices"]]
        assert [list(d.cdi_device_ids) for d in answer.devices] == [[one] for one in ids]
        assert (await kubelet.prepare([claim]))[uid] == answer
        assert await kubelet.unprepare([claim]) == {uid: ""}
        assert list((tmp_path / "cdi").iterdir()) == []


async def test_unknown_device_is_rejected(tmp_path: Path) -> None:
    async with running(tmp_path) as (api, kubelet):
        claim = allocated(api, "pci-0000-ff-00-0")
        answer = (await kubelet.prepare([claim]))[claim["metadata"]["uid"]]
        assert answer.error == "a/pci-0000-ff-00-0 is not a device of node a"
