"""Log lines: a constant message, then key=value, or the same as JSON; the lines of one operation share an `op`."""

from __future__ import annotations

import contextvars
import datetime
import json
import logging
import os
import sys
from typing import Any, Literal

_operation: contextvars.ContextVar[str] = contextvars.ContextVar("operation", default="")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def begin_operation() -> str:
    """Start an operation in this task and return its id, 8 hex digits that are on every line until the task ends."""
    operation = os.urandom(4).hex()
    _operation.set(operation)
    return operation


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    operation = _operation.get()
    return {**({"op": operation} if operation else {}), **extra}


def _time(record: logging.LogRecord) -> str:
    return datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")[:23] + "Z"


class TextFormatter(logging.Formatter):
    """`2026-03-21T11:43:02.123Z INFO  claim prepared claim=ml/job-0 devices=4`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line; a traceback follows on separate lines."""
        texts = []
        for name, value in _fields(record).items():
            texts.append(f" {name}={_quoted(value)}")
        pairs = "".join(texts)
        text = f"{_time(record)} {record.levelname:<7} {record.getMessage()}{pairs}"
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ts, level, msg, logger, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line; a traceback is the field `error`."""
        body = {
            "ts": _time(record),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            "logger": record.name,
            **_fields(record),
        }
        if record.exc_info:
            body["error"] = self.formatException(record.exc_info)
        return json.dumps(body, default=str)


def _quoted(value: object) -> str:
    text = str(value)
    if not text or not text.isprintable() or any(c in text for c in ' "='):
        return json.dumps(text)
    return text


def last_line(program: str, text: str) -> str:
    """Return the reason why a program ends as a JSON log line, for use before logging is configured."""
    record = logging.makeLogRecord({"name": program, "levelno": logging.ERROR, "levelname": "ERROR", "msg": text})
    return JsonFormatter().format(record)


def configure(style: Literal["text", "json"], verbosity: int) -> None:
    """Send every log line to standard error; a `verbosity` of 4 and above adds debug lines, as in klog."""
    # These values are in none of the formats, so collecting them is skipped (logging HOWTO, "Optimization").
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbosity >= 4 else logging.INFO)
    for noisy in ("asyncio", "aiohttp", "grpc"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
