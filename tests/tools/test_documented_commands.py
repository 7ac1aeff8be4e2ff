"""Each command of README and docs runs, and prints what the page shows, or is marked with why it is not run (37.5)."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from neuron_dra import cli
from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from tests.support import cluster_faults as faults
from tests.support import documented_commands as documented
from tests.support import small_clusters as small
from tests.support.documented_commands import Shown
from tests.unit.test_status_screen import ultraserver
from tests.unit.test_topology_view import busy
from tests.unit.test_uninstall_check import WORKLOAD, holding

ROOT = Path(__file__).resolve().parents[2]
ALL = list(documented.shown())


def fleet_with_faults() -> list[Obj]:
    """The fleet of the page about `status`: a node without slices, an unhealthy device, a link that is down."""
    items = faults.healthy()
    items += small.base("c")[-2:-1]
    device = faults.all_of(items, "ResourceSlice")[0]["spec"]["devices"][15]
    device["attributes"]["unhealthy"] = {"string": "hbm"}
    device["taints"] = [{"key": "neuron.aws.com/unhealthy", "value": "hbm", "effect": "NoSchedule"}]
    for position in range(4):
        node, *slices = ultraserver("us-1", f"u{position}", position)
        for each in slices[0]["spec"]["devices"]:
            each["attributes"] |= {"linkHorizontal": {"bool": True}, "linkVertical": {"bool": position < 2}}
        is_reserved = position < 2
        items += [node, *(small.reserved(slices, "job") if is_reserved else slices)]
        items += [held(f"u{position}")] if is_reserved else []
    faults.change_requests(items, count=17)
    return items


def held(node: str) -> Obj:
    """Return the claim of a pod of the workload that has reserved a node."""
    result = {"request": "neurons", "driver": names.DRIVER, "pool": node, "device": names.NODE_DEVICE}
    return {
        "apiVersion": small.API,
        "kind": "ResourceClaim",
        "metadata": {"name": f"job-{node}", "namespace": "ml", "uid": f"uid-{node}"},
        "spec": {"devices": {"requests": [{"name": "neurons", "exactly": {"deviceClassName": names.DRIVER}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def wrong_type() -> list[Obj]:
    """The cluster of the page about `why`: a selector that matches nothing."""
    items = faults.healthy()
    faults.selector(items, f"{faults.GUARD}device.attributes['neuron.aws.com'].instanceType == 'trn1.32xlarge'")
    return items


CLUSTERS: dict[str, Callable[[], list[Obj]]] = {
    "neuron-dra status": fleet_with_faults,
    "neuron-dra topology a": busy,
    "neuron-dra why pod/p": wrong_type,
    "neuron-dra uninstall-check": lambda: [*holding(), WORKLOAD],
}
"""Commands that read a cluster, and the one that their page shows."""
RUN = [each for each in ALL if each.command in CLUSTERS or not documented.mark(each.command)]


def run(command: str, folder: Path, items: Sequence[Obj] | None) -> int:
    words = shlex.split(command)[1:]
    if items is not None:
        file = folder / "cluster.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        words += ["--snapshot", str(file)]
    found = [path for word in words for path in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    return cli.main(found)


@pytest.mark.parametrize("each", RUN, ids=[f"{each.page}: {each.command}" for each in RUN])
def test_command_prints_what_its_page_shows(
    each: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    made = CLUSTERS.get(each.command)
    assert run(each.command, tmp_path, made() if made else None) in (0, 1)
    assert capsys.readouterr().out == each.output or not each.output


def test_commands_are_found() -> None:
    """Others are marked with why they are not run: none is left over."""
    assert len(RUN) >= 10
    assert len(ALL) >= 90
    on_the_demo = documented.on_the_demo()
    assert len(on_the_demo) >= 25


def test_marks_name_tests_that_exist() -> None:
    named = {path for why in documented.MARKS.values() for path in re.findall(r"[\w/.-]+/[\w.-]+\.(?:py|yaml)", why)}
    assert len(named) > 5
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {shlex.split(each.command)[1] for each in ALL if each.command.startswith("make ")}
    assert named - targets == set()


OWN = [each for each in ALL if each.command.startswith("neuron-dra ") and "|" not in each.command]


@pytest.mark.parametrize("each", OWN, ids=[f"{each.page}: {each.command}" for each in OWN])
def test_flags_and_words_are_accepted(each: Shown) -> None:
    """A flag that does not exist, or an argument too many, ends the parser with an error."""
    words = shlex.split(each.command)[1:]
    assert cli._parser(words).parse_args(words).command == words[0]


def test_named_manifests_exist() -> None:
    files = {found for each in ALL for found in re.findall(r"deploy/[\w./-]+\.yaml", each.command)}
    assert len(files) >= 2
    assert {each for each in files if not (ROOT / each).exists()} == set()
