"""What `validate` checks in manifests, each rule by the code that decides it at run time. Pure."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Final

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.read.claim_views import ConfigView, DeviceClassView, SelectorView
from neuron_dra.ask.read.snapshot import Key, Snapshot
from neuron_dra.ask.read.views import MetaView
from neuron_dra.ask.render import words
from neuron_dra.ask.validate import attributes, containers, gangs, named, pods, selected, sized, trap, unserved
from neuron_dra.ask.validate.specs import ClaimSpec, ManifestProblem
from neuron_dra.ask.world import demand, expressions, imagined, refusals, selection
from neuron_dra.ask.world.blockers import Blockers
from neuron_dra.ask.world.selection import PublishedDevices
from neuron_dra.ask.world.world import World
from neuron_dra.core import catalogue, devices, health, names, versions
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.ultraserver import TAG_ATTRIBUTES
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ClaimError
from neuron_dra.simulate import allocator, constraints, model, selectors
from neuron_dra.simulate.failures import CompileError, EvaluationError, Failure, SelectorError
from neuron_dra.simulate.requests import MAX_RESULTS

__all__ = ["RULES", "Checker", "ManifestProblem"]

SITE: Final = frozenset(
    {*(each.name for each in devices.ATTRIBUTES if each.of_site), health.ATTRIBUTE, *TAG_ATTRIBUTES}
)
"""Attributes whose values are not the type's."""
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
_SIZED: Final = (f"connected-{{}}.{names.DRIVER}", f"cores-{{}}.{names.DRIVER}")


@cache
def _every_type(sets: frozenset[str] = frozenset()) -> World:
    """Return a node of each type, or an UltraServer, all idle, with the classes of the chart and `sets`."""
    lines = []
    for each in catalogue.all_types():
        lines.append(f"1 x {'ultraserver ' if each.whole_node else ''}{each.name}")
    return World(snapshot.build(imagined.fleet("\n".join(lines), "the catalogue", sets)), proposes=False)


class Checker:
    """Checks the objects of manifests against every instance type of the catalogue."""

    def __init__(
        self,
        objects: Snapshot,
        version: tuple[int, int] | None,
        why_no_sets: str = "",
        made_elsewhere: Collection[str] = (),
    ) -> None:
        """Check these objects.

        `why_no_sets` is why nodes publish no connected sets on that version; empty if they do. `made_elsewhere` are the
        templates that the controller creates, as namespace/name.
        """
        self._made_elsewhere = made_elsewhere
        self._objects = objects
        self._version = version
        self.why_no_sets = why_no_sets

    @cached_property
    def world(self) -> World:
        """A node of each type, or an UltraServer, all idle, with the classes of the chart and of the manifests."""
        own = [*self._objects.all("DeviceClass"), *self._objects.all("ResourceClaimTemplate")]
        return _every_type(imagined.requested_sets(self._objects)).after(own)

    @cached_property
    def published(self) -> PublishedDevices:
        """The devices of these nodes."""
        return PublishedDevices(self.world)

    def run(self, only: Collection[str] | None = None) -> list[ManifestProblem]:
        """Return all problems, in the order of the objects; with `only`, those of the objects with these names."""
        found: list[ManifestProblem] = []
        for item in self._objects.objects.values():
            where = snapshot.named(item)
            if only is not None and where not in only:
                continue
            if item["kind"] in ("ResourceClaim", "ResourceClaimTemplate"):
                if item["kind"] == "ResourceClaim":
                    made = item["spec"]
                else:
                    made = item["spec"]["spec"]
                spec = ClaimSpec.of(where, made, self._users.get(snapshot.key_of(item), ()))
                refused = list(pods.numbers(where, spec))
                found += refused
                found += pods.admin_access(self._objects, where, MetaView.of(item["metadata"]).namespace, spec)
                for rule in () if refused else RULES:
                    found += rule(self, spec)
            elif item["kind"] == "DeviceClass":
                device_class = DeviceClassView.of(item).spec
                found += rejected_configuration(where, device_class.config)
                found += self._selectors(where, device_class.selectors)
            elif item["kind"] == "Pod":
                found += pods.of_pod(where, item)
                if snapshot.key_of(item) in self._first_of_owners:
                    found += named.of_pod(self._objects, where, item, self._made_elsewhere)
                    found += containers.of_pod(self._objects, where, item, partial(self._types_of, item))
                found += self._limits(where, item)
            elif item["kind"] == "PodGroup":
                found += gangs.shared_claims(self._objects, where, item, self.world.classes)
        return list(dict.fromkeys(found))

    def _limits(self, where: str, pod: Wire) -> Iterator[ManifestProblem]:
        """Check what containers request by their limits: the sizes, and the claim that the scheduler makes of them."""
        wrong = []
        for each in sized.of_pod(pod, self.why_no_sets):
            wrong.append(ManifestProblem(where, *each))
        yield from wrong
        made = next((each.claim for each in demand.claims_of(self._objects, pod) if each.entry == "limits"), None)
        if made is not None and not wrong:
            yield from types(self, ClaimSpec.of(where, made["spec"], (pod,)))

    def _types_of(self, pod: Wire) -> list[InstanceType]:
        """Return the instance types that may run a pod."""
        claims = [claim.claim for claim in demand.claims_of(self._objects, pod) if claim.claim is not None]
        serving = [blocked.node for blocked in Blockers(self.world, pod, claims).all()]
        types = (catalogue.lookup(unserved.type_of(node)) for node in selected.admitted(serving, [pod]))
        return [spec for spec in types if spec is not None]

    @cached_property
    def _first_of_owners(self) -> Mapping[Key, Wire]:
        """The first of the pods that an owner creates, and that differ in their names alone; and all other pods."""
        first: dict[Hashable, Wire] = {}
        for pod in self._objects.all("Pod"):
            owner = (pod["metadata"].get("annotations") or {}).get("owner")
            # Pods that were expanded from one template share its spec.
            key = (owner, id(pod["spec"].get("containers"))) if owner else snapshot.key_of(pod)
            first.setdefault(key, pod)
        return {snapshot.key_of(pod): pod for pod in first.values()}

    @cached_property
    def _users(self) -> Mapping[Key, Sequence[Wire]]:
        """The pods that use each claim, or each template; of equal pods the first."""
        found: dict[Key, list[Wire]] = defaultdict(list)
        for pod in self._first_of_owners.values():
            for claim in demand.claims_of(self._objects, pod):
                if claim.template is not None:
                    found[snapshot.key_of(claim.template)].append(pod)
                elif claim.exists and claim.claim is not None:
                    found[snapshot.key_of(claim.claim)].append(pod)
        return found

    def _selectors(self, where: str, given: Iterable[SelectorView]) -> Iterator[ManifestProblem]:
        for selector in given:
            if selector.cel.expression:
                yield from expression_problems(where, selector.cel.expression)

    @property
    def old_allocator(self) -> bool:
        """True if the cluster may have the allocator of 1.34 and 1.35."""
        return self._version is None or self._version < versions.FIRST_NEW_ALLOCATOR


def configuration(checker: Checker, spec: ClaimSpec) -> Iterator[ManifestProblem]:
    """Check configuration with the decoder of prepare."""
    yield from rejected_configuration(spec.where, spec.devices.config)


def rejected_configuration(where: str, entries: Sequence[ConfigView]) -> Iterator[ManifestProblem]:
    """Yield the entries that the driver would reject, and those for a driver whose name is nearly ours."""
    for index, entry in enumerate(entries):
        driver = entry.opaque.driver
        if driver != names.DRIVER:
            if difflib.get_close_matches(driver, [names.DRIVER], cutoff=0.8):
                text = f"config[{index}].opaque.driver is {driver}, not {names.DRIVER}"
                yield ManifestProblem(where, "UnknownDriver", text)
            continue
        try:
            refusals.setting(index, entry)
        except ClaimError as err:
            yield ManifestProblem(where, "ConfigRejected", str(err))


def classes(checker: Checker, spec: ClaimSpec) -> Iterator[ManifestProblem]:
    """Check the names of DeviceClasses that resemble ours."""
    for name, alternative in spec.alternatives():
        wanted = alternative.device_class_name
        if wanted in checker.world.classes or any(_sized(wanted, form) for form in _SIZED):
            continue
        near = difflib.get_close_matches(wanted, checker.world.classes, n=1, cutoff=0.75)
        better = named.nearest_size(wanted) or next(iter(near), "")
        if better or wanted.endswith(names.DRIVER):
            hint = f", did you mean {better}?" if better else ""
            yield ManifestProblem(spec.where, "ClassUnknown", f"request {name}: there is no DeviceClass {wanted}{hint}")


def _sized(name: str, form: str) -> bool:
    head, tail = form.split("{}")
    return name.startswith(head) and name.endswith(tail) and name[len(head) : len(name) - len(tail)].isdigit()


def sets(checker: Checker, spec: ClaimSpec) -> Iterator[ManifestProblem]:
    """Check the sizes of connected sets, and whether nodes publish any."""
    for code, text in sized.of_claim(spec.alternatives(), checker.why_no_sets):
        yield ManifestProblem(spec.where, code, text)


def expressions_of(checker: Checker, spec: ClaimSpec) -> Iterator[ManifestProblem]:
    """Check selectors and constraints: valid CEL, and attributes that this driver or the EFA driver publishes.

    What other drivers publish is unknown here, so their requests and the constraints among them are not judged.
    """
    classes = checker.world.classes
    ours: set[str] = set()
    for name, alternative in spec.alternatives():
        if alternative.device_class_name not in classes or spec.is_ours(alternative, classes):
            yield from checker._selectors(spec.where, alternative.selectors)
            ours |= {name, name.partition("/")[0]}
        else:
            for selector in alternative.selectors:
                yield from _cel(spec.where, selector.cel.expression)
    for index, each in enumerate(spec.devices.constraints):
        name = each.match_attribute or each.distinct_attribute
        domain, _, attribute = name.rpartition("/")
        if not ours or (each.requests and ours.isdisjoint(each.requests)):
            continue
        if name == PCIE_ROOT:
            text = (
                f"constraints[{index}]: the Neuron driver does not publish {name}: write "
                f"{names.GROUP_DOMAIN}/devicegroup1_id, which a device has in common with the EFA interface beside it"
            )
            yield ManifestProblem(spec.where, "AttributeUnknown", text)
        elif problem := attributes.unknown(domain, attribute):
            yield ManifestProblem(spec.where, "AttributeUnknown", f"constraints[{index}]: {problem}")


def expression_problems(where: str, expression: str) -> Iterator[ManifestProblem]:
    """Yield what is wrong with one selector, whatever the devices are."""
    yield from _cel(where, expression)
    for domain, name, _ in expressions.reads(expression):
        if problem := attributes.unknown(domain, name):
            yield ManifestProblem(where, "AttributeUnknown", problem)


def _cel(where: str, expression: str) -> Iterator[ManifestProblem]:
    """Yield that a selector is not valid CEL."""
    if not expression:
        return
    try:
        selectors.compile_selector(expression)
    except CompileError as err:
        yield ManifestProblem(where, "SelectorInvalid", f"invalid CEL: {err}")
    except SelectorError as err:
        yield ManifestProblem(where, "SelectorUnsupported", f"not checked: {err}", warning=True)


def types(checker: Checker, spec: ClaimSpec) -> Iterator[ManifestProblem]:
    """Check that an idle node of some type can serve the requests, and that the driver accepts them there."""
    claim = _ours(checker, spec)
    if claim is None:
        return
    world = checker.world
    for ask in selection.asked([model.claim(claim)]):
        if (found := checker.published.error(ask)) and isinstance(found[1], EvaluationError) and found[2] is not None:
            kind = selection.attribute(found[2], names.DRIVER, "instanceType")
            why = str(found[1]).partition(". Guard")[0]
            remedy = expressions.remedy(found[0], why)
            text = (
                f"request {ask.name}: the selector fails on devices of {kind} ({why}): they block "
                f"the pod on all nodes{f'; {remedy}' if remedy else ''}"
            )
            yield ManifestProblem(spec.where, "SelectorFails", text, warning=True)
    pod = _pod(claim)
    able = [each.node for each in Blockers(world, pod, [claim]).all()]
    if not able and _of_a_site(spec):
        return
    if not able:
        yield from unserved.by_no_type(world, checker.published, spec, pod, claim)
        return
    serving = selected.admitted(able, spec.users)
    if not serving:
        yield unserved.by_selected_types(world, spec, pod, claim, able)
        return
    rejecting: dict[str, str] = {}  # by type: why the driver rejects the claim there
    for node in serving:
        made = allocator.allocate(
            model.node(node), [model.claim(claim)], world.inventory, world.classes, frozenset(), world.memo
        )
        if not isinstance(made, Failure):
            types_by_pool = {node["metadata"]["name"]: unserved.type_of(node)}
            rejecting[unserved.type_of(node)] = refusals.of_allocation(made.allocations[0], types_by_pool)
    rejected = {kind: text for kind, text in rejecting.items() if text}
    if not rejected or list(configuration(checker, spec)):  # what cannot be decoded is reported by that rule
        return
    if len(rejected) == len(rejecting):
        text = f"the driver rejects it on every type that can serve it: {next(iter(rejected.values()))}"
        yield ManifestProblem(spec.where, "DriverRejects", text)
        return
    # Without the configuration the claim would get another size of logical cores, so that is no advice here.
    why = next(iter(rejected.values())).partition("; ")[0]
    accepted = words.listed((kind for kind in rejecting if kind not in rejected), 5)
    text = (
        f"the driver rejects it on {words.listed(rejected, 5)}: {why}; select a type that accepts it ({accepted}), "
        f"with the pod's nodeSelector {names.INSTANCE_TYPE_LABEL}, or a selector on instanceType in the request"
    )
    yield ManifestProblem(spec.where, "DriverRejects", text, warning=True)


def _of_a_site(spec: ClaimSpec) -> bool:
    """Return True if a selector reads a value that only a real cluster has, such as a version or an id."""
    for _, alternative in spec.alternatives():
        for selector in alternative.selectors:
            if any(name in SITE for _, name, _ in expressions.reads(selector.cel.expression)):
                return True
    return False


def _pod(claim: Wire) -> dict[str, object]:
    entry = {"name": "claim", "resourceClaimName": claim["metadata"]["name"]}
    meta = {"name": "checked", "namespace": "default"}
    spec = {"containers": [{"name": "main"}], "resourceClaims": [entry]}
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": {}}


def _ours(checker: Checker, spec: ClaimSpec) -> Wire | None:
    """Return a claim with the requests for devices of this driver; None if there are none, or only reserved ones."""
    ours = set()
    for name, each in spec.alternatives():
        if spec.is_ours(each, checker.world.classes):
            ours.add(name)
    reserved = any(each.device_class_name == names.WORKLOAD_CLASS for _, each in spec.alternatives())
    requests, rules = [], []
    kept: set[str] = set()
    for request, raw in zip(spec.devices.requests, spec.raw.requests, strict=True):
        if any(name in ours for name, _ in request.named_alternatives):
            kept.add(request.name)
            requests.append(raw)
    if not requests or reserved:
        return None
    every = [request.name for request in spec.devices.requests]
    for rule, raw in zip(spec.devices.constraints, spec.raw.constraints, strict=True):
        covered = {name.partition("/")[0] for name in rule.requests or every}
        if covered <= kept:
            rules.append(raw)
    inner = {"requests": requests, "constraints": rules, "config": spec.raw.config}
    meta = {"name": "checked", "namespace": "default"}
    return {"kind": "ResourceClaim", "metadata": meta, "spec": {"devices": inner}}


def shares(checker: Checker, spec: ClaimSpec) -> Iterator[ManifestProblem]:
    """Say what capacity.requests means for devices that are allocated as a whole."""
    claim = _ours(checker, spec)
    for ask in selection.asked([model.claim(claim)]) if claim is not None else ():
        if ask.alternative.capacity:
            text = (
                f"request {ask.name}: a Neuron device is allocated as a whole: capacity.requests selects devices with "
                "at least this capacity, and gives no share of one"
            )
            yield ManifestProblem(spec.where, "NoShare", text, warning=True)


def search(checker: Checker, spec: ClaimSpec) -> Iterator[ManifestProblem]:
    """Predict the cost of the search on Kubernetes 1.34 and 1.35."""
    requests = spec.devices.requests
    exact = []
    for each in requests:
        if each.exactly is not None and not each.exactly.wants_all:
            exact.append(each.exactly)
    claim = _ours(checker, spec)
    if not checker.old_allocator or claim is None or len(exact) < len(requests):
        return
    size = _group(checker, claim)
    wanted = [trap.WantedCount(each.number, size) for each in exact]
    if sum(each.count for each in wanted) > MAX_RESULTS:
        return  # the scheduler rejects the claim without a search
    steps = trap.worst_steps(wanted)
    if steps > trap.MANY:
        whole = len(exact) == 1 and wanted[0].count == size
        rewrite = "request fewer devices at once, or a group of them"
        if whole:
            rewrite = f'write allocationMode: All and the annotation {names.COUNT_ANNOTATION}: "{size}"'
        text = (
            f"on Kubernetes 1.34 and 1.35 the scheduler can try {steps:.0e} choices for a node that lacks one device, "
            f"and gives up after 10 s, for each such node: {rewrite}"
        )
        yield ManifestProblem(spec.where, "LongSearch", text, warning=True)


def second_alternative(checker: Checker, spec: ClaimSpec) -> Iterator[ManifestProblem]:
    """Find alternatives that Kubernetes 1.34 and 1.35 confuse (`shared_all` in simulate/semantics.py)."""
    for request in spec.devices.requests:
        if len(request.first_available) < 2:
            continue
        first, second = request.first_available[:2]
        differ = (first.device_class_name, first.selectors) != (second.device_class_name, second.selectors)
        every = first.wants_all and second.wants_all
        if checker.old_allocator and every and differ and spec.is_ours(second, checker.world.classes):
            one, other = f"{request.name}/{first.name}", f"{request.name}/{second.name}"
            text = (
                f"on Kubernetes 1.34 and 1.35 the scheduler gives {other} the devices of {one}, whatever its own "
                "selectors and class: give one of the two a count, or place it third"
            )
            yield ManifestProblem(spec.where, "SecondAlternative", text, warning=True)


def _group(checker: Checker, claim: Wire) -> int:
    """Return how many devices of a node match together at most: those of a node, or of a group."""
    decoded = model.claim(claim)
    most = 1
    for ask in selection.asked([decoded]):
        for found in checker.published.matching(ask).values():
            sizes = [len(found)]
            for each in decoded.constraints:
                if each.kind == "matchAttribute":
                    values = []
                    for device in found:
                        values.append(constraints.attribute(device, each.attribute))
                    sizes.append(max((values.count(value) for value in values if value is not None), default=0))
            most = max(most, min(sizes))
    return most


RULES: Final[Sequence[Callable[[Checker, ClaimSpec], Iterator[ManifestProblem]]]] = (
    configuration,
    classes,
    sets,
    expressions_of,
    types,
    shares,
    search,
    second_alternative,
)
