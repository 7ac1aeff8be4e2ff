"""The count of the words of the documentation, which a report quotes (37.4)."""

from __future__ import annotations

import pytest

from hack.reports import words


def test_words_in_blocks_of_code_are_not_counted() -> None:
    assert words.words("# One two\n\n```sh\nkubectl get pods\n```\nthree | four\n") == 6
    assert words.words("- a\n\n  ```\n  code\n  ```\n- b\n") == 4


def test_pages_for_users_are_those_behind_the_first_three_doors_that_no_program_writes() -> None:
    names = ["README.md", "docs/install.md", "docs/settings.md", "docs/architecture.md", "docs/reports/scale.md"]
    assert words.for_users(names, "") == ["README.md", "docs/install.md"]


def test_each_page_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert words.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    numbers = {line.split(" | ")[0].strip("| *"): int(line.split(" | ")[1].strip("| ")) for line in lines[2:]}
    by_page = [number for name, number in numbers.items() if name.endswith(".md")]
    assert numbers["for users, by hand"] == sum(by_page)
    assert numbers["all pages"] > sum(by_page)
