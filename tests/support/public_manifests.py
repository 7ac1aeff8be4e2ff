"""Public manifests for Neuron, reduced to the fields that matter, and what `migrate` and `simulate` make of them.

`python -m tests.support.public_manifests` writes docs/reports/public-manifests.md.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from neuron_dra import cli
from neuron_dra.ask.world import imagined
from neuron_dra.core import names
from neuron_dra.demo import installation
from tests.support import efa_slices, fast_yaml

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "tests/data/public-manifests"
PAGE: Final = ROOT / "docs/reports/public-manifests.md"
NEWEST, OLDER = "1.37", "1.34"
AS_IT_IS, MIGRATED, NOT = "as it is", "migrated", "not"
CORES: Final = {"inf1": 4, "inf2": 2, "trn1": 2, "trn2": 4}
"""The logical cores of a device, at the type's default size."""
DEVICES: Final = {"trn2u.48xlarge": 16}
"""The devices of a whole node."""
ROUNDS: Final = (
    (
        "aws-neuron-eks-samples/qwen-tp2",
        "aws-neuron-eks-samples/video-deployment",
        "aws-neuron-eks-samples/flux-compile-256x144",
        "aws-neuron-eks-samples/flux-api-1024x576",
        "aws-neuron-sdk/nine-cores",
        "eks-workshops/karpenter-blueprint",
    ),
    ("aws-neuron-sdk/all-devices-lnc", "ai-on-eks/lora-pod-karpenter"),
    ("aws-neuron-sdk/all-devices", "scalable-hw-agnostic-inference/one-prefill-one-decode-prefill"),
)
"""The manifests that run on the test bed's kubelets: those of a round at the same time, on one node of each type."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One public manifest: `pods` pods request what `gets` says; `results` and `reasons` are by Kubernetes version."""

    id: str
    source: str
    path: str
    nodes: str
    gets: str
    pods: int
    scheduler: str
    efa: bool
    objects: list[dict[str, Any]]
    results: dict[str, str]
    reasons: dict[str, str]

    @property
    def file(self) -> str:
        """The data's file, without suffix."""
        return self.id.partition("/")[0]

    @property
    def instance_type(self) -> str:
        """The first instance type of the nodes."""
        found = re.search(r"\S+\.\d*xlarge", self.nodes)
        assert found is not None
        return found[0]

    @property
    def kind(self) -> str:
        """The kind of the workload."""
        return next(str(each["kind"]) for each in self.objects if each["kind"] != "ResourceClaimTemplate")

    @property
    def cores(self) -> int:
        """The logical cores that each pod requests."""
        number, unit = self.gets.split()
        return int(number) * (1 if unit.startswith("core") else CORES[self.instance_type[:4]])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a manifest: as it is, migrated or not, and then why not."""

    result: str
    why: str = ""


def load() -> list[Manifest]:
    """Return all manifests, by file."""
    found = []
    for path in sorted(FOLDER.glob("*.yaml")):
        data = fast_yaml.load(path.read_text())
        for each in data["manifests"]:
            found.append(
                Manifest(
                    id=f"{path.stem}/{each['name']}",
                    source=data.get("source", ""),
                    path=each["path"],
                    nodes=each["nodes"],
                    gets=each["gets"],
                    pods=each["pods"],
                    scheduler=each.get("scheduler", ""),
                    efa=each.get("efa", False),
                    objects=each["objects"],
                    results={NEWEST: each["result"], OLDER: each["older"]},
                    reasons={NEWEST: each.get("why", ""), OLDER: each.get("olderWhy", "")},
                )
            )
    return found


def judge(manifest: Manifest, version: str, folder: Path) -> Verdict:
    """Return what a user of this version sees: `simulate` as it is, then `migrate` and `simulate`."""
    original = folder / "manifest.yaml"
    original.write_text(yaml.safe_dump_all(manifest.objects, sort_keys=False))
    nodes = _nodes(manifest, folder)
    beta = any(str(each["apiVersion"]).startswith("resource.k8s.io/v1beta") for each in manifest.objects)
    if not beta:  # API servers do not serve beta versions by default
        runs, why = _simulated(manifest, original, nodes, version)
        if runs:
            return Verdict(AS_IT_IS)
    code, out, err = _migrate(manifest, original, version)
    if code:
        return Verdict(NOT, err.strip().splitlines()[0].split(": ", 3)[-1])
    migrated = folder / "migrated.yaml"
    migrated.write_text(out)
    if out == original.read_text():  # so it is not beta
        return Verdict(NOT, why)
    runs, why = _simulated(manifest, migrated, nodes, version)
    return Verdict(MIGRATED) if runs else Verdict(NOT, why)


def migrated(manifest: Manifest, version: str, folder: Path) -> str:
    """Return what `migrate` makes of a manifest."""
    original = folder / "manifest.yaml"
    original.write_text(yaml.safe_dump_all(manifest.objects, sort_keys=False))
    code, out, err = _migrate(manifest, original, version)
    assert code == 0, f"{manifest.id}: {err}"
    return out


def _migrate(manifest: Manifest, file: Path, version: str) -> tuple[int, str, str]:
    options = ["--kubernetes", version]
    if version == OLDER:
        options += ["--instance-type", manifest.instance_type]
    if manifest.scheduler:
        options += ["--scheduler-name", manifest.scheduler]
    return _command("migrate", str(file), "-o", "yaml", *options)


def _nodes(manifest: Manifest, folder: Path) -> list[str]:
    """Return the arguments that name the nodes: a fleet, or a snapshot of one where a second driver has slices too."""
    if not manifest.efa:
        fleet = folder / "fleet.txt"
        fleet.write_text(manifest.nodes.replace(",", "\n"))
        return ["--fleet", str(fleet)]
    items = [*imagined.fleet(manifest.nodes, "test"), installation.efa_class()]
    hosts = [item["metadata"]["name"] for item in items if item["kind"] == "Node"]
    items += (efa_slices.resource_slice(name, manifest.instance_type) for name in hosts)
    snapshot = folder / "cluster.json"
    snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return ["--snapshot", str(snapshot)]


def _simulated(manifest: Manifest, file: Path, nodes: list[str], version: str) -> tuple[bool, str]:
    """Return if every pod runs and gets what it requests, or else the first reason."""
    code, out, err = _command("simulate", str(file), *nodes, "--kubernetes", version, "-o", "json")
    if code == 2:
        return False, err.strip().removeprefix("neuron-dra: ")
    pods = json.loads(out)["items"]
    if code:
        stuck = next(each for each in pods if not each["runs"])
        return False, stuck["cause"]["text"] if "cause" in stuck else stuck["rejected"]
    got = [cores for each in pods if (cores := _cores(manifest, each)) is not None]
    assert got == [manifest.cores] * manifest.pods, f"{manifest.id}: pods have {got} cores"
    return True, ""


def _cores(manifest: Manifest, pod: dict[str, Any]) -> int | None:
    """Return how many logical cores a pod got, or None if it has no Neuron devices."""
    claims = pod["allocations"].values()
    results = [result for claim in claims for result in claim["devices"].get("results") or ()]
    found = [result["device"] for result in results if result["driver"] == names.DRIVER]
    return sum(_cores_of(manifest, name) for name in found) if found else None


def _cores_of(manifest: Manifest, device: str) -> int:
    each = CORES[manifest.instance_type[:4]]
    if device.startswith(names.CORES_PREFIX):
        return int(device.removeprefix(names.CORES_PREFIX).split("-")[0])
    if device.startswith(names.SET_PREFIX):
        return each * int(device.removeprefix(names.SET_PREFIX).split("-")[0])
    return each * (DEVICES[manifest.instance_type] if device == names.NODE_DEVICE else 1)


def _command(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(list(words))
    return code, out.getvalue(), err.getvalue()


INTRODUCTION: Final = """\
# Public manifests

{total} public manifests that request Neuron devices, from AWS's samples and documents and from others. Each was reduced
by us to the fields that matter for scheduling; `tests/data/public-manifests` has them. A unit test runs each as a user
would: `neuron-dra simulate` on nodes of the type that it is for, and if its pods wait, `neuron-dra migrate` and
`simulate` again. Every pod must get the devices or cores that it requests. This page is written from the same data.

| Kubernetes | as they are | through `migrate` alone | not |
| --- | --- | --- | --- |
{rows}

Below 1.36 `migrate` writes claims, which cannot express every number.

The kinds: {kinds}.

- CPU, memory and EFA interfaces of the device plugin are not limited on these nodes. Pod anti-affinity and topologies
  of LeaderWorkerSets are not simulated.
- Templates of `resource.k8s.io/v1beta1` count as migrated: API servers do not serve beta versions by default.
- `migrate` gets `--scheduler-name` where a manifest names another scheduler than `my-scheduler`, and for {older}
  `--instance-type`.
- Of charts, the object is listed that they render; variables have the numbers of the instance type.

{on_kubelets}
"""


def page(manifests: list[Manifest]) -> str:
    """Return docs/reports/public-manifests.md."""
    results = {version: Counter(each.results[version] for each in manifests) for version in (NEWEST, OLDER)}
    kinds = Counter(each.kind for each in manifests)
    rows = [
        f"| {version} | {found[AS_IT_IS]} | {found[MIGRATED]} | {found[NOT]} |" for version, found in results.items()
    ]
    counted = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    introduction = INTRODUCTION.format(
        total=len(manifests), rows="\n".join(rows), kinds=counted, older=OLDER, on_kubelets=_on_kubelets()
    )
    lines = [introduction]
    lines += [f"## Not on {NEWEST}", "", "| manifest | requests | why not |", "| --- | --- | --- |"]
    lines += (
        f"| {each.id} | {each.gets} of {each.instance_type} | {_plain(each.reasons[NEWEST])} |"
        for each in manifests
        if each.results[NEWEST] == NOT
    )
    lines += ["", f"## Not on {OLDER}", "", _not_on_the_older(manifests), ""]
    lines += [
        "## Where they are from",
        "",
        "Each file in `tests/data/public-manifests` names the sources of its manifests.",
        "",
    ]
    lines += [f"| file | manifests | not on {NEWEST} | not on {OLDER} | from |", "| --- | --- | --- | --- | --- |"]
    for (file, source), group in itertools.groupby(manifests, key=lambda each: (each.file, each.source)):
        lines.append(_row(file, source, list(group)))
    return "\n".join(lines).rstrip() + "\n"


def _on_kubelets() -> str:
    """Return the sentence about the manifests of the rounds."""
    ids = [name for each in ROUNDS for name in each]
    text = (
        f"The test bed runs {len(ids)} of them on real kubelets (`make night ONLY=manifests`), with another image"
        " and command, and without CPU, memory and EFA interfaces: "
    )
    return textwrap.fill(f"{text}{', '.join(ids)}.", 120, break_long_words=False, break_on_hyphens=False)


def _not_on_the_older(manifests: list[Manifest]) -> str:
    """Return the sentences about the manifests that need a newer version, by the reason that `migrate` gives."""
    later: dict[bool, list[str]] = {True: [], False: []}
    for each in manifests:
        if each.results[OLDER] == NOT != each.results[NEWEST]:
            later["Kubernetes 1.36.3" in each.reasons[OLDER]].append(each.id)
    text = f"Beside those, {len(later[True])}, for which `migrate` says that their number needs Kubernetes 1.36.3: "
    text += f"{', '.join(later[True])}."
    if later[False]:
        text += f" For other reasons: {', '.join(later[False])}."
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _row(file: str, source: str, group: list[Manifest]) -> str:
    """Return the line of a file: how many manifests it has, and how many do not schedule."""
    results = [Counter(each.results[version] for each in group)[NOT] for version in (NEWEST, OLDER)]
    return f"| {file} | {len(group)} | {results[0]} | {results[1]} | {source or 'several places'} |"


def _plain(why: str) -> str:
    """Return a reason without the place in the manifest."""
    return re.sub(r"^spec\S*: ", "", why)


if __name__ == "__main__":
    PAGE.write_text(page(load()))
