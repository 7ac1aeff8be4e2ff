"""16.6: what `neuron-dra migrate` does with files: the text that changes, exit codes, and files in place."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra import cli
from neuron_dra.api.problems import BadInput
from neuron_dra.ask.migrate import files
from tests.support import fast_yaml

POD = """\
# A pod.
apiVersion: v1
kind: Pod
metadata:   {name: p}   # its name
spec:
    schedulerName: my-scheduler  # of AWS
    nodeSelector: {node.kubernetes.io/instance-type: "trn1.32xlarge"}
    containers:
    # the only one
    - name: 'a'
      image: a
      command: ["sh", "-c",
                "sleep 1"]
      resources:
        limits:
          cpu:    "4"
          aws.amazon.com/neuron: 4   # four of sixteen
        requests: {cpu: 1, "aws.amazon.com/neuron": "4"}
      env:
        - name: TEXT
          value: >-
            folded

            text


# the end
"""
BETA = """\
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaim
metadata: {name: c}
spec:
  devices:
    requests:
      - deviceClassName: neuron.aws.com  # the class
        name: r
        # how many
        count: 4
        selectors:
          - cel:
              expression: |
                device.driver == 'neuron.aws.com'
"""


def migrate(*words: str) -> int:
    return cli.main(["migrate", *words])


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)
    return path


def test_the_diff_has_only_the_lines_that_change(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate(str(manifest)) == 0
    changed = [
        line for line in capsys.readouterr().out.splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")
    ]
    new = "deviceclass.resource.kubernetes.io/connected-4.neuron.aws.com"
    assert changed == [
        "-    schedulerName: my-scheduler  # of AWS",
        "-          aws.amazon.com/neuron: 4   # four of sixteen",
        '-        requests: {cpu: 1, "aws.amazon.com/neuron": "4"}',
        f"+          {new}: 1   # four of sixteen",
        f"+        requests: {{cpu: 1, {new}: '1'}}",
    ]
    assert manifest.read_text() == POD


def test_a_request_keeps_its_comments_when_it_moves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "claim.yaml"
    path.write_text(BETA)
    assert migrate("-o", "yaml", str(path)) == 0
    assert (
        capsys.readouterr().out
        == """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec:
  devices:
    requests:
      - exactly:
          deviceClassName: neuron.aws.com  # the class
          count: 4
          selectors:
            - cel:
                expression: |
                  device.driver == 'neuron.aws.com'
        name: r
        # how many
"""
    )


def test_templates_are_added_at_the_end_once(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest.write_text(f"{POD}---\n{POD.replace('name: p', 'name: q')}")
    assert migrate("--kubernetes=1.34", "-o", "yaml", str(manifest)) == 0
    text = capsys.readouterr().out
    documents = fast_yaml.load_all(text)
    assert [each["kind"] for each in documents] == ["Pod", "Pod", "ResourceClaimTemplate"]
    assert text.count("# the only one") == 2


def test_json_stays_json(tmp_path: Path) -> None:
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(fast_yaml.load(POD), indent=4))
    assert migrate("--in-place", str(path)) == 0
    assert path.read_text() == json.dumps(json.loads(path.read_text()), indent=4)
    assert "connected-4" in path.read_text()
    path.write_text(json.dumps(fast_yaml.load(POD)))
    assert migrate("--in-place", "--kubernetes=1.35", str(path)) == 0
    listed = json.loads(path.read_text())
    assert [each["kind"] for each in listed["items"]] == ["Pod", "ResourceClaimTemplate"]


def test_in_place_keeps_mode_and_link_and_is_idempotent(manifest: Path, tmp_path: Path) -> None:
    manifest.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(manifest)
    assert migrate("--in-place", str(link)) == 0
    first = manifest.read_text()
    assert stat.S_IMODE(manifest.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, manifest]
    inode = manifest.stat().st_ino
    assert migrate("--in-place", str(manifest)) == 0
    assert (manifest.read_text(), manifest.stat().st_ino) == (first, inode)


def test_one_bad_file_leaves_all_files_as_they_are(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        POD.replace("{name: p}", "{name: q}").replace("aws.amazon.com/neuron: 4 ", "aws.amazon.com/neuron: 4k ")
    )
    assert migrate("--in-place", str(manifest), str(bad)) == 2
    assert manifest.read_text() == POD
    assert capsys.readouterr().err == (
        f"neuron-dra: {bad}: document 1, Pod q: spec.containers[0].resources.limits: aws.amazon.com/neuron is '4k'; "
        "write a whole number, such as 4\n"
    )


def test_unmigratable_documents_stay(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seven = POD.replace("neuron: 4 ", "neuron: 7 ").replace('neuron": "4"', 'neuron": "7"')
    manifest.write_text(f"{seven}---\n{POD}")
    assert migrate("-o", "yaml", str(manifest)) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith(seven)
    assert "connected-4" in shown.out
    assert "Instance type trn1.32xlarge does not support requests for device: 7." in shown.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line 1, column 5"),
        ("a: {{ .Values.x }}b", "render a Helm template first"),
        ("a: 1\na: 2\n", "line 2: the key a occurs twice"),
        ('{"a": 1, "a": 2}', "the key a occurs twice"),
        ("a: !!python/object:os.system {}", "could not determine a constructor"),
        ("a: &a [*a]", "aliases expand"),
        ("[" * 20_000 + "]" * 20_000, "nested too deeply"),
        ("\x00", "special characters are not allowed"),
    ],
)
def test_a_malformed_file_is_named(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert migrate(str(path)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"neuron-dra: {path}: ")
    assert message in error


def test_aliases_that_explode_are_bad_input() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(BadInput, match="aliases expand to more"):
        files.read("\n".join(lines))


def test_folders_and_unreadable_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin").write_bytes(b"a: \xe9\n")
    assert migrate(str(tmp_path), str(tmp_path / "none"), str(tmp_path / "latin")) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"neuron-dra: {tmp_path}: this is a folder; name the files",
        f"neuron-dra: {tmp_path}/none: No such file or directory",
        f"neuron-dra: {tmp_path}/latin: not UTF-8, at byte 3",
    ]


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(POD.encode())))
    assert migrate("-o", "yaml", "-") == 0
    assert "connected-4.neuron.aws.com: 1   # four of sixteen" in capsys.readouterr().out
    assert migrate("--in-place", "-") == 2


@pytest.mark.parametrize("version", ["1.33", "one"])
def test_a_wrong_version_is_a_wrong_setting(version: str, manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate("--kubernetes", version, str(manifest)) == 2
    assert f"--kubernetes {version}: " in capsys.readouterr().err


def test_line_ends_and_byte_order_mark_stay(manifest: Path) -> None:
    manifest.write_bytes(b"\xef\xbb\xbf" + POD.replace("\n", "\r\n").encode())
    assert migrate("--in-place", "--kubernetes=1.34", str(manifest)) == 0
    raw = manifest.read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf# A pod.\r\n")
    assert raw.count(b"\n") == raw.count(b"\r\n")
    assert b"ResourceClaimTemplate" in raw


def test_anchors_are_kept_where_each_use_changes_alike(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = "spec:\n  containers:\n  - {name: a, resources: &r {limits: {aws.amazon.com/neuron: 2}}}\n"
    shared += "  - {name: b, resources: *r}\n"
    manifest.write_text(f"kind: Pod  # pod\napiVersion: v1\n{shared}")
    assert migrate("-o", "yaml", str(manifest)) == 0
    [document] = fast_yaml.load_all(capsys.readouterr().out)
    names = [list(each["resources"]["limits"]) for each in document["spec"]["containers"]]
    assert names == [["deviceclass.resource.kubernetes.io/connected-2.neuron.aws.com"]] * 2
    assert migrate("-o", "yaml", "--kubernetes=1.34", "--instance-type=inf2.xlarge", str(manifest)) == 1


def test_a_reader_that_leaves_early_is_no_error(manifest: Path) -> None:
    manifest.write_text("---\n".join([POD] * 200))
    command = [sys.executable, "-m", "neuron_dra.cli", "migrate", "-o", "yaml", str(manifest)]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 141
    assert all("note: " in line for line in done.stderr.splitlines())


def test_the_plugin_imports_nothing_of_this_command() -> None:
    program = "import sys; from neuron_dra import cli; from neuron_dra.node import plugin; "
    program += "print('neuron_dra.ask.migrate' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


keys = st.sampled_from(["aws.amazon.com/neuron", "cpu", "memory", "nvidia.com/gpu"])
numbers = st.sampled_from(["1", '"4"', "'8'"])
limits = st.dictionaries(keys, numbers, min_size=1)


@given(
    st.lists(st.tuples(limits, st.booleans(), st.sampled_from([0, 2, 4])), min_size=1, max_size=3),
    st.sampled_from(["1.34", "1.36"]),
    st.booleans(),
)
def test_any_layout_is_migrated_once_and_keeps_its_comments(
    containers: list[tuple[dict[str, str], bool, int]], version: str, crlf: bool
) -> None:
    """Migrating the output changes nothing, and no comment is lost that is not on a removed line."""
    from neuron_dra.ask.migrate import command
    from neuron_dra.ask.migrate.rewrite import Options

    text = (
        "# top\nkind: Pod\nspec:\n  nodeSelector:\n    node.kubernetes.io/instance-type: trn1.32xlarge\n  containers:\n"
    )
    for number, (values, flow, step) in enumerate(containers):
        pad = " " * (2 + step)
        text += f"{pad}# container {number}\n{pad}- name: c{number}\n{pad}  resources:\n"
        if flow:
            text += f"{pad}    limits: {{{', '.join(f'{key}: {value}' for key, value in values.items())}}}\n"
        else:
            text += f"{pad}    limits:\n" + "".join(f"{pad}      {key}: {value}\n" for key, value in values.items())
        if step != containers[0][2]:
            return  # items of one list share a column
    text = text.replace("\n", "\r\n") if crlf else text
    options = Options(version == "1.36")
    first = command.File("f", None, b"", text)
    command._parse(first)
    command._migrate(first, options, {})
    assert (first.bad, first.problems) == ([], [])
    assert [line for line in text.splitlines() if "#" in line] == [
        line for line in first.after.splitlines() if "#" in line
    ]
    second = command.File("f", None, b"", first.after)
    command._parse(second)
    command._migrate(second, options, {})
    assert second.after == first.after
