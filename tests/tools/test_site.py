"""The documentation site: its pages and doors, links, and what programs say about pages (37.3)."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from hack.site import check, dialect, pages
from neuron_dra import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in pages.sources().values()}
CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", text), flags=re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each) for each in headings]
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in plain}


def dead(name: str) -> list[str]:
    """Return the links of a page to files and anchors that do not exist."""
    found = []
    for _, _, target, anchor in pages.LINK.findall(CODE.sub("", PAGES[name])):
        if ":" in target:
            continue
        path = (ROOT / name).parent / target if target else ROOT / name
        if not path.exists():
            found.append(target)
        elif anchor and path.suffix == ".md" and anchor[1:] not in anchors(path.read_text()):
            found.append(f"{target}{anchor}")
    return found


@pytest.mark.parametrize("name", sorted(PAGES))
def test_links_lead_to_files_and_headings(name: str) -> None:
    assert dead(name) == []


def test_each_page_is_behind_one_door() -> None:
    doors = pages.doors()
    assert list(doors) == ["Get started", "Tasks", "Reference", "How it works and contributing"]
    listed = Counter(f"docs/{each}" for inside in doors.values() for each in inside)
    assert listed == Counter(list(pages.sources()))


def test_pages_of_the_repository_are_pages_of_the_site(tmp_path: Path) -> None:
    number = pages.gather(tmp_path / "site", {})
    assert number == len(list((tmp_path / "site").rglob("*.md"))) == len(pages.sources())
    index = (tmp_path / "site/index.md").read_text()
    assert "[install](install.md)" in index
    assert "](docs/" not in index
    assert (tmp_path / "site/images/overview.svg").exists()


def test_links_out_of_the_site_lead_to_the_repository(tmp_path: Path) -> None:
    pages.gather(tmp_path, {"NEURON_DRA_REPOSITORY": "https://git.example.com/neuron-dra/"})
    text = (tmp_path / "gitops.md").read_text()
    assert "(https://git.example.com/neuron-dra/blob/main/deploy/gitops/argocd-cm.yaml)" in text
    pages.gather(tmp_path, {})
    assert "(../deploy" not in (tmp_path / "gitops.md").read_text()


def test_a_dead_link_is_refused(tmp_path: Path) -> None:
    path = ROOT / "docs/style.md"
    text = path.read_text().replace("glossary.md", "glosary.md")
    with pytest.raises(pages.DeadLinkError, match=r"docs/style\.md: glosary\.md does not exist"):
        pages.rewritten(text, "docs/style.md", path, "")


@pytest.mark.parametrize(
    ("github", "mkdocs"),
    [
        ("Two:\n- a\n- b\n", "Two:\n\n- a\n- b\n"),
        ("Two:\n1. a\n2. b\n", "Two:\n\n1. a\n2. b\n"),
        ("- a\n  goes on\n- b\n", "- a\n    goes on\n- b\n"),
        ("1. a\n\n   ```sh\n   x\n     y\n   ```\n2. b\n", "1. a\n\n    ```sh\n    x\n      y\n    ```\n2. b\n"),
        ("- a\n  - b\n    - c\n- d\n", "- a\n    - b\n        - c\n- d\n"),
        ("- a\n\nend\n", "- a\n\nend\n"),
        ("As:\n| a |\n|---|\n| b |\n", "As:\n\n| a |\n|---|\n| b |\n"),
        ("```\ntext\n- no item\n| no table |\n```\n", "```\ntext\n- no item\n| no table |\n```\n"),
        ("text - no item\n2026. no\n", "text - no item\n\n2026. no\n"),
    ],
    ids=["list", "numbers", "continued", "code", "nested", "ended", "table", "fence", "year"],
)
def test_github_s_markdown_becomes_that_of_mkdocs(github: str, mkdocs: str) -> None:
    assert dialect.for_mkdocs(github) == mkdocs


def test_built_pages_are_checked_for_links_and_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<link rel="stylesheet" href="style.css"><script src="https://example.com/x.js"></script><h1 id="top">A</h1>'
        '<a href="#top">1</a><a href="b.html#here">2</a><a href="b.html#gone">3</a><a href="c.html">4</a>'
        '<a href="https://example.com">5</a><img src="data:image/png;base64,AA"><img src="picture.png">'
        '<a href="/b.html">6</a><a href="/">7</a>'
    )
    (tmp_path / "b.html").write_text('<h1 id="here">B</h1>')
    (tmp_path / "index.html").touch()
    (tmp_path / "style.css").touch()
    assert list(check.problems(tmp_path)) == [
        "a.html: b.html#gone leads nowhere",
        "a.html: c.html leads nowhere",
        "a.html: https://example.com/x.js is fetched, and is no file of the site",
        "a.html: picture.png is fetched, and is no file of the site",
    ]


def named_pages() -> set[str]:
    """Return the pages that programs, manifests and the chart name."""
    files = [*(ROOT / "neuron_dra").rglob("*.py"), *(ROOT / "controller").rglob("*.py")]
    files += [path for path in (ROOT / "deploy").rglob("*") if path.suffix in (".yaml", ".tpl", ".sh", ".txt")]
    return {each for path in files for each in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text())}


def test_pages_that_programs_name_exist() -> None:
    found = named_pages()
    assert len(found) > 10
    assert {each for each in found if each not in PAGES} == set()


OLD = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
       "spec": {"hard": {"requests.aws.amazon.com/neuron": "4"}}}  # fmt: skip


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("", "see docs/quotas.md"),
        ("https://neuron.example.com/docs/", "see https://neuron.example.com/docs/quotas.html"),
    ],
    ids=["repository", "site"],
)
def test_messages_name_pages_where_they_are_published(
    address: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEURON_DRA_DOCS", address)
    file = tmp_path / "quota.yaml"
    file.write_text(yaml.safe_dump(OLD))
    assert cli.main(["migrate", str(file)]) == 0
    assert named in capsys.readouterr().err
