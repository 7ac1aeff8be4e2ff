"""Migration that adds up: no old name passes without a line, and patches are not rewritten beside their base (32.8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_dra import cli
from neuron_dra.api.problems import BadInput, CannotMigrate
from neuron_dra.ask.migrate import leftovers
from neuron_dra.ask.migrate.kustomized import MOST_FOLDERS
from neuron_dra.ask.migrate.rewrite import Options, rewrite
from tests.support import fast_yaml

OLD = "aws.amazon.com/neuron"
FOUR = "deviceclass.resource.kubernetes.io/connected-4.neuron.aws.com"
BASE = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  template:
    spec:
      containers:
      - {name: m, image: x, resources: {limits: {aws.amazon.com/neuron: 8}}}
"""
PATCH = BASE.replace(" image: x,", "").replace("neuron: 8", "neuron: 4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "patch.yaml").write_text(PATCH)
    return tmp_path


def migrate(*words: str | Path) -> int:
    return cli.main(["migrate", *map(str, words)])


def rewritten(document: dict[str, Any], options: Options | None = None) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the document, the problems and the notes about what is left."""
    rewrite(document, options or Options(names=True))
    left = leftovers.found(document)
    problems = leftovers.lines([each for each in left if each.is_problem])
    return document, problems, leftovers.lines([each for each in left if not each.is_problem])


def test_a_base_and_its_patch_are_left_alone_and_both_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate("--in-place", folder / "base.yaml", folder / "patch.yaml") == 1
    assert ((folder / "base.yaml").read_text(), (folder / "patch.yaml").read_text()) == (BASE, PATCH)
    err = capsys.readouterr().err.splitlines()
    assert [line.partition(": document 1, Deployment d: left alone: ")[0] for line in err] == [
        f"neuron-dra: {folder}/{name}.yaml" for name in ("base", "patch")
    ]
    assert all("kubectl kustomize DIR | neuron-dra migrate -" in line for line in err)


def test_a_base_and_its_patch_in_one_file_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "whole.yaml"
    for text in (f"{BASE}---\n{PATCH}", f"{PATCH}---\n{BASE}"):
        whole.write_text(text)
        assert migrate("--in-place", whole) == 1
        assert whole.read_text() == text
        err = capsys.readouterr().err
        assert err.count(f"{whole} and another document there are about one object, so one is a patch") == 2


@pytest.mark.parametrize(
    ("kustomization", "base", "patch"),
    [
        ({"resources": ["base.yaml"], "patches": [{"path": "patch.yaml"}]}, True, True),
        ({"resources": ["base.yaml"], "patchesStrategicMerge": ["./patch.yaml"]}, True, True),
        ({"resources": ["base.yaml"], "patches": [{"patch": PATCH}]}, True, False),
        ({"resources": ["base.yaml"], "patches": [{"patch": "a: 1\n"}]}, False, False),
        ({"resources": ["base.yaml"], "patches": [{"patch": f"[{{op: add, path: /{OLD}{'x' * 300}}}]"}]}, False, False),
        ({"resources": ["base.yaml"], "patches": [{"patch": f"[{{op: add, path: /{'x' * 300}/{OLD}}}]"}]}, True, False),
        ({"resources": ["base.yaml", 4], "patches": ["a\0b"], "patchesStrategicMerge": ["a\0b"]}, False, False),
        ({"resources": ["base.yaml"], "patches": 4, "patchesJson6902": {}, "patchesStrategicMerge": 4}, False, False),
        ({"resources": ["base.yaml"]}, False, False),
    ],
)
def test_what_a_kustomization_names_is_found_beside_the_file(
    folder: Path, kustomization: dict[str, Any], base: bool, patch: bool
) -> None:
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    assert migrate(folder / "base.yaml") == (1 if base else 0)
    assert migrate(folder / "patch.yaml") == (1 if patch else 0)


def overlaid(folder: Path, *, has_patch: bool = True, in_component: bool = False) -> Path:
    """Make a base, an overlay of it two folders away, and its patch, maybe in a component; return the base."""
    made = {
        "app/base": {"resources": ["base.yaml"]},
        "app/overlays/prod": {"resources": ["../../base"], "patches": [{"path": "patch.yaml"}] if has_patch else []},
    }
    if in_component:
        made["app/overlays/prod"] = {"resources": ["../../base"], "components": ["../../small"]}
        made["app/small"] = {"kind": "Component", "patches": [{"patch": PATCH}]}
    for name, document in made.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "kustomization.yaml").write_text(yaml.safe_dump(document))
    (folder / "app/base/base.yaml").write_text(BASE)
    (folder / "app/overlays/prod/patch.yaml").write_text(PATCH)
    return folder / "app/base/base.yaml"


@pytest.mark.parametrize(
    ("settings", "by"),
    [({}, "../overlays/prod/kustomization.yaml"), ({"in_component": True}, "../overlays/prod/kustomization.yaml")],
)
def test_a_base_whose_overlay_patches_it_is_left_alone(
    settings: dict[str, bool], by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base alone, and then the patch alone: each would get a number of its own."""
    base = overlaid(tmp_path, **settings)
    assert migrate("--in-place", base) == 1
    assert base.read_text() == BASE
    assert f"left alone: {by} patches the old names in it; render the whole first" in capsys.readouterr().err


def test_an_overlay_is_found_beside_more_folders_than_are_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = overlaid(tmp_path)
    for number in range(MOST_FOLDERS + 1):
        (tmp_path / f"aa-{number}").mkdir()
    assert migrate("--in-place", base) == 1
    assert "../overlays/prod/kustomization.yaml patches the old names in it" in capsys.readouterr().err


def test_a_base_whose_overlay_leaves_its_devices_is_migrated(tmp_path: Path) -> None:
    assert migrate(overlaid(tmp_path, has_patch=False)) == 0


def test_a_kustomization_above_may_patch_what_a_folder_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = overlaid(tmp_path, has_patch=False)
    above = tmp_path / "app/kustomization.yml"
    above.write_text(yaml.safe_dump({"resources": ["base"], "patches": [{"patch": PATCH}]}))
    assert migrate(base) == 1
    assert "left alone: ../kustomization.yml patches the old names in it" in capsys.readouterr().err
    (base.parent / ".git").mkdir()  # what is above a repository is not its own
    assert migrate(base) == 0


def test_a_container_without_an_image_may_be_a_patch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate(folder / "patch.yaml") == 0
    assert "container m has no image; if this is a patch, render the whole first" in capsys.readouterr().err


def test_the_output_says_what_the_new_names_need(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate(folder / "base.yaml") == 0
    assert "the new names need the chart's scheduler.enabled=true" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "- op: replace\n  path: /spec/template/spec/containers/0/resources/limits/aws.amazon.com~1neuron\n  value: 4\n",
        f"kind: Kustomization\npatches:\n- target: {{kind: Deployment}}\n  patch: |-\n    a: {{{OLD}: 4}}\n",
        "kind: Kustomization\npatches:\n- patch: '[{op: add, path: /limits/aws.amazon.com~1neuron, value: 4}]'\n",
        f"kind: SparkApplication\nspec: {{executor: {{gpu: {{name: {OLD}, quantity: 1}}}}}}\n",
        f"kind: Other\nspec: {{capacity: {{{OLD}: 4}}}}\n",
        "kind: Application\nspec: {helm: {parameters: [{name: 'limits.aws\\.amazon\\.com/neuron', value: '4'}]}}\n",
    ],
)
def test_what_cannot_be_rewritten_is_named_as_left_alone(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.yaml").write_text(text)
    assert migrate(tmp_path / "f.yaml") == 1
    shown = capsys.readouterr()
    assert (shown.out, len(shown.err.splitlines())) == ("", 1)
    assert OLD in shown.err
    assert "left alone" in shown.err


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"spec": {"resourcesPerNode": {"requests": {OLD: 4}}}}, "spec.resourcesPerNode.requests"),
        ({"main": {"resources": {"requests": {OLD: 4}}}}, "main.resources.requests"),
        ({"requests": {OLD: 4}}, "the document.requests"),
    ],
)
def test_a_request_without_a_limit_is_named_by_its_place(document: dict[str, Any], place: str) -> None:
    with pytest.raises(BadInput) as caught:
        rewrite(document, Options(names=True))
    assert str(caught.value).startswith(f"{place}: {OLD} is 4 and there is no limit")


APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LIMITS = {"limits": {OLD: 4}}
NEW = {"limits": {FOUR: 1}}
CONTAINERS = [{"name": "a", "image": "x", "resources": LIMITS}]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (LIMITS, NEW),
        ({"worker": {**LIMITS, "replicas": 2}}, {"worker": {**NEW, "replicas": 2}}),
        (
            {"kind": "TrainJob", "spec": {"trainer": {"resourcesPerNode": LIMITS}}},
            {"kind": "TrainJob", "spec": {"trainer": {"resourcesPerNode": NEW}}},
        ),
        (
            {
                "kind": "InferenceService",
                "spec": {"predictor": {"workerSpec": {"containers": [{"resources": LIMITS}]}}},
            },
            {"kind": "InferenceService", "spec": {"predictor": {"workerSpec": {"containers": [{"resources": NEW}]}}}},
        ),
        (
            {"kind": "NodeSet", "spec": {"slurmd": {"resources": LIMITS}}},
            {"kind": "NodeSet", "spec": {"slurmd": {"resources": NEW}}},
        ),
        (
            {"kind": "ScaledJob", "spec": {"jobTargetRef": {"template": {"spec": {"containers": CONTAINERS}}}}},
            {
                "kind": "ScaledJob",
                "spec": {
                    "jobTargetRef": {
                        "template": {"spec": {"containers": [{"name": "a", "image": "x", "resources": NEW}]}}
                    }
                },
            },
        ),
    ],
    ids=["Helm values", "nested Helm values", "TrainJob", "workerSpec", "NodeSet", "ScaledJob"],
)
def test_resources_outside_of_pods_are_rewritten(document: dict[str, Any], expected: dict[str, Any]) -> None:
    copied = fast_yaml.load(yaml.safe_dump(document))
    assert rewritten(copied) == (expected, [], [])


@pytest.mark.parametrize(
    ("document", "note"),
    [
        (
            {"apiVersion": "v1", "kind": "ClusterQueue", "spec": {"resourceGroups": [{"coveredResources": [OLD]}]}},
            f"ClusterQueue: {OLD} counts nothing after this; see docs/queues.md",
        ),
        (
            {"apiVersion": "v1", "kind": "NodePool", "spec": {"limits": {OLD: 100}}},
            f"NodePool: {OLD} counts nothing after this; see docs/autoscaling.md",
        ),
        (
            {"kind": "ResourceFlavor", "spec": {"nodeTaints": [{"key": OLD, "effect": "NoSchedule"}]}},
            f"spec.nodeTaints[0].key: {OLD} stays: it is about a taint, which nodes may still have",
        ),
        (
            {"kind": "Deployment", "metadata": {"annotations": {APPLIED: f'{{"limits":{{"{OLD}":"4"}}}}\n'}}},
            f"metadata.annotations.{APPLIED}: {OLD} stays in what kubectl applied last; kubectl apply writes it anew",
        ),
        (
            {"kind": "ConfigMap", "data": {"readme": f"It needs {OLD}."}},
            f"data.readme: a text mentions {OLD} and is left alone",
        ),
        (
            {"kind": "Pod", "spec": {"containers": [], "tolerations": [{"key": OLD, "operator": "Exists"}]}},
            f"spec.tolerations[0].key: {OLD} stays: it is about a taint, which nodes may still have",
        ),
        (
            {"kind": "Pod", "spec": {"containers": [{"name": "a", "resources": {"limits": {OLD: 0}}}]}},
            f"spec.containers[0].resources.limits.{OLD}: {OLD} is 0 and is left alone",
        ),
        (
            {"kind": "ConfigMap", "data": {"readme": f"request {OLD} devices"}},
            f"data.readme: a text mentions {OLD} and is left alone",
        ),
    ],
)
def test_what_is_no_request_gets_a_note(document: dict[str, Any], note: str) -> None:
    before = fast_yaml.load(yaml.safe_dump(document))
    assert rewritten(document) == (before, [], [note])


def test_what_counts_in_a_list_of_objects_gets_its_own_note() -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {f"requests.{OLD}": 4}}}
    pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "spec": {"limits": {OLD: 100}}}
    other = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": f"some {OLD}"}}
    assert rewritten({"apiVersion": "v1", "kind": "List", "items": [quota, pool, other]})[1:] == (
        [],
        [
            f"items[0] ResourceQuota: {OLD} counts nothing after this; see docs/quotas.md",
            f"items[1] NodePool: {OLD} counts nothing after this; see docs/autoscaling.md",
            f"items[2].data.a: a text mentions {OLD} and is left alone",
        ],
    )


def test_a_kind_that_is_no_text_is_no_kind_that_counts(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(
        f"kind: [ResourceQuota]\nlimits: {{{OLD}: 4}}\n---\nkind: List\nitems: [{{kind: {{}}, a: {OLD}}}]\n"
    )
    assert migrate(path) == 1  # the name in the list is left alone


MERGED = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - &c
    name: m
    image: x
    resources: &r
      limits: {aws.amazon.com/neuron: 4}
  - <<: *c
    name: n
  - name: o
    image: x
    resources: *r
---
# the next one
kind: ConfigMap
"""


def test_merge_keys_and_aliases_are_migrated(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(MERGED)
    assert migrate("--in-place", path) == 0
    pod, other = fast_yaml.load_all(path.read_text())
    containers = [{"name": name, "image": "x", "resources": NEW} for name in ("m", "n", "o")]
    assert pod["spec"]["containers"] == containers
    assert other == {"kind": "ConfigMap"}
    assert "# the next one" in path.read_text()


def job(instance_type: str, count: int) -> dict[str, Any]:
    pod = {
        "nodeSelector": {"node.kubernetes.io/instance-type": instance_type},
        "containers": [{"name": "a", "image": "x", "resources": {"limits": {OLD: count}}}],
    }
    meta = {"name": "j", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": {"spec": pod}}}


def in_a_cron_job(job: dict[str, Any]) -> dict[str, Any]:
    """The CronJob has no queue itself, but the Jobs that it makes."""
    template = {"metadata": {"labels": job["metadata"]["labels"]}, "spec": job["spec"]}
    meta = {"name": "c"}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": meta, "spec": {"jobTemplate": template}}


def in_a_pod_template(job: dict[str, Any]) -> dict[str, Any]:
    """A Deployment whose pods have the queue."""
    template = {"metadata": {"labels": job["metadata"]["labels"]}, **job["spec"]["template"]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": template}}


QUEUED_ELSEWHERE = (in_a_cron_job, in_a_pod_template)


def test_a_whole_node_for_a_queue_of_kueue_is_no_claim_for_all() -> None:
    outcome = rewrite(job("trn1.32xlarge", 16), Options(names=False))
    [template] = outcome.templates
    devices = template["spec"]["spec"]["devices"]
    assert [each["exactly"]["allocationMode"] for each in devices["requests"]] == ["ExactCount"] * 4
    assert devices["constraints"][0]["matchAttribute"] == "resource.aws.com/devicegroup16_id"
    with pytest.raises(
        CannotMigrate, match=r"Kueue refuses that for ever: remove the label kueue\.x-k8s\.io/queue-name"
    ):
        rewrite(job("inf2.48xlarge", 12), Options(names=False))
    for place in QUEUED_ELSEWHERE:
        with pytest.raises(CannotMigrate, match="Kueue refuses that for ever"):
            rewrite(place(job("inf2.48xlarge", 12)), Options(names=False))
    without = job("trn1.32xlarge", 16)
    del without["metadata"]["labels"]
    [template] = rewrite(without, Options(names=False)).templates
    assert template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["allocationMode"] == "All"
