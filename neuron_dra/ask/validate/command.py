"""`neuron-dra validate FILE...`: what is wrong with manifests, before they are applied."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from neuron_dra.ask.read import source
from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neuron_dra.ask.read.manifests import Manifests
    from neuron_dra.ask.validate.specs import ManifestProblem
    from neuron_dra.core.wire import Obj, Wire

EXAMPLES = """\
examples:
  neuron-dra validate templates/*.yaml
  helm template . | neuron-dra validate -
  neuron-dra validate job.yaml --kubernetes 1.34

Exit code 0: nothing is wrong, though there may be warnings; 1: a problem; 2: a file cannot be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra validate`."""
    parser.description = (
        "Check claims, templates, DeviceClasses and pods of manifests, without a cluster: configuration that the "
        "driver rejects, selectors that fail or match nothing, numbers that no instance type serves, attributes and "
        "classes that do not exist, two core sizes in one container, and searches that take too long on Kubernetes "
        "1.34 and 1.35. Fields and types are compared with those that the API servers know."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    source.add_files(parser)
    source.add_version(parser, "of the cluster (default: any from 1.34 on)")
    parser.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text", help="form of the output")


def run(args: argparse.Namespace) -> int:
    """Print the problems and return the exit code."""
    from neuron_dra import object_files
    from neuron_dra.ask.read import manifests, snapshot
    from neuron_dra.ask.render import terminal
    from neuron_dra.ask.validate import api_rules, crd_rules, fields, pods, rules
    from neuron_dra.ask.validate.specs import ManifestProblem
    from neuron_dra.core import releases, versions

    version = versions.parse(args.kubernetes or "")
    why_no_sets = releases.why_no_sets_on(args.kubernetes) if version else ""
    problems: list[tuple[str, ManifestProblem]] = []
    read = [(name, object_files.read(name, "FILE")) for name in source.files(args)]
    for name, items in read:
        for raw_object in items:
            of_item = list(fields.of_object(_named(raw_object), raw_object, version))
            if not any(not problem.warning for problem in of_item):  # the rules expect the right types
                of_item += api_rules.of_object(_named(raw_object), raw_object)
                of_item += crd_rules.of_object(_named(raw_object), raw_object)
            problems += [(name, problem) for problem in of_item]
    try:
        everything = [(name, manifests.expand(items, "default")) for name, items in read]
    except SettingsError:
        if not problems:
            raise
        everything = []  # a field with a wrong type, which was found, keeps the pods from being known
    made_elsewhere = {template for _, file_manifests in everything for template in _generated(file_manifests)}
    for name, file_manifests in everything:
        # Objects may use those of other files; a file's own problems are printed with its name.
        objects_elsewhere: list[Obj] = []
        for other_name, other_manifests in everything:
            if other_name != name:
                objects_elsewhere += other_manifests.objects
        built = snapshot.build([*file_manifests.objects, *file_manifests.pods, *objects_elsewhere], damaged=[])
        of_file: list[ManifestProblem] = []
        is_mistyped = any(file == name and problem.code == "FieldType" for file, problem in problems)
        for damaged in built.damaged:
            where = f"{damaged.kind} {damaged.key}"
            if not is_mistyped:  # the same fault, which has its path in the manifest there
                of_file.append(ManifestProblem(where, "Malformed", damaged.why))
        keys = [snapshot.key_of(raw_object) for raw_object in (*file_manifests.objects, *file_manifests.pods)]
        own_names = {snapshot.named(built.objects[key]) for key in keys if key in built.objects}
        malformed = {(damaged.kind, damaged.namespace, damaged.name) for damaged in built.damaged}
        sound = [pod for pod in file_manifests.pods if snapshot.key_of(pod) not in malformed]
        of_file += [*pods.versions(file_manifests.raw), *pods.shared(sound), *pods.unprepared(built, sound, version)]
        of_file += rules.Checker(built, version, why_no_sets, made_elsewhere).run(own_names)
        problems += [(name, problem) for problem in of_file]
    if args.output != "text":
        terminal.write_data("Problem", [_data(name, problem) for name, problem in problems], args.output)
    else:
        for name, problem in problems:
            word = "warning: " if problem.warning else ""
            terminal.write(terminal.wrapped(f"{name}: {problem.where}: {word}{problem.text}", rest="  "))
    if any(not problem.warning for _, problem in problems):
        return 1
    return 0


def _generated(file_manifests: Manifests) -> Iterator[str]:
    """Yield the templates that the controller creates for reservations, as namespace/name."""
    from neuron_dra.ask.read.pod_views import PodView
    from neuron_dra.ask.read.views import WorkloadView
    from neuron_dra.core import job_wish

    for reservation in file_manifests.workloads:
        workload = WorkloadView.of(reservation)
        yield f"{workload.metadata.namespace}/{workload.template_name}"
    # An annotated job may leave out the name of its template: it is one that its pods name.
    owners = set()
    for raw_object in file_manifests.raw:
        if job_wish.ANNOTATION in (raw_object["metadata"].get("annotations") or {}):
            owners.add(f"{raw_object['kind']} {raw_object['metadata']['name']}")
    for pod in file_manifests.pods if owners else ():
        pod_view = PodView.of(pod)
        for pod_claim in pod_view.spec.resource_claims if pod_view.metadata.annotations.get("owner") in owners else ():
            yield f"{pod_view.metadata.namespace}/{pod_claim.resource_claim_template_name}"


def _named(raw_object: Wire) -> str:
    """Return kind, namespace and name of an object of a file."""
    meta = raw_object.get("metadata") or {}
    namespace = meta.get("namespace")
    return f"{raw_object['kind']} {namespace}/{meta['name']}" if namespace else f"{raw_object['kind']} {meta['name']}"


def _data(file: str, problem: ManifestProblem) -> dict[str, str]:
    severity = "warning" if problem.warning else "problem"
    return {"file": file, "object": problem.where, "code": problem.code, "text": problem.text, "severity": severity}
