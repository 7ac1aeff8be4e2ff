"""The commands with a new user's mistakes: each error is one line, and no files are left behind (14.16)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NEURON_DRA = [sys.executable, "-m", "neuron_dra.cli"]
CONTROLLER = [sys.executable, "-c", "import sys; from controller.main import main; sys.exit(main())"]
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120


def run(*words: str, program: list[str] = NEURON_DRA, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST")}
    return subprocess.run(
        [*program, *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**env, **environment},
        cwd=ROOT,
    )


@pytest.mark.parametrize("program", [NEURON_DRA, CONTROLLER], ids=["neuron-dra", "controller"])
def test_closed_pipe_ends_a_command_quietly(program: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [*program, "--help"],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=ROOT,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("program", "name"), [(NEURON_DRA, "neuron-dra"), (CONTROLLER, "neuron-ultraserver-controller")]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_for_output_is_a_one_line_error(program: list[str], name: str, unbuffered: str) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*program, "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=ROOT,
            env=env,
        )
    assert (done.returncode, done.stderr) == (1, f"{name}: No space left on device\n")


@pytest.mark.parametrize(
    "words",
    [
        ("plugin", "--node-name", "Bad Name!", "--kube-api-server", "http://127.0.0.1:1"),
        ("slices", "--node-name", "Bad Name!"),
    ],
    ids=["plugin", "slices"],
)
def test_unknown_node_name_is_rejected(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "Bad Name!" in done.stderr


URLS = ["notaurl", "127.0.0.1:6443", "ftp://127.0.0.1", "https://", "http://a:port"]


@pytest.mark.parametrize("url", URLS)
def test_invalid_api_server_url_is_a_settings_error(url: str) -> None:
    done = run("plugin", "--node-name", "a", "--kube-api-server", url)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"neuron-dra: --kube-api-server: invalid API server URL {url!r}")
    assert last.endswith("; write https://host:port")


def test_controller_reports_the_same_error() -> None:
    done = run("run", "--kube-api-server", "notaurl", program=CONTROLLER)
    assert (done.returncode, "write https://host:port" in done.stderr.splitlines()[-1]) == (2, True)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (NEURON_DRA, ("plugin", "--node-name", "a", "--kube-api-server", "notaurl", "--log-format", "json")),
        (NEURON_DRA, ("plugin", "--node-name", "Bad Name!", "--log-format=json")),
        (CONTROLLER, ("run", "--kube-api-server", "notaurl", "--log-format", "json")),
        (CONTROLLER, ("run", "--tag-timeout=1m30", "--log-format", "json")),
    ],
    ids=["plugin", "setting", "controller", "duration"],
)
def test_a_log_in_json_is_json_to_the_last_line(program: list[str], words: tuple[str, ...]) -> None:
    done = run(*words, program=program)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, lines[-1]["level"]) == (2, "error")


def test_environment_enables_json() -> None:
    done = run("plugin", "--node-name", "a", "--kube-api-server", "notaurl", LOG_FORMAT="json")
    assert all(json.loads(line) for line in done.stderr.splitlines())


@pytest.mark.parametrize(
    ("program", "words", "same"),
    [
        (NEURON_DRA, ("help",), ("--help",)),
        (NEURON_DRA, ("help", "slices"), ("slices", "--help")),
        (CONTROLLER, ("help", "run"), ("run", "--help")),
    ],
)
def test_help_is_help(program: list[str], words: tuple[str, ...], same: tuple[str, ...]) -> None:
    done, expected = run(*words, program=program), run(*same, program=program)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected.stdout, "")
    assert done.stdout.startswith("usage: ")


@pytest.mark.parametrize("more", [("--kube-api-server", "notaurl"), (), ("--emulation-mode", "nosuchtype")])
def test_failed_start_leaves_no_emulated_hardware(tmp_path: Path, more: tuple[str, ...]) -> None:
    done = run(
        *("plugin", "--node-name", "a", "--emulation-mode", "trn2.48xlarge", "--metrics-bind-address="),
        *("--kubelet-plugins-directory-path", str(tmp_path / "kubelet" / "plugins")),
        *("--kubelet-registrar-directory-path", str(tmp_path / "kubelet" / "registry")),
        *("--cdi-root", str(tmp_path / "cdi")),
        *more,
    )
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_failed_start_removes_created_hardware(short_path: Path) -> None:
    (short_path / "registry").write_text("this is no folder")
    done = run(
        *("plugin", "--node-name", "a", "--emulation-mode", "trn2.48xlarge", "--metrics-bind-address="),
        *("--kube-api-server", "http://127.0.0.1:1", "--healthcheck-port=0"),
        *("--kubelet-plugins-directory-path", str(short_path / "plugins")),
        *("--kubelet-registrar-directory-path", str(short_path / "registry")),
        *("--cdi-root", str(short_path / "cdi")),
    )
    assert done.returncode == 1
    assert list(short_path.rglob("emulation")) == []


def test_testbed_output_is_line_buffered() -> None:
    """Output is flushed at once, not in blocks of 4 KiB."""
    [function] = re.findall(r"^indented\(\) \{.*\}", (ROOT / "hack/test.sh").read_text(), re.MULTILINE)
    with subprocess.Popen(
        ["bash", "-c", f"{function}\nindented"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write("one\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == "   one\n"  # while the other end is open
        shell.stdin.close()
