"""`ibv_devices` of rdma-core lists the interfaces whose device files a container has, and no others (4.10).

It reads the simulated sysfs, by SYSFS_PATH. The tests run where rdma-core, with its provider for EFA, is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from neuron_dra.emulation.simulated_efa import EfaTree, rdma_name

pytestmark = pytest.mark.skipif(
    shutil.which("ibv_devices") is None or os.geteuid() != 0, reason="needs root and ibv_devices of rdma-core"
)


def listed(tree: EfaTree, numbers: list[int]) -> set[str]:
    """Return what ibv_devices lists in a mount namespace whose /dev has only these uverbs devices."""
    dev = tree.root / "container-dev"
    (dev / "infiniband").mkdir(parents=True)
    for number in numbers:
        os.mknod(dev / "infiniband" / f"uverbs{number}", 0o020666, tree.file(number).stat().st_rdev)
    # The tree may be in /dev/shm, which the second mount hides.
    mounts = f"mount --bind {tree.root} /mnt && mount --bind /mnt/{dev.name} /dev"
    script = f"{mounts} && SYSFS_PATH=/mnt/sys exec ibv_devices"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines()[2:]}


@pytest.mark.parametrize("numbers", [[], [0], [0, 3], list(range(16))], ids=str)
def test_container_sees_the_interfaces_of_its_files(numbers: list[int], tmp_path: Path) -> None:
    tree = EfaTree.write(tmp_path, "trn2.48xlarge")
    names = {function: rdma_name(function) for function in tree.functions}
    assert listed(tree, numbers) == {name for function, name in names.items() if tree.number_of(function) in numbers}


def test_container_sees_the_same_interface_after_a_reload(tmp_path: Path) -> None:
    tree = EfaTree.write(tmp_path, "trn2.48xlarge")
    function = tree.functions[2]
    tree.renumber(5)
    assert listed(tree, [tree.number_of(function)]) == {rdma_name(function)}
