"""`simulate` next to what a cluster has already: pods of the same names, and quotas that nobody counts (4.09)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from neuron_dra import cli
from neuron_dra.core.wire import Obj
from tests.support import shown_fleet
from tests.support import small_clusters as small

RESOURCE = "neuron.aws.com.deviceclass.resource.k8s.io/devices"


def quota(*, is_stored: bool, is_counted: bool = False) -> Obj:
    meta = {
        "name": "team",
        "namespace": "default",
        **({"creationTimestamp": "2026-01-01T00:00:00Z"} if is_stored else {}),
    }
    status = {"status": {"hard": {RESOURCE: "3"}, "used": {RESOURCE: "0"}}} if is_counted else {}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": {RESOURCE: "3"}}, **status}


def simulated(
    folder: Path, capsys: pytest.CaptureFixture[str], manifests: list[Obj], cluster: list[Obj]
) -> tuple[int, str]:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    code = cli.main(["simulate", str(file), "--snapshot", str(shown_fleet.written(folder, cluster))])
    output = capsys.readouterr()
    return code, " ".join((output.out + output.err).split())


def test_a_pod_that_runs_already_is_no_leftover(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = [*small.base("a"), *small.running(small.base("a"), "train", 16, "a")]
    manifests = [small.template("sixteen", 16), small.pod("train", "sixteen")]
    code, text = simulated(tmp_path, capsys, manifests, cluster)
    assert "no longer exists" not in text
    assert "in use" in text or "too few free devices" in text
    assert "in the cluster already, with the devices that they have, and placed once more: default/train" in text
    assert code == 1


def test_a_quota_without_a_status_is_not_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifests = [small.template("four", 4), small.pod("train", "four")]
    code, text = simulated(tmp_path, capsys, manifests, [*small.base("a"), quota(is_stored=True)])
    assert "not counted: ResourceQuota default/team, which has no status, as without a quota controller" in text
    assert code == 0


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_quota_with_a_status_and_one_of_a_manifest_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_counted: bool
) -> None:
    own_quota = quota(is_stored=is_counted, is_counted=is_counted)
    manifests = [small.template("four", 4), small.pod("train", "four"), *([] if is_counted else [own_quota])]
    cluster = [*small.base("a"), *([own_quota] if is_counted else [])]
    code, text = simulated(tmp_path, capsys, manifests, cluster)
    assert "ResourceQuota default/team allows 3" in text
    assert code == 1


def test_a_template_alone_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = simulated(tmp_path, capsys, [small.template("four", 4)], small.base("a"))
    assert "a ResourceClaimTemplate gets devices when a pod uses it: add a pod or a Job that names it" in text
    assert code == 2
