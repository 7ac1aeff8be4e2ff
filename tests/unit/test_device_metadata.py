"""Device metadata: the contents of the files, and their paths. Issue 18.6."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from neuron_dra.api import claims as wire
from neuron_dra.api.objects import healthy_node
from neuron_dra.core import cdi, checkpoint, metadata
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.core.config import Entry, NeuronSettings, UltraServerSettings
from neuron_dra.core.config import EntrySource as From
from neuron_dra.core.decision import decide
from neuron_dra.core.facts import NodeLabels, UltraServerFacts
from neuron_dra.core.rendezvous import Rendezvous
from neuron_dra.core.reservation import NodeReservation
from neuron_dra.core.topology import Node
from neuron_dra.core.ultraserver import Allocation, Phase

UID = "0b1c7a52-7f0e-4d0e-9d7e-2f6f6f3f7b11"
REF = ClaimRef("ml", "claim", UID)
SOURCE = metadata.MetadataSource("/var/run/cdi", "1.2.3")
NODE = healthy_node("trn2.48xlarge")
FACTS = UltraServerFacts((1, 2, 3, 4), 1, 3, "a" * 16, "b" * 16)
LABELS = NodeLabels(capacity_block_id="cb-1", network_layers=("nn-1", "nn-2", "nn-3"))
ULTRASERVER = replace(healthy_node("trn2u.48xlarge", ultraserver=FACTS), labels=LABELS)
CLAIMS = f"{metadata.CONTAINER_FOLDER}/resourceclaims"
TEMPLATES = f"{metadata.CONTAINER_FOLDER}/resourceclaimtemplates"


def claim(*results: AllocatedDevice, configs: tuple[Entry, ...] = (), **more: Any) -> Claim:
    return Claim(replace(REF, name=more.pop("name", "claim")), results, configs, **more)


def device(number: int, request: str = "r") -> AllocatedDevice:
    return AllocatedDevice(request, "n1", f"neuron-device-{number}")


def prepared(
    wanted: Claim, node: Node = NODE, reservation: NodeReservation | None = None, *, on: bool = True
) -> PreparedClaim:
    return decide(
        wanted,
        node_name="n1",
        node=node,
        held=[],
        device_files=cdi.DeviceFiles(),
        reservation=reservation,
        metadata=SOURCE if on else None,
    )


def documents(made: PreparedClaim) -> dict[str, dict[str, Any]]:
    """Return the newest object of each file, by the file's name."""
    return {name: json.loads(data.splitlines()[0]) for name, data in metadata.files(made).items()}


def attributes(made: PreparedClaim, request: str = "r", index: int = 0) -> dict[str, Any]:
    document = documents(made)[metadata.file_name(UID, request)]
    return {
        name: next(iter(value.values()))
        for name, value in document["requests"][0]["devices"][index]["attributes"].items()
    }


def targets(made: PreparedClaim) -> list[list[str]]:
    """Return the paths in the container, by device."""
    return [[mount["containerPath"] for mount in each.edits.get("mounts", ())] for each in made.devices]


def test_without_the_setting_nothing_changes() -> None:
    """18.6: a claim has no file and no mount, and its checkpoint no field that an earlier release lacks."""
    made = prepared(claim(device(0)), on=False)
    assert (made.metadata, metadata.files(made), targets(made)) == (None, {}, [[]])
    assert b"metadata" not in checkpoint.encode(checkpoint.Checkpoint("b", {UID: made}))


def test_file_has_each_version_newest_first() -> None:
    """18.6: readers of Kubernetes 1.36 skip v1beta1; the contents are equal."""
    [data] = metadata.files(prepared(claim(device(3)))).values()
    found = [json.loads(line) for line in data.splitlines()]
    assert [each.pop("apiVersion") for each in found] == list(metadata.VERSIONS)
    assert [each.pop("kind") for each in found] == ["DeviceMetadata", "DeviceMetadata"]
    assert found[0] == found[1]
    assert found[0]["metadata"] == {"name": "claim", "namespace": "ml", "uid": UID, "generation": 1}
    [request] = found[0]["requests"]
    assert (request["name"], [each["name"] for each in request["devices"]]) == ("r", ["neuron-device-3"])
    assert (request["devices"][0]["driver"], request["devices"][0]["pool"]) == ("neuron.aws.com", "n1")


def test_each_request_has_its_file_on_its_first_device() -> None:
    """18.6: two containers that use one request each get one file each; an alternative has its request's path."""
    made = prepared(claim(device(0, "a"), device(1, "a"), device(2, "b/small")))
    assert sorted(metadata.files(made)) == [f"{UID}_a.json", f"{UID}_b.json"]
    file = "neuron.aws.com-metadata.json"
    assert targets(made) == [[f"{CLAIMS}/claim/a/{file}"], [], [f"{CLAIMS}/claim/b/{file}"]]
    assert documents(made)[f"{UID}_b.json"]["requests"][0]["name"] == "b/small"
    [mount] = made.devices[0].edits["mounts"]
    assert mount["hostPath"] == f"/var/run/cdi/{metadata.FOLDER}/{UID}_a.json"
    assert {"ro", "bind", "nosuid", "nodev", "noexec"} == set(mount["options"])


def test_claim_of_a_template_is_found_by_the_pods_name() -> None:
    made = prepared(claim(device(0), name="pod-devices-x7k2p", pod_claim="devices"))
    assert targets(made) == [[f"{TEMPLATES}/devices/r/neuron.aws.com-metadata.json"]]
    assert documents(made)[f"{UID}_r.json"]["podClaimName"] == "devices"


@pytest.mark.parametrize("name", ["../../../../etc", "a/b", ".", "..", "A", "a" * 64, "a\nb", ""])
def test_forged_pod_claim_names_are_ignored(name: str) -> None:
    """18.6: the annotation is the user's; it must not lead out of the folder."""
    made = prepared(claim(device(0), pod_claim=name))
    assert targets(made) == [[f"{CLAIMS}/claim/r/neuron.aws.com-metadata.json"]]
    assert "podClaimName" not in documents(made)[f"{UID}_r.json"]


@pytest.mark.parametrize("request_name", ["..", "a_b", "", "A", "../x/y"])
def test_impossible_requests_get_no_file(request_name: str) -> None:
    made = prepared(claim(replace(device(0), request=request_name), device(1)))
    assert list(metadata.files(made)) == [f"{UID}_r.json"]
    assert targets(made)[0] == []
    assert made.devices[0].device == "neuron-device-0"


def test_longest_names_fit_into_file_names() -> None:
    """18.6: Linux allows 255 bytes in a name; namespace and claim together may have more."""
    ref = ClaimRef("n" * 63, "c" * 253, UID)
    made = prepared(Claim(ref, (device(0, "r" * 63),)))
    [name] = metadata.files(made)
    [[path]] = targets(made)
    assert max(len(part) for part in [f".{name}.4194304.tmp", *path.split("/")]) <= 255


def test_decoder_reads_the_pods_name() -> None:
    raw = {
        "metadata": {"uid": UID, "annotations": {"resource.kubernetes.io/pod-claim-name": "devices"}},
        "status": {"allocation": {"devices": {"results": []}}},
    }
    assert wire.to_core(wire.decode_claim(json.dumps(raw).encode()), REF).pod_claim == "devices"


# The attributes.


def test_single_device_has_its_published_attributes() -> None:
    found = attributes(prepared(claim(device(5))))
    assert (found["deviceId"], found["deviceIds"], found["topology_x"], found["topology_y"]) == (5, "5", 1, 1)
    assert (found["instanceType"], found["resourceType"]) == ("trn2.48xlarge", "neuron_device")
    assert found["draDriverVersion"] == "1.2.3"
    assert "resource.aws.com/devicegroup4_id" in found
    assert not found.keys() & {"rank", "worldSize", "ultraserverIndex", "firstCore"}


@pytest.mark.parametrize(("configs", "expected"), [((), 2), ((Entry(From.CLAIM, (), NeuronSettings(1)),), 1)])
def test_logical_core_size_is_the_one_in_force(configs: tuple[Entry, ...], expected: int) -> None:
    assert attributes(prepared(claim(device(0), configs=configs)))["logicalNeuronCore"] == expected


def test_sets_and_core_partitions_name_what_is_behind_them() -> None:
    ring = healthy_node("trn1.32xlarge")
    found = attributes(prepared(claim(AllocatedDevice("r", "n1", "neuron-set-4-4")), ring))
    assert (found["deviceIds"], found["connectedDevices"], found["resourceType"]) == ("4_5_6_7", 4, "neuron_set")
    found = attributes(prepared(claim(AllocatedDevice("r", "n1", "neuron-cores-1-5")), ring))
    assert (found["deviceIds"], found["cores"], found["firstCore"]) == ("2", 1, 5)


WORKLOAD = Entry(From.CLAIM, (), UltraServerSettings(2, "llm", "uid-llm"))
SLOT = Allocation(
    "ml",
    "llm",
    "uid-llm",
    "a-1",
    Phase.BOUND,
    ("n0", "n1"),
    node_count=2,
    ultraserver_index=3,
    world_size=8,
    rank0_node="h" * 200,
    rendezvous=Rendezvous("llm-rank0.ml.svc"),
)


def of_the_job(*results: AllocatedDevice) -> PreparedClaim:
    wanted = claim(*(results or (AllocatedDevice("r", "n1", "neuron-node-0"),)), configs=(WORKLOAD,))
    return prepared(wanted, ULTRASERVER, NodeReservation.of(SLOT, "n1"))


def test_job_finds_rank_and_topology_in_the_file() -> None:
    """18.6: without environment; the values are those of the environment."""
    made = of_the_job()
    found = attributes(made)
    env = dict(each.split("=", 1) for each in made.devices[0].env)
    assert found["rank"] == int(env["NEURON_GLOBAL_TOPOID"]) == 7
    assert found["worldSize"] == int(env["NEURON_DRA_WORLD_SIZE"]) == 8
    assert (found["ultraserverIndex"], found["ultraserverNodes"]) == (3, 2)
    assert (found["ultraserverId"], found["ultraserverNodeId"], found["ultraserverModes"]) == ("cb-1", 3, "1_2_4")
    assert (found["linkVertical"], found["linkHorizontal"]) == (True, True)
    assert found["deviceIds"] == "_".join(map(str, range(16)))
    assert documents(made)[f"{UID}_r.json"]["metadata"]["annotations"] == {
        metadata.RANK0_NODE: env["NEURON_DRA_RANK0_NODE"],
        metadata.RANK0_ADDRESS: env["NEURON_DRA_RANK0_ADDR"],
    }


def test_only_claims_of_the_workload_have_its_rank() -> None:
    """18.6: a monitor with adminAccess on a reserved node is not a part of its job."""
    monitor = AllocatedDevice("r", "n1", "neuron-node-0", admin_access=True)
    made = prepared(claim(monitor), ULTRASERVER, NodeReservation.of(SLOT, "n1"))
    assert "rank" not in attributes(made)
    assert "annotations" not in documents(made)[f"{UID}_r.json"]["metadata"]


def test_value_that_no_reader_accepts_is_left_out() -> None:
    node = replace(NODE, driver_version="v" * 65)
    assert "neuronDriverVersion" not in attributes(prepared(claim(device(0)), node))


# The checkpoint.


def test_checkpoint_keeps_the_files() -> None:
    """18.6: a file is written again after its loss, with the same bytes."""
    made = of_the_job()
    kept = checkpoint.decode(checkpoint.encode(checkpoint.Checkpoint("b", {UID: made}))).claims[UID]
    assert metadata.files(kept) == metadata.files(made)
    assert cdi.is_of(kept, cdi.encode(cdi.spec(made)))
