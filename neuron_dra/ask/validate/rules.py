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
from neuron_dra.ask.world.demand import FROM_LIMITS
from neuron_dra.ask.world.selection import PublishedDevices
from neuron_dra.ask.world.world import World
from neuron_dra.core import catalogue, devices, efa, health, names, versions
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.ultraserver import TAG_ATTRIBUTES
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ClaimError
from neuron_dra.simulate import allocator, constraints, model, selectors
from neuron_dra.simulate.failures import CompileError, EvaluationError, Failure, SelectorError
from neuron_dra.simulate.requests import MAX_RESULTS

__all__ = ["RULES", "Checker", "ManifestProblem"]

SITE: Final = frozenset(
    {*(attribute.name for attribute in devices.ATTRIBUTES if attribute.of_site), health.ATTRIBUTE, *TAG_ATTRIBUTES}
)
"""Attributes whose values are not the type's."""
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
_SIZED: Final = (f"connected-{{}}.{names.DRIVER}", f"cores-{{}}.{names.DRIVER}")


@cache
def _every_type(sets: frozenset[str] = frozenset()) -> World:
    """Return a node of each type, or an UltraServer, all idle, with EFA interfaces, the chart's classes and `sets`."""
    lines = []
    for spec in catalogue.all_types():
        lines.append(f"1 x {'ultraserver ' if spec.whole_node else ''}{spec.name}")
    items = imagined.fleet("\n".join(lines), "the catalogue", sets, interfaces=True)
    return World(snapshot.build(items), proposes=False)


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
        problems: list[ManifestProblem] = []
        for raw_object in self._objects.objects.values():
            where = snapshot.named(raw_object)
            if only is not None and where not in only:
                continue
            if raw_object["kind"] in ("ResourceClaim", "ResourceClaimTemplate"):
                if raw_object["kind"] == "ResourceClaim":
                    raw_spec = raw_object["spec"]
                else:
                    raw_spec = raw_object["spec"]["spec"]
                spec = ClaimSpec.of(where, raw_spec, self._users.get(snapshot.key_of(raw_object), ()))
                refused = list(pods.numbers(where, spec))
                problems += refused
                problems += pods.admin_access(self._objects, where, MetaView.of(raw_object["metadata"]).namespace, spec)
                for rule in () if refused else RULES:
                    problems += rule(self, spec)
            elif raw_object["kind"] == "DeviceClass":
                device_class = DeviceClassView.of(raw_object).spec
                problems += rejected_configuration(where, device_class.config)
                problems += self._selectors(where, device_class.selectors)
            elif raw_object["kind"] == "Pod":
                problems += pods.of_pod(where, raw_object)
                if snapshot.key_of(raw_object) in self._first_of_owners:
                    problems += named.of_pod(self._objects, where, raw_object, self._made_elsewhere)
                    problems += containers.of_pod(self._objects, where, raw_object, partial(self._types_of, raw_object))
                problems += self._limits(where, raw_object)
            elif raw_object["kind"] == "PodGroup":
                problems += gangs.shared_claims(self._objects, where, raw_object, self.world.classes)
        return list(dict.fromkeys(problems))

    def _limits(self, where: str, pod: Wire) -> Iterator[ManifestProblem]:
        """Check what containers request by their limits: the sizes, and the claim that the scheduler makes of them."""
        wrong = [ManifestProblem(where, code, text) for code, text in sized.of_pod(pod, self.why_no_sets)]
        yield from wrong
        if wrong:
            return
        of_limits = (claim for claim in demand.claims_of(self._objects, pod) if claim.entry == FROM_LIMITS)
        pod_claim = next(of_limits, None)
        if pod_claim is not None and pod_claim.claim is not None:
            yield from types(self, ClaimSpec.of(where, pod_claim.claim["spec"], (pod,)))

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
        users_by_key: dict[Key, list[Wire]] = defaultdict(list)
        for pod in self._first_of_owners.values():
            for claim in demand.claims_of(self._objects, pod):
                if claim.template is not None:
                    users_by_key[snapshot.key_of(claim.template)].append(pod)
                elif claim.exists and claim.claim is not None:
                    users_by_key[snapshot.key_of(claim.claim)].append(pod)
        return users_by_key

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
        class_name = alternative.device_class_name
        if class_name in checker.world.classes or any(_sized(class_name, form) for form in _SIZED):
            continue
        near = difflib.get_close_matches(class_name, checker.world.classes, n=1, cutoff=0.75)
        better = named.nearest_size(class_name) or next(iter(near), "")
        if better or class_name.endswith(names.DRIVER):
            hint = f", did you mean {better}?" if better else ""
            text = f"request {name}: there is no DeviceClass {class_name}{hint}"
            yield ManifestProblem(spec.where, "ClassUnknown", text)


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
    own_requests: set[str] = set()
    for name, alternative in spec.alternatives():
        if alternative.device_class_name not in classes or spec.is_ours(alternative, classes):
            yield from checker._selectors(spec.where, alternative.selectors)
            own_requests |= {name, name.partition("/")[0]}
        else:
            for selector in alternative.selectors:
                yield from _cel(spec.where, selector.cel.expression)
    for index, constraint in enumerate(spec.devices.constraints):
        name = constraint.match_attribute or constraint.distinct_attribute
        domain, _, attribute = name.rpartition("/")
        if not own_requests or (constraint.requests and own_requests.isdisjoint(constraint.requests)):
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
        expression, err, device = checker.published.error(ask) or ("", None, None)
        if isinstance(err, EvaluationError) and device is not None:
            kind = selection.attribute(device, names.DRIVER, "instanceType")
            why = str(err).partition(". Guard")[0]
            remedy = expressions.remedy(expression, why)
            text = (
                f"request {ask.name}: the selector fails on devices of {kind} ({why}): they block "
                f"the pod on all nodes{f'; {remedy}' if remedy else ''}"
            )
            yield ManifestProblem(spec.where, "SelectorFails", text, warning=True)
    pod = _pod(claim)
    able = [blocked.node for blocked in Blockers(world, pod, [claim]).all()]
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
        allocation = allocator.allocate(
            model.node(node), [model.claim(claim)], world.inventory, world.classes, frozenset(), world.memo
        )
        if not isinstance(allocation, Failure):
            types_by_pool = {node["metadata"]["name"]: unserved.type_of(node)}
            rejecting[unserved.type_of(node)] = refusals.of_allocation(allocation.allocations[0], types_by_pool)
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


def interfaces(checker: Checker, spec: ClaimSpec) -> Iterator[ManifestProblem]:
    """Check that a type that can serve the Neuron devices of a claim has the EFA interfaces of the claim too.

    It is unknown which interfaces some types have, so that nothing is said about claims that such a type may serve.
    """
    neuron_claim, whole_claim = _ours(checker, spec), _ours(checker, spec, (efa.CLASS,))
    if neuron_claim is None or whole_claim is None or neuron_claim == whole_claim or _of_a_site(spec):
        return
    world = checker.world
    neuron_nodes = [blocked.node for blocked in Blockers(world, _pod(neuron_claim), [neuron_claim]).all()]
    for node in selected.admitted(neuron_nodes, spec.users):
        instance_type = catalogue.lookup(unserved.type_of(node))
        if instance_type is None or instance_type.efa is None:
            return
    pod = _pod(whole_claim)
    able = [blocked.node for blocked in Blockers(world, pod, [whole_claim]).all()]
    if neuron_nodes and not able:
        yield from unserved.by_no_type(world, checker.published, spec, pod, whole_claim)
    elif selected.admitted(neuron_nodes, spec.users) and not selected.admitted(able, spec.users):
        yield unserved.by_selected_types(world, spec, pod, whole_claim, able)


def _of_a_site(spec: ClaimSpec) -> bool:
    """Return True if a selector reads a value that only a real cluster has, such as a version or an id."""
    for _, alternative in spec.alternatives():
        for selector in alternative.selectors:
            if any(name in SITE for _, name, _ in expressions.reads(selector.cel.expression)):
                return True
    return False


def _pod(claim: Wire) -> dict[str, object]:
    pod_claim = {"name": "claim", "resourceClaimName": claim["metadata"]["name"]}
    meta = {"name": "checked", "namespace": "default"}
    spec = {"containers": [{"name": "main"}], "resourceClaims": [pod_claim]}
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": {}}


def _ours(checker: Checker, spec: ClaimSpec, other_classes: Collection[str] = ()) -> Wire | None:
    """Return a claim with the requests for devices of this driver; None if there are none, or only reserved ones.

    Requests for devices of `other_classes` are kept too.
    """
    own_names = set()
    for name, alternative in spec.alternatives():
        if spec.is_ours(alternative, checker.world.classes) or alternative.device_class_name in other_classes:
            own_names.add(name)
    reserved = any(alternative.device_class_name == names.WORKLOAD_CLASS for _, alternative in spec.alternatives())
    requests, rules = [], []
    kept: set[str] = set()
    for request, raw in zip(spec.devices.requests, spec.raw.requests, strict=True):
        if any(name in own_names for name, _ in request.named_alternatives):
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
    for request in requests:
        if request.exactly is not None and not request.exactly.wants_all:
            exact.append(request.exactly)
    claim = _ours(checker, spec)
    if not checker.old_allocator or claim is None or len(exact) < len(requests):
        return
    size = _group(checker, claim)
    wanted_counts = [trap.WantedCount(alternative.number, size) for alternative in exact]
    if sum(wanted_count.count for wanted_count in wanted_counts) > MAX_RESULTS:
        return  # the scheduler rejects the claim without a search
    steps = trap.worst_steps(wanted_counts)
    if steps > trap.MANY:
        whole = len(exact) == 1 and wanted_counts[0].count == size
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
            first_name, second_name = f"{request.name}/{first.name}", f"{request.name}/{second.name}"
            text = (
                f"on Kubernetes 1.34 and 1.35 the scheduler gives {second_name} the devices of {first_name}, whatever "
                "its own selectors and class: give one of the two a count, or place it third"
            )
            yield ManifestProblem(spec.where, "SecondAlternative", text, warning=True)


def _group(checker: Checker, claim: Wire) -> int:
    """Return how many devices of a node match together at most: those of a node, or of a group."""
    decoded = model.claim(claim)
    most = 1
    for ask in selection.asked([decoded]):
        for matching in checker.published.matching(ask).values():
            sizes = [len(matching)]
            for constraint in decoded.constraints:
                if constraint.kind == "matchAttribute":
                    values = []
                    for device in matching:
                        values.append(constraints.attribute(device, constraint.attribute))
                    sizes.append(max((values.count(value) for value in values if value is not None), default=0))
            most = max(most, min(sizes))
    return most


RULES: Final[Sequence[Callable[[Checker, ClaimSpec], Iterator[ManifestProblem]]]] = (
    configuration,
    classes,
    sets,
    expressions_of,
    types,
    interfaces,
    shares,
    search,
    second_alternative,
)
