"""CDI specs: valid, unambiguous, and readable again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.core import cdi
from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.cdi import ShownDevice
from neuron_dra.core.claims import ClaimRef, PreparedClaim, PreparedDevice

VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")  # without dots: those need 0.6.0 and newer readers
DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
ENV = re.compile(r"[^=]+=.*", re.DOTALL)


def check_node(node: dict[str, Any]) -> None:
    assert set(node) <= {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}
    assert node["path"].startswith("/")
    assert node.get("hostPath", "/").startswith("/")


def check_mount(mount: dict[str, Any]) -> None:
    assert set(mount) <= {"hostPath", "containerPath", "options", "type"}
    assert mount["hostPath"].startswith("/")
    assert mount["containerPath"].startswith("/")


def check_edits(edits: dict[str, Any]) -> None:
    assert set(edits) <= {"env", "deviceNodes", "mounts"}
    assert any(edits.values()), "runtimes reject empty edits"
    assert all(ENV.fullmatch(variable) for variable in edits.get("env", []))
    for node in edits.get("deviceNodes", []):
        check_node(node)
    for mount in edits.get("mounts", []):
        check_mount(mount)


def check_spec(document: dict[str, Any]) -> None:
    """The rules of CDI 1.1.0, SPEC.md and pkg/parser: a runtime rejects a file with an unknown field."""
    assert set(document) <= {"cdiVersion", "kind", "annotations", "devices", "containerEdits"}
    vendor, _, kind = document["kind"].partition("/")
    assert VENDOR.fullmatch(vendor)
    assert CLASS.fullmatch(kind)
    assert document["devices"]
    assert all(isinstance(value, str) for value in document.get("annotations", {}).values())
    names = [device["name"] for device in document["devices"]]
    assert len(set(names)) == len(names)
    needed = (0, 6, 0) if document.get("annotations") else (0, 3, 0)
    for device in document["devices"]:
        assert {"name", "containerEdits"} <= set(device) <= {"name", "annotations", "containerEdits"}
        for key, value in device.get("annotations", {}).items():
            assert re.fullmatch(r"neuron\.aws\.com/[a-z-]+", key)
            assert isinstance(value, str)
        assert DEVICE.fullmatch(device["name"])
        check_edits(device["containerEdits"])
        if any("hostPath" in node for node in device["containerEdits"].get("deviceNodes", [])):
            needed = max(needed, (0, 5, 0))
        if device["name"][0].isdigit():
            needed = max(needed, (0, 5, 0))
    assert tuple(map(int, document["cdiVersion"].split("."))) == needed, "the lowest version with all used fields"


_uids = st.uuids().map(str)
_labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
_files = st.sampled_from([cdi.DeviceFiles(), cdi.DeviceFiles("/srv/node/dev"), cdi.DeviceFiles("/srv/node/dev", True)])


@st.composite
def prepared_claims(draw: st.DrawFn) -> PreparedClaim:
    ref = ClaimRef(draw(_labels), draw(_labels), draw(_uids))
    names = draw(st.lists(st.tuples(_labels, st.none() | _uids), min_size=1, max_size=5, unique_by=lambda pair: pair))
    files, env = draw(_files), draw(st.sampled_from([(), ("NEURON_LOGICAL_NC_CONFIG=1",), ("A=", "B=x=y")]))
    return PreparedClaim(
        ref,
        tuple(
            PreparedDevice(
                request="r",
                pool="p",
                device=name,
                device_ids=(index,),
                cdi_ids=(cdi.device_id(ref.uid, name, share),),
                edits=cdi.container_edits([index], env, files),
                share_id=share,
            )
            for index, (name, share) in enumerate(names)
        ),
    )


@pytest.mark.contract("C1")
@pytest.mark.contract("C4")
@given(prepared_claims())
def test_every_spec_obeys_the_specification(claim: PreparedClaim) -> None:
    check_spec(json.loads(cdi.encode(cdi.spec(claim))))


@pytest.mark.contract("C3")
@given(st.lists(prepared_claims(), min_size=2, max_size=4, unique_by=lambda claim: claim.ref.uid))
def test_no_qualified_name_is_in_two_files(claims: list[PreparedClaim]) -> None:
    names = [f"{cdi.KIND}={device['name']}" for claim in claims for device in cdi.spec(claim)["devices"]]
    assert len(set(names)) == len(names)
    assert len({cdi.file_name(claim.ref.uid) for claim in claims}) == len(claims)


@given(prepared_claims())
def test_returned_cdi_ids_are_in_the_file(claim: PreparedClaim) -> None:
    in_file = {f"{cdi.KIND}={device['name']}" for device in cdi.spec(claim)["devices"]}
    assert {cdi_id for device in claim.devices for cdi_id in device.cdi_ids} == in_file


@given(prepared_claims())
def test_file_contains_its_claim(claim: PreparedClaim) -> None:
    document = json.loads(cdi.encode(cdi.spec(claim)))
    assert cdi.annotated_ref(document) == (claim.ref.namespace, claim.ref.name, claim.ref.uid)
    assert cdi.claim_uid_of(cdi.file_name(claim.ref.uid)) == claim.ref.uid


def test_file_name_follows_the_kubelet_convention() -> None:
    assert cdi.file_name("1-2") == "k8s.neuron.aws.com-claim_1-2.json"


def test_yaml_file_is_from_another_driver() -> None:
    assert cdi.other_file_name("1-2") == "k8s.neuron.aws.com-claim_1-2.yaml"
    assert cdi.other_claim_uid_of("k8s.neuron.aws.com-claim_1-2.yaml") == "1-2"
    assert cdi.other_claim_uid_of("k8s.neuron.aws.com-claim_1-2.json") is None
    assert cdi.other_claim_uid_of("k8s.gpu.nvidia.com-claim_1-2.yaml") is None


@pytest.mark.parametrize(
    "name",
    [
        "k8s.gpu.nvidia.com-claim_1.json",
        "neuron.json",
        ".k8s.neuron.aws.com-claim_1.json.7.tmp",
        "k8s.neuron.aws.com-claim_1.yaml",
    ],
)
def test_foreign_files_contain_no_claim(name: str) -> None:
    assert cdi.claim_uid_of(name) is None


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"annotations": []},
        {"annotations": {cdi.NAMESPACE: "ml", cdi.NAME: "job"}},
        {"annotations": {cdi.NAMESPACE: "", cdi.NAME: "job", cdi.UID: "1"}},
        {"annotations": {cdi.NAMESPACE: "ml", cdi.NAME: "job", cdi.UID: 1}},
    ],
)
def test_file_without_a_claim_is_ignored(document: object) -> None:
    assert cdi.annotated_ref(document) is None


def test_simulated_devices_have_host_root_paths() -> None:
    nodes = cdi.container_edits([3, 1], (), cdi.DeviceFiles("/srv/dev"))
    assert nodes == {
        "deviceNodes": [
            {"path": "/dev/neuron1", "hostPath": "/srv/dev/neuron1"},
            {"path": "/dev/neuron3", "hostPath": "/srv/dev/neuron3"},
        ]
    }
    plain = cdi.container_edits([3, 1], (), cdi.DeviceFiles("/srv/dev", mounted=True))
    assert plain == {
        "mounts": [
            {"hostPath": f"/srv/dev/neuron{i}", "containerPath": f"/dev/neuron{i}", "options": ["bind", "rw"]}
            for i in (1, 3)
        ]
    }


def test_file_is_formatted_one_field_per_line() -> None:
    document = {
        "kind": "k",
        "devices": [{"name": "b", "a": [1, 2]}, {"name": "c"}],
        "annotations": {"z": "1", "y": "2"},
    }
    assert cdi.encode(document).decode() == (
        "{\n"
        '  "annotations": {"y":"2","z":"1"},\n'
        '  "devices": [\n'
        '    {"a":[1,2],"name":"b"},\n'
        '    {"name":"c"}\n'
        "  ],\n"
        '  "kind": "k"\n'
        "}\n"
    )


def test_only_a_list_of_devices_has_lines_of_its_own() -> None:
    assert cdi.encode({"devices": 7, "others": [1, 2]}) == b'{\n  "devices": 7,\n  "others": [1,2]\n}\n'


@given(prepared_claims())
def test_claim_from_checkpoint_has_the_same_file(claim: PreparedClaim) -> None:
    """Otherwise every file would seem changed, and be rewritten."""
    checkpoint = checkpoints.Checkpoint("boot", {claim.ref.uid: claim})
    again = checkpoints.decode(checkpoints.encode(checkpoint)).claims[claim.ref.uid]
    assert cdi.encode(cdi.spec(again)) == cdi.encode(cdi.spec(claim))


@given(prepared_claims())
def test_file_lists_its_devices(claim: PreparedClaim) -> None:
    published = [f"neuron-device-{i}" for i in range(len(claim.devices))]
    renamed = replace(
        claim, devices=tuple(replace(d, device=name) for d, name in zip(claim.devices, published, strict=True))
    )
    shown = cdi.devices(json.loads(cdi.encode(cdi.spec(renamed))), claim.ref.uid)
    assert [device.name for device in shown] == published
    assert [(device.admin_access, device.share_id, device.cores) for device in shown] == [
        (device.admin_access, device.share_id or None, device.cores) for device in claim.devices
    ]


@pytest.mark.parametrize("document", [None, [], {}, {"devices": 1}, {"devices": [1, {}, {"name": 2}, {"name": "x"}]}])
def test_file_without_own_devices_is_ignored(document: object) -> None:
    assert cdi.devices(document, "1") == ()


def test_an_unreadable_device_does_not_hide_those_after_it() -> None:
    devices = [1, {}, {"name": 2}, {"name": "1-x"}, {"name": "1-neuron-device-3"}, {"name": "1-neuron-node-0-share"}]
    shown = cdi.devices({"devices": devices}, "1")
    assert shown == (ShownDevice("neuron-device-3", ()), ShownDevice("neuron-node-0", ()))


@given(prepared_claims())
def test_file_contains_the_neuron_devices_of_its_claim(claim: PreparedClaim) -> None:
    document = json.loads(cdi.encode(cdi.spec(claim)))
    assert numbers(document) == tuple(range(len(claim.devices)))


@pytest.mark.parametrize(
    ("edits", "found"),
    [
        ({"deviceNodes": [{"path": "/dev/neuron11"}, {"path": "/dev/neuron2"}]}, (2, 11)),
        ({"deviceNodes": [{"path": "/dev/neuron7", "hostPath": "/srv/dev/neuron8"}]}, (7,)),
        ({"mounts": [{"containerPath": "/dev/neuron4", "hostPath": "/srv/dev/neuron5"}]}, (4,)),
        ({"deviceNodes": [{"path": "/dev/neuron1"}], "mounts": [{"containerPath": "/dev/neuron0"}]}, (0, 1)),
        ({"deviceNodes": [{"path": "/dev/neuron1"}], "mounts": [{"containerPath": "/dev/neuron1"}]}, (1,)),
        ({"deviceNodes": [{"path": "/dev/neuron9999"}, {"path": "/dev/neuron10000"}]}, (9999,)),
        ({"deviceNodes": [{"path": "/dev/neuron"}, {"path": "/dev/neuron0/x"}, {"path": "/x/dev/neuron0"}]}, ()),
        ({"deviceNodes": [{"path": "/dev/neuron\u0661"}]}, ()),
        ({"deviceNodes": [7, {}, {"path": 7}, {"path": "/dev/neuron3"}]}, (3,)),
        ({"deviceNodes": 7, "mounts": [None, {"containerPath": None}, {"containerPath": "/dev/neuron6"}]}, (6,)),
        ({"deviceNodes": {"path": "/dev/neuron3"}}, ()),
        ([], ()),
        (None, ()),
    ],
)
def test_neuron_devices_are_known_by_their_paths_in_the_container(edits: object, found: tuple[int, ...]) -> None:
    assert numbers({"devices": [1, {}, {"containerEdits": edits}]}) == found


def numbers(document: object) -> tuple[int, ...]:
    """Return the Neuron devices of all devices in a file."""
    return tuple(sorted({number for shown in cdi.devices(document, "1") for number in shown.device_ids}))


def test_device_without_readable_files_may_have_all_of_its_claim() -> None:
    edits = {"deviceNodes": [{"path": "/dev/neuron4"}]}
    document = {"devices": [{"name": "1-neuron-device-3"}, {"name": "1-neuron-device-4", "containerEdits": edits}]}
    assert [shown.device_ids for shown in cdi.devices(document, "1")] == [(4,), (4,)]


@pytest.mark.parametrize(
    "annotations",
    [None, 7, {cdi.CORES: 7, cdi.SHARE_ID: {}, cdi.ADMIN_ACCESS: True}, {cdi.CORES: "3-2"}, {cdi.CORES: "x"}],
)
def test_unreadable_annotation_holds_the_whole_device(annotations: object) -> None:
    document = {"devices": [{"name": "1-neuron-device-3", "annotations": annotations}]}
    assert cdi.devices(document, "1") == (ShownDevice("neuron-device-3", ()),)


@pytest.mark.parametrize("document", [None, [], {}, {"devices": 1}, {"devices": [1, {}]}])
def test_unreadable_file_has_no_neuron_devices(document: object) -> None:
    assert numbers(document) == ()


@given(prepared_claims())
def test_file_of_another_release_is_equal(claim: PreparedClaim) -> None:
    assert cdi.is_of(claim, cdi.encode(cdi.spec(claim)))
    assert cdi.is_of(claim, json.dumps(cdi.spec(claim), indent=3).encode())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"[1]",
        b'"text"',
        b"7",
        b"\xff",
        b"[" * 100_000,
        b'{"devices": [' * 50_000,
        b'{"kind": "k8s.neuron.aws.com/claim"}',
        b'{"a": "\\ud800"}',
    ],
    ids=[
        "nothing",
        "half",
        "a list",
        "a list of one",
        "a text",
        "a number",
        "no text",
        "depth",
        "depth in devices",
        "less",
        "half a character",
    ],
)
def test_different_file_is_not_equal(raw: bytes) -> None:
    claim = PreparedClaim(ClaimRef("ml", "job-0", "uid-1"), ())
    assert not cdi.is_of(claim, raw)


def test_lone_surrogate_is_escaped() -> None:
    document = {"a": {"z": 1, "b": "\ud800"}}
    assert cdi.encode(document) == b'{\n  "a": {"b": "\\ud800", "z": 1}\n}\n'
