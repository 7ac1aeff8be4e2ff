"""The wheel that the image installs: its contents, and no conflict of its second package."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from neuron_dra import __version__

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


def test_package_controller_is_ours(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = "import importlib.metadata as m; print(m.packages_distributions()['controller'])"
    # -S: nothing but the wheel and the standard library is on the path.
    ran = subprocess.run(
        [sys.executable, "-S", "-c", program], env={"PYTHONPATH": str(tmp_path)}, check=True, capture_output=True
    )
    assert ran.stdout.decode().strip() == "['neuron-dra']"


def test_wheel_has_two_packages_and_data_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"neuron_dra", "controller", f"neuron_dra-{version()}.dist-info"}
    assert "neuron_dra/data/instances.toml" in names
    assert "neuron_dra/demo/examples/1x4-connected-devices.yaml" in names
    assert "neuron_dra/demo/examples/ultraservers/my-training-job.yaml" in names
    assert not [name for name in names if name.endswith((".pyc", ".so"))]


def test_wheel_installs_both_plugin_commands(wheel: Path) -> None:
    scripts = zipfile.ZipFile(wheel).read(f"neuron_dra-{version()}.dist-info/entry_points.txt").decode()
    assert "k8s-neuron-dra-driver = neuron_dra.cli:plugin_main" in scripts
    assert "neuron-dra = neuron_dra.cli:main" in scripts


def test_dependencies_are_locked_with_hashes() -> None:
    locked = (ROOT / "requirements/plugin.txt").read_text()
    pinned = set(re.findall(r"^([a-z0-9._-]+)==", locked, re.MULTILINE))
    declared = re.search(r"^dependencies = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert declared is not None
    wanted = set(re.findall(r'"([A-Za-z0-9._-]+)', declared[1]))
    assert wanted - pinned == set()
    blocks = re.split(r"^(?=[a-z0-9._-]+==)", locked, flags=re.MULTILINE)[1:]
    assert [block.split("==")[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_version_is_in_one_place() -> None:
    """The chart's is compared with the program's in test_chart.py."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"] == {"path": "neuron_dra/__init__.py"}


def version() -> str:
    return __version__
