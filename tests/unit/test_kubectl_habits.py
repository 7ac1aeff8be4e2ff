"""What a person types who knows kubectl: words for kinds, -A, -o name, folders, streams, and pipes (34, 7)."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from neuron_dra import cli
from tests.support import cluster_faults as faults
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.questions import ask, snapshot


def mend(what: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(strict=True, reason=what)


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    return snapshot(tmp_path, faults.healthy())


@pytest.mark.parametrize(
    "about",
    [
        "pod/p",
        "pods/p",
        "claim/p-neurons-x",
        pytest.param("po/p"),
        pytest.param("no/a"),
        "node/a",
        "resourceclaims/p-neurons-x",
        pytest.param("resourceclaims.resource.k8s.io/p-neurons-x"),
    ],
)
def test_names_of_kinds_are_those_of_kubectl(about: str, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, "why", about, "--snapshot", cluster).code in (0, 1)


@pytest.mark.parametrize("words", [("pod", "p"), ("node", "a"), ("pods",), ("nodes",)])
def test_kind_and_name_may_be_two_words(
    words: tuple[str, ...], cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask(capsys, "why", *words, "--snapshot", cluster)
    assert found.code in (0, 1), found.text


def test_bare_kind_explains_all_that_are_not_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = small.base("z")
    items = [*reported.full(), *other, *small.running(other, "fine", 1, "z", namespace="ml")]
    found = ask(capsys, "why", "pods", "-A", "--snapshot", snapshot(tmp_path, items))
    assert (found.code, "pod default/p waits" in found.text, "pod ml/fine" in found.text) == (1, True, False), (
        found.text
    )


def test_equal_answers_about_several_objects_are_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hundred pods of one job wait for one reason; programs get a report for each."""
    items = [*small.base("a"), small.template("many", 17), small.template("more", 18)]
    items += [small.pod(f"rank-{number}", "many") for number in range(100)]
    items.append(small.pod("single", "more"))
    file = snapshot(tmp_path, items)
    found = ask(capsys, "why", "pods", "-A", "--snapshot", file)
    assert found.text.count("wants 17 devices") == found.text.count("wants 18 devices") == 1
    assert "note: the same of default/rank-1, default/rank-2," in found.text
    assert "and 87 more" in found.text
    data = json.loads(ask(capsys, "why", "pods", "-A", "--snapshot", file, "-o", "json").out)
    assert len(data["items"]) == 101


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (("why", "pods", "-A", "-o", "name"), ["pod/p"]),
        (("status", "-o", "name"), ["node/a", "node/b"]),
        (("status", "--no-headers"), ["trn2.48xlarge"]),
    ],
)
def test_output_for_pipes(
    words: tuple[str, ...], lines: list[str], cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask(capsys, *words, "--snapshot", cluster)
    assert [line.split()[0] for line in found.out.splitlines()][: len(lines)] == lines, found.text


def test_nodes_are_sorted_by_a_column(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "status", "-o", "wide", "--sort-by", "free", "--snapshot", cluster)
    rows = [line.split()[0] for line in found.out.splitlines() if line.startswith(("a ", "b "))]
    assert rows == ["a", "b"], found.text


FORMS = {
    "JSON lines": lambda items: "\n".join(json.dumps(each) for each in items),
    "lists after each other": lambda items: "".join(
        json.dumps({"kind": "List", "apiVersion": "v1", "items": part}, indent=1) for part in (items[:3], items[3:])
    ),
    "an array of items": lambda items: json.dumps(items),
    "a typed list": lambda items: json.dumps(
        {"kind": "NodeList", "apiVersion": "v1", "items": [
            {key: value for key, value in each.items() if key not in ("kind", "apiVersion")}
            for each in items if each["kind"] == "Node"]}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_files(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(FORMS[form](faults.healthy()))
    found = ask(capsys, "why", "node/b", "--snapshot", str(file))
    assert found.code in (0, 1), found.text


def test_snapshot_may_be_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = faults.healthy()
    for number, part in enumerate((items[:4], items[4:])):
        (tmp_path / f"part-{number}.json").write_text(json.dumps({"kind": "List", "items": part}))
    assert ask(capsys, "why", "node/a", "--snapshot", str(tmp_path)).code == 0


@pytest.mark.parametrize(
    ("words", "kind"),
    [(("why", "pod/p"), "WhyReport"), (("status",), "Status"), (("explain", "topology_x"), "ExplanationList")],
)
def test_json_has_a_kind(words: tuple[str, ...], kind: str, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = () if words[0] == "explain" else ("--snapshot", cluster)
    found = json.loads(ask(capsys, *words, *more, "-o", "json").out)
    assert (found["apiVersion"], found["kind"]) == ("cli.neuron.aws.com/v1", kind)


@pytest.mark.parametrize("text", ["explain", "why", "status"])
def test_latin_1_locale_prints_no_traceback(text: str, tmp_path: Path) -> None:
    items = faults.healthy()
    found = reported.pod(items)
    found["status"]["conditions"][0]["message"] = "0/2 nodes are available \u2013 none fits"
    file = snapshot(tmp_path, items)
    words = {
        "why": ["why", "pod/p", "--snapshot", file],
        "explain": ["explain"],
        "status": ["status", "--snapshot", file],
    }
    done = subprocess.run(
        [sys.executable, "-m", "neuron_dra.cli", *words[text]],
        env={"PYTHONIOENCODING": "latin-1", "PATH": ""},
        capture_output=True,
        text=True,
        encoding="latin-1",
        timeout=60,
    )
    assert ("Traceback" in done.stderr, done.returncode in (0, 1)) == (False, True), done.stderr[-500:]


@pytest.mark.parametrize("name", ["Fragmented", "DevicesInUse", "SelectorFails", "neuron.aws.com/topology_x"])
def test_explain_knows_codes_and_qualified_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, "explain", name).code == 0


@pytest.mark.parametrize("command", [*cli.COMMANDS, "plugin", "completion"])
def test_help_names_the_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Exit code" in ask(capsys, command, "--help").out


@pytest.mark.parametrize("command", [*cli.COMMANDS, "plugin", "completion"])
def test_help_fits_into_eighty_columns(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """But for names without a space, such as the kinds of a snapshot."""
    lines = ask(capsys, command, "--help").out.splitlines()
    assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []


@pytest.mark.parametrize("command", [*cli.COMMANDS, "plugin", "completion"])
def test_help_is_wrapped_once(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A paragraph has no short line in its middle, and an example is one line, which can be copied."""
    lines = ask(capsys, command, "--help").out.splitlines()
    short = []
    for line, after in itertools.pairwise(lines):
        is_prose = line and after and not line.startswith(" ") and not after.startswith(" ")
        if is_prose and not line.endswith(":") and len(line) + 1 + len(after.split()[0]) <= 60:
            short.append(line)
    assert short == []
    examples = itertools.dropwhile(lambda line: not line.startswith("examples"), lines)
    text = "\n".join(itertools.takewhile(bool, itertools.islice(examples, 1, None)))
    commands = text.replace("\\\n", "").splitlines()
    assert [each for each in commands if each.split()[0] not in ("neuron-dra", "kubectl", "helm")] == []


@pytest.mark.parametrize("words", [["why", "service/a-name-of-a-service"], ["status", "--snapshto", "x"]])
def test_errors_are_wrapped_on_a_terminal(words: list[str]) -> None:
    """In a pipe an error is one line, for logs."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    command = [sys.executable, "-m", "neuron_dra.cli", *words]
    code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, timeout=60, check=False).returncode
    os.close(theirs)
    lines = os.read(ours, 4096).decode().splitlines()
    os.close(ours)
    one_line = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr
    assert (code, " ".join(" ".join(lines).split()), max(map(len, lines)) <= 50) == (2, one_line.strip(), True), lines
    assert one_line.count("\n") == 1


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in which `neuron-dra` is this program."""
    program = f'neuron-dra() {{ {sys.executable} -m neuron_dra.cli "$@"; }}; {line}'
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, timeout=60, check=False, cwd=folder, env=environment
    )


PRINTED = {
    "kind first": lambda items: json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=4) + "\n",
    "lists after each other": lambda items: "".join(
        json.dumps({"apiVersion": "v1", "items": part, "kind": "List"}, indent=4) + "\n"
        for part in (items[:3], items[3:])
    ),
    "items alone": lambda items: json.dumps({"items": items}),
}  # fmt: skip


@pytest.mark.parametrize("form", PRINTED)
def test_forms_of_standard_input(form: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(PRINTED[form](faults.healthy()))
    done = shell("cat cluster.json | neuron-dra why node/b --snapshot -", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "node b publishes 16 devices, 0 held\n", "")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "no such file"),
        ('{"apiVersion": "v1", "kind": "List", "items": [\n{"kind": "No', "not JSON: Input data was truncated"),
        ("a: [1\nb: c: d", "not YAML: "),
        (
            '{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "Unauthorized"}',
            "it is an error of an API server: Unauthorized",
        ),
    ],
    ids=["absent", "cut off", "yaml", "status"],
)
def test_errors_of_files(content: str | None, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.json"
    if content is not None:
        file.write_text(content)
    found = ask(capsys, "status", "--snapshot", str(file))
    assert (found.code, found.err.count("\n"), f"{file}: {text}" in found.err) == (2, 1, True), found.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("status", "--snapshto", "c.json"), "unknown flag --snapshto; did you mean --snapshot?"),
        (("statsu",), "invalid choice: 'statsu'; did you mean status?"),
        (("status", "-o", "jsno"), "invalid choice: 'jsno'; did you mean json?"),
    ],
)
def test_nearest_word_is_named(words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, *words)
    assert (found.code, text in found.err) == (2, True), found.err


def test_type_alone_says_that_nothing_is_wrong(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "why", "nodes", "--snapshot", cluster)
    assert (found.code, found.out, found.err) == (0, "", "neuron-dra: nothing is wrong with 2 Nodes\n")
    none = ask(capsys, "why", "pods", "-n", "other", "--snapshot", cluster)
    assert (none.code, none.out, none.err) == (0, "", "neuron-dra: there is no Pod in namespace other\n")


def test_holders_without_headers(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "status", "holders", "--no-headers", "--snapshot", cluster)
    assert found.out == "default/other  a  devices 0-3\n"


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: a
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1", %s}}]
users: [{name: a, user: {token: x}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
"""


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        ("insecure-skip-tls-verify: true", "the API server does not answer (Cannot connect to host 127.0.0.1:1"),
        (
            "certificate-authority-data: AAAA",
            "its certificate-authority-data, or certificate-authority, is no certificate",
        ),
    ],
    ids=["closed", "no certificate"],
)
def test_errors_of_connections(cluster: str, text: str, tmp_path: Path) -> None:
    """In a process of its own, as the event loop of a command lives until the program ends."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG % cluster)
    done = shell("neuron-dra status --kubeconfig kubeconfig", tmp_path)
    assert (done.returncode, text in done.stderr, "object at" in done.stderr) == (2, True, False), done.stderr


def test_manifests_may_have_generate_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = small.pod("x", "four")
    items = [small.template("four", 4)]
    for _ in range(2):
        items.append({**pod, "metadata": {"generateName": "train-", "namespace": "default"}})
    file = tmp_path / "job.json"
    file.write_text("\n".join(json.dumps(each) for each in items))
    found = ask(capsys, "simulate", "--fleet", "1 x trn2.48xlarge", str(file))
    assert (found.code, "2 of 2 pods run; 8 of 16 devices are held" in found.text) == (0, True), found.text
    assert "default/train-00001" in found.text
    assert ask(capsys, "validate", str(file)).code == 0
