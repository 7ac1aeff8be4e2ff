"""The test bed's requirements of cgroup v2, tested on a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.bed import cgroups, layout
from hack.bed.errors import NotPossibleHereError

HERE = layout.Layout("some-bed", True, Path("/nowhere"), Path("/nowhere"))


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    return tmp_path


def test_machine_with_all_controllers_is_accepted(v2: Path) -> None:
    cgroups.check()
    assert cgroups.hierarchies() == [v2]


def test_a_missing_controller_is_named(v2: Path) -> None:
    (v2 / "cgroup.controllers").write_text("cpuset cpu pids\n")
    with pytest.raises(NotPossibleHereError, match=r"cgroup v2 controllers memory, and .* does not offer them"):
        cgroups.check()


def test_controllers_are_enabled_before_the_cgroup(v2: Path) -> None:
    below = v2 / "some-bed"
    below.mkdir()
    (below / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    cgroups.make(HERE, "a")
    assert (v2 / "cgroup.subtree_control").read_text() == "+cpu +cpuset +memory +pids +io +hugetlb"
    assert (below / "cgroup.subtree_control").read_text() == "+cpu +cpuset +memory +pids"
    assert (below / "a").is_dir()


def test_missing_controller_error_has_remedy(v2: Path) -> None:
    (v2 / "cgroup.subtree_control").unlink()
    (v2 / "cgroup.subtree_control").mkdir()  # a write fails, as in a cgroup with processes
    with pytest.raises(NotPossibleHereError, match="--cgroupns=host"):
        cgroups.make(HERE, "a")
