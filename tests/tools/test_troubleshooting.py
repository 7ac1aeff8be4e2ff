"""docs/troubleshooting*.md: each message that leads to a section is in the source (18.7)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fast_yaml

ROOT = Path(__file__).resolve().parents[2]
MESSAGE_PAGES = ("troubleshooting.md", "troubleshooting-ultraservers.md")
LINKED_PAGES = ("troubleshooting.md", "compatibility.md", "faq.md")
VARIABLE = "…"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def text_of(node: ast.AST) -> str:
    """Return a string of the source, with VARIABLE for each value in it; empty for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"\{\}|%[sd]", VARIABLE, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or VARIABLE for part in node.values)
    return ""


def messages() -> Iterator[str]:
    """Yield the strings of the programs, without docstrings, and the messages of the chart's policies."""
    for folder in ("neuron_dra", "controller"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            comments = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            yield from (text for node in ast.walk(tree) if id(node) not in comments and (text := text_of(node)))
    policies = ROOT / "deploy/manifests/ultraserver/70-reservation-policies.yaml"
    for item in fast_yaml.load_all(policies.read_text()):
        yield from (check.get("message", "") for check in item["spec"].get("validations", ()))


MESSAGES = list(messages())
HEADINGS = [each for name in MESSAGE_PAGES for each in re.findall(r"^### (.*)$", page(name), flags=re.MULTILINE)]


@pytest.mark.parametrize("heading", HEADINGS)
def test_message_is_in_the_source(heading: str) -> None:
    assert re.fullmatch(r"`[^`]+`", heading), "a heading is a message, in backticks"
    quoted = heading.strip("`")
    literal = re.sub(f"[{VARIABLE} ]+", " ", quoted).split()
    assert len(literal) >= 4, "too short to find its section by"
    assert any(quoted in message for message in MESSAGES), f"no program writes {quoted!r}"


def test_page_has_many_symptoms_each_once() -> None:
    assert len(HEADINGS) == len(set(HEADINGS)) >= 25


@pytest.mark.parametrize("name", sorted({*MESSAGE_PAGES, *LINKED_PAGES}))
def test_links_lead_somewhere(name: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page(name)):
        path = (ROOT / "docs" / target) if target else ROOT / "docs" / name
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}, anchor


@pytest.mark.parametrize("name", LINKED_PAGES)
def test_readme_links_to_it(name: str) -> None:
    assert f"(docs/{name})" in (ROOT / "README.md").read_text()
