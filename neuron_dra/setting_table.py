"""Settings as a table of dataclass fields, each with a flag, a default and a help text, and most with a variable."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

SOCKET_PATH_BYTES: Final = 107
"""The longest path that a Unix socket can have on Linux."""
_TRUTH: Final = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """How a setting is written, read and described.

    `default` is the default's text, and `shown` what the help page shows of it. `read` returns the value of a text, or
    raises ValueError, which says what to write. `env` is the environment variable if it is not the name in capitals,
    and empty if there is none. An empty variable counts as not set, because manifests write empty values for unused
    settings, unless it `may_be_empty`.
    """

    default: str
    text: str
    read: Callable[[str], Any]
    shown: str = ""
    metavar: str = ""
    env: str | None = None
    may_be_empty: bool = False
    name: str = ""

    @property
    def flag(self) -> str:
        """The flag: the name of the field, with dashes."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The environment variable, empty if there is none."""
        if self.env is None:
            return self.name.upper()
        return self.env

    @property
    def help(self) -> str:
        """The text of the help page, with the variable and the default."""
        named = not self.variable or f"[{self.variable}]" in self.text
        return self.text + ("" if named else f" [{self.variable}]") + (f" (default {self.shown})" if self.shown else "")


def settings_of(kind: type) -> list[Setting]:
    """Return the settings of a dataclass, in the order of its fields."""
    found = []
    for f in dataclasses.fields(kind):
        if f.metadata:
            found.append((f.name, f.metadata["setting"]))
    return [dataclasses.replace(setting, name=name) for name, setting in found]


def add_arguments(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add the flag of every setting of a dataclass to `parser`."""
    for one in settings_of(kind):
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if one.read in (truth, truth_or_empty) else {}
        flags = [one.flag, "-v"] if one.name == "v" else [one.flag]
        parser.add_argument(*flags, dest=one.name, metavar=one.metavar or one.name.upper(), help=one.help, **switch)


def read(
    kind: type, flags: Mapping[str, str | None], environ: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return the values that are set, the source of each, and what is malformed.

    A flag has precedence over the environment, and the environment over the default.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    problems = []
    for one in settings_of(kind):
        raw, source, origin = flags.get(one.name), "flag", one.flag
        if raw is None and (environ.get(one.variable) or one.may_be_empty):
            raw, source, origin = environ.get(one.variable), "environment", one.variable
        if raw is None:
            continue
        sources[one.name] = source
        try:
            values[one.name] = one.read(raw)
        except ValueError as err:
            problems.append(f"{origin}={raw}: {err}")
    return values, sources, problems


def truth(raw: str) -> bool:
    """Return the truth of a text."""
    if raw.lower() not in _TRUTH:
        raise ValueError("write true or false")
    return _TRUTH[raw.lower()]


def truth_or_empty(raw: str) -> bool:
    """Return the truth of a text; an empty one is false."""
    return bool(raw) and truth(raw)


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a reader that accepts these texts only."""

    def chosen(raw: str) -> str:
        if raw not in choices:
            near = difflib.get_close_matches(raw, choices, n=1)
            raise ValueError(f"write {' or '.join(choices)}" + (f"; did you mean {near[0]}?" if near else ""))
        return raw

    return chosen


def is_host_and_port(text: str) -> bool:
    """Return True for `host:port`; the host may be empty."""
    _, colon, port = text.rpartition(":")
    return bool(colon) and re.fullmatch(r"\d{1,5}", port, re.ASCII) is not None and int(port) <= 65535
