"""What every command line here has in common: a parser that refuses what it does not know, and how a program ends."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from neuron_dra.errors import NeuronDraError, SettingsError


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that takes no abbreviations: a new flag must not change what an old command means."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse `args`; end the program on the first that is not known."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown[0]))
        return parsed, []

    def error(self, message: str) -> NoReturn:
        """Print one line and end with exit code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}"
        name = argument.partition("=")[0]
        near = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=0.6)
        return f"unknown flag {name}" + (f"; did you mean {near[0]}?" if near else "")


def guarded(program: str, parsed: argparse.Namespace) -> int:
    """Do what `parsed.run` says and return the exit code: 2 for a setting, 1 for another error of ours, in one line."""
    try:
        return int(parsed.run(parsed) or 0)
    except NeuronDraError as err:
        print(f"{program}: {err}", file=sys.stderr)  # noqa: T201 - the last words of a program
        return 2 if isinstance(err, SettingsError) else 1
    except KeyboardInterrupt:
        return 130
