"""16.6: the manifests that `neuron-dra migrate` writes for Kubernetes 1.36 and for 1.34, as values."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.api.problems import BadInput, CannotMigrate
from neuron_dra.ask.migrate import leftovers
from neuron_dra.ask.migrate.rewrite import Options, Rewritten, rewrite
from neuron_dra.core import catalogue, sizes

NAMES, CLAIMS = Options(names=True), Options(names=False)
NEURON, CORE, LEGACY = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "aws.amazon.com/neurondevice"
TYPE = "node.kubernetes.io/instance-type"


def connected(count: int) -> str:
    return f"deviceclass.resource.kubernetes.io/connected-{count}.neuron.aws.com"


def cores(count: int) -> str:
    return f"deviceclass.resource.kubernetes.io/cores-{count}.neuron.aws.com"


def container(name: str = "main", **limits: Any) -> dict[str, Any]:
    """Return a container; `neuron`, `neuroncore` and `neurondevice` are limits."""
    return {"name": name, "resources": {"limits": {f"aws.amazon.com/{key}": n for key, n in limits.items()}}}


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ml"},
        "spec": {"containers": list(containers), **spec},
    }


def on(instance_type: str) -> dict[str, Any]:
    return {"nodeSelector": {TYPE: instance_type}}


def migrated(document: dict[str, Any], options: Options = NAMES) -> tuple[dict[str, Any], Rewritten]:
    changed = copy.deepcopy(document)
    return changed, rewrite(changed, options)


def limits_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    spec = document["spec"]
    return [each["resources"]["limits"] for each in [*spec.get("initContainers", ()), *spec["containers"]]]


# Kubernetes 1.36


def test_limits_and_requests_become_names_of_classes() -> None:
    one = {"name": "a", "resources": {"limits": {"cpu": 4, NEURON: 3}, "requests": {"cpu": 1, NEURON: 3}}}
    changed, outcome = migrated(pod(one, container(neuroncore="9")))
    first, second = (each["resources"] for each in changed["spec"]["containers"])
    assert first == {"limits": {"cpu": 4, connected(3): 1}, "requests": {"cpu": 1, connected(3): 1}}
    assert second == {"limits": {cores(9): "1"}}
    assert outcome == Rewritten(renamed=2)


def test_the_legacy_name_counts_devices() -> None:
    assert limits_of(migrated(pod(container(neurondevice=4)))[0]) == [{connected(4): 1}]


def test_the_seed_s_pod_keeps_everything_else() -> None:
    """(16.3) The pod of the scheduler extension's page."""
    spec = {"restartPolicy": "Never", "schedulerName": "my-scheduler"}
    limits = {"cpu": "4", "memory": "4Gi", CORE: 9}
    one = {"name": "n", "resources": {"limits": limits, "requests": {"cpu": "1", "memory": "1Gi"}}}
    changed, _ = migrated(pod(one, **spec))
    assert changed["spec"] == {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "n",
                "resources": {
                    "limits": {"cpu": "4", "memory": "4Gi", cores(9): 1},
                    "requests": {"cpu": "1", "memory": "1Gi"},
                },
            }
        ],
    }


def test_zero_of_the_class_does_not_hide_the_limit() -> None:
    one = {"name": "a", "resources": {"limits": {NEURON: 1, connected(1): 0}}}
    assert limits_of(migrated(pod(one))[0]) == [{connected(1): 1}]


def test_another_scheduler_s_name_stays() -> None:
    assert migrated(pod(container(neuron=1), schedulerName="volcano"))[0]["spec"]["schedulerName"] == "volcano"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda spec: {"kind": "Deployment", "spec": {"template": {"spec": spec}}},
        lambda spec: {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": {"spec": spec}}}}},
        lambda spec: {
            "kind": "LeaderWorkerSet",
            "spec": {"leaderWorkerTemplate": {"leaderTemplate": {"spec": spec}, "workerTemplate": {"spec": spec}}},
        },
        lambda spec: {"kind": "MPIJob", "spec": {"mpiReplicaSpecs": {"Worker": {"template": {"spec": spec}}}}},
        lambda spec: {
            "kind": "RayCluster",
            "spec": {"headGroupSpec": {"template": {"spec": spec}}, "workerGroupSpecs": [{"template": {"spec": spec}}]},
        },
        lambda spec: {"kind": "InferenceService", "spec": {"predictor": spec}},
        lambda spec: {"kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod", "spec": spec}]},
    ],
)
def test_every_kind_with_a_list_of_containers_is_rewritten(wrap: Any) -> None:
    document = {"apiVersion": "example.com/v1", **wrap(pod(container(neuron=4))["spec"])}
    text = yaml.safe_dump(migrated(document)[0])
    assert NEURON not in text
    assert connected(4) in text


def test_a_model_of_kserve_is_rewritten() -> None:
    document = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "spec": {"predictor": {"model": {"resources": {"limits": {NEURON: "1"}}}}},
    }
    changed, _ = migrated(document)
    assert changed["spec"]["predictor"]["model"]["resources"]["limits"] == {connected(1): "1"}


def test_a_predictor_s_model_gets_a_claim() -> None:
    """(18.2) Its node selector names the type; there may be no container beside it."""
    predictor = {"model": {"resources": {"limits": {NEURON: 1}}}, **on("inf2.xlarge")}
    document = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "spec": {"predictor": predictor}}
    changed, outcome = migrated(document, CLAIMS)
    assert changed["spec"]["predictor"]["model"]["resources"] == {"claims": [{"name": "neurons-model"}]}
    [template] = outcome.templates
    claim = {"name": "neurons-model", "resourceClaimTemplateName": template["metadata"]["name"]}
    assert changed["spec"]["predictor"]["resourceClaims"] == [claim]


def test_ray_keeps_its_number_of_neuron_cores() -> None:
    """KubeRay reads the limit that is removed; an existing parameter stays."""
    groups = [{"template": {"spec": pod(container(neuroncore=2))["spec"]}, "rayStartParams": {}}]
    groups += [{**copy.deepcopy(groups[0]), "rayStartParams": {"resources": "own"}}]
    document = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": {"workerGroupSpecs": groups}}
    changed, _ = migrated(document)
    parameters = [each["rayStartParams"] for each in changed["spec"]["workerGroupSpecs"]]
    assert parameters == [{"resources": '"{\\"neuron_cores\\": 2}"'}, {"resources": "own"}]


@pytest.mark.parametrize(
    ("init", "others", "expected"),
    [(1, (4,), 4), (4, (4,), 4), (2, (8, 3), 3), (3, (), 3)],
)
def test_an_init_container_requests_a_number_of_the_main_ones(
    init: int, others: tuple[int, ...], expected: int
) -> None:
    """(16.3) The scheduler reuses a device only under the same name."""
    mains = [container(f"m{n}", neuron=n) for n in others] or [{"name": "m"}]
    changed, _ = migrated(pod(*mains, initContainers=[container("i", neuron=init)]))
    assert changed["spec"]["initContainers"][0]["resources"]["limits"] == {connected(expected): 1}


def test_a_sidecar_keeps_its_own_number() -> None:
    sidecar = {**container("s", neuron=2), "restartPolicy": "Always"}
    changed, _ = migrated(pod(container(neuron=8), initContainers=[sidecar]))
    assert limits_of(changed) == [{connected(2): 1}, {connected(8): 1}]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            pod(container(neuron=1, neuroncore=2)),
            r"spec.containers\[0\].resources.limits: requests aws.amazon.com/neuron and aws.amazon.com/neuroncore at ",
        ),
        (pod(container(neuron=1, neurondevice=1)), "at once"),
        (pod({"name": "a", "resources": {"limits": {NEURON: 1, connected(2): 1}}}), "at once"),
        (
            pod(container(neuron=7), **on("trn1.32xlarge")),
            "Instance type trn1.32xlarge does not support requests for device: 7. "
            "Please request a different number of devices.",
        ),
        (pod(container(neuron=17)), "no instance type serves 17 devices to one container"),
        (pod(container(neuron=1), **on("m5.large")), "m5.large is not an instance type with Neuron devices"),
        (pod(container(neuron=2), initContainers=[container("i", neuron=4)]), "request at most 2, or 4 in a main"),
        (pod(container(neuron=2), initContainers=[container("i", neuroncore=1)]), "use one of them in a pod"),
        ({"apiVersion": "resource.k8s.io/v1alpha3", "kind": "ResourceClaim"}, "v1alpha3 is not supported"),
    ],
)
def test_what_has_no_equivalent_is_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(CannotMigrate, match=message):
        migrated(document)


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"limits": {NEURON: "4k"}}, "is '4k'; write a whole number"),
        ({"limits": {NEURON: 0.5}}, "is 0.5; write a whole number"),
        ({"limits": {NEURON: -1}}, "is -1; write a whole number"),
        ({"limits": {NEURON: True}}, "is True; write a whole number"),
        ({"limits": {NEURON: [1]}}, r"is \[1\]; write a whole number"),
        ({"requests": {NEURON: 2}}, "aws.amazon.com/neuron is 2 and there is no limit"),
        ({"limits": {NEURON: 4}, "requests": {NEURON: 2}}, "is 2 and the limit is 4"),
        ({"limits": [1]}, "not a mapping"),
    ],
)
def test_what_kubernetes_would_reject_is_bad_input(resources: Any, message: str) -> None:
    with pytest.raises(BadInput, match=r"spec\.containers\[0\].*" + message):
        migrated(pod({"name": "a", "resources": resources}))


def test_unrelated_requests_are_unchanged() -> None:
    for document in (
        pod({"name": "a"}, {"name": "b", "resources": {"limits": {"nvidia.com/gpu": 1}}}),
        pod(container(neuron=0)),
        {"kind": "ConfigMap", "data": {"containers": "aws.amazon.com/neuron: 4"}},
        {"kind": "Other", "spec": {"resources": {"limits": "few"}}},
    ):
        assert migrated(document) == (document, Rewritten())


def test_a_quota_on_the_old_name_is_noted() -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {f"requests.{NEURON}": 4}}}
    assert leftovers.lines(leftovers.found(migrated(quota)[0])) == [
        "ResourceQuota: aws.amazon.com/neuron counts nothing after this; see docs/quotas.md"
    ]


# Kubernetes 1.34


def requested(template: dict[str, Any]) -> tuple[str, int | None, str, str]:
    """Return mode, count, constraint and annotation of a template."""
    devices = template["spec"]["spec"]["devices"]
    request = devices["requests"][0]["exactly"]
    counts = [each["exactly"].get("count") for each in devices["requests"]]
    count = None if None in counts else sum(counts)
    group = devices.get("constraints", [{"matchAttribute": ""}])[0]["matchAttribute"]
    annotations = template["spec"].get("metadata", {}).get("annotations", {})
    return request["allocationMode"], count, group, annotations.get("neuron.aws.com/device-count", "")


@pytest.mark.parametrize(
    ("instance_type", "limits", "expected"),
    [
        ("trn1.32xlarge", {"neuron": 1}, ("ExactCount", 1, "", "")),
        ("trn1.32xlarge", {"neuron": 4}, ("ExactCount", 4, "resource.aws.com/devicegroup4_id", "")),
        ("trn1.32xlarge", {"neuron": 8}, ("ExactCount", 8, "resource.aws.com/devicegroup8_id", "")),  # in two requests
        ("trn1.32xlarge", {"neuron": 16}, ("All", None, "", "16")),
        ("trn1.32xlarge", {"neuroncore": 8}, ("ExactCount", 4, "resource.aws.com/devicegroup4_id", "")),
        ("trn2.48xlarge", {"neuroncore": 4}, ("ExactCount", 1, "", "")),
        ("inf2.48xlarge", {"neuron": 1}, ("ExactCount", 1, "", "")),
        ("inf2.48xlarge", {"neuron": 12}, ("All", None, "", "12")),
        ("inf2.xlarge", {"neuron": 1}, ("ExactCount", 1, "", "")),
        ("trn2u.48xlarge", {"neuron": 16}, ("ExactCount", 1, "", "")),
    ],
)
def test_limits_become_claims(instance_type: str, limits: dict[str, Any], expected: tuple[Any, ...]) -> None:
    changed, outcome = migrated(pod(container(**limits), **on(instance_type)), CLAIMS)
    [template] = outcome.templates
    assert requested(template) == expected
    assert template["metadata"]["namespace"] == "ml"
    name = template["metadata"]["name"]
    assert changed["spec"] == {
        "containers": [{"name": "main", "resources": {"claims": [{"name": "neurons-main"}]}}],
        **on(instance_type),
        "resourceClaims": [{"name": "neurons-main", "resourceClaimTemplateName": name}],
    }


def test_a_whole_ultraserver_node_is_one_device() -> None:
    _, outcome = migrated(pod(container(neuron=16), **on("trn2u.48xlarge")), CLAIMS)
    expression = outcome.templates[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]["cel"]
    assert "resourceType == 'neuron_node'" in expression["expression"]
    assert outcome.notes == [
        "neuron-node-trn2u-48xlarge requests a whole node: it needs the chart's draDriver.ultraserverDevices=node, the "
        "default"
    ]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            pod(container(neuron=3), **on("inf2.48xlarge")),
            "needs Kubernetes 1.36.3; before that request 1 or 12 devices",
        ),
        (pod(container(neuron=4), **on("trn2n.48xlarge")), "before that request 1 or 16 devices"),
        (
            pod(container(neuroncore=9), **on("inf2.48xlarge")),
            "of 2 cores each: request 24 cores, or upgrade",
        ),
        (
            pod(container(neuroncore=1), **on("trn1.32xlarge")),
            "of 2 cores each: request 2 cores, or upgrade",
        ),
        (pod(container(neuron=7), **on("trn1.32xlarge")), "does not support requests for device: 7"),
        (pod(container(neuron=4)), "pass --instance-type"),
    ],
)
def test_unsupported_before_1_36_names_the_remedy(document: dict[str, Any], message: str) -> None:
    with pytest.raises(CannotMigrate, match=message):
        migrated(document, CLAIMS)


def test_number_of_cores_that_a_message_names_can_be_migrated() -> None:
    """For 9 cores on inf2.48xlarge it named 10, which are 5 connected devices, and these it refused."""
    for spec in catalogue.all_types():
        for count in sizes.counts(spec, sizes.CORE):
            try:
                migrated(pod(container(neuroncore=count), **on(spec.name)), CLAIMS)
            except CannotMigrate as err:
                advised = re.search(r"request (\d+) cores", str(err))
                if advised:
                    assert int(advised[1]) > count
                    migrated(pod(container(neuroncore=int(advised[1])), **on(spec.name)), CLAIMS)


def test_affinity_names_instance_types_too() -> None:
    def affinity(*terms: tuple[str, ...]) -> dict[str, Any]:
        listed = [{"matchExpressions": [{"key": TYPE, "operator": "In", "values": list(term)}]} for term in terms]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": listed}}
        return {"affinity": {"nodeAffinity": required}}

    _, outcome = migrated(pod(container(neuron=4), **affinity(("trn1.32xlarge",), ("trn1n.32xlarge",))), CLAIMS)
    assert outcome.templates[0]["metadata"]["name"] == "neuron-4-trn1-32xlarge-trn1n-32xlarge"
    with pytest.raises(CannotMigrate, match="need different claims"):
        migrated(pod(container(neuron=16), **affinity(("trn1.32xlarge", "trn2u.48xlarge"))), CLAIMS)


def test_init_containers_use_the_claim_of_a_main_container() -> None:
    inits = [container("i", neuron=1), {**container("s", neuron=1), "restartPolicy": "Always"}]
    document = pod(container("a", neuron=8), container("b", neuron=4), initContainers=inits, **on("trn1.32xlarge"))
    changed, outcome = migrated(document, CLAIMS)
    spec = changed["spec"]
    claims = {each["name"]: each["resources"]["claims"] for each in [*spec["initContainers"], *spec["containers"]]}
    assert claims == {
        "i": [{"name": "neurons-b"}],
        "s": [{"name": "neurons-s"}],
        "a": [{"name": "neurons-a"}],
        "b": [{"name": "neurons-b"}],
    }
    assert len(outcome.templates) == 3


# Beta versions of resource.k8s.io


def test_a_request_of_v1beta1_is_nested_in_exactly() -> None:
    requests: list[dict[str, Any]] = [
        {"name": "a", "deviceClassName": "neuron.aws.com", "count": 4, "selectors": [{"cel": {"expression": "true"}}]},
        {"name": "b", "firstAvailable": [{"name": "c", "deviceClassName": "neuron.aws.com"}]},
    ]
    document = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": "ResourceClaimTemplate",
        "spec": {"spec": {"devices": {"requests": requests}}},
    }
    changed, _ = migrated(document)
    first = {key: value for key, value in requests[0].items() if key != "name"}
    assert changed["apiVersion"] == "resource.k8s.io/v1"
    assert changed["spec"]["spec"]["devices"]["requests"] == [{"name": "a", "exactly": first}, requests[1]]


def test_v1beta2_has_the_fields_of_v1() -> None:
    spec = {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "x"}}]}}
    document = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "ResourceClaim", "spec": spec}
    assert migrated(document)[0] == {**document, "apiVersion": "resource.k8s.io/v1"}


def test_a_device_of_v1beta1_loses_its_basic() -> None:
    spec = {"devices": [{"name": "a", "basic": {"attributes": {"x": {"int": 1}}}}]}
    document = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceSlice", "spec": spec}
    assert migrated(document)[0]["spec"] == {"devices": [{"name": "a", "attributes": {"x": {"int": 1}}}]}


# Any pod

TYPES = [spec.name for spec in catalogue.all_types()]
resources = st.one_of(
    st.just({}),
    st.builds(
        lambda name, count, both: {"limits": {name: count}, **({"requests": {name: count}} if both else {})},
        st.sampled_from([NEURON, CORE, LEGACY]),
        st.integers(0, 20).flatmap(lambda n: st.sampled_from([n, str(n)])),
        st.booleans(),
    ),
)
pods = st.builds(
    lambda mains, inits, instance_type: pod(
        *({"name": f"m{n}", "resources": each} for n, each in enumerate(mains)),
        initContainers=[{"name": f"i{n}", "resources": each} for n, each in enumerate(inits)],
        **on(instance_type),
    ),
    st.lists(resources, min_size=1, max_size=3),
    st.lists(resources, max_size=2),
    st.sampled_from(TYPES),
)


@given(pods, st.sampled_from([NAMES, CLAIMS]))
def test_migrating_twice_is_migrating_once(document: dict[str, Any], options: Options) -> None:
    try:
        once, _ = migrated(document, options)
    except CannotMigrate:
        return
    twice, outcome = migrated(once, options)
    assert (twice, outcome.templates) == (once, [])
    assert not [name for name in sizes.KINDS if any(each["resources"].get("limits", {}).get(name) not in (None, 0, "0")
                for each in [*once["spec"]["initContainers"], *once["spec"]["containers"]])]  # fmt: skip
