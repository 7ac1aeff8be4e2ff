"""Print the sizes of files and functions; fail if one exceeds its limit, or a statement is too dense."""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from hack import density

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("neuron_dra", "controller")
OTHERS = ("hack", "tests/support")
LONGEST_FILE, LONGEST_FUNCTION = 500, 60


def main() -> int:
    """Print the sizes of the product, and what is too long or too dense in the repository; return 1 if anything is."""
    files = list(sized(PRODUCT))
    functions = [each for _, path in files for each in functions_of(path)]
    show("files", files, f"{sum(size for size, _ in files)} lines in ")
    show("functions", functions)
    by_folder = ", ".join(f"{folder} {sum(size for size, _ in sized((folder,)))}" for folder in folders())
    print(f"lines: {by_folder}")
    lines = sum(size for size, _ in files)
    loops, conditions = packed_forms(path for _, path in files)
    print(
        f"per 1,000 lines: {1000 * loops / lines:.0f} comprehensions, {1000 * conditions / lines:.0f} conditional expressions"
    )
    others = list(sized(OTHERS))
    functions += [each for _, path in others for each in functions_of(path)]
    wrong = [f"{path} has {size} lines, at most {LONGEST_FILE}" for size, path in files + others if size > LONGEST_FILE]
    wrong += [f"{name} has {size} lines, at most {LONGEST_FUNCTION}" for size, name in functions
              if size > LONGEST_FUNCTION]  # fmt: skip
    for text in wrong:
        print(f"too long: {text}", file=sys.stderr)
    packed = [text for _, path in files for text in too_dense(path)]
    for text in packed:
        print(f"too dense: {text}", file=sys.stderr)
    return 1 if wrong or packed else 0


def packed_forms(paths: Iterable[str]) -> tuple[int, int]:
    """Return the numbers of comprehensions and of conditional expressions in files."""
    loops = conditions = 0
    for path in paths:
        for part in ast.walk(ast.parse((ROOT / path).read_text())):
            loops += isinstance(part, density.COMPREHENSIONS)
            conditions += isinstance(part, ast.IfExp)
    return loops, conditions


def too_dense(path: str) -> Iterator[str]:
    """Yield a line of text for each statement of a file that is too dense."""
    for line, reason in density.dense((ROOT / path).read_text()):
        yield f"{path}:{line}: {reason}"


def folders() -> list[str]:
    """Return the folders whose lines are counted, with a separate entry for each package of the plugin."""
    packages = sorted(each.parent.relative_to(ROOT) for each in (ROOT / "neuron_dra").glob("*/__init__.py"))
    return [*(str(each) for each in packages if each.name != "gen"), "controller", *OTHERS]


def sized(folders: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield the number of lines and the path of every Python file, except generated ones."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT)
            if "gen" not in name.parts:
                yield len(path.read_text().splitlines()), str(name)


def functions_of(path: str) -> Iterator[tuple[int, str]]:
    """Yield the number of lines and the name of every function of a file."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield node.end_lineno - node.lineno + 1, f"{path}:{node.lineno} {node.name}"


def show(what: str, sizes: list[tuple[int, str]], total: str = "") -> None:
    """Print the total and the distribution of sizes, and the three largest."""
    lengths = [size for size, _ in sizes]
    ninth = statistics.quantiles(lengths, n=10)[-1]
    largest = ", ".join(f"{name} {size}" for size, name in sorted(sizes, reverse=True)[:3])
    print(f"{what}: {total}{len(sizes)}, median {statistics.median(lengths):g}, p90 {ninth:g}; largest: {largest}")


if __name__ == "__main__":
    sys.exit(main())
