"""`neuron-dra doctor --local`: where hardware, files, slices and claims of a node differ (17.7)."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace

import pytest

from neuron_dra.ask.doctor import node_checks as checks
from neuron_dra.ask.doctor import remote
from neuron_dra.ask.doctor.lines import CheckState, Line
from neuron_dra.ask.doctor.remote import parsed
from neuron_dra.ask.inspect.state import PluginState
from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.claims import ClaimRef, PreparedClaim
from neuron_dra.core.facts import DeviceFacts, NodeFacts
from neuron_dra.core.kernel_driver import DriverState
from neuron_dra.core.wire import Obj
from neuron_dra.gen.neuron.dra.v1 import inspector_pb2 as pb
from tests.support import small_clusters as small
from tests.support.installations import NOW, driver

TYPE = "trn2.48xlarge"


def state(ids: range = range(16), *, held: tuple[int, ...] = (), published: int = 16, slices: int = 1) -> PluginState:
    devices = [
        pb.NeuronDevice(
            device_id=i,
            name=f"neuron-device-{i}",
            health=pb.HEALTH_HEALTHY,
            published=True,
            claim_uid="u" if i in held else "",
        )
        for i in ids
    ]
    return PluginState(
        status=pb.GetStatusResponse(registered=True, published=True, devices=published, slices=slices),
        devices=pb.ListDevicesResponse(node_name="a", instance_type=TYPE, devices=devices),
        claims=pb.ListPreparedClaimsResponse(),
        reservation=pb.GetReservationResponse(),
        configuration=pb.GetConfigurationResponse(),
    )


def facts(ids: range = range(16), *, dark: tuple[int, ...] = (), no_file: tuple[int, ...] = ()) -> NodeFacts:
    made = [
        DeviceFacts(i) if i in dark else DeviceFacts(i, core_count=8, device_file=False if i in no_file else None)
        for i in ids
    ]
    return NodeFacts(product_name=TYPE, driver_version="2.30", devices=tuple(made))


def codes(found: list[Line]) -> list[str]:
    return [each.code for each in found]


@pytest.mark.parametrize(
    ("found", "known", "code"),
    [
        (facts(), state(), ["Ok"]),
        (facts(), None, ["Ok"]),
        (facts(range(0)), state(), ["NoDevices"]),
        (replace(facts(range(0)), vanished=True), state(), ["DriverNotLoaded"]),
        (replace(facts(range(0)), driver_state=DriverState.LOADING, devices_so_far=5), None, ["DriverLoading"]),
        (replace(facts(range(0)), driver_state=DriverState.CHANGING), state(), ["DriverLoading"]),
        (facts(range(15)), state(range(15)), ["DevicesMissing"]),
        (facts(dark=(3,)), state(), ["Unreadable"]),
        (facts(no_file=(3,)), state(), ["DeviceFileMissing"]),
        (replace(facts(), found=("sys/class/neuron_device/neuron3/x/core_count",)), state(), ["Unknown"]),
        (facts(), state(range(15)), ["HardwareDiffers"]),
    ],
)
def test_hardware(found: NodeFacts, known: PluginState | None, code: list[str]) -> None:
    assert codes(checks.hardware(found, known)) == code


def kept(*uids: str, boot: str = "b", adopted: bool = False) -> Checkpoint:
    return Checkpoint(boot, {uid: PreparedClaim(ClaimRef("ns", uid, uid), (), adopted=adopted) for uid in uids})


@pytest.mark.parametrize(
    ("checkpoint", "specified", "prepared", "code"),
    [
        (kept("u"), {"u"}, {"u"}, []),
        (kept("u"), {"u"}, None, []),
        (None, set(), set(), []),
        (None, {"u"}, set(), ["CheckpointMissing"]),
        (kept("u", boot="old"), {"u"}, {"u"}, ["CheckpointOld"]),
        (kept("u"), set(), {"u"}, ["CdiFileMissing"]),
        (kept("u", adopted=True), set(), {"u"}, []),
        (kept(), {"u"}, set(), ["CdiFileLeft"]),
        (kept("u"), {"u"}, set(), ["ClaimsDiffer"]),
    ],
)
def test_files(checkpoint: Checkpoint | None, specified: set[str], prepared: set[str] | None, code: list[str]) -> None:
    assert codes(checks.files(checkpoint, "b", specified, prepared)) == code


def node(runtime: str) -> Obj:
    return {"status": {"nodeInfo": {"containerRuntimeVersion": runtime}}}


@pytest.mark.parametrize(
    ("runtime", "configuration", "code", "result"),
    [
        ("containerd://2.1.4", "", "Ok", CheckState.OK),
        ("cri-o://1.34.0", "", "Ok", CheckState.OK),
        ("containerd://1.7.28", "", "Unknown", CheckState.UNKNOWN),
        ("containerd://1.7.28", "  enable_cdi = true\n", "Ok", CheckState.OK),
        ("containerd://2.1.4", "  enable_cdi = false\n", "CdiOff", CheckState.WRONG),
        ("containerd://2.1.4", 'cdi_spec_dirs = ["/etc/cdi"]', "CdiFolderUnknown", CheckState.WRONG),
        ("containerd://2.1.4", "cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']", "Ok", CheckState.OK),
        ("", "", "Unknown", CheckState.UNKNOWN),
    ],
)
def test_runtime(runtime: str, configuration: str, code: str, result: CheckState) -> None:
    """What a container cannot see of the runtime's configuration is unknown, unless it is the default."""
    found = checks.runtime(node(runtime), configuration, "/var/run/cdi")
    assert (found.code, found.state) == (code, result)


@pytest.mark.parametrize(
    ("slices", "known", "code"),
    [
        (small.slices("a"), state(), "Ok"),
        (small.slices("a"), None, "Unknown"),
        ([], state(), "SlicesDiffer"),
        (small.slices("a"), state(slices=2), "SlicesDiffer"),
        (small.slices("a"), state(range(15)), "Unknown"),
        (small.slices("a"), state(range(17)), "NotPublished"),
    ],
)
def test_slices(slices: list[Obj], known: PluginState | None, code: str) -> None:
    assert codes(checks.published(slices, "a", known)) == [code]


@pytest.mark.parametrize(("seconds", "code"), [(0, "Ok"), (600, "ClockWrong"), (-600, "ClockWrong")])
def test_clock(seconds: int, code: str) -> None:
    assert checks.clock(NOW + datetime.timedelta(seconds=seconds), NOW).code == code


def test_clock_is_unknown_without_a_time() -> None:
    assert checks.clock(None, NOW).state is CheckState.UNKNOWN


def test_claims() -> None:
    assert checks.claims(2, [], []).code == "Ok"
    assert checks.claims(2, ["ns/x"], []).code == "OrphanedClaim"
    assert checks.claims(2, [], ["ns/x"]).code == "ClaimDiffers"


ANSWER = {"checks": [{"state": "wrong", "area": "CDI", "code": "CdiNotWritable", "text": "t", "toDo": "d", "new": 1}]}


def test_answer_of_a_node() -> None:
    assert parsed(json.dumps(ANSWER).encode(), b"", "pod x", "by hand") == [
        Line(CheckState.WRONG, "on node: CDI", "CdiNotWritable", "t", "d")
    ]


@pytest.mark.parametrize(
    "output", [b"", b"usage: neuron-dra", b"[]", b'{"checks": 1}', b'{"checks": [{}]}', b"[" * 100_000, b"\xff\x00"]
)
def test_malformed_answer_of_a_node_is_unknown(output: bytes) -> None:
    """An older release does not have the command, and its pod may print anything."""
    [line] = parsed(output, b'{"message": "exit code 2"}', "pod ns/x", "kubectl exec")
    assert (line.state, line.todo) == (CheckState.UNKNOWN, "kubectl exec")
    assert "exit code 2" in line.text


def placed(name: str, namespace: str, created: str = "") -> Obj:
    made = driver("a")
    made["metadata"] |= {"name": name, "namespace": namespace, "creationTimestamp": created}
    return made


def test_pod_of_the_chart_is_looked_at() -> None:
    """Labels can be copied: another namespace's pod is looked at only if no other has one."""
    chart = placed("x", "neuron-dra-driver", "2026-11-01")
    newer = placed("y", "neuron-dra-driver", "2026-11-02")
    copied, second = placed("z", "tenant", "2026-11-03"), placed("w", "other")
    assert remote.chosen([copied, chart, newer]) is newer
    assert remote.chosen([copied]) is copied
    assert isinstance(remote.chosen([copied, second]), Line)
    assert isinstance(remote.chosen([]), Line)
