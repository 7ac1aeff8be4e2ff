"""Large snapshots, as kubectl prints them, are read object by object (34.4)."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.ask.read import printed as printed_list
from neuron_dra.ask.read import source, stream
from neuron_dra.ask.world import imagined
from neuron_dra.errors import SettingsError

Items = list[dict[str, Any]]


def printed(items: Items, **more: object) -> str:
    """Return a list as `kubectl get -o json` prints it."""
    return json.dumps({"apiVersion": "v1", "items": items, "kind": "List", **more}, indent=4, sort_keys=True) + "\n"


def opened(text: str) -> io.BufferedReader[io.BytesIO]:
    return io.BufferedReader(io.BytesIO(text.encode()))


def streamed(text: str, chunk: int = stream.CHUNK) -> Items:
    file = opened(text)
    assert printed_list.is_printed(file)
    return list(stream.items(file, chunk))


def node(name: str, **status: object) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def test_objects_are_those_of_the_file() -> None:
    items = imagined.fleet("3 x trn2.48xlarge, 1 x ultraserver trn2u.48xlarge", "test", ["connected-4"])
    assert streamed(printed(items, metadata={"resourceVersion": ""})) == items


def test_devices_of_equal_nodes_are_kept_once() -> None:
    items = imagined.fleet("2 x trn2.48xlarge", "test")
    one, other = (each for each in streamed(printed(items)) if each["kind"] == "ResourceSlice")
    assert one["spec"]["devices"] is other["spec"]["devices"]


def test_images_of_a_node_are_left_out() -> None:
    shown = {"allocatable": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    assert streamed(printed([node("a", images=[{"names": ["x"]}], **shown)])) == [node("a", **shown)]


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())), min_size=1, max_size=4))
def test_any_text_in_objects_is_kept(contents: list[dict[str, Any]]) -> None:
    items: Items = []
    for number, data in enumerate(contents):
        items.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c{number}"}, "data": data})
    assert streamed(printed(items)) == items


def test_text_that_looks_like_the_end_of_an_object_is_text() -> None:
    notes = {"a": "\n        },\n        {\n", "b": "\n        }\n    ]\n"}
    items = [{"kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": note}} for name, note in notes.items()]
    assert streamed(printed(items)) == items


@pytest.mark.parametrize("chunk", range(1, 200, 7))
def test_a_chunk_may_end_anywhere(chunk: int) -> None:
    items = [node(f"n{number}") for number in range(40)]
    assert streamed(printed(items), chunk) == items


@pytest.mark.parametrize("text", ['{"kind": "List", "items": []}', "[]", "kind: List\n", "", printed([])])
def test_other_files_are_read_as_a_whole(text: str) -> None:
    assert not printed_list.is_printed(opened(text))


def test_a_file_that_is_cut_off_says_so(tmp_path: Path) -> None:
    text = printed([node("a"), node("b")])
    with pytest.raises(stream.NotAsPrinted, match="the list has no end: the file is cut off"):
        streamed(text[: text.rindex("]") - 20])
    with pytest.raises(stream.NotAsPrinted, match="something follows the list"):
        streamed(text + "x")
    file = tmp_path / "cut.json"
    file.write_text(text[: text.rindex("]") - 20])
    with pytest.raises(SettingsError, match="not YAML"):
        source.from_file(str(file))


def test_two_lists_in_one_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "two.json"
    file.write_text(printed([node("a"), node("b")]) + printed([node("c")]))
    found, _ = source.from_file(str(file))
    assert [each["metadata"]["name"] for each in found.all("Node")] == ["a", "b", "c"]


def test_a_large_yaml_file_names_the_faster_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "large.yaml"
    file.write_text("apiVersion: v1\nkind: Node\nmetadata: {name: a}\n#" + "x" * 9 * 2**20 + "\n")
    source.from_file(str(file))
    assert capsys.readouterr().err == (
        f"neuron-dra: {file} has 9 MiB of YAML, which is read slowly: print it with -o json instead\n"
    )
    small = tmp_path / "small.yaml"
    small.write_text("apiVersion: v1\nkind: Node\nmetadata: {name: a}\n")
    source.from_file(str(small))
    assert capsys.readouterr().err == ""
