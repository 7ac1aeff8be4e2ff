"""hack/reports/sentences.py: the sentences of the pages that are checked are drawn, not chosen (37)."""

from __future__ import annotations

from hack.reports import sentences

PAGE = """# A heading of five long words

The driver reads this file. It posts an Event
on the Node then.

- First, `kubectl` lists the workloads.
- Short one.

| name | what it is in words |
| --- | --- |
| `a` | the devices of one node |

```
a command is not a sentence
```
"""


def test_sentences_and_rows_are_found() -> None:
    assert list(sentences.sentences(PAGE)) == [
        "The driver reads this file.",
        "It posts an Event on the Node then.",
        "- First, `kubectl` lists the workloads.",
        "| `a` | the devices of one node |",
    ]


def test_hash_draws_the_same_again() -> None:
    drawn = sentences.drawn({"a.md": PAGE, "b.md": PAGE}, "1234", 4)
    assert len(set(drawn)) == 4
    assert sentences.drawn({"b.md": PAGE, "a.md": PAGE}, "1234", 4) == drawn
    assert sentences.drawn({"a.md": PAGE, "b.md": PAGE}, "1235", 4) != drawn
