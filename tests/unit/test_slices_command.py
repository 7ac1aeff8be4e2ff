"""`neuron-dra fake-node` and `neuron-dra slices` on the command line."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_dra import cli
from neuron_dra.emulation.simulated_node import SimulatedNode
from tests.support import fast_yaml

ROOT = Path(__file__).parents[2]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run the command line and return exit code, output and error output."""
    try:
        code = cli.main([str(argument) for argument in arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def trn2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    code, out, err = run(capsys, "fake-node", "--instance-type", "trn2.48xlarge", "--root", tmp_path / "n")
    assert (code, out, err) == (0, f"{tmp_path}/n: trn2.48xlarge, 16 devices, driver 2.30.2.0\n", "")
    return tmp_path / "n"


def test_yaml_and_json_have_equal_content(trn2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, as_yaml, err = run(capsys, "slices", "--host-root", trn2, "--node-name", "a")
    assert (code, err) == (0, "")
    _, as_json, _ = run(capsys, "slices", "--host-root", trn2, "--node-name", "a", "-o", "json")
    said = fast_yaml.load(as_yaml)
    assert said == json.loads(as_json)
    assert (said["apiVersion"], said["kind"]) == ("v1", "List")
    (item,) = said["items"]
    assert item["metadata"] == {"name": "a-neuron.aws.com-00"}
    assert item["spec"]["nodeName"] == item["spec"]["pool"]["name"] == "a"
    assert [device["name"] for device in item["spec"]["devices"]] == [f"neuron-device-{n}" for n in range(16)]


@pytest.mark.parametrize("version", ["2.x.7693.0", ""])
def test_version_of_the_kernel_driver_is_a_text(trn2: Path, capsys: pytest.CaptureFixture[str], version: str) -> None:
    """Public builds have such versions: one is published as it is, and none is left out."""
    (trn2 / "sys/module/neuron/version").write_text(f"{version}\n")
    _, out, _ = run(capsys, "slices", "--host-root", trn2, "--node-name", "a")
    (item,) = fast_yaml.load(out)["items"]
    found = [device["attributes"].get("neuronDriverVersion") for device in item["spec"]["devices"]]
    assert found == [{"string": version} if version else None] * 16


def test_a_table_is_aligned_and_cuts_nothing(trn2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "slices", "--host-root", trn2, "--node-name", "a", "-otable")
    lines = out.splitlines()
    header = lines[0]
    assert header.split() == ["DEVICE", "TYPE", "CORES", "MEMORY", "ROW", "COLUMN", "GROUP4", "GROUP8", "EFA"]
    assert len(lines) == 17
    starts = [header.index(title) for title in header.split()]
    cells = [[line[start:].split()[0] for start in starts] for line in lines[1:]]
    assert cells[5] == [
        "neuron-device-5",
        "trn2.48xlarge",
        "8",
        "96Gi",
        "1",
        "1",
        "671622785349fddf",
        "3593812b8066a078",
        "0000:57:00.0",
    ]
    assert not any(line != line.rstrip() for line in lines)


@pytest.mark.parametrize("columns", [200, 60])
def test_terminal_table_is_not_truncated(trn2: Path, columns: int) -> None:
    here, there = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "neuron_dra.cli",
        "slices",
        "--host-root",
        str(trn2),
        "--node-name",
        "a",
        "-otable",
    ]
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=there, env=environment, cwd=trn2) as process:
        os.close(there)
        shown = b""
        try:
            while chunk := os.read(here, 65536):
                shown += chunk
        except OSError:
            pass  # the error of Linux when the other end is closed
        assert process.wait(120) == 0
    os.close(here)
    text = shown.decode()
    assert "…" not in text
    assert ("\x1b[" in text) is (columns == 200), "in colour where it fits"
    assert text.count("13713e551cd37c19") == 4
    assert text.count("neuron-device-") == 16


def test_an_ultraserver_node_shows_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(
        capsys,
        *("fake-node", "--instance-type", "trn2u.48xlarge", "--root", tmp_path),
        *("--node-id", 2, "--server-id", "5A7B1C2D3E4F6070"),
    )
    _, out, err = run(capsys, "slices", "--host-root", tmp_path, "--node-name", "a", "-o", "table")
    assert err == ""
    assert [line.split() for line in out.splitlines()] == [
        ["DEVICE", "TYPE", "CORES", "MEMORY", "ULTRASERVER", "NODE", "MODES", "LINKS"],
        [
            *("neuron-node-0", "trn2u.48xlarge", "128", "1536Gi"),
            *("5a7b1c2d3e4f6070", "2", "1,2,4", "vertical,horizontal"),
        ],
    ]


def test_capacity_block_comes_from_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(
        capsys,
        *("fake-node", "--instance-type", "trn3.48xlarge", "--root", tmp_path),
        *("--node-id", 0, "--capacity-block-id", "cr-1"),
    )
    label = out.splitlines()[1].removeprefix("label the Node: ")
    assert label == "topology.k8s.aws/capacity-block-id=cr-1"
    _, out, _ = run(capsys, "slices", "--host-root", tmp_path, "--node-name", "a", "--labels", label, "-o", "json")
    attributes = json.loads(out)["items"][0]["spec"]["devices"][0]["attributes"]
    assert attributes["ultraserverId"] == attributes["capacityBlockId"] == {"string": "cr-1"}


def test_ultraserver_node_can_show_its_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "fake-node", "--instance-type", "trn2u.48xlarge", "--root", tmp_path)
    _, out, _ = run(
        capsys,
        *("slices", "--host-root", tmp_path, "--node-name", "a"),
        *("--ultraserver-devices", "devices", "-o", "table"),
    )
    lines = out.splitlines()
    assert len(lines) == 17
    assert lines[1].split()[-2:] == ["1", "none"], "a single node has no links"


def test_unhealthy_devices_are_shown_as_published(
    trn2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = SimulatedNode(trn2)
    node.add_ecc(5)
    node.set_unhealthy_components(5, "link_efa")
    _, out, _ = run(capsys, "slices", "--host-root", trn2, "--node-name", "a", "-ojson")
    device = json.loads(out)["items"][0]["spec"]["devices"][5]
    assert device["attributes"]["unhealthy"] == {"string": "hbm_ecc,link_efa"}
    assert [taint["value"] for taint in device["taints"]] == ["hbm_ecc", "link_efa"]
    _, out, _ = run(capsys, "slices", "--host-root", trn2, "--node-name", "a", "-otable")
    assert [line.split()[-1] for line in out.splitlines()[:7:6]] == ["SICK", "hbm_ecc,link_efa"]

    run(capsys, "fake-node", "--instance-type", "trn2u.48xlarge", "--root", tmp_path / "u")
    SimulatedNode(tmp_path / "u").remove_device(7)
    _, out, _ = run(capsys, "slices", "--host-root", tmp_path / "u", "--node-name", "a", "-otable")
    assert [line.split()[-1] for line in out.splitlines()] == ["SICK", "missing"]


def test_connected_sets_are_shown_with_counters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """16.1: on a ring the sets with an unhealthy device are unhealthy too."""
    run(capsys, "fake-node", "--instance-type", "inf2.24xlarge", "--root", tmp_path)
    run(capsys, "fake-node", "--root", tmp_path, "--break", "ecc:2")
    asked = ("slices", "--host-root", tmp_path, "--node-name", "a", "--connected-sets", "-ojson")
    code, out, err = run(capsys, *asked)
    assert (code, err) == (0, "")
    *of_devices, of_counters = json.loads(out)["items"]
    assert [item["metadata"]["name"] for item in of_devices] == ["a-neuron.aws.com-00"]
    assert of_counters["metadata"]["name"] == "a-neuron.aws.com-01"
    assert [each["name"] for each in of_counters["spec"]["sharedCounters"]] == ["devices", "cores-0"]
    devices = {device["name"]: device for device in of_devices[0]["spec"]["devices"]}
    sick = [name for name, device in devices.items() if "unhealthy" in device["attributes"]]
    with_device_2 = ["neuron-set-2-1", "neuron-set-2-2", "neuron-set-3-0", "neuron-set-3-2", "neuron-set-6-0"]
    assert set(with_device_2) <= set(sick)
    assert not {"neuron-device-1", "neuron-set-2-0", "neuron-set-3-3", "neuron-cores-1-0"} & set(sick)
    assert devices["neuron-set-2-1"]["consumesCounters"] == [
        {"counterSet": "devices", "counters": {"device-1": {"value": "2"}, "device-2": {"value": "2"}}}
    ]


def test_omitted_sets_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """16.1."""
    run(capsys, "fake-node", "--instance-type", "inf1.24xlarge", "--root", tmp_path)
    _, _, err = run(capsys, "slices", "--host-root", tmp_path, "--node-name", "a", "--connected-sets", "-ojson")
    assert err.startswith(
        "neuron-dra: left out, as a node publishes 511 devices: cores-17, cores-18, cores-19, cores-21, "
    )


def test_findings_go_to_standard_error(trn2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "fake-node", "--root", trn2, "--break", "link:0,1", "--break", "device:9")
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"{trn2}: broke link:0,1", f"{trn2}: broke device:9"]
    code, out, err = run(capsys, "slices", "--host-root", trn2, "--node-name", "a", "-o", "table")
    assert code == 0
    assert len(out.splitlines()) == 16
    assert [line.split(":")[0] for line in err.splitlines()] == ["neuron-dra", "neuron-dra"]
    assert "neuron9 of trn2.48xlarge's 16 devices is missing" in err
    assert "the link between neuron0 and neuron1 is down" in err


@pytest.mark.parametrize(
    "what", ["link:0,1", "device:9", "ecc:3", "ecc:3,sram_ecc_uncorrected", "reset:2", "components:0,hbm,link_host"]
)
def test_repair_accepts_the_break_arguments(trn2: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    before = {path: path.read_bytes() for path in trn2.rglob("*") if path.is_file()}
    assert run(capsys, "fake-node", "--root", trn2, "--break", what)[0] == 0
    assert {path: path.read_bytes() for path in trn2.rglob("*") if path.is_file()} != before
    assert run(capsys, "fake-node", "--root", trn2, "--repair", what) == (0, f"{trn2}: repaired {what}\n", "")
    assert {path: path.read_bytes() for path in trn2.rglob("*") if path.is_file()} == before


def test_a_node_can_be_written_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("fake-node", "--instance-type", "trn2u.48xlarge", "--root", tmp_path, "--break", "busy")
    assert run(capsys, *arguments)[0] == 0
    assert (tmp_path / "sys/class/neuron_device/ultraserver_mode").read_text() == "busy\n"
    assert run(capsys, "fake-node", "--root", tmp_path, "--repair", "busy", "--break", "modes:3,4")[0] == 0
    assert (tmp_path / "sys/class/neuron_device/ultraserver_mode").read_text() == "3,4\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--root", "X"],
            "neuron-dra: --instance-type is required, or --break, --repair, --unload or --loading for an existing node",
        ),
        (["--instance-type", "trn2.48xlarge"], "the following arguments are required: --root"),
        (["--instance-type", "trn2.84xlarge", "--root", "X"], "did you mean trn2.48xlarge"),
        (["--instance-type", "trn2.48xlarge", "--root", "/"], "is the root of a real machine"),
        (["--instance-type", "trn2u.48xlarge", "--root", "X", "--node-id", "two"], "invalid int value: 'two'"),
        (["--root", "X", "--break", "link:0,1"], "has no simulated node"),
        (
            ["--instance-type", "trn1.2xlarge", "--root", "X", "--break", "lnik:0,1"],
            "'lnik:0,1' is not one of: link:A,B",
        ),
        (["--instance-type", "trn1.2xlarge", "--root", "X", "--break", "link:0"], "'link:0' is not one of"),
        (["--instance-type", "trn1.2xlarge", "--root", "X", "--break", "device"], "'device' is not one of"),
        (["--instance-type", "trn1.2xlarge", "--root", "X", "--break", "link:0,1"], "have no link"),
        (
            ["--instnce-type", "trn1.2xlarge", "--root", "X"],
            "unknown flag --instnce-type; did you mean --instance-type?",
        ),
        (["--root", "X", "--instance-type", "trn1.2xlarge", "more"], "unexpected argument 'more'"),
        (["--root", "X", "--instance", "trn1.2xlarge"], "unknown flag --instance"),
    ],
)
def test_fake_node_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    code, _, err = run(capsys, "fake-node", *[str(tmp_path / "n") if word == "X" else word for word in arguments])
    assert code in (1, 2)
    assert len(err.splitlines()) == 1
    assert line in err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "the following arguments are required: --node-name"),
        (["--node-name", "a", "--host-root", "X/missing"], "is no folder"),
        (["--node-name", "a", "-o", "xml"], "invalid choice: 'xml'; choose from yaml, json, table"),
        (["--node-name", "a", "--labels", "zone"], "--labels zone: write key=value"),
        (["--node-name", "a", "--node-label", "x=y"], "unknown flag --node-label; did you mean --node-name?"),
    ],
)
def test_slices_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    code, out, err = run(capsys, "slices", *[word.replace("X", str(tmp_path)) for word in arguments])
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert line in err


def test_no_devices_is_an_error_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "slices", "--host-root", tmp_path, "--node-name", "a", "-o", "json")
    assert code == 0
    assert "devices" not in json.loads(out)["items"][0]["spec"]
    assert "is this a Neuron node?" in err
    assert len(err.splitlines()) == 1
    _, out, _ = run(capsys, "slices", "--host-root", tmp_path, "--node-name", "a", "-o", "table")
    assert out == "DEVICE\n"


@pytest.mark.parametrize("command", ["plugin", "fake-node", "slices"])
def test_help_explains_every_flag(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"usage: neuron-dra {command}" in out
    options = out.split("options:")[1].split("\nbreaking")[0]
    for part in options.split("\n  -")[1:]:
        assert len(" ".join(part.split()).split(" ")) > 2, f"says nothing: {part}"


def test_fake_node_help_lists_all_faults(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "fake-node", "--help")
    for word in (
        "link:A,B",
        "device:N",
        "busy",
        "ecc:N",
        "reset:N",
        "components:N",
        "modes:LIST",
        "--repair",
        "examples",
    ):
        assert word in out
    assert max(map(len, out.splitlines())) <= 120


def test_no_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "COMMAND" in err


def test_node_with_removed_devices_is_found(trn2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "fake-node", "--root", trn2, "--break", "device:0")
    assert SimulatedNode.found(trn2).device_ids() == list(range(1, 16))
