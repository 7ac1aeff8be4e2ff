"""The manifests, and the chart from which they are rendered."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from controller.settings import NOTICED
from hack.generate import render
from neuron_dra import __version__, settings
from neuron_dra.api.objects import healthy_node
from neuron_dra.core import catalogue, connected, devices, partitions
from neuron_dra.emulation import mode as emulation
from neuron_dra.setting_table import settings_of
from tests.support import fast_yaml
from tests.support.built_tools import HELM, needs

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy/manifests"
CHART = ROOT / "deploy/helm/neuron-dra"
needs_helm = needs("helm")


def objects() -> dict[tuple[str, str], dict[str, Any]]:
    """Return every object of the manifests by kind and name."""
    documents = [d for path in sorted(MANIFESTS.glob("*.yaml")) for d in fast_yaml.load_all(path.read_text())]
    return {(d["kind"], d["metadata"]["name"]): d for d in documents}


@pytest.fixture(scope="module")
def daemonset() -> dict[str, Any]:
    return objects()["DaemonSet", "neuron-dra-driver-kubelet-plugin"]


@pytest.fixture
def pod(daemonset: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    only: dict[str, Any]
    [only] = pod["containers"]
    return only


def test_the_manifests_are_these_objects() -> None:
    assert set(objects()) == {
        ("Namespace", "neuron-dra-driver"),
        ("ServiceAccount", "neuron-dra-driver-sa"),
        ("ClusterRole", "neuron-dra-driver-kubelet-plugin"),
        ("ClusterRoleBinding", "neuron-dra-driver-kubelet-plugin"),
        ("ClusterRole", "neuron-dra-reader"),
        ("Role", "neuron-dra-top"),
        ("DeviceClass", "neuron.aws.com"),
        ("DeviceClass", "workload.neuron.aws.com"),
        ("ValidatingAdmissionPolicy", "neuron-dra-driver-own-resourceslices"),
        ("ValidatingAdmissionPolicyBinding", "neuron-dra-driver-own-resourceslices"),
        ("ValidatingAdmissionPolicy", "neuron-dra-driver-configuration"),
        ("ValidatingAdmissionPolicyBinding", "neuron-dra-driver-configuration"),
        ("DaemonSet", "neuron-dra-driver-kubelet-plugin"),
    }


def test_objects_are_in_the_drivers_namespace() -> None:
    cluster_wide = {"Namespace", "ClusterRole", "ClusterRoleBinding", "DeviceClass"}
    cluster_wide |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    places = {key: d["metadata"].get("namespace") for key, d in objects().items() if key[0] not in cluster_wide}
    assert set(places.values()) == {"neuron-dra-driver"}


def test_plugin_runs_as_root_without_privileges(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert pod["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod)


def test_pod_uses_its_service_account(pod: dict[str, Any]) -> None:
    assert pod["serviceAccountName"] == "neuron-dra-driver-sa"
    assert pod["automountServiceAccountToken"] is True
    assert objects()["ServiceAccount", "neuron-dra-driver-sa"]["automountServiceAccountToken"] is False


def test_role_is_bound_to_the_pods_service_account(pod: dict[str, Any]) -> None:
    binding = objects()["ClusterRoleBinding", "neuron-dra-driver-kubelet-plugin"]
    assert binding["roleRef"]["name"] == "neuron-dra-driver-kubelet-plugin"
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "neuron-dra-driver"}
    ]


def test_admission_policy_matches_the_pods_identity(pod: dict[str, Any]) -> None:
    policy = objects()["ValidatingAdmissionPolicy", "neuron-dra-driver-own-resourceslices"]["spec"]
    user = f"system:serviceaccount:neuron-dra-driver:{pod['serviceAccountName']}"
    assert [c["expression"] for c in policy["matchConditions"]] == [f"request.userInfo.username == '{user}'"]
    assert policy["failurePolicy"] == "Fail"
    [rule] = policy["matchConstraints"]["resourceRules"]
    assert rule == {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": ["resourceslices"],
    }
    assert [v["expression"] for v in policy["validations"]] == [
        "variables.node != ''",
        "variables.sliceNode == variables.node",
        "variables.slice.spec.driver == 'neuron.aws.com'",
        "request.operation == 'DELETE' || variables.slice.spec.pool.name == variables.node",
        "request.operation != 'CREATE' || object.metadata.name.startsWith(variables.prefix)",
    ]
    binding = objects()["ValidatingAdmissionPolicyBinding", "neuron-dra-driver-own-resourceslices"]["spec"]
    assert binding == {"policyName": "neuron-dra-driver-own-resourceslices", "validationActions": ["Deny"]}


def test_device_classes_cover_all_devices() -> None:
    reserved = "has(device.attributes['neuron.aws.com'].workloadUid)"
    selectors = {
        name: [s["cel"]["expression"] for s in d["spec"]["selectors"]]
        for (kind, name), d in objects().items()
        if kind == "DeviceClass"
    }
    assert selectors == {
        "neuron.aws.com": [f"device.driver == 'neuron.aws.com' && !{reserved} && {connected.EXCLUSION}"],
        "workload.neuron.aws.com": [f"device.driver == 'neuron.aws.com' && {reserved} && {connected.EXCLUSION}"],
    }
    assert connected.excludes_partitions(selectors["neuron.aws.com"])


def test_chart_sizes_match_published_sizes() -> None:
    """16.2."""
    sizes = set()
    for known in catalogue.all_types():
        node = healthy_node(known.name)
        found = partitions.partitioned(node, devices.published(node, driver_version="1", ultraserver_devices="devices"))
        assert found is not None
        for one in found.partitions:
            values = one.device.attributes
            sizes.add(("cores", values["cores"].value))
            sizes |= {("connected", values["connectedDevices"].value)} if "connectedDevices" in values else set()
    listed = (CHART / "files/connected-sizes.txt").read_text().splitlines()
    assert listed == [f"{kind}-{size}" for kind, size in sorted(sizes)]


@needs_helm
@pytest.mark.parametrize(("sizes", "expected"), [((), 50), (("connected-4", "cores-9"), 3)])
def test_each_size_has_a_class_that_excludes_reserved_devices(sizes: tuple[str, ...], expected: int) -> None:
    """16.2."""
    set_ = [word for n, size in enumerate(sizes) for word in ("--set", f"scheduler.sizes[{n}]={size}")]
    made = {(d["kind"], d["metadata"]["name"]): d for d in template("--set", "scheduler.enabled=true", *set_)}
    classes = {name: d for (kind, name), d in made.items() if kind == "DeviceClass" and name[:1] == "c"}
    assert len(classes) == expected
    [selector] = classes["cores-9.neuron.aws.com"]["spec"]["selectors"]
    values = "device.attributes['neuron.aws.com']"
    assert selector["cel"]["expression"] == (
        f"device.driver == 'neuron.aws.com' && has({values}.cores) && {values}.cores == 9 && !has({values}.workloadUid)"
    )
    assert "spec" in classes["connected-1.neuron.aws.com"]
    [container] = made["DaemonSet", "neuron-dra-driver-kubelet-plugin"]["spec"]["template"]["spec"]["containers"]
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert (env["CONNECTED_SETS"], env.get("CONNECTED_SIZES")) == ("true", ",".join(sizes) or None)
    rules = made["ClusterRole", "neuron-dra-driver-kubelet-plugin"]["rules"]
    assert {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["deviceclasses"],
        "resourceNames": ["neuron.aws.com"],
        "verbs": ["get"],
    } in rules


@needs_helm
@pytest.mark.parametrize(
    ("values", "installed"),
    [
        ((), False),
        (("--set", "scheduler.enabled=true"), True),
        (("--set", "scheduler.enabled=true", "--set", "scheduler.watcher.enabled=false"), False),
        (("--set", "scheduler.enabled=true", "--set-json", "scheduler.watcher=null"), False),
    ],
)
def test_limits_watcher_comes_with_connected_sets(values: tuple[str, ...], installed: bool) -> None:
    """16.5. After `helm upgrade --reuse-values` from an earlier release the value is missing."""
    made = {(item["kind"], item["metadata"]["name"]) for item in template(*values)}
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Deployment")
    assert {(kind, "neuron-dra-limits-watcher") in made for kind in kinds} == {installed}


@needs_helm
def test_both_shapes_need_the_counters() -> None:
    """16.1."""
    both = ("--set", "draDriver.ultraserverDevices=both")
    assert template(*both, "--set", "scheduler.enabled=true")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        template(*both)
    assert "draDriver.ultraserverDevices=both needs scheduler.enabled" in refused.value.stderr


def test_folders_are_mounted_at_host_paths(pod: dict[str, Any], container: dict[str, Any]) -> None:
    volumes = {v["name"]: (v["hostPath"]["path"], v["hostPath"]["type"]) for v in pod["volumes"]}
    mounts = {
        volumes[m["name"]]: (m["mountPath"], "ro" if m.get("readOnly") else "rw") for m in container["volumeMounts"]
    }
    assert mounts == {
        ("/var/lib/kubelet/plugins", "Directory"): ("/var/lib/kubelet/plugins", "rw"),
        ("/var/lib/kubelet/plugins_registry", "Directory"): ("/var/lib/kubelet/plugins_registry", "rw"),
        ("/var/run/cdi", "DirectoryOrCreate"): ("/var/run/cdi", "rw"),
        ("/var/lib/kubelet/device-plugins", "DirectoryOrCreate"): ("/var/lib/kubelet/device-plugins", "ro"),
        ("/var/lib/kubelet/pod-resources", "DirectoryOrCreate"): ("/var/lib/kubelet/pod-resources", "ro"),
        ("/dev", "Directory"): ("/host/dev", "ro"),
        ("/proc/sys/kernel/random/boot_id", "File"): ("/host/boot_id", "ro"),
    }


def test_environment_is_valid_for_the_plugin(container: dict[str, Any]) -> None:
    fields = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"] if "valueFrom" in e}
    assert fields == {"NODE_NAME": "spec.nodeName", "POD_UID": "metadata.uid"}
    values = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    known = {setting.variable for setting in settings_of(settings.PluginSettings)}
    assert set(values) | set(fields) <= known
    uid = "8f5d3a9c-1f0b-4c7d-9d4e-2b7c6a1e0f55"
    loaded = settings.load({}, {**values, "NODE_NAME": "ip-10-0-0-1.ec2.internal", "POD_UID": uid})
    mounted = {m["mountPath"] for m in container["volumeMounts"]}
    assert {
        loaded.cdi_root,
        loaded.kubelet_plugins_directory_path,
        loaded.kubelet_registrar_directory_path,
        loaded.kubelet_device_plugins_directory_path,
        str(Path(loaded.kubelet_pod_resources_socket).parent),
        loaded.host_dev,
        loaded.boot_id_file,
    } == mounted


def test_manifests_set_the_plugins_defaults(container: dict[str, Any]) -> None:
    values = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    given = settings.load({}, {**values, "NODE_NAME": "n"})
    assert given == settings.load({}, {"NODE_NAME": "n"})


def test_probes_match_the_plugins_endpoints(container: dict[str, Any]) -> None:
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert ports == {"healthcheck": 51515, "metrics": 8080}
    alive = {"grpc": {"port": 51515, "service": "liveness"}, "timeoutSeconds": 5}
    assert container["startupProbe"] == {**alive, "periodSeconds": 2, "failureThreshold": 60}
    assert container["livenessProbe"] == {**alive, "periodSeconds": 10, "failureThreshold": 3}
    ready = {"httpGet": {"path": "/readyz", "port": "metrics"}, "timeoutSeconds": 5}
    assert container["readinessProbe"] == {**ready, "periodSeconds": 5, "failureThreshold": 3}


def test_startup_probe_allows_a_minute(container: dict[str, Any]) -> None:
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 60


def test_memory_is_limited_and_cpu_is_not(container: dict[str, Any]) -> None:
    assert container["resources"] == {
        "requests": {"cpu": "10m", "memory": "128Mi"},
        "limits": {"memory": "256Mi"},
    }


def test_update_starts_the_new_pod_first(daemonset: dict[str, Any], pod: dict[str, Any]) -> None:
    assert daemonset["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    }
    assert pod["terminationGracePeriodSeconds"] > 20  # the plugin waits that long for running claims


def test_pod_tolerates_all_taints_of_neuron_nodes(pod: dict[str, Any]) -> None:
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [
        {"operator": "Exists", "effect": "NoExecute"},
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"key": "aws.amazon.com/neuron", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "aws.amazon.com/neuroncore", "operator": "Exists", "effect": "NoSchedule"},
        {
            "key": "sagemaker.amazonaws.com/node-health-status",
            "operator": "Equal",
            "value": "Unschedulable",
            "effect": "NoSchedule",
        },
    ]
    [term] = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    by_type, by_compute = term["matchExpressions"]
    assert (by_type["key"], by_type["operator"]) == ("node.kubernetes.io/instance-type", "In")
    assert by_compute == {
        "key": "eks.amazonaws.com/compute-type",
        "operator": "NotIn",
        "values": ["fargate", "hybrid", "auto"],
    }


def test_driver_runs_on_every_known_instance_type(pod: dict[str, Any]) -> None:
    [term] = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    served = term["matchExpressions"][0]["values"]
    known = [each.name for each in catalogue.all_types()]
    assert sorted(served) == sorted([*known, *(f"ml.{name}" for name in known)])  # HyperPod's names begin with "ml."


def test_the_selector_finds_the_pods(daemonset: dict[str, Any]) -> None:
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert daemonset["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_chart_image_and_program_have_one_version(container: dict[str, Any]) -> None:
    chart = fast_yaml.load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    assert container["image"] == f"neuron-dra-driver:{__version__}"
    assert container["command"] == ["k8s-neuron-dra-driver"]


def test_every_value_has_a_place_in_the_schema() -> None:
    values = fast_yaml.load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values, schema)
    misspelt = {**values, "draDriver": {**values["draDriver"], "healthCheckPort": 51515}}
    with pytest.raises(jsonschema.ValidationError, match="healthCheckPort"):
        jsonschema.validate(misspelt, schema)


def test_image_context_has_wheels_and_lock_only() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules == ["*", "!build/wheels", "!requirements/plugin.txt"]
    dockerfile = (ROOT / "Dockerfile.plugin").read_text()
    assert re.findall(r"^COPY (?!--from)(\S+)", dockerfile, re.MULTILINE) == ["build/wheels", "requirements/plugin.txt"]
    assert "PYTHONDONTWRITEBYTECODE" not in dockerfile


# With helm.


def template(*arguments: str) -> list[dict[str, Any]]:
    assert HELM is not None
    rendered = render.template(HELM, "--set", "draDriver.image.repository=r", *arguments)
    return [d for d in fast_yaml.load_all(rendered) if d]


@needs_helm
def test_the_manifests_are_the_charts_rendering() -> None:
    assert HELM is not None
    assert render.present() == render.render(HELM)


@needs_helm
def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    assert HELM is not None
    subprocess.run([HELM, "lint", "--strict", str(CHART), "--set", "draDriver.image.repository=r"], check=True)


@needs_helm
def test_chart_without_image_names_the_value() -> None:
    assert HELM is not None
    with pytest.raises(subprocess.CalledProcessError) as caught:
        render.template(HELM)
    assert "set draDriver.image.repository to where you pushed the image" in caught.value.stderr


@needs_helm
def test_release_namespace_is_not_created_twice() -> None:
    kinds = [d["kind"] for d in template("--namespace", "neuron-dra-driver")]
    assert "Namespace" not in kinds
    assert kinds.count("DaemonSet") == 1


@needs_helm
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("devicePlugin.enabled=true", "/devicePlugin/enabled"),
        ("draDriver.env=x", "'env' not allowed"),
        ("draDriver.devicePluginCoexistence=ignore", "'refuse', 'warn'"),
        ("draDriver.unhealthyDevices.effect=Evict", "'NoSchedule', 'NoExecute', 'None'"),
        ("draDriver.unhealthyDevices.holdSeconds=-1", "minimum"),
        ("draDriver.deviceWaitSeconds=41", "maximum"),
        ("draDriver.resources.limits.cpu=banana", "/draDriver/resources/limits/cpu"),
        ("draDriver.updateStrategy.type=Recreate", "'RollingUpdate', 'OnDelete'"),
        ("draDriver.updateStrategy.rollingUpdate.maxSurge=many", "/draDriver/updateStrategy/rollingUpdate/maxSurge"),
        ("draDriver.fullnameOverride=mine", "'', 'neuron-dra-driver-kubelet-plugin'"),
        (
            "draDriver.healthcheckPort=8080",
            "draDriver.healthcheckPort and draDriver.metricsPort are both 8080: set one of them to another port",
        ),
        (
            "draDriver.podLabels.app=mine",
            'draDriver.podLabels sets app, which the chart sets to "neuron-dra-driver-kubelet-plugin": remove it',
        ),
        (
            "draDriver.extraEnv[0].name=NODE_NAME",
            "draDriver.extraEnv sets NODE_NAME, which the chart sets: use the chart's value for it",
        ),
        (
            "draDriver.extraEnv[0].name=A,draDriver.extraEnv[1].name=A",
            "draDriver.extraEnv sets A twice: remove one",
        ),
        (
            "draDriver.emulationMode=trn9.48xlarge",
            "draDriver.emulationMode=trn9.48xlarge is not a known instance type",
        ),
        (
            "draDriver.image.repository=public.ecr.aws/neuron/neuron-dra-driver",
            "public.ecr.aws/neuron/neuron-dra-driver is AWS's image, which does not run in this chart",
        ),
        (
            "ultraserverOperator.enabled=true,draDriver.enabled=false",
            "ultraserverOperator.enabled needs draDriver.enabled: the driver's plugins tag the nodes that it reserves",
        ),
        (
            "ultraserverOperator.enabled=true,ultraserverOperator.healthPort=8080",
            "ultraserverOperator.healthPort and ultraserverOperator.metricsPort are both 8080",
        ),
        (
            "ultraserverOperator.enabled=true,ultraserverOperator.faultGrace=1m29.5s",
            "ultraserverOperator.faultGrace=1m29.5s: write at least 150s",
        ),
        (
            "ultraserverOperator.enabled=true,ultraserverOperator.nodeFailureGrace=90000ms",
            "ultraserverOperator.nodeFailureGrace=90000ms: write at least 150s",
        ),
        (
            "ultraserverOperator.enabled=true,ultraserverOperator.podLabels.app=mine",
            "ultraserverOperator.podLabels sets app",
        ),
        (
            "ultraserverOperator.enabled=true,ultraserverOperator.image.repository=public.ecr.aws/neuron/operator",
            "leave it empty to use the driver's image",
        ),
        (
            "ultraserverOperator.image.tag=1.2.3",
            "have no effect without ultraserverOperator.image.repository",
        ),
        (
            "draDriver.updateStrategy.rollingUpdate.maxUnavailable=1",
            "maxUnavailable and maxSurge are not 0, which Kubernetes rejects",
        ),
        (
            "draDriver.updateStrategy.rollingUpdate.maxSurge=0%",
            "maxUnavailable and maxSurge are both 0, which Kubernetes rejects",
        ),
        ("draDriver.extraEnv[0].name=A,draDriver.extraEnv[0].value=1", "got number, want string"),
    ],
)
def test_invalid_value_is_rejected(value: str, text: str) -> None:
    """14.16: these values would render, and fail later in the cluster."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        template("--set", value)
    assert text in caught.value.stderr


@needs_helm
def test_graces_are_those_that_the_program_accepts() -> None:
    """4.02. A test bed may shorten them, and the chart tells the program."""
    limit = f"{NOTICED.total_seconds():g}s"
    enabled = "ultraserverOperator.enabled=true"
    for given in (f"faultGrace={limit}", "faultGrace=2m30s", "nodeFailureGrace=0.5h"):
        template("--set", f"{enabled},ultraserverOperator.{given}")
    short = "ultraserverOperator.faultGrace=2s,ultraserverOperator.allowShortGraces=true"
    [deployment] = [d for d in template("--set", f"{enabled},{short}") if d["kind"] == "Deployment"]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--fault-grace=2s", "--allow-short-graces"} <= {*arguments}


@needs_helm
@pytest.mark.parametrize(("down", "surge"), [("25%", "0"), ("0", "10%"), ("1", "null")])
def test_update_strategies_that_kubernetes_accepts(down: str, surge: str) -> None:
    """A missing maxSurge is 0; `null` removes the chart's own."""
    prefix = "draDriver.updateStrategy.rollingUpdate"
    found = template("--set", f"{prefix}.maxUnavailable={down},{prefix}.maxSurge={surge}")
    assert "DaemonSet" in [d["kind"] for d in found]


@needs_helm
def test_kubelet_folder_moves_mounts_and_settings() -> None:
    [daemonset] = [d for d in template("--set", "draDriver.kubeletRootDir=/data/kubelet") if d["kind"] == "DaemonSet"]
    [container] = daemonset["spec"]["template"]["spec"]["containers"]
    values = {e["name"]: e.get("value") for e in container["env"]}
    assert values["KUBELET_PLUGINS_DIRECTORY_PATH"] == "/data/kubelet/plugins"
    assert values["KUBELET_REGISTRAR_DIRECTORY_PATH"] == "/data/kubelet/plugins_registry"
    mounts = [m["mountPath"] for m in container["volumeMounts"]]
    assert mounts[:2] == ["/data/kubelet/plugins", "/data/kubelet/plugins_registry"]
    # The kubelet's folder for device plugins does not depend on its root directory.
    assert "/var/lib/kubelet/device-plugins" in mounts
    assert values["KUBELET_POD_RESOURCES_SOCKET"] == "/data/kubelet/pod-resources/kubelet.sock"
    assert "/data/kubelet/pod-resources" in mounts


@needs_helm
def test_pod_resources_mount_is_optional() -> None:
    """14.9: AWS's chart does not mount them, either."""
    rendered = yaml.safe_dump_all(template("--set", "draDriver.podResources=false"))
    assert "DaemonSet" in rendered
    assert "pod-resources" not in rendered
    assert "POD_RESOURCES" not in rendered


@needs_helm
def test_documented_aws_values_are_accepted() -> None:
    carried = ["--set", "devicePlugin.enabled=false", "--set", "npd.enabled=true", "--set", "draDriver.enabled=true"]
    carried += ["--set", "npd.nodeRecovery.enabled=false", "--set", "draDriver.nameOverride=neuron-dra-driver"]
    carried += ["--set", "draDriver.fullnameOverride=neuron-dra-driver-kubelet-plugin"]
    assert "DaemonSet" in [d["kind"] for d in template(*carried, "--namespace", "kube-system")]


@needs_helm
@pytest.mark.parametrize("mode", ["trn2.48xlarge", "trn2u", "ml.trn1.32xlarge"])
def test_chart_accepts_the_drivers_emulation_types(mode: str) -> None:
    """14.16."""
    [daemonset] = [d for d in template("--set", f"draDriver.emulationMode={mode}") if d["kind"] == "DaemonSet"]
    [container] = daemonset["spec"]["template"]["spec"]["containers"]
    values = {e["name"]: e.get("value") for e in container["env"]}
    assert values["NEURON_DRA_DRIVER_EMULATION_MODE"] == mode
    assert emulation.instance_type(mode)


def test_chart_has_all_instance_types() -> None:
    listed = (CHART / "files/instance-types.txt").read_text().splitlines()
    assert listed == [known.name for known in catalogue.all_types()]


@needs_helm
def test_verbosity_and_device_wait_reach_the_driver() -> None:
    """14.16."""
    set_ = ["--set", "draDriver.verbosity=4", "--set", "draDriver.deviceWaitSeconds=5"]
    [daemonset] = [d for d in template(*set_) if d["kind"] == "DaemonSet"]
    [container] = daemonset["spec"]["template"]["spec"]["containers"]
    values = {e["name"]: e.get("value") for e in container["env"]}
    assert (values["VERBOSITY"], values["DEVICE_WAIT_SECONDS"]) == ("4", "5")


@needs_helm
@pytest.mark.parametrize(("value", "expected"), [("true", "true"), ("false", None)])
def test_device_metadata_is_a_value(value: str, expected: str | None) -> None:
    """18.6: off by default."""
    [daemonset] = [d for d in template("--set", f"draDriver.deviceMetadata={value}") if d["kind"] == "DaemonSet"]
    [container] = daemonset["spec"]["template"]["spec"]["containers"]
    assert {e["name"]: e.get("value") for e in container["env"]}.get("DEVICE_METADATA") == expected


@needs_helm
def test_controller_affinity_and_labels_are_values() -> None:
    """14.16."""
    expression = "ultraserverOperator.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
    set_ = ["--set", "ultraserverOperator.enabled=true", "--set", "ultraserverOperator.podLabels.team=ml"]
    [deployment] = [d for d in template(*set_, "--set", f"{expression}[0].weight=1") if d["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]
    assert pod["metadata"]["labels"]["team"] == "ml"
    assert pod["spec"]["affinity"] == {"nodeAffinity": {expression.rpartition(".")[2]: [{"weight": 1}]}}


@needs_helm
def test_hooks_are_tests_alone_and_argo_cd_skips_them() -> None:
    """A sync of Argo CD applies what `helm template` prints, and would run other hooks."""
    template = [str(HELM), "template", "neuron-dra", str(CHART), "--set", "draDriver.image.repository=a"]
    documents = fast_yaml.load_all(subprocess.run(template, check=True, capture_output=True, text=True).stdout)
    found = [document["metadata"].get("annotations") or {} for document in documents if document]
    hooks = [each for each in found if any("hook" in name for name in each)]
    policy = {"helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded", "argocd.argoproj.io/hook": "Skip"}
    assert sorted(hooks, key=lambda each: each["helm.sh/hook-weight"]) == [
        {"helm.sh/hook": "test", "helm.sh/hook-weight": "-1", **policy},
        {"helm.sh/hook": "test", "helm.sh/hook-weight": "0", **policy},
    ]
