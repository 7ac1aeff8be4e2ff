"""The import contract that checks itself: modules that call themselves pure."""

from __future__ import annotations

from grimp import ImportGraph

from hack import contracts

FORBIDDEN = {"logging", "neuron_dra.kube.client"}


def graph(*imports: tuple[str, str]) -> ImportGraph:
    made = ImportGraph()
    for importer, imported in imports:
        for module in (importer, imported):
            made.add_module(module)
        made.add_import(importer=importer, imported=imported)
    return made


def test_docstring_claims_purity() -> None:
    claims = [contracts.claim(f"neuron_dra.ask.{each}") for each in ("why.pod", "status.text", "why.command")]
    assert claims == ["Pure", "Pure, except for the terminal's width", ""]


def test_io_behind_another_module_breaks_the_claim() -> None:
    made = graph(("rules", "imagined"), ("imagined", "command"), ("command", "logging"))
    assert contracts.chains(made, "rules", FORBIDDEN) == [("rules", "imagined", "command", "logging")]


def test_module_without_io_keeps_its_claim() -> None:
    made = graph(("rules", "imagined"), ("command", "logging"))
    assert contracts.chains(made, "rules", FORBIDDEN) == []
