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
    from neuron_dra.ask.validate import api_rules, fields, pods, rules
    from neuron_dra.ask.validate.specs import ManifestProblem
    from neuron_dra.core import releases, versions

    version = versions.parse(args.kubernetes or "")
    why_no_sets = releases.why_no_sets_on(args.kubernetes) if version else ""
    problems: list[tuple[str, ManifestProblem]] = []
    read = [(name, object_files.read(name, "FILE")) for name in source.files(args)]
    for name, items in read:
        for item in items:
            of_item = list(fields.of_object(_named(item), item, version))
            if not any(not each.warning for each in of_item):  # the rules expect the right types
                of_item += api_rules.of_object(_named(item), item)
            problems += [(name, each) for each in of_item]
    try:
        everything = [(name, manifests.expand(items, "default")) for name, items in read]
    except SettingsError:
        if not problems:
            raise
        everything = []  # a field with a wrong type, which was found, keeps the pods from being known
    made_elsewhere = {each for _, found in everything for each in _generated(found)}
    for name, own in everything:
        # Objects may use those of other files; a file's own problems are printed with its name.
        others: list[Obj] = []
        for other, found in everything:
            if other != name:
                others += found.objects
        known = snapshot.build([*own.objects, *own.pods, *others], damaged=[])
        of_file: list[ManifestProblem] = []
        is_mistyped = any(file == name and each.code == "FieldType" for file, each in problems)
        for damaged in known.damaged:
            where = f"{damaged.kind} {damaged.key}"
            if not is_mistyped:  # the same fault, which has its path in the manifest there
                of_file.append(ManifestProblem(where, "Malformed", damaged.why))
        keys = [snapshot.key_of(item) for item in (*own.objects, *own.pods)]
        mine = {snapshot.named(known.objects[key]) for key in keys if key in known.objects}
        malformed = {(each.kind, each.namespace, each.name) for each in known.damaged}
        sound = [pod for pod in own.pods if snapshot.key_of(pod) not in malformed]
        of_file += [*pods.versions(own.raw), *pods.shared(sound), *pods.unprepared(known, sound, version)]
        of_file += rules.Checker(known, version, why_no_sets, made_elsewhere).run(mine)
        problems += [(name, each) for each in of_file]
    if args.output != "text":
        terminal.write_data("Problem", [_data(name, each) for name, each in problems], args.output)
    else:
        for name, each in problems:
            word = "warning: " if each.warning else ""
            terminal.write(terminal.wrapped(f"{name}: {each.where}: {word}{each.text}", rest="  "))
    if any(not each.warning for _, each in problems):
        return 1
    return 0


def _generated(found: Manifests) -> Iterator[str]:
    """Yield the templates that the controller creates for reservations, as namespace/name."""
    from neuron_dra.ask.read.pod_views import PodView
    from neuron_dra.ask.read.views import WorkloadView
    from neuron_dra.core import job_wish

    for reservation in found.workloads:
        workload = WorkloadView.of(reservation)
        template = workload.spec.resource_claim_template.name or workload.metadata.name
        yield f"{workload.metadata.namespace}/{template}"
    # An annotated job may leave out the name of its template: it is one that its pods name.
    owners = set()
    for item in found.raw:
        if job_wish.ANNOTATION in (item["metadata"].get("annotations") or {}):
            owners.add(f"{item['kind']} {item['metadata']['name']}")
    for pod in found.pods if owners else ():
        seen = PodView.of(pod)
        for entry in seen.spec.resource_claims if seen.metadata.annotations.get("owner") in owners else ():
            yield f"{seen.metadata.namespace}/{entry.resource_claim_template_name}"


def _named(item: Wire) -> str:
    """Return kind, namespace and name of an object of a file."""
    meta = item.get("metadata") or {}
    namespace = meta.get("namespace")
    return f"{item['kind']} {namespace}/{meta['name']}" if namespace else f"{item['kind']} {meta['name']}"


def _data(file: str, found: ManifestProblem) -> dict[str, str]:
    severity = "warning" if found.warning else "problem"
    return {"file": file, "object": found.where, "code": found.code, "text": found.text, "severity": severity}
