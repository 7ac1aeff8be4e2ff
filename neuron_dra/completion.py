"""Completion of commands and flags in bash and zsh, from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

PROGRAMS = ("neuron-dra", "kubectl-neuron")


def words(parser: argparse.ArgumentParser) -> Mapping[str, list[str]]:
    """Return the flags and fixed words of each command; the empty name has the commands and common flags."""
    found = {"": sorted(_flags(parser))}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found[""] = [*action.choices, *found[""]]
            for name, sub in action.choices.items():
                found[name] = sorted({*_flags(sub), *_choices(sub)})
    return found


def _flags(parser: argparse.ArgumentParser) -> Iterable[str]:
    return (flag for action in parser._actions for flag in action.option_strings if flag.startswith("--"))


def _choices(parser: argparse.ArgumentParser) -> Iterable[str]:
    """Yield the words that arguments without a flag may be."""
    for action in parser._actions:
        if not action.option_strings and action.choices:
            yield from map(str, action.choices)
        if action.metavar == "TYPE/NAME":
            yield from ("pod/", "claim/", "node/", "workload/")


def script(parser: argparse.ArgumentParser) -> str:
    """Return the script for bash, which zsh reads too."""
    table = words(parser)
    cases = "\n".join(f'    {name}) words="{" ".join(table[name])}" ;;' for name in table if name)
    return f"""\
# Completion of neuron-dra and kubectl-neuron. In bash: source <(neuron-dra completion)
[ -n "$ZSH_VERSION" ] && autoload -U +X bashcompinit && bashcompinit
_neuron_dra() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  case "${{COMP_WORDS[1]}}" in
{cases}
    *) words="{" ".join(table[""])}" ;;
  esac
  [ "$COMP_CWORD" -eq 1 ] && words="{" ".join(table[""])}"
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  case "${{COMPREPLY[0]}}" in */) compopt -o nospace 2>/dev/null ;; esac
}}
complete -o default -F _neuron_dra {" ".join(PROGRAMS)}
"""
