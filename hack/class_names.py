"""Find class names of the product that mean several things: one word, one thing.

`python -m hack.class_names` prints them with their places. Generated code is left out.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from hack.sizes import PRODUCT, ROOT

OF_A_FORMAT: Final[Mapping[str, str]] = {
    "neuron_dra/ask/render/answers.py": "its names are those of docs/output.schema.json, for readers of the output",
}
"""Modules whose names a wire format forces, and which."""


def several_meanings(root: Path = ROOT, folders: tuple[str, ...] = PRODUCT) -> dict[str, list[str]]:
    """Return the places of each class name that several modules define, apart from those of OF_A_FORMAT."""
    places: dict[str, list[str]] = defaultdict(list)
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root)
            if "gen" not in name.parts and str(name) not in OF_A_FORMAT:
                for found in classes(path.read_text()):
                    places[found].append(str(name))
    return {name: found for name, found in sorted(places.items()) if len(set(found)) > 1}


def classes(source: str) -> Iterator[str]:
    """Yield the names of the classes of a file, also of those inside others and inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield node.name


def main() -> int:
    """Print the names; return 1 if there is one."""
    found = several_meanings()
    for name, places in found.items():
        print(f"{name}: {', '.join(places)}")
    print(f"class names with several meanings: {len(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
