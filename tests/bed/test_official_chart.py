"""Our image in the DaemonSet of AWS's chart: only the image is changed.

The manifest is rendered by chart 1.10.0: host network, privileged, 20m of CPU, no readiness probe, no mount of the boot
id. Its service account and roles are ours, because the names are the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.bed.real_cluster import REPOSITORY, Namespace, TestBed, eventually

NAMESPACE = "neuron-dra-driver"
DAEMONSET = "neuron-dra-driver-kubelet-plugin"
MANIFEST = Path(__file__).parent / "manifests" / "official-daemonset.yaml"


@pytest.mark.long
def test_image_runs_in_the_official_chart(other_bed: TestBed) -> None:
    other_bed.command("up", "--node", "a=trn2.48xlarge", "--driver", "daemonset", timeout_s=1200)
    [ours] = other_bed.get("daemonset", DAEMONSET, "-n", NAMESPACE)["spec"]["template"]["spec"]["containers"]
    other_bed.kubectl("delete", "daemonset", DAEMONSET, "-n", NAMESPACE, "--cascade=foreground", timeout_s=120)
    other_bed.kubectl("delete", "resourceslices", "--all")
    other_bed.kubectl("delete", "validatingadmissionpolicybinding", "--all")  # the official chart has none

    other_bed.kubectl("apply", "-f", "-", stdin=MANIFEST.read_text().replace("IMAGE", ours["image"]))

    # With 20m of CPU a Python program takes about 20 s to start.
    [published] = eventually("slices", lambda: other_bed.get("resourceslices")["items"], 180)
    assert len(published["spec"]["devices"]) == 16
    place = Namespace(other_bed, "default")
    place.apply(REPOSITORY / "deploy/examples/1x4-connected-devices.yaml")
    place.wait_ready("pod0", 180)
    assert place.exec("pod0", "bash", "-c", "ls /dev/neuron*").split() == [f"/dev/neuron{i}" for i in range(4)]
