"""Render the chart into deploy/manifests, for installation without Helm. `--check` compares instead.

deploy/manifests/ultraserver is the same with the UltraServer controller; the custom resources are in deploy/crds. The
files are numbered so that `kubectl apply -f` of a folder creates them in an order that works. Needs helm, 3 or 4: from
`HELM`, or from the PATH.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "neuron-dra"
OUT = ROOT / "deploy" / "manifests"
IMAGE = "neuron-dra-driver"  # a placeholder that the user replaces
FILES = {
    "namespace.yaml": "00-namespace.yaml",
    "rbac.yaml": "10-rbac.yaml",
    "deviceclasses.yaml": "20-deviceclasses.yaml",
    "admission-policy.yaml": "30-admission-policy.yaml",
    "daemonset.yaml": "40-daemonset.yaml",
    "controller.yaml": "50-ultraserver-controller.yaml",
    "ultraserver-access.yaml": "60-ultraserver-access.yaml",
    "reservation-policies.yaml": "70-reservation-policies.yaml",
}
ULTRASERVERS = ("--set", "ultraserverOperator.enabled=true", "--set", "ultraserverOperator.crds.enabled=false")
VARIANTS = {".": (), "ultraserver": ULTRASERVERS}  # folder in OUT, values
HEADER = "# Rendered from deploy/helm/neuron-dra by `make manifests`. Change the chart, not this file.\n"
SOURCE = re.compile(r"^# Source: neuron-dra/templates/(\S+)\n", re.MULTILINE)


def helm() -> str | None:
    """Return the helm binary to use, or None if there is none."""
    return os.environ.get("HELM") or shutil.which("helm")


def template(binary: str, *arguments: str) -> str:
    """Return the output of `helm template` for the chart. Raises CalledProcessError, with helm's stderr, if it fails."""
    command = [binary, "template", "neuron-dra", str(CHART), "--kube-version", "1.34.0", *arguments]
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
    """Return the manifests that belong to the chart as it is, by path in OUT. The release's namespace is another one, so
    that the driver's is among them."""
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
