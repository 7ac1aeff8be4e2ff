"""Settings: sources, formats and errors."""

import pytest

from neuron_dra import cli, settings
from neuron_dra.arguments import Parser, go_style
from neuron_dra.errors import SettingsError
from neuron_dra.setting_table import Setting, settings_of

SETTINGS = settings_of(settings.PluginSettings)


def given(*arguments: str, **environ: str) -> settings.PluginSettings:
    """Return the settings of a command line and an environment, with a default node name."""
    parser = Parser(prog="plugin")
    settings.add_arguments(parser)
    parsed = parser.parse_args(go_style(arguments))
    return settings.load(vars(parsed), {"NODE_NAME": "a", **environ})


def refused(*arguments: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        given(*arguments, **environ)
    return str(caught.value)


def test_defaults_are_the_official_ones() -> None:
    loaded = given()
    assert loaded == settings.PluginSettings(
        node_name="a",
        pod_uid="",
        cdi_root="/var/run/cdi",
        kubelet_registrar_directory_path="/var/lib/kubelet/plugins_registry",
        kubelet_plugins_directory_path="/var/lib/kubelet/plugins",
        kubelet_device_plugins_directory_path="/var/lib/kubelet/device-plugins",
        healthcheck_address="0.0.0.0",
        healthcheck_port=51515,
        metrics_bind_address="0.0.0.0:8080",
        emulation_mode="",
        host_root="",
        boot_id_file="/host/boot_id",
        ultraserver_devices="node",
        connected_sets=False,
        device_metadata=False,
        connected_sizes="",
        enable_ultraserver_operator=False,
        device_plugin_coexistence="refuse",
        unhealthy_device_effect="NoSchedule",
        unhealthy_device_hold_seconds=60,
        device_wait_seconds=30,
        kubeconfig="",
        kube_api_server="",
        log_format="text",
        v=2,
    )


EXAMPLES = {
    "node_name": ("node-1", "node-2"),
    "pod_uid": ("u1", "u2"),
    "healthcheck_address": ("127.0.0.1", "::"),
    "healthcheck_port": ("1", "2"),
    "metrics_bind_address": (":1", ":2"),
    "emulation_mode": ("trn2u", "trn1.2xlarge"),
    "ultraserver_devices": ("devices", "node"),
    "connected_sets": ("true", "false"),
    "device_metadata": ("true", "false"),
    "efa_interfaces": ("true", "false"),
    "connected_sizes": ("connected-4,cores-9", "connected-2"),
    "ultraserver_parts": ("on", "off"),
    "present_label": ("true", "false"),
    "connected_sets_oldest_release": ("any", "1.36.1"),
    "enable_ultraserver_operator": ("true", "false"),
    "device_plugin_coexistence": ("warn", "refuse"),
    "unhealthy_device_effect": ("NoExecute", "None"),
    "device_counters": ("devices", "none"),
    "unhealthy_device_hold_seconds": ("0", "600"),
    "device_wait_seconds": ("0", "40"),
    "kube_api_server": ("http://a", "http://b"),
    "log_format": ("json", "text"),
    "v": ("4", "5"),
}


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.flag)
def test_flag_then_environment_then_default(row: Setting) -> None:
    name = row.flag.removeprefix("--").replace("-", "_")
    one, other = EXAMPLES.get(name, ("/one", "/other"))

    def shown(loaded: settings.PluginSettings) -> tuple[str, str]:
        value, source = next((value, source) for key, value, source in loaded.rows() if key == name)
        return value.lower() if value in ("True", "False") else value, source

    assert shown(given(**{row.variable: one})) == (one, "environment")
    assert shown(given(f"{row.flag}={other}", **{row.variable: one})) == (other, "flag")
    assert shown(given(row.flag, other, **{row.variable: one})) == (other, "flag")
    if name != "node_name":
        assert shown(given()) == (row.default, "default")


def test_rows_list_all_settings_with_source() -> None:
    rows = given("--v=4", CDI_ROOT="/cdi").rows()
    assert [name for name, _, _ in rows] == [row.flag[2:].replace("-", "_") for row in SETTINGS]
    sources = {name: source for name, _, source in rows}
    assert sources.pop("v") == "flag"
    assert sources.pop("cdi_root") == sources.pop("node_name") == "environment"
    assert set(sources.values()) == {"default"}


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["-v=4"], "v", 4),
        (["-v", "4"], "v", 4),
        (["--v", "4"], "v", 4),
        (["--v=4"], "v", 4),
        (["-kubeconfig=/x"], "kubeconfig", "/x"),
        (["-kubeconfig", "/x"], "kubeconfig", "/x"),
        (["-node-name=b"], "node_name", "b"),
        (["--enable-ultraserver-operator"], "enable_ultraserver_operator", True),
        (["--enable-ultraserver-operator=true"], "enable_ultraserver_operator", True),
        (["-enable-ultraserver-operator=1"], "enable_ultraserver_operator", True),
        (["--enable-ultraserver-operator=T"], "enable_ultraserver_operator", True),
        (["--enable-ultraserver-operator=false"], "enable_ultraserver_operator", False),
        (["--healthcheck-port=-1", "--healthcheck-port", "0"], "healthcheck_port", 0),
    ],
)
def test_gos_spellings_are_understood(arguments: list[str], name: str, value: int | str) -> None:
    assert getattr(given(*arguments), name) == value


def test_only_flags_are_respelled() -> None:
    arguments = ["-", "--", "-10", "-1.5", "x-y", "", "--a=-b", "-v"]
    assert go_style(arguments) == arguments


@pytest.mark.parametrize("text", ["true", "TRUE", "True", "1", "t"])
def test_go_booleans_are_accepted(text: str) -> None:
    assert given(ENABLE_ULTRASERVER_OPERATOR=text).enable_ultraserver_operator is True


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"HEALTHCHECK_PORT": "http"}, "HEALTHCHECK_PORT=http: write a whole number"),
        ({"HEALTHCHECK_PORT": "--5"}, "write a whole number"),
        ({"HEALTHCHECK_PORT": "٥"}, "write a whole number"),
        ({"HEALTHCHECK_PORT": "70000"}, "--healthcheck-port 70000 is not a port"),
        ({"HEALTHCHECK_PORT": "-1"}, "is not a port"),
        ({"VERBOSITY": "9" * 5000}, "write a whole number"),
        ({"ENABLE_ULTRASERVER_OPERATOR": "yes"}, "ENABLE_ULTRASERVER_OPERATOR=yes: write true or false"),
        ({"ULTRASERVER_DEVICES": "device"}, "write node or devices or both; did you mean devices?"),
        ({"ULTRASERVER_DEVICES": "both"}, "--ultraserver-devices both needs --connected-sets"),
        ({"CONNECTED_SIZES": "connected-4,set-2"}, "--connected-sizes set-2: write connected-N or cores-N"),
        ({"DEVICE_PLUGIN_COEXISTENCE": "allow"}, "write refuse or warn"),
        ({"UNHEALTHY_DEVICE_EFFECT": "noSchedule"}, "did you mean NoSchedule?"),
        ({"DEVICE_WAIT_SECONDS": "41"}, "--device-wait-seconds 41: write 0 to 40; the kubelet gives up after 45 s"),
        ({"UNHEALTHY_DEVICE_HOLD_SECONDS": "-1"}, "--unhealthy-device-hold-seconds -1: write 0 to 86400, a day"),
        ({"LOG_FORMAT": "JSON"}, "write text or json"),
        ({"METRICS_BIND_ADDRESS": "8080"}, "--metrics-bind-address 8080: write address:port"),
        ({"METRICS_BIND_ADDRESS": "0.0.0.0"}, "write address:port"),
        ({"METRICS_BIND_ADDRESS": ":99999"}, "write address:port"),
        ({"NODE_NAME": ""}, "--node-name (NODE_NAME) is required: set it from spec.nodeName"),
        ({"NODE_NAME": "$(NODE_NAME)"}, "invalid name of a Node"),
        ({"POD_UID": "../x"}, "invalid UID of a Pod"),
        ({"NEURON_DRA_DRIVER_EMULATION_MODE": "trn2u", "HOST_ROOT": "/host"}, "set one"),
    ],
)
def test_invalid_value_is_rejected_with_the_reason(environ: dict[str, str], why: str) -> None:
    assert why in refused(**environ)


def test_a_flag_is_named_as_a_flag() -> None:
    assert refused("--healthcheck-port=http", HEALTHCHECK_PORT="1") == "--healthcheck-port=http: write a whole number"


def test_two_api_servers_contradict_each_other() -> None:
    assert "set one" in refused("--kubeconfig=/x", "--kube-api-server=http://x")
    assert given("--kube-api-server=http://x", KUBECONFIG="/x").kube_api_server == "http://x", "a user's own KUBECONFIG"


def test_all_problems_are_reported_together() -> None:
    said = refused("--v=x", NODE_NAME="", LOG_FORMAT="xml")
    assert said.count(";") == 2
    assert "--v=x" in said
    assert "LOG_FORMAT=xml" in said
    assert "NODE_NAME" in said


@pytest.mark.parametrize("flag", ["--cdi-root=", "--kubelet-plugins-directory-path=", "--boot-id-file=", "--v="])
def test_meaningless_empty_flag_is_rejected(flag: str) -> None:
    assert flag in refused(flag)


def test_an_empty_variable_is_not_set() -> None:
    loaded = given(
        **{row.variable: "" for row in SETTINGS if row.variable not in ("NODE_NAME", "METRICS_BIND_ADDRESS")}
    )
    assert loaded == given()
    assert loaded.sources == {"node_name": "environment"}


def test_an_empty_address_switches_metrics_off() -> None:
    assert given(METRICS_BIND_ADDRESS="").metrics_bind_address == ""
    assert given("--metrics-bind-address=").metrics_bind_address == ""


@pytest.mark.parametrize(
    ("text", "folder"), [("/var/run/cdi/", "/var/run/cdi"), ("/var/run/cdi//", "/var/run/cdi"), ("/", "/"), ("//", "/")]
)
def test_trailing_slash_is_removed(text: str, folder: str) -> None:
    assert given(CDI_ROOT=text).cdi_root == folder
    assert given(f"--kubelet-plugins-directory-path={text}").kubelet_plugins_directory_path == folder
    assert given(HOST_ROOT=text).host_root == folder


def test_socket_names_contain_the_pod_uid() -> None:
    loaded = given(POD_UID="u")
    assert str(loaded.dra_socket) == "/var/lib/kubelet/plugins/neuron.aws.com/dra-u.sock"
    assert str(loaded.registration_socket) == "/var/lib/kubelet/plugins_registry/neuron.aws.com-u-reg.sock"
    loaded = given()
    assert str(loaded.dra_socket) == "/var/lib/kubelet/plugins/neuron.aws.com/dra.sock"
    assert str(loaded.registration_socket) == "/var/lib/kubelet/plugins_registry/neuron.aws.com-reg.sock"


@pytest.mark.parametrize(
    ("env", "rest"),
    [
        ("KUBELET_PLUGINS_DIRECTORY_PATH", "/neuron.aws.com/dra.sock"),
        ("KUBELET_REGISTRAR_DIRECTORY_PATH", "/neuron.aws.com-reg.sock"),
    ],
)
def test_a_socket_path_has_at_most_107_bytes(env: str, rest: str) -> None:
    longest = "/" + "é" * ((107 - len(rest) - 1) // 2) + "x" * ((107 - len(rest) - 1) % 2)
    assert len((longest + rest).encode()) == 107
    given(**{env: longest})
    said = refused(**{env: longest + "y"})
    assert f"{longest}y{rest} has 108 bytes, but Linux allows 107; use a shorter folder" in said


def ends(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    try:
        code = cli.main(["plugin", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "near"),
    [
        ("--nodename=a", "unknown flag --nodename; did you mean --node-name?"),
        ("--kubelet-plugin-directory-path=/x", "did you mean --kubelet-plugins-directory-path?"),
        ("-kubeconfg=/x", "unknown flag --kubeconfg; did you mean --kubeconfig?"),
        ("--log=json", "unknown flag --log"),
        ("--kube", "unknown flag --kube"),
        ("run", "unexpected argument 'run'"),
    ],
)
def test_unknown_flag_suggests_the_nearest(capsys: pytest.CaptureFixture[str], argument: str, near: str) -> None:
    code, err = ends(capsys, argument)
    assert code == 2
    assert near in err
    assert len(err.splitlines()) == 1


def test_malformed_value_is_a_one_line_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    code, err = ends(capsys, "--healthcheck-port=x")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "--healthcheck-port=x: write a whole number" in err
    assert "--node-name (NODE_NAME) is required" in err


def test_flag_without_value_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = ends(capsys, "--node-name")
    assert code == 2
    assert "argument --node-name: expected one argument" in err
