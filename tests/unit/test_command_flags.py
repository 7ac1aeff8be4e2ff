"""Flags that mean the same as in kubectl: -f, -l, -A; and files that `templates write` makes (17.4, 17.8)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from neuron_dra import cli
from neuron_dra.core import labels
from tests.support import cluster_faults as faults
from tests.support import fast_yaml
from tests.support import small_clusters as small

FLEET = ("--fleet", "1 x trn2.48xlarge")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command; the parser exits by itself for a wrong flag."""
    try:
        code = cli.main(words)
    except SystemExit as err:
        code = int(str(err.code))
    done = capsys.readouterr()
    return code, done.out, done.err


def manifest(path: Path, name: str, count: int) -> Path:
    made = small.template(name, count)
    path.write_text(yaml.safe_dump_all([made, small.pod(f"pod-{name}", name)]))
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    items = faults.healthy()
    items += [small.node("c", labels={"pool": "spot"}), *small.slices("c")]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"kind": "List", "items": items}))
    return file


def test_manifests_come_as_arguments_files_or_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    manifest(folder / "a.yaml", "four", 4)
    manifest(folder / "b.yml", "two", 2)
    (folder / "notes.txt").write_text("not a manifest")
    one = manifest(tmp_path / "one.yaml", "one", 1)
    code, out, _ = run(capsys, "simulate", str(one), "-f", str(folder), *FLEET, "-o", "json")
    assert code == 0
    assert [each["pod"] for each in json.loads(out)["items"]] == [
        "default/pod-one",
        "default/pod-four",
        "default/pod-two",
    ]
    assert run(capsys, "validate", "-f", str(folder), "-f", str(one))[0] == 0


@pytest.mark.parametrize("command", ["simulate", "validate"])
def test_without_a_manifest_the_ways_to_one_are_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, command) == (2, "", "neuron-dra: name a manifest: FILE, or -f FILE\n")
    assert run(capsys, command, "-f", str(tmp_path)) == (
        2,
        "",
        f"neuron-dra: {tmp_path}: the folder has no files with .yaml, .yml, .json\n",
    )


@pytest.mark.parametrize(
    ("selector", "nodes"),
    [
        ("pool=spot", ["c"]),
        ("pool!=spot", ["a", "b"]),
        ("kubernetes.io/hostname in (a,c)", ["a", "c"]),
        ("!pool,kubernetes.io/hostname notin (b)", ["a"]),
        ("pool", ["c"]),
        ("", ["a", "b", "c"]),
    ],
)
def test_status_and_topology_show_nodes_with_labels(
    selector: str, nodes: list[str], cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "status", "-l", selector, "--snapshot", str(cluster), "-o", "json")
    assert [node["name"] for node in json.loads(out)["nodes"]] == nodes
    _, out, _ = run(capsys, "status", "-l", selector, "--snapshot", str(cluster))
    lines = out.splitlines()
    row = lines[next(number for number, line in enumerate(lines) if "PUBLISHED" in line) + 1]
    assert row.split()[:3] == ["trn2.48xlarge", str(len(nodes)), str(16 * len(nodes))]
    _, out, _ = run(capsys, "topology", "--fleet", "-l", selector, "--snapshot", str(cluster))
    assert [line.split()[0] for line in out.splitlines() if line.split()[:1] and line.split()[0] in "abc"] == nodes


def test_malformed_selector_is_one_line(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "status", "-l", "pool=(", "--snapshot", str(cluster))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "unable to parse requirement: pool=(" in err


def test_selector_without_nodes_says_so(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "status", "-l", "pool=none", "--snapshot", str(cluster))
    assert out.splitlines()[0].startswith("no Neuron nodes: no selected node")


def test_all_namespaces_and_one_exclude_each_other(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = run(capsys, "status", "-A", "-n", "ml", "--snapshot", str(cluster))
    assert both == (2, "", "neuron-dra: -A and -n: give one of them\n")
    every = run(capsys, "status", "-A", "--snapshot", str(cluster))
    assert every == run(capsys, "status", "--snapshot", str(cluster))


def test_label_selector_of_an_unknown_operator_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a valid selector operator: Near"):
        labels.of_object({"matchExpressions": [{"key": "a", "operator": "Near"}]})


def test_templates_are_written_to_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "templates"
    words = (
        "templates",
        "write",
        "neuron-4-trn2-48xlarge",
        "neuron-1-trn2-48xlarge",
        "--lnc",
        "1",
        "--dir",
        str(folder),
    )
    files = [folder / "neuron-4-trn2-48xlarge-lnc-1.yaml", folder / "neuron-1-trn2-48xlarge-lnc-1.yaml"]
    expected = (0, "".join(f"{file}\n" for file in files), "")
    assert run(capsys, *words) == expected
    assert run(capsys, *words) == expected  # equal files stay
    assert [fast_yaml.load(file.read_text())["metadata"]["name"] for file in files] == [file.stem for file in files]
    assert run(capsys, "validate", "-f", str(folder))[0] == 0


def test_files_of_a_user_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "neuron-4-trn2-48xlarge.yaml"
    file.write_text("mine")
    words = ("templates", "write", "neuron-1-trn2-48xlarge", "neuron-4-trn2-48xlarge", "--dir", str(tmp_path))
    code, out, err = run(capsys, *words)
    assert (code, out, file.read_text()) == (2, "", "mine")
    assert f"{file} exists and has another content" in err
    assert not (tmp_path / "neuron-1-trn2-48xlarge.yaml").exists()


def test_folder_is_a_flag_of_write(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "templates", "show", "neuron-1-trn2-48xlarge", "--dir", "x")
    assert (code, err) == (2, "neuron-dra: --dir: only with write\n")
    assert "templates write: name a template" in run(capsys, "templates", "write")[2]
