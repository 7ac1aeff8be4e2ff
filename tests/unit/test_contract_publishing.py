"""The contract of published devices: names, types, and the order in which slices are used."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from hack.generate import golden
from neuron_dra.core import backoff, slices
from tests.support import fast_yaml

ROOT = Path(__file__).resolve().parents[2]
RELEASES = sorted((ROOT / "tests/golden/released").glob("*.json"))


def promised() -> dict[str, Any]:
    """Return the devices of each kind of node, and their attributes with their types, from the golden files."""
    found = {}
    texts = golden.kept()
    for line in texts.pop(golden.ALIKE).splitlines():
        name, _, first = line.partition(golden.SAME_AS)
        texts[f"{name}/slices.yaml"] = texts[f"{first}/slices.yaml"]
    for name, text in texts.items():
        if not name.endswith(".yaml"):
            continue
        loaded = fast_yaml.load(text)
        devices = [device for item in loaded["items"] for device in item["spec"]["devices"]]
        kinds = {key: next(iter(value)) for one in devices for key, value in one["attributes"].items()}
        capacity = sorted({key for one in devices for key in one["capacity"]})
        names = [one["name"] for one in devices]
        found[name] = {"first": names[0], "count": len(names), "attributes": kinds, "capacity": capacity}
    return found


@pytest.mark.contract("S21")
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_attributes_of_old_releases_are_kept(release: Path) -> None:
    """Attributes may be added; other changes break users' selectors."""
    now = promised()
    for name, then in json.loads(release.read_text()).items():
        assert (now[name]["first"], now[name]["count"]) == (then["first"], then["count"])
        assert now[name]["attributes"].items() >= then["attributes"].items(), name
        assert set(now[name]["capacity"]) >= set(then["capacity"]), name


def test_a_former_release_exists() -> None:
    assert RELEASES


@pytest.mark.contract("S17")
def test_slice_names_sort_in_allocation_order() -> None:
    """The scheduler tries the slices of a pool in the order of their names."""
    devices = [{"name": f"d{number}"} for number in range(slices.DEVICES_PER_SLICE * 30)]
    made = slices.desired(slices.Pool("node-a", "uid"), devices, generation=1)
    by_name = sorted(made, key=lambda item: item["metadata"]["name"])
    assert [device["name"] for item in by_name for device in item["spec"]["devices"]] == [
        one["name"] for one in devices
    ]
    assert len({item["metadata"]["name"] for item in made}) == 30


@pytest.mark.contract("O6")
def test_retry_after_is_honored_with_jitter() -> None:
    times = [backoff.not_before(10.0, functools.partial(float, draw)) for draw in (0.0, 0.5, 0.75)]
    assert times == [10.0, 12.5, 13.75]
