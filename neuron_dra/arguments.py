"""The common part of all command lines: a strict parser, and the exit codes and last messages of a program."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from neuron_dra.errors import NeuronDraError, SettingsError

OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
NESTING: Final = 12_000
"""Levels of nesting that a program can decode. Users may write 5,000 into the configuration of a claim, whose 10 KiB
the API server does not look into. With Python's default of 1,000, one such claim would make every list that has it
unreadable, and so stop the controller.
"""


LEAST_WIDTH: Final = 40
"""Columns to which a message is wrapped at least."""
DOCS: Final = "NEURON_DRA_DOCS"
"""The variable with the address at which the pages of docs/ are published, such as https://neuron.example.com/docs."""
_PAGE: Final = re.compile(r"\bdocs/([a-z-]+)\.md\b")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviations, so that a new flag cannot change the meaning of an old command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse `args`; the first unknown argument ends the program."""
        if not any(isinstance(action, argparse._SubParsersAction) for action in self._actions):
            self._check_flags(sys.argv[1:] if args is None else args)  # before a word is taken for a wrong choice
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown[0]))
        return parsed, []

    def _check_flags(self, args: Sequence[str]) -> None:
        """End the program at the first long flag that is not known."""
        for argument in args:
            if argument == "--":
                return
            if argument.startswith("--") and argument.partition("=")[0] not in self._option_string_actions:
                self.error(self._unknown(argument))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError for a value that is no choice of an argument; it has the nearest one, or all."""
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.6)
        if near:
            hint = f"did you mean {near[0]}?"
        else:
            hint = f"choose from {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {hint}")

    def format_help(self) -> str:
        """Return the help with its paragraphs wrapped, which the formatter for examples leaves as they are."""
        width = max(60, shutil.get_terminal_size((80, 24)).columns)
        lines: list[str] = []
        for line in super().format_help().split("\n"):
            indent = line[: len(line) - len(line.lstrip())]
            wrapped = textwrap.wrap(
                line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
            lines += wrapped if len(line) > width else [line]
        return "\n".join(lines)

    def error(self, message: str) -> NoReturn:
        """Print `message` and exit with code 2."""
        self.exit(2, _readable(f"{self.prog}: {message} (see {self.prog} --help)") + "\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write `message`; errors such as a full disk are raised, which argparse would ignore."""
        (file or sys.stderr).write(message)

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}"
        name = argument.partition("=")[0]
        near = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=0.6)
        return f"unknown flag {name}" + (f"; did you mean {near[0]}?" if near else "")


def object_name(text: str) -> str:
    """Return `text` if it is a valid name of a Kubernetes object, as the `type` of an argument."""
    if not OBJECT_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an object name: use lower case letters, digits, - and .")
    return text


def documented(text: str) -> str:
    """Return a message with the addresses of the pages that it names, if DOCS is set."""
    address = os.environ.get(DOCS, "").rstrip("/")
    if address:
        return _PAGE.sub(rf"{address}/\1.html", text)
    return text


def go_style(arguments: Sequence[str]) -> list[str]:
    """Return `arguments` with Go's spellings converted: `-kubeconfig=x` to `--kubeconfig=x`, `-v=2` to `--v=2`."""
    result = []
    for argument in arguments:
        if re.match(r"-[a-zA-Z]", argument):
            name = argument[1:].split("=", 1)[0]
            if len(name) > 1 or (name == "v" and "=" in argument):
                argument = "-" + argument
        result.append(argument)
    return result


def guarded(program: str, parser: Parser, words: Sequence[str]) -> int:
    """Parse `words`, run the command and return its exit code; a failure prints its reason, in one line if it is piped.

    The exit code is 2 for a wrong setting and 1 for other errors, 141 if the reader of the output, such as `head`, has
    exited, and 130 after an interrupt. `help` and `help COMMAND` mean `--help`. What a locale cannot print becomes "?".
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(NESTING, before))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="replace")
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    parsed: argparse.Namespace | None = None
    try:
        try:
            parsed = parser.parse_args(words)
            return int(parsed.run(parsed) or 0)
        finally:
            sys.stdout.flush()  # a full disk is reported here, while the error is still handled
    except BrokenPipeError:
        _forget_output()
        return 141
    except NeuronDraError as err:
        _last_words(program, parsed, str(err))
        if isinstance(err, SettingsError):
            return 2
        return 1
    except OSError as err:
        _forget_output()
        _last_words(program, parsed, f"{err.filename}: {err.strerror}" if err.filename else str(err.strerror or err))
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        sys.setrecursionlimit(before)


def _forget_output() -> None:
    """Discard the rest of the output, which Python flushes once more when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _last_words(program: str, parsed: argparse.Namespace | None, text: str) -> None:
    text = documented(text)
    wanted = getattr(parsed, "log_format", "text") or os.environ.get("LOG_FORMAT")
    with contextlib.suppress(OSError):
        if wanted == "json":
            from neuron_dra import log as logs

            line = logs.last_line(program, text)
        else:
            line = _readable(f"{program}: {text}")
        print(line, file=sys.stderr)  # noqa: T201


def _readable(text: str) -> str:
    """Return a message wrapped to the terminal that standard error is; in one line for a file or a pipe."""
    if not sys.stderr.isatty():
        return text
    with contextlib.suppress(OSError):
        width = max(LEAST_WIDTH, os.get_terminal_size(sys.stderr.fileno()).columns)
        return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return text
