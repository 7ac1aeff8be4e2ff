"""A large file is read with the fields that count, and equal parts once: answers are those of whole objects (34.4)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.ask.read import kept, snapshot, source
from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.world import imagined
from neuron_dra.ask.world.world import World
from neuron_dra.errors import SettingsError
from tests.support.cluster_faults import FAULTS, Fault
from tests.support.questions import ask
from tests.unit.test_snapshot_stream import printed, streamed
from tests.unit.test_why_faults import broken, report


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_cause_is_the_same_without_the_fields_that_nobody_reads(fault: Fault) -> None:
    items = broken(0, [fault])
    assert report(streamed(printed(items))) == report(items)


def test_the_status_is_the_same() -> None:
    items = imagined.fleet("2 x trn2.48xlarge, 1 x ultraserver trn2u.48xlarge, 1 x node", "test")
    whole, few = World(snapshot.build(items)), World(snapshot.build(streamed(printed(items))))
    assert status_text.data(few, "") == status_text.data(whole, "")


def test_a_pod_keeps_what_decides_where_it_runs() -> None:
    requests = {"requests": {"cpu": "1"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "u", "managedFields": [{"manager": "kubectl"}]},
        "spec": {
            "nodeName": "a",
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "env": [{"name": "A", "value": "b"}], "resources": requests}],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "d", "persistentVolumeClaim": {"claimName": "d"}}],
        },
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }
    assert kept.FieldReader().decode("Pod", json.dumps(pod).encode()) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "u"},
        "spec": {
            "nodeName": "a",
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "resources": requests}],
            "volumes": [{}, {"persistentVolumeClaim": {}}],
        },
        "status": {"phase": "Running"},
    }


def test_equal_pods_share_what_is_equal() -> None:
    reader = kept.FieldReader()
    text = '{"kind": "Pod", "metadata": {"name": "%s"}, "spec": {"containers": [{"name": "c"}]}}'
    one, other = (reader.decode("Pod", (text % name).encode()) for name in ("a", "b"))
    assert one["spec"]["containers"] is other["spec"]["containers"]


def test_null_is_kept_as_it_is() -> None:
    text = b'{"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": null, "nodeName": null}, "status": null}'
    assert kept.FieldReader().decode("Pod", text) == json.loads(text)


def test_an_object_of_another_shape_is_whole_and_its_error_names_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": "none"}}
    assert kept.FieldReader().decode("Pod", json.dumps(pod).encode()) == pod
    file = tmp_path / "wrong.json"
    file.write_text(printed([pod]))
    answer = ask(capsys, "status", "--snapshot", str(file))
    assert (answer.code, answer.text) == (
        2,
        f"neuron-dra: --snapshot {file}: Pod p: spec.containers is 'none': it must be a list",
    )


def paths(shape: Any, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of all fields of a shape; those of entries of lists with the place 0."""
    if isinstance(shape, Mapping):
        for name, each in shape.items():
            yield (*before, name)
            yield from paths(each, (*before, name))
    elif isinstance(shape, list):
        yield from paths(shape[0], (*before, 0))


def made(kind: str, path: Sequence[str | int], value: object) -> dict[str, Any]:
    """Return an object that has a value at a path, and names where the path has lists."""
    item: dict[str, Any] = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}, "spec": {}}
    place: Any = item
    for part, after in itertools.pairwise(path):
        new: Any = [dict.fromkeys(("name", "request", "driver", "pool", "device"), "x")] if after == 0 else {}
        place = place[part] if part == 0 else place.setdefault(part, new)
    place[path[-1]] = value
    return item


JUNK: tuple[Any, ...] = (3, -1.5, "", "text", True, None, [], ["x"], [None], [{}], {}, {"name": ""})
CHECKED = ("Node", "Pod", "ResourceClaim")
NAMED = (("metadata",), ("metadata", "name"))
"""Fields without which a file is rejected before its objects are checked."""


@pytest.mark.parametrize("kind", CHECKED)
def test_objects_are_rejected_as_they_are_in_other_files(kind: str) -> None:
    """The types of kept.py are at least as strict as those that `snapshot.build` requires."""
    differ = []
    every = paths(snapshot.shape(kind))
    for path in (each for each in every if each not in NAMED):
        for value in JUNK:
            item = made(kind, path, value)
            [read] = streamed(printed([item]))
            whole, few = said(item), said(read)
            if whole != few:
                differ.append((path, value, whole, few))
    assert differ == []


def said(item: dict[str, Any]) -> str:
    try:
        snapshot.build([item])
    except SettingsError as err:
        return str(err)
    return ""


@pytest.mark.parametrize("devices", [[], None, "absent"])
def test_slices_without_devices_are_read(devices: object) -> None:
    spec: dict[str, object] = {"driver": "d", "nodeName": "a", "pool": {"name": "a", "resourceSliceCount": 1}}
    spec |= {} if devices == "absent" else {"devices": devices}
    slices = [{"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec} for name in ("s", "t")]
    assert streamed(printed(slices)) == slices


def test_slices_with_counters_after_their_devices_are_read() -> None:
    items = imagined.fleet("2 x trn2.48xlarge", "test")
    sliced = next(item for item in items if item["kind"] == "ResourceSlice")
    counters: list[object] = [{"name": "c", "counters": {}}]
    both = {**sliced, "spec": {**sliced["spec"], "sharedCounters": counters}}
    assert streamed(printed([both, both])) == [both, both]


def test_a_report_has_whole_objects(tmp_path: Path) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "status": {"images": [{"names": ["x"]}]}}
    file = tmp_path / "snapshot.json"
    file.write_text(printed([node]))
    assert source.from_file(str(file), whole=True)[1] == [node]


def test_equal_nodes_of_a_simulated_fleet_share_their_devices() -> None:
    text = "3 x trn2.48xlarge, 1 x ultraserver trn2u.48xlarge"
    shared, own = imagined.fleet(text, "test", shared=True), imagined.fleet(text, "test")
    assert shared == own
    lists = [item["spec"]["devices"] for item in shared if item.get("spec", {}).get("nodeName", "").startswith("trn2-")]
    assert all(each is lists[0] for each in lists)
