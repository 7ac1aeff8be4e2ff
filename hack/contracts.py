"""An import contract that checks itself: each module that calls itself pure in its docstring reads and writes nothing.

pyproject.toml names the modules that a pure one may not import, also not through others.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, Final

from grimp import ImportGraph
from importlinter.application import output
from importlinter.domain import fields
from importlinter.domain.contract import Contract, ContractCheck

ROOT: Final = Path(__file__).resolve().parent.parent
_CLAIM: Final = re.compile(r"\bPure\b(, except for the terminal's width)?")
TERMINAL: Final = "neuron_dra.ask.render.terminal"


def claim(module: str) -> str:
    """Return how the module calls itself pure in its docstring; empty if it does not."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    if not path.exists():
        return ""
    found = _CLAIM.search(ast.get_docstring(ast.parse(path.read_text())) or "")
    return found[0] if found else ""


def chains(graph: ImportGraph, module: str, forbidden: set[str]) -> list[tuple[str, ...]]:
    """Return the shortest chain of imports from a module to each forbidden one."""
    known = sorted(forbidden & graph.modules)
    found = (graph.find_shortest_chain(importer=module, imported=each, as_packages=True) for each in known)
    return [chain for chain in found if chain]


class PureContract(Contract):
    """Forbids modules that call themselves pure to import any of `forbidden_modules`, directly or not."""

    type_name = "pure"
    forbidden_modules = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Return the chains of imports that are not allowed."""
        forbidden: set[str] = set(self.forbidden_modules)  # type: ignore[call-overload]
        wrong: list[tuple[str, ...]] = []
        claims = {module: text for module in sorted(graph.modules) if (text := claim(module))}
        for module, text in claims.items():
            allowed = {TERMINAL, "os", "shutil"} if "except" in text else set()
            wrong += chains(graph, module, forbidden - allowed)
        output.verbose_print(verbose, f"{len(claims)} modules call themselves pure")
        return ContractCheck(kept=not wrong, metadata={"chains": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the chains."""
        found: Any = check.metadata["chains"]
        for chain in found:
            output.print_error(f"{chain[0]} calls itself pure: {' -> '.join(chain)}")
