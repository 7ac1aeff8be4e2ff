"""Print the sizes of files and functions, for information only."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Print one line for the files, one for the functions, and the largest of each."""
    files: list[tuple[int, str]] = []
    functions: list[tuple[int, str]] = []
    for package in ("neuron_dra", "controller"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "gen" in path.relative_to(ROOT).parts:
                continue
            text = path.read_text()
            name = str(path.relative_to(ROOT))
            files.append((len(text.splitlines()), name))
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                    functions.append((node.end_lineno - node.lineno + 1, f"{name}:{node.lineno} {node.name}"))
    for what, sizes in (("files", files), ("functions", functions)):
        lengths = [size for size, _ in sizes]
        ninth = statistics.quantiles(lengths, n=10)[-1] if len(lengths) > 1 else lengths[0]
        largest = ", ".join(f"{name} {size}" for size, name in sorted(sizes, reverse=True)[:3])
        total = f"{sum(lengths)} lines in " if what == "files" else ""
        print(f"{what}: {total}{len(sizes)}, median {statistics.median(lengths):g}, p90 {ninth:g}; largest: {largest}")


if __name__ == "__main__":
    main()
