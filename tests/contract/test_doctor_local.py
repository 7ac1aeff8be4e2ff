"""`neuron-dra doctor --local` beside a plugin, and `doctor node/NAME`, which runs it in the driver's pod (17.7)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.ask.doctor import local, node_files
from neuron_dra.ask.doctor.lines import CheckState, Line, to_wire
from neuron_dra.ask.doctor.timing import DoctorTiming
from neuron_dra.emulation.embedded_api.execution import Output
from neuron_dra.emulation.embedded_api.faults import STRANGE
from neuron_dra.emulation.embedded_api.server import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.emulation.simulated_efa import EfaTree
from neuron_dra.kube.config import KubeConfig
from tests.contract.test_doctor_cluster import serve
from tests.contract.test_inspect_cluster import answer, interpreted
from tests.support import slots
from tests.support.plugin_host import PluginHost
from tests.support.pod_resources import NoPods, PodResources
from tests.support.waiting import eventually

ELSEWHERE = {"kubelet", "runtime"}
"""Areas that need a real kubelet and container runtime."""
AS_ROOT = set() if os.geteuid() == 0 else {"NoPermission", "Unreadable"}


PATIENT = DoctorTiming(check_s=100.0, hardware_s=100.0, plugin_s=100.0, socket_s=100.0)
"""Limits that a busy machine keeps."""


def socket_of(host: PluginHost) -> str:
    return str(host.data / "dra-pod-1.sock")


def wrong(found: list[Line]) -> set[str]:
    return {each.code for each in found if each.state is CheckState.WRONG} - AS_ROOT


async def test_node_without_faults(host: PluginHost, api: EmbeddedApi, quick: None) -> None:
    """Nothing is written while it looks, and a prepared claim is compared with the API server."""
    async with host.running("pod-1") as plugin, ScriptedKubelet(host.registry) as kubelet:
        await kubelet.registered("neuron.aws.com")
        await eventually(lambda: plugin.publish_state.result)
        made = api.create(allocated_claim("job", "node-a", [3], namespace="default"))
        await kubelet.prepare([made])
        before = [path.read_bytes() for path in slots.paths(host.data)]
        found = await local.lines(socket_of(host), PATIENT)
        assert wrong(found) == set(), found
        assert {each.area for each in found if each.state is CheckState.UNKNOWN} <= ELSEWHERE
        texts = {each.area: each.text for each in found}
        assert texts["claims"] == "1 prepared claim, each in the API server with its devices"
        assert texts["slices"] == "16 devices in the API server, as published"
        assert [path.read_bytes() for path in slots.paths(host.data)] == before

        api.delete("resourceclaims", "job", "default")
        assert "OrphanedClaim" in wrong(await local.lines(socket_of(host), PATIENT))


@pytest.mark.parametrize("name", STRANGE)
async def test_strange_answer_is_unknown(host: PluginHost, api: EmbeddedApi, name: str) -> None:
    node = local.CheckedNode(host.settings(), None, "", KubeConfig(api.url), "", PATIENT)
    for resource in ("nodes", "resourceslices"):
        api.faults.add(STRANGE[name].fault(verb="list", resource=resource, times=None))
    found = await local._bounded("API server", local._api_server(node), PATIENT.check_s)
    assert [(each.area, each.state) for each in found] == [("API server", CheckState.UNKNOWN)]
    assert await local._wire(node) is None


async def test_node_without_a_plugin(host: PluginHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without its answer, the settings are those of the container's environment."""
    for name, value in (
        ("NODE_NAME", "node-a"),
        ("HOST_ROOT", str(host.root / "host")),
        ("CDI_ROOT", str(tmp_path / "none")),
        ("KUBELET_PLUGINS_DIRECTORY_PATH", str(host.plugins)),
        ("KUBELET_REGISTRAR_DIRECTORY_PATH", str(host.registry)),
        ("KUBE_API_SERVER", host.api_url),
    ):
        monkeypatch.setenv(name, value)
    (host.data).mkdir()
    (host.data / "checkpoint.0").write_text("{")
    found = await local.lines(str(host.data / "dra.sock"), PATIENT)
    assert {"PluginSilent", "SocketMissing", "CheckpointDamaged", "CdiNotWritable"} <= wrong(found)
    assert not {"DevicesMissing", "NoDevices"} & wrong(found)
    assert (host.data / "checkpoint.0").read_text() == "{"


async def test_image_of_the_driver_is_enough(host: PluginHost, tmp_path: Path) -> None:
    """The image has no CEL engine, no reader of kubeconfigs and no rich; and no plugin answers here."""
    for name in ("cel_expr_python", "kubernetes_asyncio", "re2", "rich"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('absent', name='{name}')")
    socket = str(host.data / "dra.sock")
    words = ("doctor", "--local", "--socket", socket, "-o", "json")
    done = await asyncio.to_thread(interpreted, *words, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, ""), done
    assert "PluginSilent" in {each["code"] for each in json.loads(done.stdout)["checks"]}


@pytest.mark.parametrize("words", [("--local", "node/a"), ("--local", "--bundle", "x"), ("--socket", "x")], ids=str)
async def test_flags_that_contradict_are_one_line(words: tuple[str, ...]) -> None:
    done = await answer("doctor", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


async def test_check_that_hangs_is_a_line() -> None:
    """A disk that does not answer costs one check its deadline, and no other check its result."""
    found = await local._bounded("files", _forever(asyncio.Event()), 0.2)
    assert [(each.area, each.state) for each in found] == [("files", CheckState.UNKNOWN)]


async def _forever(held: asyncio.Event) -> list[Line]:
    await held.wait()
    return []


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    assert node_files.why_not_writable(tmp_path) == ""
    assert "does not exist" in node_files.why_not_writable(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


async def test_node_is_looked_at_in_its_pod(tmp_path: Path) -> None:
    calls: list[tuple[str, str, str, Sequence[str]]] = []
    long = [Line(CheckState.WRONG, "CDI", "CdiNotWritable", "x" * 900, "mount it")] * 5

    async def run(namespace: str, pod: str, container: str, command: Sequence[str]) -> Output:
        calls.append((namespace, pod, container, list(command)))
        return Output(json.dumps(to_wire(long)).encode(), b"a warning\n", 1)

    async with EmbeddedApi(controllers=False) as api:
        serve(api)
        api.execute_with(run)
        config = str(api.write_kubeconfig(tmp_path / "config"))
        done = await answer("doctor", "node/a", "--kubeconfig", config, "-o", "json")
    checks = json.loads(done.stdout)["checks"]
    assert done.returncode == 1
    assert [each["text"] for each in checks if each["area"] == "on node: CDI"] == ["x" * 900] * 5
    command = ["neuron-dra", "doctor", "--local", "-o", "json"]
    assert calls == [("neuron-dra-driver", "driver-a", "main", command)]


async def test_node_that_may_not_be_looked_at_is_unknown(tmp_path: Path) -> None:
    """The embedded server has no pods/exec here, as one that rejects it: the command to run by hand is printed."""
    async with EmbeddedApi(controllers=False) as api:
        serve(api)
        config = str(api.write_kubeconfig(tmp_path / "config"))
        done = await answer("doctor", "node/a", "--kubeconfig", config)
    assert done.returncode == 1
    assert "to do: kubectl exec -n neuron-dra-driver driver-a -- neuron-dra doctor --local" in " ".join(
        done.stdout.split()
    )


async def test_exec_is_that_of_kubernetes(tmp_path: Path) -> None:
    """An independent client reads the same from the embedded server's pods/exec."""
    from kubernetes_asyncio import client, config
    from kubernetes_asyncio.stream import WsApiClient

    async def run(namespace: str, pod: str, container: str, command: Sequence[str]) -> Output:
        return Output(f"{namespace} {pod} {container} {command}".encode())

    async with EmbeddedApi(controllers=False) as api:
        api.execute_with(run)
        loaded = client.Configuration()
        file = str(api.write_kubeconfig(tmp_path / "config"))
        await config.load_kube_config(config_file=file, client_configuration=loaded)
        async with WsApiClient(loaded) as socket:
            text = await client.CoreV1Api(socket).connect_get_namespaced_pod_exec(
                "p",
                "ns",
                command=cast(Any, ["a", "b"]),
                container="c",
                stderr=True,
                stdin=False,
                stdout=True,
                tty=False,
            )
    assert text == "ns p c ['a', 'b']"


async def efa_lines(host: PluginHost, **more: Any) -> list[Line]:
    node = local.CheckedNode(host.settings("pod-1", **more), None, "", KubeConfig(host.api_url), "", PATIENT)
    return await local._bounded("EFA", local._interfaces(node), PATIENT.check_s)


async def test_efa_interfaces_of_the_host(host: PluginHost, api: EmbeddedApi) -> None:
    """It reads the tree as the driver does, and finds the other manager by its socket."""
    async with PodResources(NoPods(), host.pod_resources):
        tree = EfaTree.write(host.root / "host", "trn1.32xlarge")
        off = await efa_lines(host)
        assert [(line.state, line.code) for line in off] == [(CheckState.OK, "NotInstalled")]
        on = await efa_lines(host, efa_interfaces=True)
        assert [line.text for line in on] == ["8 of 8 EFA interfaces of the host can be used"]

        tree.unbind(tree.functions[0])
        (host.plugins / "dra.net").mkdir()
        with socket.socket(socket.AF_UNIX) as dranet:
            dranet.bind(str(host.plugins / "dra.net/dra.sock"))
            dranet.listen()
            beside_dranet = await efa_lines(host, efa_interfaces=True)
        assert [line.code for line in beside_dranet] == ["EfaStandsDown", "Ok"]
        assert "dra.net/dra.sock answers" in beside_dranet[0].text
        assert beside_dranet[1].text == "7 of 7 EFA interfaces of the host can be used"


async def test_other_manager_is_unknown_where_the_api_server_is(host: PluginHost, api: EmbeddedApi) -> None:
    EfaTree.write(host.root / "host", "trn1.32xlarge")
    api.faults.add(STRANGE[next(iter(STRANGE))].fault(verb="list", resource="resourceslices", times=None))
    lines = await efa_lines(host, efa_interfaces=True)
    assert lines[0].state is CheckState.UNKNOWN
    assert "ResourceSlices" in lines[0].text
