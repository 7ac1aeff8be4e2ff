"""Reading sysfs: a value, busy or unknown, and never a wrong value or an exception."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from neuron_dra.core.facts import DeviceFacts, NodeFacts, UltraServerFacts, Unread
from neuron_dra.core.kernel_driver import DriverState
from neuron_dra.emulation import simulated_node
from neuron_dra.node.hardware import sysfs

BUSY, UNKNOWN = Unread.BUSY, Unread.UNKNOWN


@pytest.fixture
def root(tmp_path: Path) -> Path:
    simulated_node.write(tmp_path, "trn2u.48xlarge", node_id=2, server_id="5a7b1c2d3e4f6070")
    return tmp_path


def device_file(root: Path, name: str, device_id: int = 0) -> Path:
    return root / simulated_node.DEVICES / f"neuron{device_id}" / name


def class_file(root: Path, name: str) -> Path:
    return root / simulated_node.CLASS / name


def put(path: Path, content: bytes | str) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def device(root: Path, device_id: int = 0) -> DeviceFacts:
    return sysfs.read_node(root).devices[device_id]


def test_a_simulated_node_is_read_whole(root: Path) -> None:
    read = sysfs.read_node(root)
    assert (read.product_name, read.driver_version) == ("trn2u.48xlarge", "2.30.2.0")
    assert [each.device_id for each in read.devices] == list(range(16))
    assert read.ultraserver == UltraServerFacts(
        modes=(1, 3, 4), node_id_2=0, node_id_4=2, server_id_2="5a7b1c2d3e4f606f", server_id_4="5a7b1c2d3e4f6070"
    )
    first = read.devices[0]
    assert (first.core_count, first.connected, first.dev) == (8, (12, 1, 3, 4), (simulated_node.DEFAULT_MAJOR, 0))
    assert first.device_file
    assert (first.reset_state, first.unhealthy_components) == (1, ())
    assert (first.sram_ecc_uncorrected, first.mem_ecc_uncorrected) == (0, 0)
    assert re.fullmatch("[0-9a-f]{16}", str(first.serial))


@pytest.mark.parametrize("folder", ["stats/hardware/health_status", "stats/hardware", "health_status"])
def test_heartbeat_is_read(root: Path, folder: str) -> None:
    """14.14."""
    for path in (root / simulated_node.DEVICES).glob("neuron0/**/healthcheck_heartbeat"):
        path.unlink()
    assert device(root).heartbeat is UNKNOWN
    put(device_file(root, f"{folder}/healthcheck_heartbeat"), "7\n")
    assert device(root).heartbeat == 7


def test_empty_root_has_no_values(tmp_path: Path) -> None:
    nothing = NodeFacts(None, None, (), vanished=True, driver_state=DriverState.NOT_LOADED)
    assert sysfs.read_node(tmp_path) == nothing
    assert sysfs.read_node(tmp_path / "missing") == nothing


def test_absent_file_is_unknown(root: Path) -> None:
    for name in ("core_count", "connected_devices", "reset", "stats/hardware/mem_ecc_uncorrected"):
        device_file(root, name).unlink()
    read = device(root)
    assert (read.core_count, read.connected, read.reset_state, read.mem_ecc_uncorrected) == (UNKNOWN,) * 4


def test_busy_is_not_unknown(root: Path) -> None:
    simulated_node.SimulatedNode(root).busy()
    put(device_file(root, "core_count"), "busy\n")
    put(device_file(root, "connected_devices"), "busy\n")
    put(device_file(root, "stats/hardware/health_status/unhealthy_components"), "busy\n")
    read = sysfs.read_node(root)
    assert (read.ultraserver.modes, read.ultraserver.node_id_2, read.ultraserver.node_id_4) == (BUSY,) * 3
    assert (read.ultraserver.server_id_2, read.ultraserver.server_id_4) == (UNKNOWN, UNKNOWN), "zeros meanwhile"
    first = read.devices[0]
    assert (first.core_count, first.connected, first.unhealthy_components) == (BUSY,) * 3


def test_a_node_on_its_own_has_no_ids(tmp_path: Path) -> None:
    simulated_node.write(tmp_path, "trn2u.48xlarge")
    assert sysfs.read_node(tmp_path).ultraserver == UltraServerFacts(modes=(4,))


@pytest.mark.parametrize(("version", "modes"), [("2.24.7.0", ()), ("2.30.2.0", UNKNOWN)])
def test_plain_machine_with_class_files_has_no_place(
    tmp_path: Path, version: str, modes: tuple[int, ...] | Unread
) -> None:
    """Drivers up to 2.26 have the class files of UltraServers on every machine."""
    simulated_node.write(tmp_path, "trn2.48xlarge", driver_version=version)
    assert sysfs.read_node(tmp_path).ultraserver == UltraServerFacts(modes=modes)


@pytest.mark.parametrize(
    ("content", "serial"),
    [("9ff5434815c8bd80\n", "9ff5434815c8bd80"), ("f" * 16, "f" * 16), ("\n", ""), ("", UNKNOWN), ("9ff\n", UNKNOWN)],
)
def test_serial_number_that_is_an_empty_line_is_none(root: Path, content: str, serial: str | Unread) -> None:
    put(device_file(root, "info/serial_number"), content)
    assert device(root).serial == serial
    device_file(root, "info/serial_number").unlink()
    assert device(root).serial is UNKNOWN


@pytest.mark.parametrize(("content", "cores"), [("8", 8), ("8\n", 8), (" 8 \n\n", 8), ("0", UNKNOWN), ("", UNKNOWN)])
def test_a_core_count_may_have_a_newline_or_none(root: Path, content: str, cores: int | Unread) -> None:
    put(device_file(root, "core_count"), content)
    assert device(root).core_count == cores


@pytest.mark.parametrize(
    ("content", "connected"),
    [
        ("12, 1, 3, 4\n", (12, 1, 3, 4)),
        ("12,1\n", (12, 1)),
        ("\n", ()),
        ("", UNKNOWN),
        ("12, \n", UNKNOWN),
        ("12 1\n", UNKNOWN),
        ("-1\n", UNKNOWN),
        ("012\n", UNKNOWN),
        ("99999\n", UNKNOWN),
    ],
)
def test_no_links_differs_from_unknown_links(root: Path, content: str, connected: tuple[int, ...] | Unread) -> None:
    put(device_file(root, "connected_devices"), content)
    assert device(root).connected == connected


@pytest.mark.parametrize(
    ("content", "modes"),
    [
        ("1,3,4\n", (1, 3, 4)),
        ("4\n", (4,)),
        ("\n", ()),
        ("", UNKNOWN),
        ("0\n", UNKNOWN),
        ("1,9\n", (1,)),
        ("x", UNKNOWN),
    ],
)
def test_only_runtime_modes_are_read(root: Path, content: str, modes: tuple[int, ...] | Unread) -> None:
    put(class_file(root, "ultraserver_mode"), content)
    assert sysfs.read_node(root).ultraserver.modes == modes


@pytest.mark.parametrize(
    ("content", "server"),
    [
        ("00000000000000ab\n", "00000000000000ab"),
        ("0" * 16, UNKNOWN),
        ("ab\n", UNKNOWN),
        ("00000000000000AB\n", UNKNOWN),
        ("busy\n", BUSY),
    ],
)
def test_server_id_is_16_hex_digits_not_zero(root: Path, content: str, server: str | Unread) -> None:
    put(class_file(root, "server_id_4"), content)
    assert sysfs.read_node(root).ultraserver.server_id_4 == server


@pytest.mark.parametrize(
    ("content", "components"),
    [
        ("hbm,link_host\n", ("hbm", "link_host")),
        ("\n", ()),
        ("", ()),
        ("hbm,,sram", ("hbm", "sram")),
        ("Hbm!", ("hbm",)),
        ("hbm,link-efa\n", ("hbm", "link_efa")),
        ("HBM\n", ("hbm",)),
        ("hbm-0\n", ("hbm_0",)),
        ("hbm\nsram\n", ("hbm", "sram")),
        ("hbm hbm; HBM\n", ("hbm",)),
        ("??\n", ("other",)),
        (",\n", ("other",)),
        ("0x1f\n", ("0x1f",)),
        ("x" * 70, ("x" * 63,)),
        (" ".join(f"c{number}" for number in range(100)), tuple(f"c{number}" for number in range(32))),
        ("busy\n", BUSY),
    ],
)
def test_unhealthy_components_are_listed(root: Path, content: str, components: tuple[str, ...] | Unread) -> None:
    put(device_file(root, "stats/hardware/health_status/unhealthy_components"), content)
    assert device(root).unhealthy_components == components


@pytest.mark.parametrize("place", ["stats/hardware/unhealthy_components", "health_status/unhealthy_components"])
def test_a_file_is_found_at_its_other_places(root: Path, place: str) -> None:
    device_file(root, "stats/hardware/health_status/unhealthy_components").unlink()
    put(device_file(root, place), "sram\n")
    assert device(root).unhealthy_components == ("sram",)


def test_product_name_is_found_by_class_folder(root: Path) -> None:
    read = root / "sys/devices/virtual/dmi/id/product_name"
    put(root / "other/product_name", read.read_bytes())
    read.unlink()
    (root / "sys/class/dmi/id").unlink()
    (root / "sys/class/dmi/id").symlink_to(root / "other")
    assert sysfs.read_node(root).product_name == "trn2u.48xlarge"


def test_devices_are_in_numeric_order(root: Path) -> None:
    for name in ("neuron", "neuron-1", "neuron01", "neuron٣", "neuronx", "neuron99999", "neuron_core0"):
        class_file(root, name).mkdir()
    assert [device.device_id for device in sysfs.read_node(root).devices] == list(range(16))


def test_device_without_folder_is_unknown(root: Path) -> None:
    link = class_file(root, "neuron16")
    link.symlink_to("../../devices/virtual/neuron_device/neuron16")
    read = sysfs.read_node(root)
    assert read.devices[16] == DeviceFacts(16, device_file=False)


def test_unopenable_file_is_unknown(root: Path) -> None:
    device_file(root, "core_count").unlink()
    device_file(root, "core_count").symlink_to("core_count")  # even root cannot read a loop
    assert device(root).core_count == UNKNOWN


def test_a_folder_in_place_of_a_file_is_unknown(root: Path) -> None:
    device_file(root, "core_count").unlink()
    device_file(root, "core_count").mkdir()
    assert device(root).core_count == UNKNOWN


def test_reset_is_read_and_never_written(root: Path) -> None:
    before = device_file(root, "reset").stat()
    sysfs.read_node(root)
    after = device_file(root, "reset").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def text_of(content: bytes) -> str:
    return content.decode("ascii", errors="replace").strip()


def number_said(content: bytes) -> int | Unread:
    text = text_of(content)
    if text == "busy":
        return BUSY
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else UNKNOWN


SOME = st.binary(max_size=40) | st.sampled_from(
    [
        b"busy",
        b"busy\n",
        b"-1\n",
        b"8",
        b"1, 2",
        b"\x00",
        b"8\x00",
        b"\xff8",
        b"1,3,4\n",
        b"0" * 16,
        b"9" * 30,
        b"8" * 5000,
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(SOME, SOME, SOME, SOME)
@example(b"\xd9\xa3", b"\xd9\xa3", b"\xd9\xa3", b"\xd9\xa3")
def test_random_bytes_never_raise(root: Path, cores: bytes, links: bytes, server: bytes, name: bytes) -> None:
    put(device_file(root, "core_count"), cores)
    put(device_file(root, "stats/hardware/mem_ecc_uncorrected"), cores)
    put(device_file(root, "connected_devices"), links)
    put(device_file(root, "dev"), links)
    put(device_file(root, "info/serial_number"), server)
    put(class_file(root, "server_id_4"), server)
    put(class_file(root, "ultraserver_mode"), links)
    put(class_file(root, "node_id_4"), cores)
    put(root / "sys/devices/virtual/dmi/id/product_name", name)
    put(root / "sys/module/neuron/version", name)
    read = sysfs.read_node(root)
    first = read.devices[0]
    assert first.mem_ecc_uncorrected == read.ultraserver.node_id_4 == number_said(cores)
    if isinstance(first.core_count, int):
        assert first.core_count > 0
        assert first.core_count == number_said(cores)
    if not isinstance(first.connected, Unread):
        assert ",".join(map(str, first.connected)) == "".join(text_of(links).split())
    if not isinstance(read.ultraserver.modes, Unread):
        assert set(read.ultraserver.modes) <= {1, 2, 3, 4}
    for said in (first.serial, read.ultraserver.server_id_4):
        assert isinstance(said, Unread) or (said == text_of(server) and re.fullmatch("[0-9a-f]{16}|", said) is not None)
    for word in (read.product_name, read.driver_version):
        assert word is None or (word == text_of(name) and word.isprintable() and len(word) <= 64)
