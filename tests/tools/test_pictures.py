"""The command that makes the pictures of the page makes those that the README and the documentation show (4.09)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hack.generate import pictures
from neuron_dra.ask.ui.kept_rows import KeptRows
from neuron_dra.ask.world.world import World
from tests.support.browser import browser_test

ROOT = Path(__file__).resolve().parents[2]
SHOWN = re.compile(r"images/(ui-[\w-]+\.png)")


def test_the_fleet_of_the_pictures_has_something_of_everything() -> None:
    page = KeptRows().whole(World(pictures.fleet()))
    assert {row["letter"] for row in page["nodes"].values()} == {"!", "F", "H", "R", "C", "N"}
    assert len(page["wrong"]) == 4
    assert [sum(len(row["pods"]) for row in page["waiting"].values()), len(page["stuck"])] == [3, 0]
    assert [row["name"] for row in page["workloads"].values() if row["waits"]] == ["llm-1t"]


@browser_test
@pytest.mark.asyncio
async def test_one_command_makes_every_picture_of_the_page(tmp_path: Path) -> None:
    await pictures.make(tmp_path)
    made = {file.name for file in tmp_path.iterdir()}
    for page in ("README.md", "docs/ui.md"):
        assert set(SHOWN.findall((ROOT / page).read_text())) == made, page
    assert made == {file.name for file in pictures.IMAGES.glob("ui-*.png")}
