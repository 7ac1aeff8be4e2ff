"""The metadata files of prepared claims: loss, leftovers, updates and downgrades. Issue 18, item 6."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_dra.api.objects import allocated_claim, healthy_node
from neuron_dra.core import cdi, metadata
from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.core.decision import decide
from neuron_dra.emulation.cdi_runtime import CdiRuntime
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.node.files import Files
from tests.support.faulty_files import FaultyFiles
from tests.support.plugin_host import PluginHost
from tests.support.single_store import SingleStore

NODE = healthy_node("trn2.48xlarge")


def claim(number: int) -> Claim:
    names = (f"neuron-device-{2 * number}", f"neuron-device-{2 * number + 1}")
    devices = tuple(AllocatedDevice(request, "n", name) for request, name in zip("ab", names, strict=True))
    return Claim(ClaimRef("ml", f"job-{number}", f"uid-{number}"), devices)


class Node:
    """A node's disk."""

    def __init__(self, root: Path) -> None:
        self.data, self.cdi_root = root / "neuron.aws.com", root / "cdi"
        self.folder = self.cdi_root / metadata.FOLDER
        self.store().open()
        self.store().adopt({})

    def store(self, files: Files | None = None) -> SingleStore:
        return SingleStore(self.data, self.cdi_root, "boot-1", files or Files())

    def decided(self, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        source = metadata.MetadataSource(str(self.cdi_root), "1.2.3")
        files = cdi.DeviceFiles()
        return decide(wanted, node_name="n", node=NODE, held=held, device_files=files, metadata=source)

    def without(self, wanted: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        return decide(wanted, node_name="n", node=NODE, held=held, device_files=cdi.DeviceFiles())

    @property
    def names(self) -> list[str]:
        return Files().names(self.folder)


@pytest.fixture
def node(short_path: Path) -> Node:
    made = Node(short_path)
    made.store().prepare(claim(0), made.decided)
    return made


def sources(prepared: PreparedClaim) -> list[Path]:
    return [Path(mount["hostPath"]) for device in prepared.devices for mount in device.edits["mounts"]]


@pytest.mark.contract("P33")
def test_each_mount_has_its_file(node: Node) -> None:
    prepared = node.store().prepare(claim(1), node.decided)
    assert [path.read_bytes() for path in sources(prepared)] == list(metadata.files(prepared).values())
    assert [path.stat().st_mode & 0o777 for path in sources(prepared)] == [0o644, 0o644]
    assert node.folder.stat().st_mode & 0o777 == 0o755
    assert node.names == ["uid-0_a.json", "uid-0_b.json", "uid-1_a.json", "uid-1_b.json"]


@pytest.mark.contract("P33")
def test_files_precede_the_cdi_file_and_the_commit(node: Node) -> None:
    """A container whose mount has no source does not start."""
    files = FaultyFiles()
    node.store(files).prepare(claim(1), node.decided)
    renamed = ("uid-1_a.json", "uid-1_b.json", cdi.file_name("uid-1"))
    order = [*(f"rename {name}" for name in renamed), "overwrite checkpoint"]
    assert [change for change in files.changes if change in order] == order
    files.changes.clear()
    node.store(files).unprepare("uid-1")
    order = ["overwrite checkpoint", *(f"remove {name}" for name in (cdi.file_name("uid-1"), "uid-1_a.json"))]
    assert [change for change in files.changes if change in order] == order


@pytest.mark.contract("N1")
def test_unprepare_removes_only_the_claims_files(node: Node) -> None:
    node.store().prepare(claim(1), node.decided)
    node.store().unprepare("uid-0")
    assert node.names == ["uid-1_a.json", "uid-1_b.json"]
    node.store().unprepare("uid-1")
    assert node.names == []


@pytest.mark.contract("N3")
def test_unprepare_succeeds_without_the_files(node: Node) -> None:
    shutil.rmtree(node.folder)
    assert node.store().unprepare("uid-0") is not None
    assert node.store().unprepare("uid-0") is None


@pytest.mark.contract("N3")
def test_repeated_unprepare_removes_what_was_left(node: Node) -> None:
    """The first one committed, and was killed before it removed the files."""
    left = {name: (node.folder / name).read_bytes() for name in node.names}
    node.store().unprepare("uid-0")
    for name, data in left.items():
        (node.folder / name).write_bytes(data)
    node.store().unprepare("uid-0")
    assert node.names == []


@pytest.mark.contract("P33")
@pytest.mark.parametrize("damage", ["removed", "altered", "folder"])
def test_damaged_files_are_written_again(node: Node, damage: str) -> None:
    """The kubelet does not call again, and a container of the pod may still have to start."""
    path = node.folder / "uid-0_a.json"
    before = path.read_bytes()
    match damage:
        case "removed":
            path.unlink()
        case "altered":
            path.write_bytes(before[:20])
        case "folder":
            shutil.rmtree(node.folder)
    assert node.store().repair()[0] == [claim(0).ref]
    assert path.read_bytes() == before
    assert node.store().repair()[0] == []


@pytest.mark.contract("P33")
def test_running_container_keeps_its_file(node: Node) -> None:
    """A repair replaces the file; it never writes into the one that a container has mounted."""
    path = node.folder / "uid-0_a.json"
    before = path.read_bytes()
    path.write_bytes(b"altered")
    with open(path, "rb") as mounted:
        node.store().repair()
        assert mounted.read() == b"altered"
    assert path.read_bytes() == before


@pytest.mark.contract("C5")
def test_start_removes_leftovers_and_nothing_else(node: Node) -> None:
    """A release without metadata leaves the files of the claims that it unprepared."""
    for name in ("uid-9_a.json", "uid-9_b.json", ".uid-0_a.json.77.tmp"):
        (node.folder / name).write_text("{}")
    (node.folder / "notes").mkdir()
    node.store().open()
    assert node.names == ["notes", "uid-0_a.json", "uid-0_b.json"]


@pytest.mark.contract("P33")
def test_claim_prepared_without_metadata_stays_so(short_path: Path) -> None:
    """A claim of an earlier release: its containers run, and its CDI file is not written again."""
    node = Node(short_path)
    old = node.store().prepare(claim(0), node.without)
    files = FaultyFiles()
    store = node.store(files)
    store.open()
    assert store.prepare(claim(0), node.decided) == old
    assert (store.repair()[0], files.changes, node.names) == ([], [], [])


@pytest.mark.contract("P33")
def test_claim_keeps_its_files_when_the_setting_is_off(node: Node) -> None:
    known = node.store().prepare(claim(0), node.without)
    assert known == node.decided(claim(0), [])
    (node.folder / "uid-0_a.json").unlink()
    node.store().open()
    assert node.names == ["uid-0_a.json", "uid-0_b.json"]


@pytest.mark.contract("P33")
def test_downgrade_and_upgrade_lose_no_file(node: Node) -> None:
    """A release that does not know the field keeps it, as one of a newer release."""
    [known] = node.store().read().claims.values()
    as_unknown = replace(known, metadata=None, extra={"metadata": dict(known.metadata or {})})
    raw = checkpoints.encode(checkpoints.Checkpoint("boot-1", {"uid-0": as_unknown}))
    assert checkpoints.decode(raw).claims["uid-0"] == known


@pytest.mark.contract("C5")
def test_files_of_an_adopted_claim_stay_until_unprepare(node: Node) -> None:
    """After the loss of the checkpoint the claim may be adopted, and its containers may restart."""
    for path in node.data.glob("*.json*"):
        path.unlink()
    store = node.store()
    store.adopt({"uid-0": replace(node.without(claim(0), []), adopted=True)})
    store.open()
    assert node.names == ["uid-0_a.json", "uid-0_b.json"]
    store.unprepare("uid-0")
    assert node.names == []


# The plugin.


@pytest.mark.contract("P33")
async def test_container_has_the_file_of_its_request(host: PluginHost, api: EmbeddedApi) -> None:
    """From the kubelet's call to the container: the reply is as without metadata, and the mount leads to the file."""
    wanted = allocated_claim(
        "pod-neurons-x7k2p", "node-a", [{"device": 0, "request": "a"}, {"device": 1, "request": "b"}]
    )
    wanted["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "neurons"}
    made = api.create(wanted)
    uid = made["metadata"]["uid"]
    async with ScriptedKubelet(host.registry) as kubelet, host.running("pod-1", device_metadata=True):
        await kubelet.registered("neuron.aws.com")
        reply = (await kubelet.prepare([made]))[uid]
        assert reply.error == ""
        assert [list(device.cdi_device_ids) for device in reply.devices] == [
            [f"{cdi.KIND}={uid}-neuron-device-{number}"] for number in (0, 1)
        ]
        runtime = CdiRuntime([host.cdi])
        for device in reply.devices:
            [mount] = [
                each for each in runtime.create(device.cdi_device_ids).mounts.values() if "metadata" in each.host_path
            ]
            [request] = device.request_names
            folder = f"{metadata.CONTAINER_FOLDER}/resourceclaimtemplates/neurons/{request}"
            assert mount.container_path == f"{folder}/neuron.aws.com-metadata.json"
            document = json.loads(Path(mount.host_path).read_text().splitlines()[0])
            assert document["requests"][0]["devices"][0]["name"] == device.device_name
        assert (await kubelet.unprepare([made]))[uid] == ""
        assert Files().names(host.cdi / metadata.FOLDER) == []
