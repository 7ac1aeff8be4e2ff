"""One word, one thing: a class name of the product has one meaning."""

from __future__ import annotations

from pathlib import Path

from hack.class_names import several_meanings


def test_names_of_two_modules_are_found(tmp_path: Path) -> None:
    (tmp_path / "product" / "gen").mkdir(parents=True)
    texts = {
        "product/one.py": "class Fault: ...\nclass Own: ...",
        "product/two.py": "def make():\n    class Fault: ...",
        "product/gen/made.py": "class Own: ...",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert several_meanings(tmp_path, ("product",)) == {"Fault": ["product/one.py", "product/two.py"]}


def test_each_class_name_has_one_meaning() -> None:
    assert several_meanings() == {}
