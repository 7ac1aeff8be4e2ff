"""The page of `neuron-dra ui`: its rows, what a page gets that is behind, changes of a cluster, and the one file."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.api import objects
from neuron_dra.ask.read.mirror import Changes, KindChanges, Mirror
from neuron_dra.ask.read.snapshot import DamagedObject
from neuron_dra.ask.ui import files, one_file
from neuron_dra.ask.ui.board import Board
from neuron_dra.ask.ui.kept_rows import KeptRows
from neuron_dra.ask.ui.table import Table
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import shown_fleet
from tests.support import small_clusters as small


def told(table: Table, version: int) -> Any:
    return json.loads(table.since(version))


def test_a_node_is_told_in_words_and_letters() -> None:
    items = [*small.base("a"), *small.running(small.base("a"), "train", 4, "a")]
    found = KeptRows().whole(World(small.cluster(items)))
    assert found["nodes"] == {
        "a": {
            "type": "trn2.48xlarge",
            "shape": "trn2.48xlarge/16",
            "letter": "H",
            "state": "default/train",
            "marks": "####············",
            "devices": 16,
            "free": 12,
            "held": 4,
            "faulty": 0,
            "server": "",
            "position": 0,
        }
    }
    assert [(row["pods"], row["devices"], row["count"]) for row in found["holders"].values()] == [
        (("train",), "0-3", 4)
    ]


def test_an_empty_cluster_says_so() -> None:
    facts = KeptRows().whole(World(small.cluster([])))["facts"]
    assert facts["empty"].startswith("no Neuron nodes: ")


def test_a_workload_has_its_ranks() -> None:
    found = KeptRows().whole(World(small.cluster(shown_fleet.mixed(2, 0))))
    ranks = [(rank, node) for rank, node, _ in found["workloads"]["ml/llm-1"]["ranks"]]
    assert ranks == [(0, "trn2u-4"), (1, "trn2u-5"), (2, "trn2u-6"), (3, "trn2u-7")]


def test_links_of_an_ultraserver_are_up_down_or_unknown() -> None:
    found = KeptRows().whole(World(small.cluster(shown_fleet.mixed(4, 0))))
    links = {
        (each["way"], tuple(each["ends"])): each["up"] for each in found["servers"]["trn2u-ultraserver-3"]["links"]
    }
    assert links == {
        ("vertical", ("trn2u-12", "trn2u-13")): False,
        ("vertical", ("trn2u-14", "trn2u-15")): True,
        ("horizontal", ("trn2u-12", "trn2u-15")): True,
        ("horizontal", ("trn2u-13", "trn2u-14")): True,
    }


def test_a_page_gets_only_what_has_changed_since_its_version() -> None:
    table = Table()
    assert table.put({"nodes": {"a": 1, "b": 2}}) is True
    assert told(table, 0) == {"version": 1, "whole": True, "set": {"nodes": {"a": 1, "b": 2}}, "gone": {}}
    assert table.put({"nodes": {"a": 1, "b": 2}}) is False
    assert table.put({"nodes": {"a": 3}}) is True
    assert told(table, 1) == {"version": 2, "whole": False, "set": {"nodes": {"a": 3}}, "gone": {"nodes": ["b"]}}
    assert told(table, 2) == {"version": 2, "whole": False, "set": {}, "gone": {}}


def test_a_row_that_is_back_is_not_gone() -> None:
    table = Table()
    for found in ({"a": 1}, {}, {"a": 2}):
        table.put({"nodes": found})
    assert told(table, 1) == {"version": 3, "whole": False, "set": {"nodes": {"a": 2}}, "gone": {}}


def test_a_page_that_is_too_far_behind_gets_everything() -> None:
    table = Table(kept=1)
    for found in ({"a": 1, "b": 1, "c": 1}, {"b": 1, "c": 1}, {"c": 1}):
        table.put({"nodes": found})
    assert told(table, 1)["whole"] is True
    assert told(table, 2) == {"version": 3, "whole": False, "set": {}, "gone": {"nodes": ["b"]}}


def changed(kind: str, *items: Obj, gone: tuple[str, ...] = (), whole: bool = False) -> Changes:
    found: dict[tuple[str, str], Obj | None] = {}
    for item in items:
        found[item["metadata"].get("namespace", ""), item["metadata"]["name"]] = item
    found |= {("", name): None for name in gone}
    return Changes([KindChanges(kind, found, whole)])


def test_a_mirror_follows_changes_and_keeps_the_rest() -> None:
    mirror = Mirror()
    a, b = small.node("a"), small.node("b")
    first = mirror.apply(changed("Node", a, b, whole=True))
    cordoned = {**b, "spec": {"unschedulable": True}}
    second = mirror.apply(changed("Node", cordoned))
    assert second.get("Node", "a") is first.get("Node", "a")
    assert second.get("Node", "b") == cordoned
    assert [node["metadata"]["name"] for node in mirror.apply(changed("Node", gone=("a",))).all("Node")] == ["b"]
    assert mirror.apply(changed("Node", a, whole=True)).all("Node") == [a]


def test_a_mirror_names_objects_of_the_wrong_shape_until_they_are_mended() -> None:
    mirror = Mirror()
    mirror.apply(changed("Node", small.node("a"), whole=True))
    wrong = mirror.apply(changed("Node", {**small.node("a"), "spec": {"unschedulable": "yes"}}))
    assert [(each.kind, each.name) for each in wrong.damaged] == [("Node", "a")]
    assert wrong.all("Node") == []
    mended = mirror.apply(changed("Node", small.node("a")))
    assert (list(mended.damaged), len(mended.all("Node"))) == ([], 1)


def test_a_mirror_names_what_the_watch_cannot_decode() -> None:
    damaged = DamagedObject("Pod", "ml", "p", why="it is too deep")
    found = Mirror().apply(Changes([KindChanges("Pod", {}, True, [damaged])], {"Event": "forbidden"}, "v1.36.0"))
    assert (list(found.damaged), found.left_out, found.version) == ([damaged], {"Event": "forbidden"}, "v1.36.0")


def test_an_answer_is_given_once_and_anew_after_a_change() -> None:
    board = Board()
    board.show(small.cluster([*small.base("a"), small.template("four", 4), small.pod("p", "four")]))
    first = board.about("Pod", "default", "p")
    assert board.about("Pod", "default", "p") is first
    assert board.about("Pod", "default", "q") is None
    assert board.about("Secret", "default", "p") is None
    board.show(small.cluster(small.base("a")))
    assert board.about("Pod", "default", "p") is None


def test_a_node_shows_its_versions_taints_conditions_and_age() -> None:
    items = small.base("a")
    node = next(item for item in items if item["kind"] == "Node")
    node["metadata"]["creationTimestamp"] = shown_fleet.SINCE
    node["spec"] = {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}
    node["status"] = {**node["status"], "nodeInfo": {"kubeletVersion": "v1.36.3"}}
    board = Board()
    board.show(small.cluster(items))
    answer = board.about("Node", "", "a")
    assert answer is not None
    assert answer["node"] == {
        "since": shown_fleet.SINCE,
        "versions": [
            ("Neuron driver", objects.healthy_node(small.TYPE).driver_version),
            ("DRA driver", "1.2.3"),
            ("kubelet", "v1.36.3"),
            ("runtime", "unknown"),
        ],
        "taints": ["team=ml:NoSchedule"],
        "conditions": [{"type": "Ready", "status": "True", "reason": "", "message": ""}],
    }


def test_a_workload_shows_its_groups_ultraservers_reason_and_age() -> None:
    waiting = shown_fleet.workload("late", "ml", "Pending", ready=False, message="none is free")
    found = KeptRows().whole(World(small.cluster([*shown_fleet.mixed(2, 0), waiting])))["workloads"]
    shown = ("groups", "wanted", "each", "servers", "reason", "since", "waits")
    assert [found["ml/llm-1"][name] for name in shown] == [
        1, 1, 4, ["trn2u-ultraserver-1"], "", shown_fleet.SINCE, False,
    ]  # fmt: skip
    assert [found["ml/late"][name] for name in shown] == [0, 1, 4, [], "NoFreeUltraServer", shown_fleet.SINCE, True]


NAMES = re.compile(r"^(?:export )?(?:async )?(?:const|let|function\*?|class) (\w+)", re.MULTILINE)


def test_modules_of_the_page_can_become_one() -> None:
    """In one module, two things of one name would be an error."""
    code = one_file.script(files.read())
    assert "import " not in re.sub(r"//.*|/\*.*", "", code)
    assert [name for name, number in Counter(NAMES.findall(code)).items() if number > 1] == []


@pytest.mark.parametrize("name", sorted(name for name in files.read() if name.endswith(".js")))
def test_no_text_becomes_markup(name: str) -> None:
    code = files.read()[name].decode()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "http:",
        "https:",
    ):
        assert word not in code.replace('"http://www.w3.org/2000/svg"', ""), word


def test_no_text_of_a_cluster_ends_the_data_of_the_one_file(tmp_path: Path) -> None:
    items = [*small.base("a"), small.pod("</script><script>alert(1)</script>", "none")]
    page = one_file.page(small.cluster(items), "</script>", files.read())
    assert page.count("</script>") == 2
    assert "default-src 'none'; script-src 'sha256-" in page
