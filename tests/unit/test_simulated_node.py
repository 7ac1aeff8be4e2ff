"""The simulated node: it is like the kernel driver's, it breaks and heals, and it touches nothing else."""

from __future__ import annotations

import argparse
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_dra.core import catalogue
from neuron_dra.core.catalogue import Platform
from neuron_dra.errors import NeuronDraError
from neuron_dra.testing import fake_node, fake_node_command

REPOSITORY = Path(__file__).resolve().parents[2]
CLASS = "sys/class/neuron_device"


def content(root: Path) -> dict[str, tuple[str, int]]:
    """Every regular file below `root` outside dev and proc: its text and its mode."""
    return {
        str(path.relative_to(root)): (path.read_text(), stat.S_IMODE(path.stat().st_mode))
        for path in sorted((root / "sys").rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def class_files(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (root / CLASS).iterdir() if path.is_file()}


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    fake_node_command.add_arguments(parser)
    return fake_node_command.run(parser.parse_args(words))


def test_the_files_have_the_kernel_drivers_quirks(tmp_path: Path) -> None:
    folder = fake_node.write(tmp_path, "trn2.48xlarge", major=511).folder(0)
    assert (folder / "core_count").read_text() == "8"
    assert (folder / "connected_devices").read_text() == "12, 1, 3, 4\n"
    assert (folder / "dev").read_text() == "511:0\n"
    assert (folder / "info/architecture/arch_type").read_text() == "NDv3\n"
    assert (tmp_path / "sys/class/dmi/id/product_name").read_text() == "trn2.48xlarge\n"
    assert os.readlink(tmp_path / CLASS / "neuron0") == "../../devices/virtual/neuron_device/neuron0"


@pytest.mark.parametrize(
    ("instance_type", "device_id", "text"),
    [
        ("trn1.32xlarge", 0, "12, 3, 4, 1\n"),
        ("inf2.24xlarge", 0, "1\n"),
        ("inf2.48xlarge", 0, "11, 1\n"),
        ("trn1.2xlarge", 0, "\n"),
        ("trn3.48xlarge", 0, "12, 1, 3, 4\n"),  # a switch, and yet the driver prints a torus
        ("trn3e.24xlarge", 0, "\n"),
    ],
)
def test_neighbours_are_printed_in_the_drivers_order(
    tmp_path: Path, instance_type: str, device_id: int, text: str
) -> None:
    node = fake_node.write(tmp_path, instance_type)
    assert (node.folder(device_id) / "connected_devices").read_text() == text


@pytest.mark.parametrize(("version", "mode"), [("2.27.4.0", 0o400), ("2.28.0.0", 0o444)])
def test_drivers_before_2_28_show_core_counts_to_root_only(tmp_path: Path, version: str, mode: int) -> None:
    node = fake_node.write(tmp_path, "trn2.48xlarge", driver_version=version)
    node.break_link(0, 1)
    for name in ("core_count", "connected_devices"):
        assert stat.S_IMODE((node.folder(0) / name).stat().st_mode) == mode


@pytest.mark.parametrize(("version", "there"), [("2.29.0.0", False), ("2.30.2.0", True), ("2.x.8072.0", False)])
def test_sick_components_are_told_from_driver_2_30_2_on(tmp_path: Path, version: str, there: bool) -> None:
    folder = fake_node.write(tmp_path, "trn2.48xlarge", driver_version=version).folder(0)
    assert (folder / "stats/hardware/health_status/unhealthy_components").exists() == there


UNSET = {"node_id_2": "-1\n", "node_id_4": "-1\n", "server_id_2": "0" * 16 + "\n", "server_id_4": "0" * 16 + "\n"}
PROFILE = {"hbm_7200_capable": "0\n", "current_perf_profile": "0\n"}


def test_old_drivers_have_ultraserver_files_on_every_machine_and_new_ones_do_not(tmp_path: Path) -> None:
    fake_node.write(tmp_path, "trn1.32xlarge", driver_version="2.25.4.0")
    assert class_files(tmp_path) == {**UNSET, "ultraserver_mode": "\n"}
    fake_node.write(tmp_path, "trn1.32xlarge", driver_version="2.27.4.0")
    assert class_files(tmp_path) == PROFILE


@pytest.mark.parametrize("position", range(4))
def test_nodes_of_a_trn2_ultraserver_are_numbered_as_after_an_election(tmp_path: Path, position: int) -> None:
    fake_node.write(tmp_path, "trn2u.48xlarge", node_id=position, server_id="00000000000000a4")
    assert class_files(tmp_path) == {
        **PROFILE,
        "node_id_2": f"{position % 2}\n",
        "node_id_4": f"{position}\n",
        "server_id_2": "00000000000000a4\n" if position < 2 else "00000000000000a3\n",
        "server_id_4": "00000000000000a4\n",
        "ultraserver_mode": "1,3,4\n",
    }


def test_nodes_of_a_trn3_ultraserver_share_a_reservation(tmp_path: Path) -> None:
    fake_node.write(tmp_path, "trn3.48xlarge", node_id=2, server_id="a4")
    assert class_files(tmp_path) == {
        **PROFILE,
        "node_id": "2\n",
        "node_cnt": "4\n",
        "reservation_id": "00000000000000a4\n",
        "ultraserver_mode": "1,3,4\n",
    }


def test_an_ultraserver_node_without_a_place_is_a_single_node(tmp_path: Path) -> None:
    fake_node.write(tmp_path, "trn2u.48xlarge")
    assert class_files(tmp_path) == {**UNSET, **PROFILE, "ultraserver_mode": "4\n"}


def test_every_fault_heals_to_the_very_same_files(tmp_path: Path) -> None:
    fake_node.write(tmp_path, "trn2u.48xlarge", node_id=1)
    before = content(tmp_path)
    for fault in ("link:0,1", "device:3", "busy", "ecc:2", "reset:5", "components:7,hbm,sram"):
        command("--root", str(tmp_path), "--break", fault)
        assert content(tmp_path) != before, fault
        command("--root", str(tmp_path), "--repair", fault.partition(",hbm")[0])
        assert content(tmp_path) == before, fault
    assert sorted(path.name for path in (tmp_path / "dev").iterdir()) == sorted(f"neuron{i}" for i in range(16))


def test_a_broken_link_is_missing_on_both_ends_and_a_one_sided_one_on_one(tmp_path: Path) -> None:
    node = fake_node.write(tmp_path, "trn2.48xlarge")
    node.break_link(0, 1)
    assert (node.folder(0) / "connected_devices").read_text() == "12, 3, 4\n"
    assert (node.folder(1) / "connected_devices").read_text() == "13, 5, 2\n"
    node.set_link(0, 1, up=True)
    assert (node.folder(0) / "connected_devices").read_text() == "12, 1, 3, 4\n"
    assert (node.folder(1) / "connected_devices").read_text() == "13, 5, 2\n"


@pytest.mark.parametrize("gone", [0, 1])
def test_a_link_breaks_on_both_ends_or_not_at_all(tmp_path: Path, gone: int) -> None:
    node = fake_node.write(tmp_path, "trn2.48xlarge")
    node.remove_device(gone)
    before = content(tmp_path)
    with pytest.raises(NeuronDraError, match=f"has no connected_devices of neuron{gone}"):
        node.break_link(0, 1)
    assert content(tmp_path) == before


def test_while_the_election_runs_numbers_are_busy_and_ids_are_zeros(tmp_path: Path) -> None:
    node = fake_node.write(tmp_path, "trn2u.48xlarge", node_id=0)
    node.busy()
    texts = {name: text for name, text in class_files(tmp_path).items() if not name.startswith(".")}
    assert texts == {
        **PROFILE,
        **UNSET,
        **dict.fromkeys(("node_id_2", "node_id_4", "ultraserver_mode"), "busy\n"),
    }


def test_a_removed_device_leaves_no_trace_and_comes_back_with_its_numbers(tmp_path: Path) -> None:
    node = fake_node.write(tmp_path, "trn2.48xlarge", major=511)
    node.remove_device(3)
    assert node.device_ids() == [i for i in range(16) if i != 3]
    assert not (tmp_path / "dev/neuron3").exists()
    assert not node.folder(3).exists()
    node.restore_device(3)
    assert node.device_ids() == list(range(16))
    assert (node.folder(3) / "dev").read_text() == "511:3\n"


def test_files_are_changed_in_place_so_that_binds_see_it(tmp_path: Path) -> None:
    node = fake_node.write(tmp_path, "trn2u.48xlarge", node_id=0)
    watched = (tmp_path / CLASS / "ultraserver_mode", node.folder(0) / "connected_devices")
    inodes = [path.stat().st_ino for path in watched]
    node.set_modes("4")
    node.break_link(0, 1)
    assert [path.stat().st_ino for path in watched] == inodes


def test_writing_again_replaces_the_node_and_spares_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/project").write_text("mine")
    fake_node.write(tmp_path, "trn2u.48xlarge", node_id=0)
    node = fake_node.write(tmp_path, "inf2.24xlarge")
    assert node.device_ids() == list(range(6))
    assert sorted(path.name for path in (tmp_path / "dev").iterdir()) == [*(f"neuron{i}" for i in range(6)), "project"]
    assert class_files(tmp_path) == PROFILE


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--instance-type", "p5.48xlarge"], "instance type p5.48xlarge is not in the catalogue"),
        (["--instance-type", "trn1.2xlarge", "--node-id", "0"], "--node-id is for UltraServer types"),
        (["--instance-type", "trn2u.48xlarge", "--node-id", "4"], "--node-id 4: write 0, 1, 2 or 3"),
        (["--instance-type", "trn2u.48xlarge", "--node-id", "0", "--server-id", "xyz"], "write at most 16 hex digits"),
        (
            ["--instance-type", "trn2u.48xlarge", "--node-id", "0", "--server-id", "00"],
            "stands for no server; write one above 1",
        ),
        ([], "--instance-type is required"),
        (["--break", "busy"], "holds no simulated node"),
        (["--repair", "modes:4"], "holds no simulated node"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    with pytest.raises(NeuronDraError) as refused:
        command("--root", str(tmp_path), *words)
    assert sentence in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("link:0,5", "neuron0 and neuron5 of trn1.32xlarge have no link; neuron0 has links to 12, 3, 4, 1"),
        ("device:16", "has no dev of neuron16; it has neuron0 to neuron15"),
        ("modes:4", "trn1.32xlarge has no UltraServer modes"),
        ("cable:1", "'cable:1' is not one of: link:A,B device:N"),
        ("link:1", "'link:1' is not one of: link:A,B"),
        ("components:0,hbm", "unhealthy_components of neuron0"),
        ("ecc:0,luck", "luck is no counter; write sram_ecc_uncorrected"),
    ],
)
def test_a_fault_that_the_machine_cannot_have_is_refused(tmp_path: Path, fault: str, sentence: str) -> None:
    fake_node.write(tmp_path, "trn1.32xlarge")
    before = content(tmp_path)
    with pytest.raises(NeuronDraError) as refused:
        command("--root", str(tmp_path), "--break", fault)
    assert sentence in str(refused.value)
    assert content(tmp_path) == before


def test_the_machines_own_root_is_refused() -> None:
    with pytest.raises(NeuronDraError, match="/ is the root of a real machine"):
        fake_node.write("/", "trn2.48xlarge")


def test_device_files_are_character_devices_where_that_is_allowed(tmp_path: Path) -> None:
    fake_node.write(tmp_path, "trn1.2xlarge", major=511)
    status = (tmp_path / "dev/neuron0").stat()
    if stat.S_ISCHR(status.st_mode):
        assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (511, 0)
    else:
        assert os.geteuid() != 0 or not can_mknod(tmp_path)
        assert stat.S_ISREG(status.st_mode)


def can_mknod(folder: Path) -> bool:
    try:
        os.mknod(folder / "probe", stat.S_IFCHR | 0o600, os.makedev(511, 0))
    except OSError:
        return False
    return True


def test_it_runs_on_a_python_that_has_nothing_installed(tmp_path: Path) -> None:
    words = ["--instance-type", "trn2.48xlarge", "--root", str(tmp_path)]
    # -I -S: no environment, no site-packages; only the standard library and the repository are importable.
    code = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); import runpy; "
        f"sys.argv = ['fake-node', *{words!r}]; runpy.run_module('neuron_dra.testing.fake_node', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}: trn2.48xlarge, 16 devices, driver 2.30.2.0\n"


def test_a_node_of_every_kind_can_be_written(tmp_path: Path) -> None:
    names = {(spec.generation, spec.platform, spec.device_count): spec.name for spec in catalogue.all_types()}
    for name in names.values():  # one of each kind: names that are alike have the same files
        node = fake_node.write(tmp_path, name)
        spec = catalogue.lookup(name)
        assert spec is not None
        assert (node.instance_type, node.device_ids()) == (name, list(range(spec.device_count)))
        assert (tmp_path / CLASS / "ultraserver_mode").exists() == (spec.platform is not Platform.STANDARD)
