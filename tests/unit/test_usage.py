"""`neuron-dra top`: rates between two readings, and the tables that show them (17.6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.ask.render import words
from neuron_dra.ask.top import text as top_text
from neuron_dra.ask.top import usage
from neuron_dra.ask.top.usage import WHOLE, Counters, Sample, Usage
from neuron_dra.core.telemetry import User

LLM = User("ml", "llm-0", "main", "llm-0-neurons", "")
GIB = 2**30


def metrics(at: float, *lines: str, driver: str = "2.30.2") -> str:
    head = [
        f"neuron_dra_counters_read_timestamp_seconds {at}",
        f'neuron_dra_node_info{{instance_type="trn2.48xlarge",driver_version="{driver}"}} 1',
        "neuron_dra_counters_unread_devices 0",
    ]
    return "\n".join([*head, *lines, ""])


def who(user: User) -> str:
    names = ("namespace", "pod", "container", "claim", "workload")
    return ",".join(f'{name}="{getattr(user, name)}"' for name in names)


def core(device: int, number: int, user: User, *, busy: float, success: float = 0, errors: float = 0) -> list[str]:
    labels = f'neuron_device="{device}",core="{number}",{who(user)}'
    return [
        f"neuron_dra_core_busy_seconds_total{{{labels}}} {busy}",
        f'neuron_dra_core_executions_total{{{labels},result="success"}} {success}',
        f'neuron_dra_core_executions_total{{{labels},result="timeout"}} {errors}',
        f'neuron_dra_core_memory_bytes{{{labels},category="tensors"}} {GIB}',
    ]


def whole(device: int, user: User, *, power: float) -> list[str]:
    labels = f'neuron_device="{device}",{who(user)}'
    return [
        f'neuron_dra_device_power_ratio{{{labels},statistic="avg"}} {power}',
        f'neuron_dra_device_ecc_errors_total{{{labels},kind="sram_uncorrected"}} 1',
    ]


def readings() -> tuple[Sample, Sample]:
    """Device 3 is half busy with 5 calls a second, device 4 is free."""
    before = metrics(
        100.0, *core(3, 0, LLM, busy=10, success=100), *core(3, 1, LLM, busy=20), *core(4, 0, User(), busy=7)
    )
    after = metrics(
        102.0,
        *core(3, 0, LLM, busy=12, success=108, errors=2),
        *core(3, 1, LLM, busy=20),
        *whole(3, LLM, power=0.4),
        *core(4, 0, User(), busy=7),
        *whole(4, User(), power=0.1),
    )
    return usage.sample(before), usage.sample(after)


def test_rates_are_those_between_the_readings() -> None:
    before, after = readings()
    llm, free = usage.by_user("node-a", before, after)
    assert llm.data() == {
        "node": "node-a",
        **{name: getattr(LLM, name) for name in ("namespace", "pod", "container", "claim", "workload")},
        "devices": [3],
        "cores": 2,
        "busy": 0.5,
        "executionsPerSecond": 4.0,
        "errorsPerSecond": 1.0,
        "flopsPerSecond": None,
        "memoryBytes": {"tensors": 2 * GIB},
        "hostMemoryBytes": {},
        "power": 0.4,
        "eccErrors": 1,
    }
    assert (free.who, free.devices, free.busy, free.power) == (User(), (4,), 0.0, 0.1)


def test_first_reading_has_no_rates() -> None:
    _, after = readings()
    (llm, _) = usage.by_user("node-a", None, after)
    assert (llm.busy, llm.executions, llm.memory) == (None, None, {"tensors": 2 * GIB})


def test_core_that_changed_hands_has_no_rate() -> None:
    """Part of what it counted was another pod's."""
    before, after = (
        usage.sample(metrics(at, *core(3, 0, user, busy=busy)))
        for at, user, busy in ((100.0, User("ml", "old", "", "c", ""), 1), (102.0, LLM, 3))
    )
    (row,) = usage.by_user("node-a", before, after)
    assert (row.who, row.busy) == (LLM, None)


def test_reset_counter_has_no_rate() -> None:
    before, after = (usage.sample(metrics(at, *core(3, 0, LLM, busy=busy))) for at, busy in ((100.0, 9), (102.0, 1)))
    assert usage.by_core("node-a", before, after)[0].busy is None


def test_lines_show_pods_devices_and_cores() -> None:
    before, after = readings()
    shown = {
        by: top_text.lines(
            {"node-a": after}, top_text.rows({"node-a": before}, {"node-a": after}, by, ""), {}, by=by, wide=False
        )
        for by in ("pod", "device", "core")
    }
    assert [" ".join(line.split()) for line in shown["pod"]] == [
        "node-a trn2.48xlarge: 1 of 2 devices held",
        "POD DEVICES BUSY MEMORY EXEC/S ERRORS/S POWER",
        "ml/llm-0 3 50 % 2.0 GiB 4 1 40 %",
        "(free) 4 0 % 1.0 GiB 0 0 10 %",
    ]
    assert [" ".join(line.split()) for line in shown["device"]][2:] == [
        "3 ml/llm-0 50 % 2.0 GiB 4 1 40 %",
        "4 (free) 0 % 1.0 GiB 0 0 10 %",
    ]
    assert [" ".join(line.split()) for line in shown["core"]][2:] == [
        "3 0 ml/llm-0 100 % 1.0 GiB 4 1 -",
        "3 1 ml/llm-0 0 % 1.0 GiB 0 0 -",
        "4 0 (free) 0 % 1.0 GiB 0 0 -",
    ]
    assert all(len(line) <= 80 for lines in shown.values() for line in lines)


def test_long_names_fit_into_80_columns() -> None:
    user = User("a-namespace-with-a-long-name", "a-pod-with-a-name-that-is-long-0", "main", "claim", "")
    sample = usage.sample(metrics(1.0, *core(3, 0, user, busy=1e6, success=12345678)))
    lines = top_text.lines({"n": sample}, top_text.rows({}, {"n": sample}, "pod", ""), {}, by="pod", wide=False)
    assert max(map(len, lines)) <= 80


def test_older_kernel_drivers_are_explained() -> None:
    sample = usage.sample(metrics(1.0, *core(3, 0, LLM, busy=1), driver="2.24.7.0"))
    text = " ".join(top_text.lines({"n": sample}, [], {}, by="pod", wide=False))
    assert "Kernel driver 2.24.7.0 counts the executions and the time of a process when it ends" in text


def test_namespace_selects_its_pods() -> None:
    before, after = readings()
    rows = top_text.rows({"n": before}, {"n": after}, "pod", "ml")
    assert [row.who for row in rows] == [LLM]
    assert top_text.rows({"n": before}, {"n": after}, "pod", "other") == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no counters: the driver has just started, is older than this command, or its deviceCounters is none"),
        ("<html>", "not in Prometheus' format"),
        ("neuron_dra_counters_read_timestamp_seconds x", "not in Prometheus' format"),
        ("a 1\n" * 200_001, "more than 200,000 lines"),
    ],
)
def test_other_texts_are_named(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        usage.sample(text)


@given(st.text(max_size=300))
def test_any_text_is_a_sample_or_a_clear_error(text: str) -> None:
    try:
        usage.sample(text)
    except ValueError as err:
        assert str(err)


@given(st.sets(st.integers(0, 63)))
def test_ranges_name_each_number_once(numbers: set[int]) -> None:
    named: list[int] = []
    for part in words.ranges(numbers, between=",", least=2).split(",") if numbers else []:
        first, _, last = part.partition("-")
        named += range(int(first), int(last or first) + 1)
    assert named == sorted(numbers)


def test_a_fleet_is_one_table_with_the_busiest_lines_first() -> None:
    before: dict[str, Sample] = {}
    after: dict[str, Sample] = {}
    for number in range(10):
        who = User("ml", f"job-{number}", "main", f"claim-{number}", "")
        for at, reading, busy_s in ((0.0, before, 0.0), (10.0, after, float(number))):
            reading[f"n{number}"] = Sample(at, "trn2.48xlarge", "2.30.2.0", 0, {(3, 0): Counters(who, busy_s=busy_s)})
    failures = {f"lost-{number}": "connection refused" for number in range(6)} | {"slow": "not read within 60 s"}
    found = top_text.rows(before, after, "pod", "")
    assert top_text.fleet(after, found, failures, by="pod", wide=False, most=2) == [
        "10 of 17 nodes read: 10 devices held, 0 free",
        "  NODE  POD       DEVICES  BUSY  MEMORY   EXEC/S   ERRORS/S  POWER",
        "  n9    ml/job-9  3        90 %  0.0 GiB  unknown  unknown   -",
        "  n8    ml/job-8  3        80 %  0.0 GiB  unknown  unknown   -",
        "  and 8 more lines: --most 10, or -o json",
        "! 7 nodes could not be read:",
        "  lost-0, lost-1, lost-2, lost-3 and 2 more: connection refused",
        "  slow: not read within 60 s",
        "unknown: the counters of a device that a pod holds did not move, which does not",
        "show that it is idle; or its pod changed between the readings.",
    ]


def measured(busy: tuple[float, float], *, driver: str = "2.30.2", user: User = LLM, memory: float = GIB) -> Usage:
    """The use of a device's core with this time in the first and the second reading."""
    samples = []
    for at, busy_s in zip((100.0, 102.0), busy, strict=True):
        counters = Counters(user, busy_s=busy_s, flops=busy_s, memory={"tensors": memory} if memory else {})
        samples.append(Sample(at, "inf2.xlarge", driver, 0, {(0, 0): counters, (0, WHOLE): Counters(user)}))
    (row,) = usage.by_device("node-a", *samples)
    return row


@pytest.mark.parametrize(
    ("driver", "busy", "expected"),
    [
        ("2.30.2", (0, 0), None),  # it never moved while a pod holds the device
        ("2.30.2", (5, 5), 0.0),
        ("2.30.2", (5, 6), 0.5),
        ("2.26.5.0", (0, 0), None),
        ("2.26.5.0", (5, 5), None),  # it may move when the process ends
        ("2.26.5.0", (5, 6), 0.5),
        ("", (5, 5), None),
    ],
)
def test_device_that_a_pod_holds_is_idle_only_with_evidence(
    driver: str, busy: tuple[float, float], expected: float | None
) -> None:
    row = measured(busy, driver=driver)
    assert (row.busy, row.flops) == (expected, expected)


@pytest.mark.parametrize("driver", ["2.30.2", "2.26.5.0", ""])
def test_device_without_claim_and_memory_is_idle(driver: str) -> None:
    assert measured((0, 0), driver=driver, user=User(), memory=0).busy == 0.0


def test_device_whose_memory_is_in_use_may_be_busy_without_a_claim() -> None:
    assert measured((0, 0), user=User()).busy is None


@pytest.mark.parametrize(
    ("driver", "busy", "expected"),
    [("2.26.5.0", (0, 0), None), ("2.26.5.0", (5, 5), {"tensors": GIB}), ("2.30.2", (0, 0), {"tensors": GIB})],
)
def test_memory_of_a_driver_that_counts_nothing_else_is_unknown(
    driver: str, busy: tuple[float, float], expected: dict[str, float] | None
) -> None:
    row = measured(busy, driver=driver)
    assert (row.memory, row.data()["memoryBytes"]) == (expected, expected)


def test_idle_device_among_those_of_a_busy_pod_is_no_rate() -> None:
    """The average of the others would show a part as the whole."""
    before, after = (
        usage.sample(metrics(at, *core(3, 0, LLM, busy=busy), *core(4, 0, LLM, busy=0)))
        for at, busy in ((100.0, 1), (102.0, 2))
    )
    (row,) = usage.by_user("node-a", before, after)
    assert row.busy is None
    assert [each.busy for each in usage.by_device("node-a", before, after)] == [0.5, None]


def test_unknown_use_is_printed_as_unknown() -> None:
    reading = {"n": usage.sample(metrics(100.0, *core(3, 0, LLM, busy=0), driver="2.26.5.0"))}
    later = {"n": usage.sample(metrics(102.0, *core(3, 0, LLM, busy=0), driver="2.26.5.0"))}
    lines = top_text.lines(later, top_text.rows(reading, later, "pod", ""), {}, by="pod", wide=False)
    assert lines[2].split() == ["ml/llm-0", "3", "unknown", "unknown", "unknown", "unknown", "-"]
    assert lines[3].startswith("unknown: the counters of a device that a pod holds did not move")
