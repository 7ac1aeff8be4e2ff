"""Log lines as text and as JSON, with the id of their operation."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from neuron_dra import log as logs


def record(message: str = "claim prepared", level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("neuron_dra.node", level, __file__, 1, message, (), None)
    made.created = 1_773_000_000.1239
    vars(made).update(extra)
    return made


@pytest.fixture(autouse=True)
def no_operation() -> Iterator[None]:
    token = logs._operation.set("")
    yield
    logs._operation.reset(token)


def test_text_line_has_time_level_message_and_pairs() -> None:
    line = logs.TextFormatter().format(record(claim="ml/job-0", devices=4))
    assert line == "2026-03-08T20:00:00.123Z INFO    claim prepared claim=ml/job-0 devices=4"


@pytest.mark.parametrize(
    ("value", "shown"),
    [("a b", '"a b"'), ("", '""'), ('a"b', '"a\\"b"'), ("a=b", '"a=b"'), ("a\nb", '"a\\nb"'), ("a", "a")],
)
def test_values_with_breaks_are_quoted(value: str, shown: str) -> None:
    assert logs.TextFormatter().format(record(x=value)).endswith(f" x={shown}")


def test_a_json_line_is_one_object() -> None:
    body = json.loads(logs.JsonFormatter().format(record(claim="ml/job", path=object)))
    assert body["ts"] == "2026-03-08T20:00:00.123Z"
    assert (body["level"], body["msg"], body["logger"], body["claim"]) == (
        "info",
        "claim prepared",
        "neuron_dra.node",
        "ml/job",
    )
    assert "\n" not in logs.JsonFormatter().format(record("one\ntwo"))


def test_traceback_in_text_and_json() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        failed = record("it failed", logging.ERROR)
        failed.exc_info = sys.exc_info()
    first, *rest = logs.TextFormatter().format(failed).split("\n")
    assert first.endswith("ERROR   it failed")
    assert rest[-1] == "ValueError: broken"
    assert "ValueError: broken" in json.loads(logs.JsonFormatter().format(failed))["error"]


@pytest.mark.contract("O8")
async def test_operation_id_is_per_task() -> None:
    async def operation() -> tuple[str, str]:
        begun = logs.begin_operation()
        await asyncio.sleep(0)
        return begun, logs.TextFormatter().format(record())

    (one, first), (two, second) = await asyncio.gather(operation(), operation())
    assert one != two
    assert first.endswith(f" op={one}")
    assert second.endswith(f" op={two}")
    assert "op=" not in logs.TextFormatter().format(record())


def test_verbosity_4_enables_debug(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        for verbosity, shown in ((2, False), (4, True)):
            logs.configure("text", verbosity)
            logging.getLogger("neuron_dra.test").debug("detail")
            assert ("detail" in capsys.readouterr().err) is shown
    finally:
        root.handlers[:] = before
        root.setLevel(level)
