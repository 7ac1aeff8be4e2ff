"""The controller's flags: AWS's spellings are accepted, and invalid values are named."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys

import pytest

from controller import settings
from controller.main import operator_main
from controller.settings import ControllerSettings
from neuron_dra.arguments import Parser, go_style
from neuron_dra.errors import SettingsError
from neuron_dra.kube.timing import DEFAULT_CLIENT_TIMING
from neuron_dra.planner.plan.planning import Limits


def load(*words: str, environ: dict[str, str] | None = None) -> ControllerSettings:
    parser = Parser()
    settings.add_arguments(parser)
    return settings.load(parser.parse_args(go_style(words)), environ or {}, "this-host")


def test_accepts_the_official_operators_flags() -> None:
    found = load("--leader-elect", "--health-probe-bind-address=:8081", "--metrics-bind-address=:8080", "-v=4")
    assert (found.leader_elect, found.v) == (True, 4)
    assert (found.health_probe_bind_address, found.metrics_bind_address) == (":8081", ":8080")


def test_identity_comes_from_the_pod() -> None:
    found = load(environ={"POD_NAME": "controller-0", "POD_NAMESPACE": "elsewhere"})
    assert (found.identity, found.leader_election_namespace) == ("controller-0", "elsewhere")
    assert (load().identity, load().leader_election_namespace) == ("this-host", "neuron-dra-driver")


def test_address_0_disables_the_endpoint() -> None:
    assert load("--metrics-bind-address=0", "--health-probe-bind-address=").metrics_bind_address == ""


def test_grpc_listens_on_localhost_by_default() -> None:
    assert load().grpc_address == "127.0.0.1:8082"
    assert load("--grpc-address=").grpc_address == ""
    assert load("--grpc-address=unix:/run/us.sock").grpc_address == "unix:/run/us.sock"


def test_durations_have_units() -> None:
    found = load("--tag-timeout=90s", "--starvation-threshold=1h", "--fault-grace=200s").limits
    assert found.tag_timeout == datetime.timedelta(seconds=90)
    assert found.starvation_threshold == datetime.timedelta(hours=1)
    assert found.fault_grace == datetime.timedelta(seconds=200)
    assert found.node_failure_grace == datetime.timedelta(minutes=5)


def test_default_limits_of_a_plan() -> None:
    """13.1, 13.4, 13.15."""
    assert load().limits == Limits()
    minute = datetime.timedelta(minutes=1)
    assert (Limits().starvation_threshold, Limits().starvation_limit) == (10 * minute, 30 * minute)
    assert (Limits().outage_nodes, Limits().outage_percent, Limits().restart_limit) == (3, 55, 3)
    assert Limits().max_reserved_nodes is None
    assert Limits().max_waiting_workloads == 1000


def test_outage_and_restart_limit_are_numbers() -> None:
    """13.4."""
    found = load("--outage-nodes=5", "--outage-percent=100", "--restart-limit=0").limits
    assert (found.outage_nodes, found.outage_percent, found.restart_limit) == (5, 100, 0)


@pytest.mark.parametrize("flag", ["--fault-grace", "--node-failure-grace"])
def test_grace_outlasts_a_silent_watch(flag: str) -> None:
    """4.02: nodes that are well again must not be left because nobody has seen it."""
    limit_s = DEFAULT_CLIENT_TIMING.watch.bookmarks_s
    load(f"{flag}={limit_s:g}s")
    with pytest.raises(SettingsError, match=f"{flag}=149s: write at least {limit_s:g}s"):
        load(f"{flag}={limit_s - 1:g}s")
    load(f"{flag}=1s", "--allow-short-graces")


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ((), None),
        (("--max-reserved-nodes=none",), None),
        (("--max-reserved-nodes", "0"), 0),
        (("--max-reserved-nodes=64",), 64),
    ],
)
def test_namespace_limit_is_off_by_default(words: tuple[str, ...], most: int | None) -> None:
    """13.15."""
    assert load(*words).limits.max_reserved_nodes == most


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--outage-percent=101", "--outage-percent=101: write a whole number, at most 100"),
        ("--restart-limit=few", "--restart-limit=few: write a whole number, at most 1000"),
        ("--leader-elect=perhaps", "--leader-elect=perhaps: write true or false"),
        ("--tag-timeout=soon", "--tag-timeout=soon: write a duration such as 90s, 1m30s or 1h"),
        ("--metrics-bind-address=8080", "--metrics-bind-address 8080: write host:port, or 0 for none"),
        ("--grpc-address=8082", "--grpc-address 8082: write host:port, unix:/path, or 0 for none"),
        ("--grpc-address=unix:us.sock", "--grpc-address unix:us.sock: write unix: and an absolute path"),
        ("--spares=trn3.48xlarge", "--spares=trn3.48xlarge: write TYPE=NUMBER"),
        ("--spares=p5.48xlarge=1", "p5.48xlarge is not known: write the type of UltraServer nodes"),
        ("--max-reserved-nodes=many", "--max-reserved-nodes=many: write a whole number of nodes, or none"),
        ("--max-reserved-nodes=", "--max-reserved-nodes=: write a whole number of nodes, or none"),
        ("--max-waiting-workloads=0", "--max-waiting-workloads=0: write a whole number, at least 1, at most 1000000"),
        ("-v=loud", "--v=loud: write a whole number"),
    ],
)
def test_invalid_values_are_named(word: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(word)


def test_unknown_flag_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        operator_main(["--leader-electt"])
    assert end.value.code == 2
    assert "did you mean --leader-elect?" in capsys.readouterr().err


def test_missing_cluster_error_names_the_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert operator_main(["--metrics-bind-address=0"]) == 2
    assert "set --kubeconfig" in capsys.readouterr().err


def test_sigterm_ends_the_program_with_code_0() -> None:
    words = [sys.executable, "-c", "import sys; from controller.main import main; sys.exit(main())", "run"]
    flags = ["--kube-api-server=http://127.0.0.1:1", "--metrics-bind-address=0", "--health-probe-bind-address=0"]
    with subprocess.Popen([*words, *flags], stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "watch failed" in line:
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
