"""Device health: faults, recovery, and their effect on claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.core import health, limits, slices
from neuron_dra.core.facts import DeviceFacts, Unread
from neuron_dra.core.health import DeviceHealth, Health, Toleration, Watch

HOLD_S = 60.0
WELL = DeviceFacts(
    3, dev=(243, 3), device_file=True, reset_state=1, sram_ecc_uncorrected=0, mem_ecc_uncorrected=0,
    mem_ecc_repairable=0, unhealthy_components=(),
)  # fmt: skip
SILENT = DeviceFacts(3, dev=(243, 3), device_file=True)
BUSY = replace(SILENT, unhealthy_components=Unread.BUSY)
NAME = "neuron-device-3"


def watched(*readings: tuple[float, DeviceFacts | None], before: Watch | None = None) -> Watch:
    """the state of device 3 after these readings; None is a missing device."""
    watch: Watch = before or {}
    for now, facts in readings:
        watch = health.observe(watch, [facts] if facts else [], [3], now, HOLD_S)
    return watch


def after(*readings: tuple[float, DeviceFacts | None]) -> DeviceHealth:
    return health.judged(NAME, [3], watched(*readings))


def sick(message: str, *reasons: str) -> DeviceHealth:
    return DeviceHealth(NAME, Health.UNHEALTHY, message, reasons)


HEALTHY = DeviceHealth(NAME, Health.HEALTHY)
UNKNOWN = DeviceHealth(NAME, Health.UNKNOWN, "the kernel driver reports nothing about the device's health")

# What counts.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, HEALTHY),
        ({"mem_ecc_uncorrected": 1}, sick("1 uncorrectable HBM error", "hbm_ecc")),
        ({"sram_ecc_uncorrected": 2}, sick("2 uncorrectable SRAM errors", "sram_ecc")),
        ({"mem_ecc_repairable": 1}, sick("1 repairable HBM error", "hbm_repair")),
        ({"reset_state": 2}, sick("the kernel driver reports the device as invalid", "invalid")),
        ({"device_file": False}, sick("/dev/neuron3 is missing on the host", "DeviceFileMissing")),
        ({"unhealthy_components": ("axi_fabric",)}, sick("component axi_fabric is unhealthy", "axi_fabric")),
        ({"unhealthy_components": ("x" * 64,)}, sick(f"component {'x' * 64} is unhealthy", "other")),
        (
            {"unhealthy_components": ("hbm", "link_interserver"), "mem_ecc_uncorrected": 7, "reset_state": 2},
            sick(
                "the kernel driver reports the device as invalid; component link_interserver is unhealthy; "
                "7 uncorrectable HBM errors; component hbm is unhealthy",
                *("invalid", "link_interserver", "hbm_ecc", "hbm"),
            ),
        ),
    ],
)
def test_kernel_driver_reports_make_unhealthy(changes: dict[str, Any], expected: DeviceHealth) -> None:
    assert after((0, replace(WELL, **changes))) == expected


def test_device_without_reports_is_unknown() -> None:
    assert after((0, SILENT)) == after((0, BUSY)) == after((0, replace(SILENT, reset_state=0))) == UNKNOWN


def test_one_witness_is_enough_to_be_healthy() -> None:
    assert after((0, replace(SILENT, reset_state=1))) == HEALTHY


# Memory.


@pytest.mark.contract("T1")
def test_device_recovers_after_the_period() -> None:
    bad = replace(WELL, mem_ecc_uncorrected=1)
    waiting = sick("1 uncorrectable HBM error (recovering; awaiting confirmation)", "hbm_ecc")
    seen = [after((0, bad), (10, WELL), (now, WELL)) for now in (10, 69.9, 70)]
    assert seen == [waiting, waiting, HEALTHY]


def test_bad_reading_restarts_the_recovery() -> None:
    bad = replace(WELL, mem_ecc_uncorrected=1)
    readings = ((0, bad), (10, WELL), (60, bad), (65, WELL))
    assert after(*readings, (124, WELL)).status is Health.UNHEALTHY
    assert after(*readings, (125, WELL)) == HEALTHY


@pytest.mark.parametrize("unread", [SILENT, BUSY, replace(SILENT, reset_state=0)])
def test_unreadable_file_keeps_the_fault(unread: DeviceFacts) -> None:
    bad = replace(WELL, unhealthy_components=("hbm",), reset_state=2, mem_ecc_uncorrected=1, sram_ecc_uncorrected=1)
    assert after((0, bad), (1000, unread)).reasons == ("invalid", "sram_ecc", "hbm_ecc", "hbm")


def test_unreadable_time_is_not_recovery_time() -> None:
    bad = replace(WELL, mem_ecc_uncorrected=1)
    assert after((0, bad), (10, WELL), (60, SILENT), (70, WELL), (129, WELL)).status is Health.UNHEALTHY
    assert after((0, bad), (10, WELL), (60, SILENT), (70, WELL), (130, WELL)) == HEALTHY


def test_each_fault_is_forgiven_for_itself() -> None:
    both = replace(WELL, mem_ecc_uncorrected=1, unhealthy_components=("link_efa",))
    link = replace(WELL, unhealthy_components=("link_efa",))
    assert after((0, both), (10, link), (70, link)) == sick("component link_efa is unhealthy", "link_efa")


def test_faults_recover_independently() -> None:
    both = replace(WELL, sram_ecc_uncorrected=1, mem_ecc_uncorrected=1)
    sram = replace(WELL, sram_ecc_uncorrected=1)
    assert after((0, both), (10, sram), (69, sram)).reasons == ("sram_ecc", "hbm_ecc")
    assert after((0, both), (10, sram), (70, sram)).reasons == ("sram_ecc",)


def test_returned_device_must_recover() -> None:
    assert after((0, WELL), (10, None)) == sick("the device is gone from the node", "missing")
    assert after((0, WELL), (10, None), (20, WELL), (79, WELL)).reasons == ("missing",)
    assert after((0, WELL), (10, None), (20, WELL), (80, WELL)) == HEALTHY


def test_late_first_device_is_healthy() -> None:
    assert after((0, None), (10, WELL)) == HEALTHY


def test_late_device_with_a_fault_must_recover() -> None:
    absent = replace(WELL, device_file=False, mem_ecc_uncorrected=1)
    assert after((0, absent), (10, WELL), (69, WELL)).reasons == ("hbm_ecc",)
    assert after((0, absent), (10, WELL), (70, WELL)) == HEALTHY


def test_missing_device_keeps_its_faults() -> None:
    bad = replace(WELL, mem_ecc_uncorrected=1)
    assert after((0, bad), (10, None)).reasons == ("missing", "hbm_ecc")


def test_a_restart_forgives_nothing() -> None:
    began = health.recall(watched((0, WELL)), [3], ["missing", "hbm_ecc", "link_efa"])
    assert health.judged(NAME, [3], watched((10, WELL), (69, WELL), before=began)).reasons == (
        *("missing", "hbm_ecc", "link_efa"),
    )
    assert health.judged(NAME, [3], watched((10, WELL), (70, WELL), before=began)) == HEALTHY


def test_restart_keeps_recovery_of_missing_device() -> None:
    began = health.recall({}, [3], ["missing"])
    assert health.judged(NAME, [3], began).reasons == ("missing",)
    assert health.judged(NAME, [3], watched((10, WELL), (69, WELL), before=began)).reasons == ("missing",)
    assert health.judged(NAME, [3], watched((10, WELL), (70, WELL), before=began)) == HEALTHY


@pytest.mark.parametrize(
    ("reason", "unread"),
    [
        ("invalid", {"reset_state": Unread.UNKNOWN}),
        ("sram_ecc", {"sram_ecc_uncorrected": Unread.UNKNOWN}),
        ("hbm_ecc", {"mem_ecc_uncorrected": Unread.UNKNOWN}),
        ("hbm_repair", {"mem_ecc_repairable": Unread.UNKNOWN}),
        ("link_efa", {"unhealthy_components": Unread.UNKNOWN}),
    ],
)
def test_restored_fault_needs_its_own_source(reason: str, unread: dict[str, Any]) -> None:
    began = health.recall(watched((0, WELL)), [3], [reason])
    silent = replace(WELL, **unread)
    assert health.judged(NAME, [3], watched((10, silent), (1000, silent), before=began)).reasons == (reason,)


def test_restart_does_not_duplicate_faults() -> None:
    watch = watched((0, replace(WELL, mem_ecc_uncorrected=1)))
    assert health.recall(watch, [3], ["hbm_ecc"]) == {3: replace(watch[3], seen=True)}


@given(
    st.lists(
        st.sampled_from([None, WELL, SILENT, BUSY, replace(WELL, reset_state=2), replace(WELL, mem_ecc_uncorrected=1)]),
        min_size=1,
    )
)
def test_last_bad_reading_is_never_healthy(
    history: list[DeviceFacts | None],
) -> None:
    result = after(*((10.0 * step, facts) for step, facts in enumerate(history)))
    if history[-1] not in (WELL, SILENT, BUSY):
        assert result.status is Health.UNHEALTHY
    elif history[-1] is WELL and all(facts is WELL for facts in history[-7:]):
        assert result == HEALTHY
    elif history[-1] is not WELL:
        assert result.status is not Health.HEALTHY


# A whole node.


def whole_node(devices: dict[int, DeviceFacts]) -> DeviceHealth:
    facts = [replace(device, device_id=i) for i, device in devices.items()]
    return health.judged("neuron-node-0", range(4), health.observe({}, facts, range(4), 0, HOLD_S))


def test_node_health_names_unhealthy_devices() -> None:
    bad = replace(WELL, mem_ecc_uncorrected=1)
    found = whole_node({0: WELL, 1: bad, 2: replace(bad, reset_state=2)})
    assert found == DeviceHealth(
        "neuron-node-0",
        Health.UNHEALTHY,
        "neuron1, neuron2: 1 uncorrectable HBM error; neuron2: the kernel driver reports the device as invalid; "
        "neuron3: the device is gone from the node",
        ("missing", "invalid", "hbm_ecc"),
    )


def test_node_is_healthy_if_all_devices_are() -> None:
    assert whole_node(dict.fromkeys(range(4), WELL)) == DeviceHealth("neuron-node-0", Health.HEALTHY)
    silent = whole_node({**dict.fromkeys(range(3), WELL), 3: SILENT})
    assert silent == DeviceHealth("neuron-node-0", Health.UNKNOWN, "the health of some devices is unknown")


def test_never_seen_device_is_missing() -> None:
    assert health.judged("neuron-device-9", [9], {}).message == "the device is gone from the node"


# What is published.

DEVICE = {"name": NAME, "attributes": {"deviceId": {"int": 3}}, "capacity": {"memory": {"value": "96Gi"}}}


def test_unhealthy_device_has_taints_and_attribute() -> None:
    assert health.marked(DEVICE, ("invalid", "hbm_ecc"), "NoSchedule") == {
        **DEVICE,
        "attributes": {"deviceId": {"int": 3}, "unhealthy": {"string": "invalid,hbm_ecc"}},
        "taints": [
            {"key": "neuron.aws.com/unhealthy", "value": "invalid", "effect": "NoSchedule"},
            {"key": "neuron.aws.com/unhealthy", "value": "hbm_ecc", "effect": "NoSchedule"},
        ],
    }


def test_recovered_device_loses_its_taints() -> None:
    assert health.marked(health.marked(DEVICE, ("invalid",), "NoSchedule"), (), "NoSchedule") == DEVICE
    bare = {"name": NAME}
    assert health.marked(health.marked(bare, ("invalid",), "NoSchedule"), (), "NoSchedule") == bare


def test_report_only_sets_no_taint() -> None:
    marked = health.marked(DEVICE, ("invalid",), "None")
    assert (marked["attributes"]["unhealthy"], "taints" in marked) == ({"string": "invalid"}, False)


@given(st.lists(st.from_regex(r"[a-z0-9]([a-z0-9_]{0,61}[a-z0-9])?", fullmatch=True), min_size=1, unique=True))
def test_taints_are_valid_and_round_trip(reasons: list[str]) -> None:
    marked = health.marked(DEVICE, reasons, "NoSchedule")
    text = marked["attributes"]["unhealthy"]["string"]
    assert len(text) <= limits.TEXT_BYTES
    assert len(marked["taints"]) <= 4
    assert health.reasons_on(marked) == tuple(text.split(","))
    assert set(health.reasons_on(marked)) <= set(reasons)


@pytest.mark.parametrize("attribute", [None, {"int": 3}, {"string": ""}, {"string": "-,A b"}])
def test_foreign_attribute_has_no_reason(attribute: Any) -> None:
    assert health.reasons_on({"name": NAME, "attributes": {"unhealthy": attribute}}) == ()


@pytest.mark.parametrize("device", [{"name": NAME}, {"name": NAME, "attributes": None}])
def test_device_without_attributes_has_no_reason(device: dict[str, Any]) -> None:
    assert health.reasons_on(device) == ()


def test_the_marks_change_no_slice_but_their_own() -> None:
    before = [{"name": f"neuron-device-{i}"} for i in range(100)]
    after_ = [health.marked(device, ("hbm_ecc",) if i == 3 else (), "NoSchedule") for i, device in enumerate(before)]
    assert [chunk[0]["name"] for chunk in slices.layout(after_)] == [
        chunk[0]["name"] for chunk in slices.layout(before)
    ]


# Who may have it.

SICK = sick("1 uncorrectable HBM error", "hbm_ecc")


def test_unhealthy_device_error_has_reason_and_remedy() -> None:
    assert health.why_refused(SICK, (), "NoSchedule") == (
        "neuron-device-3 is unhealthy: 1 uncorrectable HBM error; delete the pod so that it gets another device, or "
        "wait until the device is repaired: the kubelet tries again"
    )


@pytest.mark.parametrize("state", [HEALTHY, UNKNOWN])
def test_claim_gets_a_device_of_unknown_health(state: DeviceHealth) -> None:
    assert health.why_refused(state, (), "NoSchedule") == ""


@pytest.mark.contract("T2")
def test_effect_none_rejects_no_claim() -> None:
    assert health.why_refused(SICK, (), "None") == ""


@pytest.mark.contract("P32")
@pytest.mark.parametrize(
    ("toleration", "may"),
    [
        (Toleration("neuron.aws.com/unhealthy", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("neuron.aws.com/unhealthy", "Equal", "hbm_ecc", "NoSchedule"), True),
        (Toleration("neuron.aws.com/unhealthy", "", "hbm_ecc"), True),
        (Toleration("neuron.aws.com/unhealthy", "Equal", "sram_ecc"), False),
        (Toleration("neuron.aws.com/unhealthy", "Exists", "", "NoExecute"), False),
        (Toleration("example.com/other", "Exists"), False),
    ],
)
def test_tolerating_claim_gets_the_device(toleration: Toleration, may: bool) -> None:
    assert (health.why_refused(SICK, [toleration], "NoSchedule") == "") is may


def test_every_reason_must_be_tolerated() -> None:
    two = sick("both", "hbm_ecc", "link_efa")
    one, other = (Toleration("neuron.aws.com/unhealthy", "Equal", reason) for reason in two.reasons)
    assert [health.why_refused(two, them, "NoSchedule") == "" for them in ([one], [other], [one, other])] == [
        *(False, False, True),
    ]


# Event messages.


@pytest.mark.contract("T2")
@pytest.mark.parametrize(
    ("effect", "says"),
    [
        ("NoSchedule", "New claims do not get it; running pods keep it"),
        ("NoExecute", "pods whose claims have it are evicted"),
        ("None", "It is only reported, because of --unhealthy-device-effect"),
    ],
)
def test_event_has_fault_remedy_and_effect(effect: str, says: str) -> None:
    text = health.event_message(sick("3 uncorrectable HBM errors", "hbm_ecc", "link_efa"), effect)
    assert text.startswith(
        "neuron-device-3 is unhealthy (hbm_ecc, link_efa): uncorrectable HBM errors; "
        "replace the instance; the kernel driver reports its component link_efa as unhealthy. "
    )
    assert says in text


def test_event_is_stable_while_errors_grow() -> None:
    assert health.event_message(SICK, "NoSchedule") == health.event_message(
        sick("9 uncorrectable HBM errors", "hbm_ecc"), "NoSchedule"
    )


def test_healthy_device_has_no_event() -> None:
    assert health.judged("neuron-node-0", [0], {0: health.WatchedDevice(seen=True, known=True)}).message == ""


# The firmware's health check, and readings that do not end (14.14, 14.1)


def beats(*values: tuple[float, int]) -> DeviceHealth:
    return after(*[(now, replace(WELL, heartbeat=value)) for now, value in values])


STILL = DeviceHealth(NAME, Health.UNKNOWN, "the firmware's health check does not run")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(0.0, 1), (900.0, 1)], HEALTHY),  # never changed: it may not be a counter
        ([(0.0, 0)], STILL),
        ([(0.0, 1), (10.0, 2), (130.0, 2)], HEALTHY),
        ([(0.0, 1), (10.0, 2), (131.0, 2)], STILL),
        ([(0.0, 1), (10.0, 2), (131.0, 2), (140.0, 3)], HEALTHY),
    ],
)
def test_stalled_check_makes_health_unknown(values: list[tuple[float, int]], expected: DeviceHealth) -> None:
    assert beats(*values) == expected


def test_stalled_check_keeps_earlier_faults() -> None:
    found = replace(WELL, heartbeat=0, unhealthy_components=("hbm",))
    assert after((0.0, found)) == sick("component hbm is unhealthy", "hbm")
    assert after((0.0, found), (900.0, replace(WELL, heartbeat=0))) == sick("component hbm is unhealthy", "hbm")


HUNG = replace(WELL, hangs=True)


def test_hanging_read_is_unknown_or_unhealthy() -> None:
    unknown = DeviceHealth(NAME, Health.UNKNOWN, "the last reading failed: the kernel driver hangs or is gone")
    assert after((0.0, HUNG)) == unknown
    assert after((0.0, WELL), (10.0, HUNG)) == unknown
    assert after((0.0, WELL), (10.0, HUNG), (20.0, WELL)) == HEALTHY
    bad = replace(WELL, mem_ecc_uncorrected=1)
    assert after((0.0, bad), (10.0, HUNG), (900.0, HUNG)) == sick("1 uncorrectable HBM error", "hbm_ecc")
    # The hold time starts with the first good reading.
    again = after((0.0, bad), (10.0, WELL), (20.0, HUNG), (900.0, WELL))
    assert again.status is Health.UNHEALTHY


def test_no_finished_reading_makes_all_unknown() -> None:
    watch = health.unread(watched((0.0, WELL)))
    assert health.judged(NAME, [3], watch).status is Health.UNKNOWN
    assert health.judged("neuron-node-0", [3], watch) == DeviceHealth(
        "neuron-node-0", Health.UNKNOWN, "the last reading of neuron3 failed: the kernel driver hangs or is gone"
    )


# Firmware that does not answer.

SERIAL = "9ff5434815c8bd80"
SERIAL_WELL = replace(WELL, serial=SERIAL)
DEAD = replace(WELL, serial="")
ONES = replace(WELL, serial="f" * 16, sram_ecc_uncorrected=65535, mem_ecc_uncorrected=30)
NO_ANSWER = sick("the device's firmware does not answer the kernel driver", "FirmwareNotResponding")


@pytest.mark.parametrize("gone", [DEAD, ONES], ids=["no serial number", "all ones"])
def test_firmware_that_does_not_answer_twice_is_a_fault(gone: DeviceFacts) -> None:
    once = after((0.0, SERIAL_WELL), (10.0, gone))
    assert (once.status, once.reasons) == (Health.UNKNOWN, ())
    assert after((0.0, SERIAL_WELL), (10.0, gone), (20.0, gone)) == NO_ANSWER
    assert after((0.0, SERIAL_WELL), (10.0, gone), (20.0, SERIAL_WELL)) == HEALTHY
    back = [(0.0, SERIAL_WELL), (10.0, gone), (20.0, gone), (30.0, SERIAL_WELL)]
    assert after(*back).reasons == ("FirmwareNotResponding",)
    assert after(*back, (30.0 + HOLD_S, SERIAL_WELL)) == HEALTHY


@pytest.mark.parametrize("serial", ["", "f" * 16])
def test_sibling_with_a_serial_number_shows_that_one_is_lacking(serial: str) -> None:
    """The plugin may start after the firmware has died."""
    watch: Watch = {}
    for now in (0.0, 10.0):
        devices = [replace(DEAD, serial=serial), replace(SERIAL_WELL, device_id=4)]
        watch = health.observe(watch, devices, [3, 4], now, HOLD_S)
    assert health.judged(NAME, [3], watch) == NO_ANSWER
    assert health.judged("neuron-device-4", [4], watch).status is Health.HEALTHY


@pytest.mark.parametrize(
    "silent",
    [
        replace(WELL, serial=Unread.UNKNOWN),
        replace(WELL, serial=Unread.BUSY),
        replace(DEAD, reset_state=0),
        replace(DEAD, reset_state=Unread.UNKNOWN),
    ],
    ids=["unread", "busy", "is reset", "reset unread"],
)
def test_unread_serial_number_says_nothing(silent: DeviceFacts) -> None:
    assert after((0.0, SERIAL_WELL), (10.0, silent), (20.0, silent)).reasons == ()


def test_driver_that_has_no_serial_numbers_says_nothing() -> None:
    """Control: counters count, and the device is healthy, where no device ever had a serial number."""
    assert after((0.0, DEAD), (10.0, DEAD), (20.0, DEAD)) == HEALTHY
    assert after((0.0, replace(DEAD, mem_ecc_uncorrected=1))).reasons == ("hbm_ecc",)


@pytest.mark.parametrize("known", [True, False], ids=["known before", "unknown"])
def test_counters_of_a_device_that_reads_all_ones_are_ignored(known: bool) -> None:
    before = [(0.0, SERIAL_WELL)] if known else []
    for state in (0, 1, Unread.UNKNOWN):
        ones = replace(ONES, reset_state=state, unhealthy_components=Unread.UNKNOWN)
        assert not {"sram_ecc", "hbm_ecc"} & set(after(*before, (10.0, ones), (20.0, ones)).reasons)


def test_dead_firmware_does_not_end_other_faults() -> None:
    """Its counters read 0, which is no good reading."""
    bad = replace(SERIAL_WELL, mem_ecc_uncorrected=1)
    watch = watched((0.0, bad), *((10.0 * n, DEAD) for n in range(1, 12)))
    assert health.judged(NAME, [3], watch).reasons == ("FirmwareNotResponding", "hbm_ecc")


def test_dead_firmware_is_recalled_after_a_restart() -> None:
    watch = health.recall({}, [3], ["FirmwareNotResponding"])
    assert health.judged(NAME, [3], watched((0.0, DEAD), before=watch)).reasons == ("FirmwareNotResponding",)
    assert health.judged(NAME, [3], watched((0.0, SERIAL_WELL), (HOLD_S, SERIAL_WELL), before=watch)) == HEALTHY
    assert health.reasons_on(health.marked({"name": NAME}, ["FirmwareNotResponding"], "NoSchedule")) == (
        "FirmwareNotResponding",
    )
