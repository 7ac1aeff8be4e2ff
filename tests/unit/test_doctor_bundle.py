"""`neuron-dra doctor --bundle`: what is in it, and that no secret is (17.7)."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.ask.doctor import bundle, lines, nodes, redacted
from neuron_dra.ask.doctor.seen import KINDS, Seen
from neuron_dra.ask.read import snapshot, source
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from neuron_dra.errors import SettingsError
from tests.support import small_clusters as small
from tests.support.installations import NOW, healthy, the
from tests.support.questions import ask

PLANTED = "hunter2-planted"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"


def leaky() -> list[Obj]:
    """A cluster with a secret in every place where people and programs put them."""
    items = healthy()
    made = small.template("four", 4)
    config = {"opaque": {"driver": "example.com", "parameters": {"login": PLANTED}}}
    made["spec"]["spec"]["devices"]["config"] = [config]
    pod, claim = small.created(small.pod("train", "four", nodeName="a"), made)
    pod["metadata"]["annotations"] = {"vault.example.com/secret": PLANTED, "neuron.aws.com/device-count": "4"}
    container = pod["spec"]["containers"][0]
    container["env"] = [
        {"name": "DB", "value": PLANTED},
        {"name": "X", "valueFrom": {"secretKeyRef": {"name": PLANTED}}},
    ]
    container |= {"args": [f"--password={PLANTED}"], "command": ["sh", "-c", f"login {PLANTED}"]}
    pod["spec"]["volumes"] = [{"name": "v", "configMap": {"name": PLANTED}}]
    waiting = {
        "reason": "ErrImagePull",
        "message": f"pull https://bob:{PLANTED}@registry.example.com/x: token={PLANTED}",
    }
    pod["status"]["containerStatuses"] = [{"name": "main", "state": {"waiting": waiting}}]
    event = {
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "default", "managedFields": [{"manager": PLANTED}]},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "train"},
        "reason": "Failed",
        "message": f"Authorization: Bearer {JWT} and AWS_SECRET_ACCESS_KEY={PLANTED} and AKIAABCDEFGHIJKLMNOP",
    }
    kubectl = {"kubectl.kubernetes.io/last-applied-configuration": PLANTED}
    the(items, "Node", "a")["metadata"]["annotations"] = kubectl
    secret = {"kind": "Secret", "metadata": {"name": "s", "namespace": "default"}, "data": {"x": PLANTED}}
    stranger = small.pod(f"web-{PLANTED}", namespace="shop", nodeName="z")
    other = {**event, "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web"}, "message": PLANTED}
    other["metadata"] = {"name": "o", "namespace": "shop"}
    return [*items, made, pod, claim, event, secret, stranger, other]


def seen(items: list[Obj]) -> Seen:
    objects = {kind: [item for item in items if item["kind"] == kind] for kind in KINDS}
    return Seen(small.cluster(items), objects, version="v1.37.0", now=NOW)


def unpacked(path: Path) -> dict[str, Any]:
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes()), mode="r:gz") as archive:
        return {
            member.name: json.loads(file.read())
            for member in archive.getmembers()
            if (file := archive.extractfile(member)) is not None
        }


def test_planted_secrets_are_not_in_the_bundle(tmp_path: Path) -> None:
    file, found = tmp_path / "doctor.tar.gz", seen(leaky())
    assert PLANTED in json.dumps([dict(item) for item in found.snapshot.objects.values()])
    found = dataclasses.replace(found, unread={"Lease": f"GET https://bob:{PLANTED}@host/: refused"})
    bundle.write(file, [lines.wrong("nodes", "X", f"password: {PLANTED}", f"token={PLANTED}")], found)
    content = unpacked(file)
    text = json.dumps(content)
    assert PLANTED not in text
    assert JWT not in text
    assert "AKIAABCDEFGHIJKLMNOP" not in text
    assert content["neuron-dra-doctor/report.json"]["checks"][0]["text"] == "password: REDACTED"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_bundle_has_what_a_diagnosis_needs(tmp_path: Path) -> None:
    """Its objects are a snapshot, in which the same is found."""
    items = leaky()
    items.remove(the(items, "Pod", "driver-b"))
    found = seen(items)
    file = tmp_path / "doctor.tar.gz"
    bundle.write(file, [], found)
    kept = unpacked(file)["neuron-dra-doctor/objects.json"]["items"]
    again = snapshot.build(kept)
    before = list(nodes.lines(World(found.snapshot, proposes=False)))
    assert list(nodes.lines(World(again, proposes=False))) == before
    assert "DriverMissing" in {line.code for line in before}
    pod = the(kept, "Pod", "train")
    assert pod["metadata"]["annotations"] == {"neuron.aws.com/device-count": "4"}
    assert {item["metadata"]["name"] for item in kept if item["kind"] == "Event"} == {"e"}
    assert {item["kind"] for item in kept} >= {"ResourceSlice", "DeviceClass", "Lease", "CustomResourceDefinition"}


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    with pytest.raises(SettingsError, match=r"the file exists"):
        bundle.write(file, [], seen(healthy()))
    assert file.read_text() == "mine"


def test_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"No such file"):
        bundle.write(tmp_path / "none" / "x.tar.gz", [], dataclasses.replace(seen(healthy()), objects={}))


@pytest.mark.parametrize(
    "text",
    [
        "node ip-10-0-1-20 is not Ready",
        "has(device.attributes['neuron.aws.com'].instanceType)",
        "tokens expire by it",
        "https://kubernetes.io/docs/x",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redacted.text(text) == text


def test_a_bundle_is_a_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = leaky()
    found = seen(items)
    hidden = dataclasses.replace(found.snapshot, left_out={"ResourceQuota": "forbidden"})
    file = tmp_path / "doctor.tar.gz"
    bundle.write(file, [], dataclasses.replace(found, snapshot=hidden, version="v1.36.2"))
    again, _ = source.from_file(str(file))
    assert (again.version, again.left_out["ResourceQuota"]) == ("v1.36.2", "forbidden")
    assert {node["metadata"]["name"] for node in again.all("Node")} == {
        node["metadata"]["name"] for node in found.snapshot.all("Node")
    }
    answer = ask(capsys, "status", "--snapshot", str(file))
    assert (answer.code, "not seen: ResourceQuota (forbidden)" in answer.out) == (0, True)


@pytest.mark.parametrize("raw", [gzip.compress(b"{}", mtime=0), b"\x1f\x8b", gzip.compress(b"", mtime=0)])
def test_another_compressed_file_is_no_snapshot(raw: bytes, tmp_path: Path) -> None:
    file = tmp_path / "other.gz"
    file.write_bytes(raw)
    with pytest.raises(SettingsError, match="this is not a bundle of neuron-dra doctor"):
        source.from_file(str(file))
