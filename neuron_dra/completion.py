"""Completion of commands, flags, values and names, from the parser itself.

bash and zsh read `script`. kubectl runs `kubectl_complete-neuron` with the words after `kubectl neuron`, of which the
last is being typed; the program prints a line for each completion, then a colon and what the shell may do with them.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

PROGRAMS = ("neuron-dra", "kubectl-neuron")
FILES: Final = 0
"""What the shell may do: complete names of files if nothing else fits."""
NO_SPACE: Final = 2
NO_FILES: Final = 4
KINDS: Final = {
    "pod": "Pod",
    "claim": "ResourceClaim",
    "node": "Node",
    "workload": "NeuronUltraServerWorkload",
    "nus": "NeuronUltraServer",
}
"""The types that are offered, and their kinds."""
SHORT: Final = {"po": "Pod", "no": "Node", "resourceclaim": "ResourceClaim", "nusw": "NeuronUltraServerWorkload"}
"""Other words for them."""
MEANING: Final = "Meaning"
"""In place of a kind: the names that `explain` knows."""
OF_COMMAND: Final = {"topology": "Node", "top": "Node", "explain": MEANING}
"""The kind whose names a command takes without a type."""

Names = Callable[[str, Mapping[str, str]], Iterable[str]]
"""Returns the names of the objects of a kind; the mapping has the flags that choose a cluster and a namespace."""


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
            yield from (f"{kind}/" for kind in KINDS)


def script(parser: argparse.ArgumentParser) -> str:
    """Return the script for bash, which zsh reads too."""
    table = words(parser)
    texts = []
    for name in table:
        if name:
            texts.append(f'    {name}) words="{" ".join(table[name])}" ;;')
    cases = "\n".join(texts)
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


def offered(parser: argparse.ArgumentParser, line: Sequence[str], names: Names) -> tuple[list[str], int]:
    """Return the completions of the last word of a line, and what the shell may do."""
    *before, current = line or [""]
    commands: Mapping[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands = action.choices
    if not before:
        return _starting(current, commands), NO_FILES
    command = commands.get(before[0])
    if command is None:
        return [], NO_FILES
    flag = _flag(command, before[-1]) if len(before) > 1 else None
    if flag is not None and flag.nargs != 0:
        return _starting(current, map(str, flag.choices or ())), NO_FILES if flag.choices else FILES
    if current.startswith("-"):
        return _starting(current, _flags(command)), NO_FILES
    if "/" in current:
        word, _, _ = current.partition("/")
        kind = _kind(word)
        if kind:
            found = [f"{word}/{name}" for name in names(kind, _chosen(before))]
        else:
            found = []
        return _starting(current, found), NO_FILES
    if _takes_types(command) and (kind := _kind_before(command, before[1:])):
        return _starting(current, names(kind, _chosen(before))), NO_FILES
    fixed = _starting(current, _choices(command))
    if fixed and all(each.endswith("/") for each in fixed):
        return fixed, NO_FILES | NO_SPACE
    if not fixed and before[0] in OF_COMMAND:
        return _starting(current, names(OF_COMMAND[before[0]], _chosen(before))), NO_FILES
    return fixed, FILES


def _kind(word: str) -> str:
    """Return the kind that a word means, as `why` reads it; empty if it is none."""
    every = {**KINDS, **SHORT}
    return every.get(word) or every.get(word.removesuffix("s"), "")


def _takes_types(command: argparse.ArgumentParser) -> bool:
    return any(action.metavar == "TYPE/NAME" for action in command._actions)


def _kind_before(command: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """Return the kind if the first argument without a flag is a type alone, as in `pod NAME`; else an empty string."""
    is_value = False
    for word in words:
        if not is_value and not word.startswith("-"):
            return _kind(word)
        flag = None if is_value else _flag(command, word)
        is_value = flag is not None and flag.nargs != 0
    return ""


def _flag(command: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    return next((action for action in command._actions if word in action.option_strings), None)


def _starting(current: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(current)]


def _chosen(before: Sequence[str]) -> Mapping[str, str]:
    """Return the values of the flags that choose a cluster and a namespace."""
    found = {}
    parts = []
    for word in before:
        parts += word.split("=", 1) if word.startswith("-") else [word]
    for flag, value in itertools.pairwise(parts):
        for name, forms in (
            ("namespace", ("-n", "--namespace")),
            ("context", ("--context",)),
            ("kubeconfig", ("--kubeconfig",)),
        ):
            if flag in forms:
                found[name] = value
    return found
