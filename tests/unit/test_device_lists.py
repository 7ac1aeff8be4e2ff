"""Lists of devices that differ in a few values are made of each other: they are those of the file (34.4)."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.ask.read import stream
from neuron_dra.ask.world import imagined
from tests.support.questions import ask
from tests.unit.test_snapshot_stream import Items, printed, streamed

LAYER = "networkNodeLayer3"
SCALARS = st.text() | st.integers(-(2**70), 2**70) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
UNUSUAL: tuple[Any, ...] = ({}, None, [], "text", 3, {"string": "a", "int": 1}, {"strings": ["a", "b"]}, {"string": {}})
ODD = st.sampled_from(UNUSUAL)
VALUES = st.dictionaries(st.sampled_from(["string", "int", "bool", "version"]), SCALARS, min_size=1, max_size=1) | ODD
NAMES = st.sampled_from(["a", "b", "c", 'q": {', "", "é"])
PARTS = st.dictionaries(NAMES, VALUES, max_size=4) | ODD
DEVICES = st.fixed_dictionaries(
    {"name": st.sampled_from(["neuron-0", "neuron-1"])},
    optional={"attributes": PARTS, "capacity": PARTS, "taints": st.lists(PARTS, max_size=2)},
)
LISTS = st.lists(DEVICES | ODD, min_size=1, max_size=3)


def sliced(name: str, devices: object) -> dict[str, Any]:
    spec = {"driver": "d", "nodeName": name, "pool": {"name": name, "resourceSliceCount": 1}, "devices": devices}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def published(*layers: object) -> Items:
    """Return the slices of equal nodes, each below another network node."""
    [first] = [item for item in imagined.fleet("1 x trn2.48xlarge", "test") if item["kind"] == "ResourceSlice"]
    found = []
    for number, layer in enumerate(layers):
        devices = copy.deepcopy(first["spec"]["devices"])
        for device in devices:
            device["attributes"][LAYER] = layer
        found.append(sliced(f"n{number}", devices))
    return found


def text(items: Items) -> str:
    """Return objects as a text in which 1 is neither true nor 1.0."""
    return json.dumps(items, sort_keys=True)


def devices(item: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = item["spec"]["devices"]
    return found


def test_nodes_below_other_network_nodes_are_those_of_the_file() -> None:
    items = published({"string": "nn-1"}, {"string": "nn-2"}, {"string": "nn-1"}, {"int": 3}, {"bool": True})
    assert text(streamed(printed(items))) == text(items)


def test_what_they_have_in_common_is_kept_once() -> None:
    one, other, again = streamed(printed(published({"string": "nn-1"}, {"string": "nn-2"}, {"string": "nn-1"})))
    assert devices(one) is devices(again)
    for first, second in zip(devices(one), devices(other), strict=True):
        assert first["capacity"] is second["capacity"]
        for name in set(first["attributes"]) - {LAYER}:
            assert first["attributes"][name] is second["attributes"][name]
        assert second["attributes"][LAYER] is devices(other)[0]["attributes"][LAYER]


def test_a_device_that_is_as_before_is_kept_once() -> None:
    items = published({"string": "nn-1"}, {"string": "nn-1"})
    devices(items[1])[3]["attributes"][LAYER] = {"string": "nn-2"}
    one, other = streamed(printed(items))
    same = [before is after for before, after in zip(devices(one), devices(other), strict=True)]
    assert same == [place != 3 for place in range(16)]


@pytest.mark.parametrize("value", [{"string": "nn-1", "int": 3}, {"strings": ["x"]}, {}, None, "text", {"int": 2**70}])
def test_a_value_of_another_form_is_that_of_the_file(value: object) -> None:
    items = published({"string": "nn-1"}, value, {"string": "nn-2"}, value)
    assert text(streamed(printed(items))) == text(items)


@given(st.lists(LISTS, min_size=1, max_size=3), st.data())
def test_any_lists_are_those_of_the_file(bases: list[list[Any]], data: st.DataObject) -> None:
    items: Items = []
    for base in bases:
        for _ in range(3):
            made = copy.deepcopy(base)
            for device in made:
                part = device.get("attributes") if isinstance(device, dict) else None
                if isinstance(part, dict) and part:
                    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(VALUES)
            items.append(sliced(f"s{len(items)}", made))
    whole = printed(items)
    assert text(streamed(whole)) == text(json.loads(whole)["items"])


BROKEN = {
    "half of a pair": '"\\ud800"',
    "no JSON": "nn",
    "another member": '"a"}, "more": {"string": "b"',
    "brackets": "[" * 5000 + "]" * 5000,
}


@pytest.mark.parametrize("value", BROKEN.values(), ids=BROKEN)
def test_a_value_that_cannot_be_read_alone_is_no_part_of_another_list(value: str) -> None:
    whole = printed(published({"string": "nn-1"}, {"string": "nn-2"}))
    broken = whole.replace('"string": "nn-2"', f'"string": {value}', 1)
    try:
        expected = json.dumps(json.loads(broken)["items"], sort_keys=True)
    except (ValueError, RecursionError):
        expected = ""
    if expected and "ud800" not in value:
        assert text(streamed(broken)) == expected
        return
    with pytest.raises(stream.NotAsPrinted, match="object 2 of the list"):
        streamed(broken)


def test_bytes_that_are_no_text_name_the_object() -> None:
    whole = printed(published({"string": "nn-1"}, {"string": "nn-2"})).encode()
    broken = io.BytesIO(whole.replace(b"nn-2", b"nn\xff2", 1))
    file = stream.items(io.BufferedReader(broken))
    next(file)
    with pytest.raises(stream.NotAsPrinted, match="object 2 of the list"):
        next(file)


def test_lists_that_are_not_indented_as_their_structure_are_read() -> None:
    whole = printed(published({"string": "nn-1"}, {"string": "nn-2"}))
    moved = whole.replace(f'"{LAYER}": {{\n', f'"{LAYER}":  {{\n')
    assert streamed(moved) == json.loads(moved)["items"]


def test_an_object_that_is_shorter_than_others_of_its_kind_is_read() -> None:
    sizes = [900, 800, 20, 900, 3, 500, 1, 2]
    items: Items = []
    for number, size in enumerate(sizes):
        meta = {"name": f"n{number}", "annotations": {"a": "x" * size}}
        items.append({"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {}})
        items.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"x": "y" * size}})
    for chunk in (100, 1000, stream.CHUNK):
        assert streamed(printed(items), chunk) == items


def test_an_object_that_is_no_json_is_named_by_its_place() -> None:
    items = [{"kind": "ConfigMap", "metadata": {"name": f"c{number}"}, "data": {"a": "x"}} for number in range(5)]
    broken = printed(items).replace('"name": "c3"', '"name": c3')
    with pytest.raises(stream.NotAsPrinted, match="object 4 of the list"):
        streamed(broken)


@pytest.mark.parametrize("kind", ["Node", "ResourceSlice"])
def test_a_file_that_is_no_text_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    items = [*published({"string": "nn-1"}, {"string": "odd"}), {"kind": "Node", "metadata": {"name": "odd"}}]
    chosen = [item for item in items if item["kind"] == kind]
    file = tmp_path / "odd.json"
    file.write_bytes(printed(chosen).encode().replace(b"odd", b"o\xffd"))
    answer = ask(capsys, "status", "--snapshot", str(file))
    text = f"neuron-dra: --snapshot {file}: it is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 1"
    assert answer.code == 2
    assert answer.text.startswith(text)
