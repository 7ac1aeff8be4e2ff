"""Render the chart into deploy/manifests, for installation without Helm. `--check` compares instead.

deploy/manifests/ultraserver is the same with the UltraServer controller, deploy/manifests/connected-sets with connected sets
and the policies for Kubernetes 1.36; the custom resources are in deploy/crds. The
files are numbered so that `kubectl apply -f` of a folder creates them in an order that works. Needs helm, 3 or 4: from
`HELM`, or from the PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hack.release.chart import with_version
from neuron_dra import __version__

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "neuron-dra"
OUT = ROOT / "deploy" / "manifests"
SIZES = CHART / "files" / "sizes.json"
CONFIGURATION = CHART / "files" / "configuration.json"
IMAGE = "neuron-dra-driver"  # a placeholder that the user replaces
KNOWN_BAD = CHART / "files/known-bad-releases.json"
FILES = {
    "namespace.yaml": "00-namespace.yaml",
    "rbac.yaml": "10-rbac.yaml",
    "deviceclasses.yaml": "20-deviceclasses.yaml",
    "admission-policy.yaml": "30-admission-policy.yaml",
    "configuration-policy.yaml": "32-configuration-policy.yaml",
    "daemonset.yaml": "40-daemonset.yaml",
    "controller.yaml": "50-ultraserver-controller.yaml",
    "ultraserver-access.yaml": "60-ultraserver-access.yaml",
    "limits-policies.yaml": "35-limits-policies.yaml",
    "limits-watcher.yaml": "45-limits-watcher.yaml",
    "reservation-policies.yaml": "70-reservation-policies.yaml",
}
ULTRASERVERS = ("--set", "ultraserverOperator.enabled=true", "--set", "ultraserverOperator.crds.enabled=false")
CONNECTED_SETS = ("--set", "scheduler.enabled=true", "--kube-version", "1.36.0")
VARIANTS = {".": (), "ultraserver": ULTRASERVERS, "connected-sets": CONNECTED_SETS}  # folder in OUT, values
HEADER = "# Rendered from deploy/helm/neuron-dra by `make manifests`. Change the chart, not this file.\n"
SOURCE = re.compile(r"^# Source: neuron-dra/templates/(\S+)\n", re.MULTILINE)


def served() -> str:
    """Return the chart's files/sizes.json: by group of instance types, the numbers of devices and cores that one container
    can have. `leftOut` are those that nodes do not publish by default, because of the limit of devices on a node."""
    from neuron_dra.core import catalogue, devices, names, partitions, sizes, topology
    from neuron_dra.core.facts import NodeLabels
    from neuron_dra.emulation import simulated_node
    from neuron_dra.node.hardware import sysfs

    groups: dict[tuple[object, ...], dict[str, object]] = {}
    types: dict[tuple[object, ...], list[str]] = {}
    for spec in catalogue.all_types():
        key = (spec.shape, spec.device_count, sizes.cores_per_device(spec), spec.whole_node)
        types.setdefault(key, []).append(spec.name)
        if key in groups:
            continue
        with tempfile.TemporaryDirectory() as root:
            simulated_node.write(Path(root, "node"), spec.name)
            node = topology.build(sysfs.read_node(Path(root, "node")), NodeLabels.from_labels({}))
        devices_of = devices.published(node, driver_version="1", ultraserver_devices="devices")
        served = partitions.partitioned(node, devices_of)
        assert served is not None, f"{spec.name} has no partitions"
        found = served.partitions
        whole = [one for one in found if not one.device.name.startswith(names.CORES_PREFIX)]
        published = {"device": {len(one.device.device_ids) for one in whole}, "core": {len(one.cores) for one in found}}
        at_most = partitions.devices_at_most(spec)
        groups[key] = {"types": types[key], "wholeNode": spec.whole_node, "devicesAtMost": at_most}
        for kind, counts in published.items():
            groups[key][kind] = sorted(sizes.counts(spec, kind))
            groups[key][f"{kind}sLeftOut"] = sorted(sizes.counts(spec, kind) - counts)
    return "[\n" + ",\n".join(json.dumps(group) for group in groups.values()) + "\n]\n"


def configuration() -> str:
    """Return the chart's files/configuration.json: the kinds of configuration that the driver decodes, their fields, and
    the decoder's messages for values that it rejects."""
    from neuron_dra.api import config

    kinds = []
    for kind in config.KINDS:
        fields = []
        for rule in config.rules(kind):
            found: dict[str, object] = {"name": rule.name, "required": rule.required}
            if rule.numbers:
                found["numbers"] = rule.numbers
                examples: dict[str, object] = {"notWhole": "x", "otherNumber": 0}
            else:
                found |= {"shortest": rule.shortest, "longest": rule.longest}
                examples = {"notText": 0, "tooShort": "", "tooLong": "x" * (rule.longest + 1)}
            for problem, value in examples.items():
                found[problem] = config.fault_of(kind, rule.name, value)
            fields.append(found)
        kinds.append({"name": kind, "fields": fields})
    return json.dumps({"apiVersions": config.API_VERSIONS, "kinds": kinds}, indent=1) + "\n"


def known_bad_releases() -> str:
    """Return the chart's files/known-bad-releases.json, for its notes."""
    from neuron_dra.core import releases

    faults = [
        {
            "releases": " || ".join(
                f">={releases.text(first)}-0 <{releases.text(fixed)}" for first, fixed in bad.ranges
            ),
            "breaks": bad.breaks,
            "issue": bad.issue,
            "fixedIn": bad.fixed_text,
            "forbids": bad.forbids,
        }
        for bad in releases.KNOWN_BAD
        if bad.counts
    ]
    return json.dumps(faults, indent=1) + "\n"


def helm() -> str | None:
    """Return the helm binary to use, or None if there is none."""
    return os.environ.get("HELM") or shutil.which("helm")


def template(binary: str, *arguments: str) -> str:
    """Return the output of `helm template` for the chart. Raises CalledProcessError, with helm's stderr, if it fails."""
    command = [binary, "template", "neuron-dra", str(CHART), "--kube-version", "1.34.0", "--skip-tests", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def split(rendered: str) -> dict[str, str]:
    """Return the text of each manifest file, from the output of `helm template`. Raises KeyError for a new template."""
    manifests: dict[str, str] = {}
    for document in re.split(r"^---\n", rendered, flags=re.MULTILINE):
        source = SOURCE.search(document)
        if source is None:
            continue
        name = FILES[source[1]]
        manifests[name] = manifests.get(name, HEADER) + "---\n" + SOURCE.sub("", document).strip("\n") + "\n"
    return manifests


def render(binary: str) -> dict[str, str]:
    """Return the manifests that the current chart renders, by path in OUT. The release's namespace differs from the
    driver's, so that the manifests include the driver's Namespace."""
    common = ("--namespace", "default", "--set", f"draDriver.image.repository={IMAGE}")
    return {
        str(Path(folder, name)): text
        for folder, values in VARIANTS.items()
        for name, text in split(template(binary, *common, *values)).items()
    }


def present() -> dict[str, str]:
    """Return the manifests in the tree, by path in OUT."""
    return {str(path.relative_to(OUT)): path.read_text() for path in OUT.rglob("*.yaml")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the files in the tree instead of writing")
    check = parser.parse_args().check
    binary = helm()
    if binary is None:
        raise SystemExit("helm is not on the PATH; `hack/testbed/testbed build` builds one, name it with HELM=")
    if not check:
        metadata = CHART / "Chart.yaml"
        metadata.write_text(with_version(metadata.read_text(), __version__))
        SIZES.write_text(served())
        CONFIGURATION.write_text(configuration())
        KNOWN_BAD.write_text(known_bad_releases())
    wanted, found = render(binary), present()
    if check:
        differing = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        if differing:
            print("deploy/manifests differs from the chart; run `make manifests`:", *differing, sep="\n  ")
        return 1 if differing else 0
    for name in found.keys() - wanted.keys():
        (OUT / name).unlink()
    for name, text in wanted.items():
        (OUT / name).parent.mkdir(parents=True, exist_ok=True)
        (OUT / name).write_text(text)
    print(f"{len(wanted)} files in {OUT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
