"""What every command line here has in common: a parser that refuses what it does not know, and how a program ends."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from neuron_dra import log as logs
from neuron_dra.errors import NeuronDraError, SettingsError

OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


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

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print as `print` does: argparse's own takes a full disk for success."""
        (file or sys.stderr).write(message)

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}"
        name = argument.partition("=")[0]
        near = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=0.6)
        return f"unknown flag {name}" + (f"; did you mean {near[0]}?" if near else "")


def object_name(text: str) -> str:
    """Return `text`, the name of a Kubernetes object; for `type` of an argument."""
    if not OBJECT_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no object's name: write lower case letters, digits, - and .")
    return text


def guarded(program: str, parser: Parser, words: Sequence[str]) -> int:
    """Parse `words`, do what they say and return the exit code, with the reason for a failure in one line.

    2 is a wrong setting, 1 another failure; 141 is said of a program whose reader has gone, as `head` does.
    `help` and `help COMMAND` are `--help`.
    """
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    parsed: argparse.Namespace | None = None
    try:
        try:
            parsed = parser.parse_args(words)
            return int(parsed.run(parsed) or 0)
        finally:
            sys.stdout.flush()  # or a full disk would be noticed when nobody catches it any more
    except BrokenPipeError:
        _forget_output()
        return 141
    except NeuronDraError as err:
        _last_words(program, parsed, str(err))
        return 2 if isinstance(err, SettingsError) else 1
    except OSError as err:
        _forget_output()
        _last_words(program, parsed, f"{err.filename}: {err.strerror}" if err.filename else str(err.strerror or err))
        return 1
    except KeyboardInterrupt:
        return 130


def _forget_output() -> None:
    """Let what is left of the output go nowhere: Python flushes once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _last_words(program: str, parsed: argparse.Namespace | None, text: str) -> None:
    wanted = getattr(parsed, "log_format", "text") or os.environ.get("LOG_FORMAT")
    with contextlib.suppress(OSError):
        print(logs.last_line(program, text) if wanted == "json" else f"{program}: {text}", file=sys.stderr)  # noqa: T201
