"""The commands that look at a cluster, against the embedded API server, and what they print when there is none (17)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from neuron_dra.ask.read import cluster, kubectl_words
from neuron_dra.ask.world import imagined
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api.faults import InjectedFault
from neuron_dra.emulation.embedded_api.server import EmbeddedApi
from tests.support import cluster_faults, forked_command, small_clusters

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 100
PRESENT = ("Node", "Pod", "ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass")


def environment(**more: str) -> dict[str, str]:
    hidden = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HOME")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**env, "HOME": "/nonexistent", **more}


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return forked_command.run(words, stdin=stdin, env=environment(), timeout_s=TIMEOUT_S)


def interpreted(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a new interpreter, whose environment has `more`."""
    return subprocess.run(
        [sys.executable, "-m", "neuron_dra.cli", *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment(**more),
        cwd=ROOT,
    )


async def answer(*words: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run, *words)


def fill(api: EmbeddedApi, items: Sequence[Obj]) -> None:
    for item in items:
        api.apply(item)


async def test_cluster_and_file_give_the_same_answer(tmp_path: Path) -> None:
    items = small_clusters.base("a")
    made = small_clusters.template("many", 17)
    async with EmbeddedApi(controllers=False) as api:
        fill(api, [*items, made, small_clusters.pod("p", "many")])
        config = api.write_kubeconfig(tmp_path / "config")
        live = await answer("why", "pod/p", "--kubeconfig", str(config))
        kinds = [item for name in PRESENT for item in api.objects(name)]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": kinds}))
    offline = await answer("why", "pod/p", "--snapshot", str(file))
    assert live.stdout == offline.stdout
    assert (live.returncode, offline.returncode, offline.stderr) == (1, 1, "")
    assert live.stdout.startswith("pod default/p waits for a node: request neurons wants 17 devices of one node")


async def test_kinds_that_a_cluster_lacks_are_named(tmp_path: Path) -> None:
    async with EmbeddedApi(controllers=False) as api:
        fill(api, small_clusters.base("a"))
        api.faults.add(InjectedFault(verb="list", resource="events", status=403, times=None))
        done = await answer("why", "node/a", "--kubeconfig", str(api.write_kubeconfig(tmp_path / "config")))
    assert done.returncode == 0, done
    assert "left out: Event (forbidden)" in done.stderr
    assert "left out: DeviceTaintRule (this cluster does not have it)" in done.stderr


async def test_simulate_reads_the_settings_of_the_controller(tmp_path: Path) -> None:
    container = {"name": "controller", "image": "c", "args": ["--spares=trn2u.48xlarge=1"]}
    labels = {"app.kubernetes.io/name": "neuron-ultraserver-controller", "app.kubernetes.io/component": "controller"}
    meta = {"name": "neuron-ultraserver-controller", "namespace": "neuron-dra-driver", "labels": labels}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    deployment: Obj = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
    workload = {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": "train"},
        "spec": {"instanceType": "trn2u.48xlarge", "topologySize": 4, "serverCount": 1},
    }
    file = tmp_path / "job.json"
    pod = small_clusters.pod("rank-0", "train")
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [workload, pod]}))
    async with EmbeddedApi(controllers=False) as api:
        namespace: Obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "neuron-dra-driver"}}
        fill(api, [namespace, *imagined.fleet("1 x ultraserver trn2u.48xlarge", "test"), deployment])
        config = str(api.write_kubeconfig(tmp_path / "config"))
        done = await answer("simulate", str(file), "--kubeconfig", config)
        api.faults.add(InjectedFault(verb="get", resource="deployments", status=403, times=None))
        forbidden = await answer("simulate", str(file), "--kubeconfig", config)
    said = " ".join(done.stdout.split())
    assert "from Deployment neuron-dra-driver/neuron-ultraserver-controller: --spares=trn2u.48xlarge=1" in said, done
    assert "not reserved" in said
    assert "left out: Deployment (forbidden)" in forbidden.stderr, forbidden
    assert "settings of the UltraServer controller: the defaults" in " ".join(forbidden.stdout.split())


@pytest.mark.parametrize(
    ("forbidden", "code", "text"),
    [
        ((), 0, "1 of 1 pods run"),
        (("list",), 0, "1 of 1 pods run"),
        (("list", "get"), 1, "Namespace default was not read: if it has the label neuron.aws.com/rewrite-limits=true"),
    ],
)
async def test_simulate_reads_the_namespace_whose_limits_are_rewritten(
    forbidden: tuple[str, ...], code: int, text: str, tmp_path: Path
) -> None:
    """All Namespaces, or that of the command where only it may be read; else it says what it does not know."""
    labels = {"labels": {"neuron.aws.com/rewrite-limits": "true"}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", **labels}}
    connected = {
        "apiVersion": small_clusters.API,
        "kind": "DeviceClass",
        "metadata": {"name": "connected-1.neuron.aws.com"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}]},
    }
    pod = small_clusters.pod("p")
    pod["spec"]["containers"][0]["resources"]["limits"] = {"aws.amazon.com/neuron": 1}
    manifest = tmp_path / "pod.json"
    manifest.write_text(json.dumps(pod))
    async with EmbeddedApi(controllers=False) as api:
        fill(api, [namespace, *small_clusters.base("a"), connected])
        for verb in forbidden:
            api.faults.add(InjectedFault(verb=verb, resource="namespaces", status=403, times=None))
        config = str(api.write_kubeconfig(tmp_path / "config"))
        done = await answer("simulate", str(manifest), "--kubeconfig", config)
    assert (done.returncode, text in " ".join(done.stdout.split())) == (code, True), done.stdout
    assert "left out: Namespace" not in done.stderr


async def test_job_without_pods_is_read_by_its_name(tmp_path: Path) -> None:
    condition = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too many failures"}
    job: Obj = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "m", "image": "m"}]}}},
        "status": {"conditions": [condition]},
    }
    async with EmbeddedApi(controllers=False) as api:
        fill(api, [*small_clusters.base("a"), job])
        config = str(api.write_kubeconfig(tmp_path / "config"))
        found = await answer("why", "job/train", "--kubeconfig", config)
        absent = await answer("why", "job/gone", "--kubeconfig", config)
        unserved = await answer("why", "raycluster/gone", "--kubeconfig", config)
        api.faults.add(InjectedFault(verb="get", resource="jobs", status=403, times=None))
        forbidden = await answer("why", "job/gone", "--kubeconfig", config)
    assert (found.returncode, found.stdout.splitlines()[0]) == (
        1,
        "Job default/train has no pods: condition Failed: 'too many failures'",
    )
    for done, why in (
        (absent, "there is no Job gone in namespace default"),
        (unserved, "RayCluster gone: this cluster does not have it"),
        (forbidden, "Job gone: forbidden"),
    ):
        assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"neuron-dra: {why}")


async def test_rejected_credentials_are_one_line(tmp_path: Path) -> None:
    async with EmbeddedApi(controllers=False) as api:
        api.faults.add(InjectedFault(status=401, times=None))
        done = await answer("why", "node/a", "--kubeconfig", str(api.write_kubeconfig(tmp_path / "config")))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "neuron-dra: the API server rejects the credentials (401): log in again, and check the context\n"
    )


async def test_watch_shows_the_cluster_again_with_one_login(tmp_path: Path) -> None:
    async with EmbeddedApi(controllers=False) as api:
        fill(api, small_clusters.base("a"))
        config = str(api.write_kubeconfig(tmp_path / "config"))
        command = [
            sys.executable,
            "-m",
            "neuron_dra.cli",
            "status",
            "--watch",
            "--interval",
            "1",
            "--kubeconfig",
            config,
        ]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, cwd=ROOT
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not (await process.stdout.readline()).startswith(b"TYPE"):
                    pass
                (tmp_path / "config").unlink()  # it is not read again
                fill(api, [small_clusters.node("b")])
                while b"1 silent" not in await process.stdout.readline():
                    pass
        finally:
            process.kill()
            await process.wait()


def test_watch_needs_a_cluster() -> None:
    done = run("status", "--watch", "--snapshot", "x")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_without_a_cluster_the_ways_to_one_are_named() -> None:
    done = run("why", "pod/p")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "neuron-dra: no cluster: set --kubeconfig or KUBECONFIG, or read a file with --snapshot (see --help)\n"
    )


async def test_api_server_that_is_gone_is_one_line(tmp_path: Path) -> None:
    async with EmbeddedApi(controllers=False) as api:
        config = api.write_kubeconfig(tmp_path / "config")
    done = await answer("why", "pod/p", "--kubeconfig", str(config))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the API server does not answer" in done.stderr


async def test_context_that_does_not_exist_is_named(tmp_path: Path) -> None:
    async with EmbeddedApi(controllers=False) as api:
        config = api.write_kubeconfig(tmp_path / "config")
        done = await answer("why", "pod/p", "--kubeconfig", str(config), "--context", "nowhere")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "nowhere" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("{", "not YAML"),
        ("[1, 2]", "not a list of Kubernetes objects"),
        ("kind: List\nitems: 3\n", "items of the List is not a list"),
        ("kind: Pod\nmetadata: {name: p}\nspec: text\n", "Pod p: spec is 'text': it must be an object"),
        ("kind: ResourceSlice\nmetadata: {name: s}\nspec: {driver: d}\n", "ResourceSlice s: spec.pool.name is missing"),
        (
            "kind: ResourceClaim\nmetadata: {name: c}\n"
            "spec: {devices: {requests: [{name: r, firstAvailable: [{name: a}, {deviceClassName: d}]}]}}\n",
            "ResourceClaim c: spec.devices.requests[0].firstAvailable[1].name is missing",
        ),
        ("kind: ConfigMap\nmetadata: {name: c}\n", "it has no objects of a snapshot"),
        ("kind: Node\nmetadata: {name: node-a}\n", "Pod p: the file has none"),
    ],
)
def test_malformed_files_are_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "snapshot"
    file.write_text(text)
    done = run("why", "pod/p", "--snapshot", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_snapshot_comes_from_standard_input_in_yaml_and_json() -> None:
    import yaml

    items = cluster_faults.healthy()
    wanted = None
    for text in (yaml.safe_dump({"kind": "List", "items": items}), json.dumps({"kind": "List", "items": items})):
        done = run("why", "node/a", "--snapshot", "-", "-o", "json", stdin=text)
        assert done.returncode == 0, done
        wanted = wanted or done.stdout
        assert done.stdout == wanted
    assert json.loads(wanted or "")["state"] == "publishes 16 devices, 4 held"


def test_objects_are_chosen_by_label() -> None:
    """(17) -l as in kubectl: the reports one after the other, by name, in the namespace only."""
    items = cluster_faults.healthy()
    for name, namespace, app in (("b", "default", "x"), ("a", "default", "x"), ("c", "default", "y"), ("d", "ml", "x")):
        pod = small_clusters.pod(name, "absent", namespace=namespace)
        pod["metadata"]["labels"] = {"app": app}
        items.append(pod)
    text = json.dumps({"kind": "List", "items": items})
    done = run("why", "pods", "-l", "app=x", "--snapshot", "-", "-n", "default", stdin=text)
    blocks = done.stdout.split("\n\n")
    assert done.returncode == 1
    assert [each.split()[:2] for each in blocks] == [["pod", "default/a"], ["pod", "default/b"]]
    done = run("why", "pods", "-l", "app=x", "--snapshot", "-", "-n", "default", "-o", "json", stdin=text)
    assert [each["subject"] for each in json.loads(done.stdout)["items"]] == ["pod default/a", "pod default/b"]
    done = run("why", "pods", "-l", "app=z", "--snapshot", "-", "-n", "default", stdin=text)
    assert (done.returncode, done.stderr) == (2, "neuron-dra: no Pod in namespace default has these labels\n")


@pytest.mark.parametrize("word", ["gpu", "pod/", "gpu/x", "/x"])
def test_unknown_types_name_the_known_ones(word: str) -> None:
    done = run("why", word, "--snapshot", "-")
    assert (done.returncode, done.stdout) == (2, "")
    assert "write TYPE/NAME, one of pod/NAME, claim/NAME, node/NAME, workload/NAME" in done.stderr


def test_help_names_every_kind_that_is_read() -> None:
    plurals = {"nus": "neuronultraservers", "nusw": "neuronultraserverworkloads"}
    listed = {kind: plurals.get(word, word) for kind, word in kubectl_words.PRINTED.items()}
    read = {kind: resource.plural for kind, resource in cluster.RESOURCES.items() if kind not in cluster.OPTIONAL}
    assert listed == read
    assert ",".join(kubectl_words.PRINTED.values()) in run("why", "--help").stdout.replace("\n", "").replace(" ", "")


def without_engine(folder: Path, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run a command on a pod that waits, where the engine of selectors is not installed."""
    package = folder / "cel_expr_python"
    package.mkdir()
    (package / "__init__.py").write_text("raise ModuleNotFoundError('no engine', name='cel_expr_python')")
    file = folder / "objects.json"
    items = [*small_clusters.base("a"), small_clusters.template("t"), small_clusters.pod("p", "t")]
    file.write_text(json.dumps({"kind": "List", "items": items}))
    named = [word.replace("-", str(file)) for word in words]
    source = () if words[0] == "validate" else ("--snapshot", str(file))
    return interpreted(*named, *source, PYTHONPATH=str(folder))


@pytest.mark.parametrize("command", ["doctor", "topology"])
def test_a_command_without_selectors_needs_no_package(tmp_path: Path, command: str) -> None:
    done = without_engine(tmp_path, (command,))
    assert (done.returncode in (0, 1), done.stderr) == (True, "")


@pytest.mark.parametrize(
    "words", [("status",), ("why", "pod/p"), ("validate", "-"), ("simulate", "-")], ids=lambda words: words[0]
)
def test_missing_package_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The image of the DaemonSet has no CEL engine: a command that evaluates selectors says what to install."""
    done = without_engine(tmp_path, words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"neuron-dra: {words[0]} needs cel_expr_python; install neuron-dra[cli]\n"
