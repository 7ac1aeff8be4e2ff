"""When the program of a simulated container ends: nothing is executed, only the plainest commands are understood.

`sleep 5`, `true` and `false` end as they would, alone or one after the other in `sh -c`, also with `exit 3` and `echo`.
Every other program runs until its pod is deleted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from neuron_dra.core.wire import Wire

_SHELLS: Final = ("sh", "bash", "/bin/sh", "/bin/bash")
_SEPARATORS: Final = re.compile(r";|\n")
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smh]?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How long a program runs, and its exit code."""

    after_s: float
    code: int


def end_of(pod: Wire) -> ProgramEnd | None:
    """Return when the last main container of a pod ends, and the first code that is not 0; None if one never ends."""
    ends = [_end_of_container(container) for container in pod["spec"]["containers"]]
    program_ends = [end for end in ends if end is not None]
    if len(program_ends) < len(ends):
        return None
    return ProgramEnd(max(end.after_s for end in program_ends), next((end.code for end in program_ends if end.code), 0))


def _end_of_container(container: Wire) -> ProgramEnd | None:
    words = [*map(str, container.get("command") or ()), *map(str, container.get("args") or ())]
    if len(words) == 3 and words[0] in _SHELLS and words[1] == "-c":
        return _end_of_script(words[2])
    return _end_of_commands([words]) if words else None


def _end_of_script(script: str) -> ProgramEnd | None:
    try:
        commands = [shlex.split(command) for command in _SEPARATORS.split(script)]
    except ValueError:
        return None
    return _end_of_commands([words for words in commands if words])


def _end_of_commands(commands: Sequence[Sequence[str]]) -> ProgramEnd | None:
    after_s, code = 0.0, 0
    for command in commands:
        match list(command):
            case ["true"] | ["echo", *_]:
                code = 0
            case ["false"]:
                code = 1
            case ["exit", number] if number.isdecimal():
                return ProgramEnd(after_s, int(number))
            case ["sleep", text] if (duration := _DURATION.fullmatch(text)) is not None:
                after_s += float(duration[1]) * _UNITS[duration[2]]
                code = 0
            case _:
                return None
    return ProgramEnd(after_s, code)
