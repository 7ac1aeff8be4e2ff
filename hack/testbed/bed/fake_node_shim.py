"""Stands in for neuron_dra.testing.fake_node until that lands; the same calls, fewer files."""

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

COUNTS = {"trn1.2xlarge": 1, "trn1.32xlarge": 16, "trn2.48xlarge": 16, "trn2u.48xlarge": 16}
ULTRA = {"trn2u.48xlarge"}


def neighbours(i, count):
    if count == 1:
        return []
    r, c = divmod(i, 4)
    return sorted({((r + 1) % 4) * 4 + c, ((r - 1) % 4) * 4 + c, r * 4 + (c + 1) % 4, r * 4 + (c - 1) % 4})


@dataclass
class FakeNode:
    root: Path

    @property
    def virtual(self):
        return self.root / "sys/devices/virtual/neuron_device"

    def _links(self, i):
        text = (self.virtual / f"neuron{i}/connected_devices").read_text().strip()
        return [int(part) for part in text.split(", ")] if text else []

    def _write_links(self, i, links):
        (self.virtual / f"neuron{i}/connected_devices").write_text(", ".join(map(str, links)) + "\n")

    def break_link(self, a, b):
        for one, other in ((a, b), (b, a)):
            self._write_links(one, [x for x in self._links(one) if x != other])

    def repair_link(self, a, b):
        for one, other in ((a, b), (b, a)):
            self._write_links(one, sorted({*self._links(one), other}))

    def remove_device(self, i):
        (self.root / "gone").mkdir(exist_ok=True)
        shutil.move(self.virtual / f"neuron{i}", self.root / "gone" / f"neuron{i}")
        (self.root / f"sys/class/neuron_device/neuron{i}").unlink()
        (self.root / f"dev/neuron{i}").unlink()

    def restore_device(self, i):
        shutil.move(self.root / "gone" / f"neuron{i}", self.virtual / f"neuron{i}")
        os.symlink(f"../../devices/virtual/neuron_device/neuron{i}", self.root / f"sys/class/neuron_device/neuron{i}")
        self._node(i)

    def _node(self, i):
        major = int((self.virtual / f"neuron{i}/dev").read_text().split(":")[0])
        os.mknod(self.root / f"dev/neuron{i}", stat.S_IFCHR | 0o666, os.makedev(major, i))

    def add_ecc(self, i, counter, n):
        path = self.virtual / f"neuron{i}/stats/hardware/{counter}"
        path.write_text(f"{int(path.read_text()) + n}\n")

    def set_boot_id(self, boot_id):
        (self.root / "proc/sys/kernel/random/boot_id").write_text(boot_id + "\n")


def write(
    root,
    instance_type,
    *,
    node_id=None,
    server_id=None,
    capacity_block_id=None,
    driver_version="2.30.2.0",
    boot_id=None,
    major=243,
):
    node = FakeNode(Path(root))
    count = COUNTS[instance_type]
    for name in (
        "sys/class/neuron_device",
        "sys/class/dmi",
        "sys/devices/virtual/dmi/id",
        "sys/module/neuron",
        "dev",
        "proc/sys/kernel/random",
    ):
        (node.root / name).mkdir(parents=True, exist_ok=True)
    (node.root / "sys/devices/virtual/dmi/id/product_name").write_text(instance_type + "\n")
    os.symlink("../../devices/virtual/dmi/id", node.root / "sys/class/dmi/id")
    (node.root / "sys/module/neuron/version").write_text(driver_version + "\n")
    node.set_boot_id(boot_id or "x")
    for i in range(count):
        base = node.virtual / f"neuron{i}"
        (base / "stats/hardware").mkdir(parents=True)
        (base / "dev").write_text(f"{major}:{i}\n")
        (base / "core_count").write_text("8")
        node._write_links(i, neighbours(i, count))
        for counter in ("sram_ecc_uncorrected", "mem_ecc_uncorrected"):
            (base / "stats/hardware" / counter).write_text("0\n")
        os.symlink(f"../../devices/virtual/neuron_device/neuron{i}", node.root / f"sys/class/neuron_device/neuron{i}")
        node._node(i)
    if instance_type in ULTRA:
        own = node.root / "sys/class/neuron_device"
        values = {
            "node_id_4": node_id,
            "node_id_2": node_id % 2,
            "server_id_4": server_id,
            "server_id_2": server_id,
            "ultraserver_mode": "1,3,4",
        }
        for name, value in values.items():
            (own / name).write_text(f"{value}\n")
    return node
