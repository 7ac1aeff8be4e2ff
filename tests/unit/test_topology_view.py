"""`topology`: who is where, which links there are, how close pods are (17.2)."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.topology import fleet_svg, matrix
from neuron_dra.ask.topology import svg as topology_svg
from neuron_dra.ask.topology import text as topology_text
from neuron_dra.ask.world import faults as found_faults
from neuron_dra.ask.world import fleet, picture
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.picture import Legend
from neuron_dra.ask.world.world import World
from neuron_dra.core import catalogue, names
from neuron_dra.core.wire import Obj
from tests.support import cluster_faults as faults
from tests.support import shown_fleet
from tests.support import small_clusters as small
from tests.unit.test_status_screen import ultraserver

GROUP = "resource.aws.com/devicegroup4_id"
SVG = "{http://www.w3.org/2000/svg}"


def build(items: Sequence[Obj]) -> tuple[World, dict[str, NodeView]]:
    world = World(snapshot.build(items))
    return world, {view.name: view for view in fleet.nodes(world)}


def busy() -> list[Obj]:
    items = small.base("a")
    items += small.running(items, "train-0", 4, "a", group=GROUP)
    items += small.running(items, "train-1", 3, "a")
    device = faults.all_of(items, "ResourceSlice")[0]["spec"]["devices"][14]
    device["attributes"]["unhealthy"] = {"string": "hbm"}
    device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "hbm", "effect": "NoSchedule"}]
    return items


def test_torus_shows_holders_free_devices_and_faults() -> None:
    world, views = build(busy())
    assert topology_text.node(world, views["a"]) == [
        "node a: trn2.48xlarge, 4 x 4 torus, 8 of 16 devices free, 7 held, 1 unhealthy",
        "",
        "     │       │       │       │",
        "  ─ 0 A─── 1 A─── 2 A─── 3 A───",
        "     │       │       │       │",
        "  ─ 4 B─── 5 B─── 6 B─── 7 ·───",
        "     │       │       │       │",
        "  ─ 8 ·─── 9 ·───10 ·───11 ·───",
        "     │       │       │       │",
        "  ─12 ·───13 ·───14 !───15 ·───",
        "     │       │       │       │",
        "  rows and columns wrap around",
        "",
        "  groups of 4 free: 8-11",
        "  groups of 8 free: none",
        "  groups of 16 free: none",
        "  A  default/train-0, 4 devices",
        "  B  default/train-1, 3 devices",
        "  ·  free, 8 devices",
        "  !  hbm: a/14",
        "",
        "                      P0   P1",
        "  P0 default/train-0  X    NL1",
        "  P1 default/train-1  NL1  X",
        "",
        "  NL1 NeuronLink, devices of one node that are neighbors",
    ]


def test_ultraserver_shows_its_square_and_links() -> None:
    items = small.base()
    for position in range(4):
        items += ultraserver("us-1", f"u{position}", position)
    world, views = build(items)
    lines = topology_text.ultraserver(world, "us-1", fleet.ultraservers(views.values())["us-1"])
    assert "    · · · ·   ╌╳╌╌   · · · ·" in lines  # between 0 and 3
    assert "    · · · ·   ────   · · · ·" in lines  # between 1 and 2
    assert "  horizontal links down on u3" in lines


@pytest.mark.parametrize("kind", [each.name for each in catalogue.all_types()])
def test_every_type_has_a_picture_of_80_columns_and_valid_svg(kind: str) -> None:
    items = [*small.base(), small.node("n", kind), *small.slices("n", kind)]
    world, views = build(items)
    spec = catalogue.lookup(kind)
    assert spec is not None
    assert len(picture.draw(views["n"], Legend()).cells) == spec.device_count
    assert max(map(len, topology_text.node(world, views["n"]))) <= 80
    assert max(map(len, topology_text.fleet(list(views.values())))) <= 80
    root = ET.fromstring(topology_svg.node(views["n"]))
    numbers = {text.text for text in root.iter(f"{SVG}text")}
    assert {str(number) for number in range(spec.device_count)} <= numbers


def test_links_of_a_picture_are_those_of_the_catalogue() -> None:
    for kind in ("trn2.48xlarge", "trn1.32xlarge", "inf2.48xlarge", "inf2.24xlarge"):
        spec = catalogue.lookup(kind)
        _, views = build([*small.base(), small.node("n", kind), *small.slices("n", kind)])
        made = picture.draw(views["n"], Legend())
        assert spec is not None
        assert {pair for one, others in enumerate(spec.links) for pair in ((one, n) for n in others)} == {
            pair for one, other in made.links for pair in ((one, other), (other, one))
        }


def test_matrix_has_the_best_link_between_pods() -> None:
    items = small.base("a", "b", "c")
    for name, where, count in (("p0", "a", 1), ("p1", "a", 1), ("p2", "a", 9), ("p3", "b", 1), ("p4", "c", 1)):
        items += small.running(items, name, count, where)
    for name in ("a", "b"):
        node = faults.the(items, "Node", name)
        assert node is not None
        node["metadata"]["labels"] |= dict(zip(names.NETWORK_LAYER_LABELS, ("nn-1", "nn-2", f"nn-{name}"), strict=True))
    world, views = build(items)
    rows = matrix.matrix(world, list(views.values()))
    assert [row[1:] for row in rows[1:]] == [
        ["X", "NL1", "NL1", "L2", "-"],
        ["NL1", "X", "NL1", "L2", "-"],
        ["NL1", "NL1", "X", "L2", "-"],
        ["L2", "L2", "L2", "X", "-"],
        ["-", "-", "-", "-", "X"],
    ]


def test_distances_follow_the_links() -> None:
    torus = catalogue.lookup("trn2.48xlarge")
    assert torus is not None
    found = matrix.distances(torus.links, 0)
    assert (found[1], found[5], found[10], max(found.values())) == (1, 2, 4, 4)


def test_svg_has_titles_letters_and_a_dark_form() -> None:
    _, views = build(busy())
    text = topology_svg.node(views["a"])
    root = ET.fromstring(text)
    titles = [each.text for each in root.iter(f"{SVG}title")]
    assert "device 14: hbm" in titles
    assert "device 0: held by default/train-0" in titles
    assert "prefers-color-scheme: dark" in text
    written = [each.text for each in root.iter(f"{SVG}text")]
    assert written.count("A") == 5  # four devices and the legend
    assert "default/train-0: 4 devices" in written


def test_numbers_of_a_picture_have_their_unit() -> None:
    _, views = build(busy())
    written = [each.text for each in ET.fromstring(topology_svg.node(views["a"])).iter(f"{SVG}text")]
    assert {"default/train-0: 4 devices", "free: 8 devices", "hbm: 1 device"} <= set(written)


def test_fleet_picture_marks_nodes_that_are_not_ready() -> None:
    items = small.base("good", "down", "closed")
    down, closed = (faults.the(items, "Node", name) for name in ("down", "closed"))
    assert down is not None
    assert closed is not None
    closed["spec"] = {"unschedulable": True}
    down["status"] = {"conditions": [{"type": "Ready", "status": "False"}]}
    _, views = build([*items, small.node("silent", "trn2.48xlarge")])
    root = ET.fromstring(fleet_svg.fleet(list(views.values())))
    marked = [each.text or "" for each in root.iter(f"{SVG}text") if "alert" in each.attrib["class"]]
    assert sorted(marked) == ["down", "name", "silent"]  # and the legend
    written = [each.text for each in root.iter(f"{SVG}text")]
    assert "of a node that is not Ready, or publishes nothing" in written


def test_fleet_picture_has_a_block_for_each_node() -> None:
    items = small.base(*(f"n{number}" for number in range(12)))
    _, views = build([*items, small.node("off", "trn2.48xlarge")])
    root = ET.fromstring(fleet_svg.fleet(list(views.values())))
    assert sum(1 for _ in root.iter(f"{SVG}g")) == 13
    lines = topology_text.fleet(list(views.values()))
    assert lines[0] == "trn2.48xlarge: 13 nodes"
    assert "  off  !!!!!!!!!!!!!!!!" in lines


def ultraserver_of_three() -> list[Obj]:
    """An UltraServer whose node 1, which its object names, publishes nothing; node 2 is reserved."""
    items = small.base()
    for position in (0, 2, 3):
        items += ultraserver("us-1", f"u{position}.ec2.internal", position)
    tag = {"workloadId": "job", "workloadNamespace": "ml", "workloadUid": "uid", "allocationId": "x"}
    for device in faults.all_of(items, "ResourceSlice")[1]["spec"]["devices"]:
        for name, value in {**tag, "workloadPhase": "Bound"}.items():
            device["attributes"][name] = {"string": value}
    topology = [{"nodeName": f"u{position}.ec2.internal", "nodeId": position} for position in range(4)]
    meta = {"name": "us-1", "namespace": "neuron"}
    return [*items, {"kind": "NeuronUltraServer", "metadata": meta, "spec": {"topology": topology}}]


def test_missing_node_of_an_ultraserver_is_drawn_as_missing() -> None:
    world, views = build(ultraserver_of_three())
    group = fleet.ultraservers(views.values())["us-1"]
    missing = found_faults.missing(group, found_faults.by_id(world)["us-1"])
    assert missing == {1: "u1.ec2.internal"}
    root = ET.fromstring(topology_svg.ultraserver("us-1", group, missing))
    written = [each.text for each in root.iter(f"{SVG}text")]
    assert {"trn2u.48xlarge, 3 of 4 nodes", "missing", "u1 (node 1)", "u0 (node 0)", "free: 2 nodes"} <= set(written)
    lines = topology_text.ultraserver(world, "us-1", group, missing)
    assert lines[0] == "UltraServer us-1: trn2u.48xlarge, 3 of 4 nodes"
    assert any(line.startswith("  missing ") for line in lines)
    assert max(map(len, lines)) <= 80


def contrast(one: str, other: str) -> float:
    """The contrast of two colors as WCAG 2.2 defines it."""
    shades = []
    for color in (one, other):
        digits = color.removeprefix("#")
        if len(digits) == 3:
            digits = "".join(2 * digit for digit in digits)
        light = 0.0
        for place, weight in enumerate((0.2126, 0.7152, 0.0722)):
            part = int(digits[2 * place : 2 * place + 2], 16) / 255
            light += weight * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
        shades.append(light + 0.05)
    return max(shades) / min(shades)


@pytest.mark.parametrize(("dark", "paper"), [(False, "#ffffff"), (True, "#0d1117")])
def test_texts_and_lines_of_pictures_stand_out(dark: bool, paper: str) -> None:
    """Texts have a contrast of 4.5, lines and fills of 3, on light and dark pages (WCAG 2.2, 1.4.3 and 1.4.11)."""
    light, _, night = topology_svg.STYLE.partition("@media")
    rules = dict(re.findall(r"^\s*([^{}@\n]+?) {(.*)}", light, re.MULTILINE))
    for names_of, style in re.findall(r"^\s+([^{}@\n]+?) {(.*)}", night, re.MULTILINE) if dark else ():
        for name in names_of.split(", "):
            rules[name] = f"{rules.get(name, '')} {style}"
    found = {}
    for name, style in rules.items():
        for kind in ("fill", "stroke"):
            colors = re.findall(rf"(?<![-\w]){kind}: (#[0-9a-f]+)", style)
            if colors:
                found[name, kind] = contrast(colors[-1], paper)
    texts = [ratio for (name, kind), ratio in found.items() if kind == "fill" and name in ("text", ".alert")]
    lines = [ratio for (_, kind), ratio in found.items() if kind == "stroke"]
    assert (len(texts), len(lines) > 5) == (2, True)
    assert min(texts) >= 4.5
    assert min(lines) >= 3
    assert min(contrast(*pair) for pair in topology_svg.COLORS) >= 4.5


def test_a_large_picture_begins_with_the_legend_and_the_faulty_ultraservers() -> None:
    """A picture of 400 nodes is higher than three screens."""
    world, views = build(shown_fleet.mixed(100, 0))
    places: dict[str, float] = {}
    for each in ET.fromstring(fleet_svg.fleet(list(views.values()))).iter(f"{SVG}text"):
        places[each.text or ""] = float(each.attrib["y"])
    faulty = {each.name for each in found_faults.of_fleet(world, list(views.values()))}
    assert len(faulty) > 5
    rest = [y for name, y in places.items() if name.startswith("trn2u-ultraserver-") and name not in faulty]
    assert max(places[name] for name in faulty) <= min(rest)
    assert max(places[text] for text in ("free", "held", "reserved for a workload")) < 100


def test_fleet_picture_frames_ultraservers_with_what_is_wrong_and_reserved() -> None:
    _, views = build(
        [*ultraserver_of_three(), small.node("a.ec2.internal", "trn2.48xlarge"), *small.slices("a.ec2.internal")]
    )
    text = fleet_svg.fleet(list(views.values()), {"us-1": {1: "u1.ec2.internal"}})
    root = ET.fromstring(text)
    written = [each.text for each in root.iter(f"{SVG}text")]
    assert {"us-1", "1 missing, horizontal links down, …", "u0", "u2", "u3", "u1", "missing"} <= set(written)
    titles = [each.text for each in root.iter(f"{SVG}title")]
    assert "UltraServer us-1: 1 missing, horizontal links down, for ml/job" in titles
    assert "trn2u.48xlarge: 3 nodes, 2 of them free; 1 of 1 UltraServer with faults" in written
    assert [each.attrib["class"] for each in root.iter(f"{SVG}rect")].count("gone") == 2  # the node and the legend


def test_names_of_a_fleet_picture_do_not_overlap() -> None:
    names_of = [f"ip-10-0-{number}-200.us-east-2.compute.internal" for number in range(40)]
    _, views = build([item for name in names_of for item in (small.node(name, "trn2.48xlarge"), *small.slices(name))])
    root = ET.fromstring(fleet_svg.fleet(list(views.values())))
    written = []
    for each in root.iter(f"{SVG}text"):
        if (each.text or "").startswith("ip-"):
            written.append((float(each.attrib["y"]), float(each.attrib["x"]), len(each.text or "")))
    assert len(written) == 40
    for (y, x, length), (next_y, next_x, _) in itertools.pairwise(sorted(written)):
        assert y != next_y or x + length * fleet_svg.LETTER <= next_x


def test_a_node_that_is_published_as_a_whole_has_no_number_of_devices() -> None:
    _, views = build([*small.base(), *ultraserver("us-1", "u0", 0)])
    assert picture.summary(views["u0"]) == "trn2u.48xlarge, 4 x 4 torus, published as a whole, free"
