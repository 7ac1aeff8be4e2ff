"""Count the patterns of docs/style.md that make readers stop, by page: `python -m hack.reports.patterns [FILE...]`.

The patterns are regular expressions, so a figure is right to about a tenth: it shows which page to read again, and is no
limit. Only a word of BANNED is an error. Blocks of code, headings and pages that a program writes are not counted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from hack.generate import docs
from hack.reports import sentences
from hack.site import pages

_CLAUSE: Final = (
    r"(?:the|it|its|they|a|an|this|no|each|these|use|set|run|write|until|then|in|on|from|if|all|only|delete)\b"
)
_PARTICIPLE: Final = (
    r"(?:[a-z]+ed|read|written|kept|told|found|made|given|taken|lost|held|left|shown|known|sent|chosen)\b"
)
PATTERNS: Final[Mapping[str, str]] = {
    "passive": rf"\b(?:is|are|was|were|be|been|being) (?:not |then |never |only |already )?{_PARTICIPLE}(?! by)",
    "telegram": r"^(?:On|Off|In|Of|As|From|With)\b[^,]{0,30}: ",
    "pronoun": r"\b(?:[Tt]hose|[Tt]hat) (?:of|in|on|with|that|which|are|is)\b|\bthe (?:others|rest)\b|\bof (?:it|them|these)\b",
    "negated noun": r"\b(?:is|are|has|have|gets?|needs?) (?:no|none)\b|\b(?:[Nn]obody|[Nn]othing|[Nn]o one|[Nn]one)\b",
    "what-clause": r"(?:^|[ (:,])(?:[Ww]hat|[Ww]ho) (?!(?:happens|to|is it|if|does|do I|can)\b)[a-z`]+",
    "colon": rf"[a-z)`*]: {_CLAUSE}",
    "person": r"\b(?:tells?|told|says|said|knows?|believed?|sees|asks?|trusted|lies?|(?<![Tt]he )(?<![Aa] )(?<!with )notices?)\b",
    "archaic": r"\b(?:beside|in place of|takes? the place of|at once|[Mm]eanwhile|goes? on|given (?:up|back)|stands? still)\b",
    "fronted": r"^(?:[-*] |\d+\. )?(?:Of|With|Without|Beside|Besides|Where|While|Among|Inside|Behind|Above) ",
    "has": r"\b(?:page|message|log|Event|section|table|condition|status|file|folder|it|which|that|they) (?:has|have) (?:a|the)\b",
}
"""The ten patterns of the style guide, by a name; `passive` is only reported, because Kubernetes' own pages have more."""
BANNED: Final = re.compile(r"\b(?:simply|easy|easily|obviously|anew|thereby|mends?|mended|whoever)\b", re.IGNORECASE)
_CODE: Final = re.compile(r"`[^`]*`")
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
WORST: Final = 10
"""Pages that are printed if none is named."""
KUBERNETES: Final = (4.7, 10.9, 0.0, 0.9, 1.0, 0.8, 0.0, 0.9, 0.0, 0.4, 0.7)
"""The same figures in 1,000 words of ten pages of Kubernetes' documentation (docs/reports/documentation.md)."""


def prose(text: str) -> Iterator[str]:
    """Yield the sentences and cells of a page, without the addresses of links and with CODE for what is in backticks."""
    plain = _CODE.sub("CODE", _LINK.sub(r"\1", text))
    for sentence in sentences.sentences(plain):
        yield from sentence.strip("| ").split(" | ") if sentence.startswith("|") else [sentence]


def counted(text: str) -> dict[str, int]:
    """Return how often each pattern occurs in a page, and its `words`."""
    found = dict.fromkeys(PATTERNS, 0) | {"words": 0}
    for sentence in prose(text):
        found["words"] += len(sentence.split())
        for name, pattern in PATTERNS.items():
            found[name] += len(re.findall(pattern, sentence))
    return found


def density(figures: Mapping[str, int]) -> float:
    """Return the patterns in 1,000 words of a page, without passives."""
    patterns = sum(figures[name] for name in PATTERNS if name != "passive")
    return in_1000_words(patterns, figures["words"])


def in_1000_words(number: int, words: int) -> float:
    """Return how often something occurs in 1,000 words."""
    return 1000 * number / max(words, 1)


def banned(text: str) -> list[str]:
    """Return the banned words of a page."""
    return [word for sentence in prose(text) for word in BANNED.findall(sentence)]


def by_hand() -> list[str]:
    """Return README, CONTRIBUTING and the pages of docs that people write; those about style quote what they forbid."""
    written = {f"docs/{name}" for name in docs.PAGES} | {"docs/style.md", "docs/contract.md"}
    names = [
        "README.md",
        "CONTRIBUTING.md",
        *(f"docs/{path.name}" for path in sorted((pages.ROOT / "docs").glob("*.md"))),
    ]
    return [name for name in names if name not in written]


def main(names: list[str]) -> int:
    """Print the figures of the pages with the most patterns; return 1 if a page has a banned word."""
    texts = {name: (pages.ROOT / name).read_text() for name in names or by_hand()}
    figures = {name: counted(text) for name, text in texts.items()}
    worst = sorted(figures, key=lambda name: -density(figures[name]))
    print("| page | words | in 1,000 | " + " | ".join(PATTERNS) + " |")
    print("|---|" + "---|" * (len(PATTERNS) + 2))
    for name in worst if names else worst[:WORST]:
        cells = [figures[name]["words"], round(density(figures[name])), *(figures[name][each] for each in PATTERNS)]
        print(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    words = sum(page["words"] for page in figures.values())
    total = {pattern: sum(page[pattern] for page in figures.values()) for pattern in PATTERNS}
    rates = [density(total | {"words": words}), *(in_1000_words(number, words) for number in total.values())]
    for title, row in ((f"{len(figures)} pages, in 1,000", rates), ("Kubernetes, in 1,000", KUBERNETES)):
        print(f"| {title} | | " + " | ".join(f"{rate:.1f}" for rate in row) + " |")
    forbidden = {name: found for name, text in texts.items() if (found := banned(text))}
    for name, found in forbidden.items():
        print(f"{name}: {', '.join(found)}: docs/style.md has other words", file=sys.stderr)
    return 1 if forbidden else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
