"""Our allocator and selectors against Kubernetes' own Go code (hack/oracle), on random small clusters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hack.oracle.allocator import walk as walked
from hack.oracle.judge import CannotBuild, Oracle, build, built
from neuron_dra.core import versions
from neuron_dra.core.wire import Obj
from neuron_dra.simulate import allocator, failures, model, selectors, semantics
from neuron_dra.simulate.failures import Failure, FailureKind
from neuron_dra.simulate.pools import PoolInventory
from neuron_dra.simulate.semantics import NEW, Semantics
from tests.oracle.selector_grammar import ATTRIBUTES as RANDOM_ATTRIBUTES
from tests.oracle.selector_grammar import CAPACITIES as RANDOM_CAPACITIES
from tests.oracle.selector_grammar import DRIVER as RANDOM_DRIVER
from tests.oracle.selector_grammar import selector
from tests.unit.test_selectors import (
    ABSORBED,
    ATTRIBUTES,
    CAPACITIES,
    COMPILE_ERRORS,
    DRIVER,
    EVALUATION_ERRORS,
    LOOPS,
    MEANINGS,
)

TOO_LONG = (FailureKind.GAVE_UP, FailureKind.TIMED_OUT)
CASES = int(os.environ.get("NEURON_DRA_ORACLE_CASES", "1500"))  # make night takes 20,000


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    try:
        program = build(tmp_path_factory.mktemp("oracle") / "oracle")
    except CannotBuild as err:
        pytest.skip(str(err))
    with Oracle(program) as made:
        yield made


@pytest.fixture(scope="module", params=["1.34", "1.35"])
def old_oracle(request: pytest.FixtureRequest) -> Iterator[tuple[Oracle, Semantics]]:
    """The code of Kubernetes 1.34 or 1.35, and our rules for it."""
    try:
        program = built(request.param, build_it=True)
    except CannotBuild as err:
        pytest.skip(str(err))
    with Oracle(program) as made:
        yield made, semantics.of(versions.parse(request.param))


def test_random_use_of_sets_obeys_the_laws(oracle: Oracle) -> None:
    """(16, acceptance 2) `make night ONLY=allocator` takes 100,000 steps."""
    for instance_type in ("inf2.48xlarge", "inf1.24xlarge", "trn1.32xlarge"):
        walk = walked(oracle, instance_type, steps=300, seed=1)
        assert walk.wrong == []
        assert walk.placed
        assert walk.refused


def asked(oracle: Oracle, expression: str, driver: str = DRIVER, attributes: Obj = ATTRIBUTES,
          capacities: dict[str, str] = CAPACITIES) -> Obj:  # fmt: skip
    capacity = {name: {"value": value} for name, value in capacities.items()}
    device = {"driver": driver, "attributes": attributes, "capacity": capacity}
    return oracle.ask({"expression": expression, "device": device})


@pytest.mark.parametrize(("expression", "expected"), MEANINGS + ABSORBED)
def test_selector_results_equal_kubernetes(oracle: Oracle, expression: str, expected: bool) -> None:
    assert asked(oracle, expression) == {"matches": expected}


@pytest.mark.parametrize("expression", [LOOPS, *(expression for expression, _ in EVALUATION_ERRORS)])
def test_runtime_errors_equal_kubernetes(oracle: Oracle, expression: str) -> None:
    assert asked(oracle, expression)["kind"] in ("pod", "compile")  # constants are evaluated at compile time


@pytest.mark.parametrize("expression", [expression for expression, _ in COMPILE_ERRORS if len(expression) < 10_000])
def test_compile_errors_equal_kubernetes(oracle: Oracle, expression: str) -> None:
    assert asked(oracle, expression)["kind"] == "compile"


def test_random_selectors_equal_kubernetes(oracle: Oracle) -> None:
    """NEURON_DRA_SELECTORS is the number of compared selectors. ADR 10 lists the known differences, 5 in 10,000."""
    device = selectors.device_value(RANDOM_DRIVER, RANDOM_ATTRIBUTES, RANDOM_CAPACITIES)
    total = int(os.environ.get("NEURON_DRA_SELECTORS", "10000"))
    different = []
    for seed in range(total):
        expression = selector(seed)
        theirs = asked(oracle, expression, RANDOM_DRIVER, RANDOM_ATTRIBUTES, RANDOM_CAPACITIES)
        try:
            ours: bool | None = selectors.compile_selector(expression).matches(device)
        except failures.SelectorError:
            ours = None
        if ours is not theirs.get("matches"):
            different.append((expression, theirs, ours))
    assert len(different) <= total // 1000, different


# Random clusters with few values, so that they often match

SELECTORS = (
    "device.attributes['a.example.com'].n == 0",
    "device.attributes['a.example.com'].n < 2",
    "has(device.attributes['a.example.com'].kind) && device.attributes['a.example.com'].kind == 'x'",
    "device.attributes['a.example.com'].kind == 'x'",
    "device.attributes['a.example.com'].kind != 'x' || device.attributes['a.example.com'].n == 1",
    "device.driver == 'a.example.com'",
)
CLASSES: list[Obj] = [
    {
        "metadata": {"name": "any"},
        "spec": {"config": [{"opaque": {"driver": "a.example.com", "parameters": {"c": 1}}}]},
    },
    {"metadata": {"name": "a"}, "spec": {"selectors": [{"cel": {"expression": SELECTORS[-1]}}]}},
]
NODE = {"metadata": {"name": "node", "labels": {"zone": "z1"}}}
names = st.sampled_from(["x", "y"])
often = st.integers(0, 3).map(bool)
seldom = st.integers(0, 7).map(lambda number: number == 0)


@st.composite
def device(draw: st.DrawFn, index: int, per_device: bool) -> Obj:
    attributes: Obj = {}
    if not draw(seldom):
        attributes["n"] = {"int": draw(st.integers(0, 2))}
    if draw(often):
        attributes["kind"] = {"string": draw(names)}
    if not draw(seldom):
        attributes["group.example.com/g"] = draw(
            st.sampled_from(
                [{"string": "g1"}] * 3 + [{"string": "g2"}] * 3 + [{"int": 1}, {"bool": True}, {"version": "1.0.0"}]
            )
        )
    out: Obj = {"name": f"d{index}", "attributes": attributes}
    if draw(seldom):
        effect = draw(st.sampled_from(["NoSchedule", "NoExecute", "None"]))
        out["taints"] = [{"key": "example.com/bad", "value": draw(names), "effect": effect}]
    if draw(seldom):
        out["bindingConditions"], out["bindingFailureConditions"] = ["ready"], ["failed"]
    if per_device:
        out.update(draw(st.sampled_from([{"nodeName": "node"}, {"nodeName": "other"}, {"allNodes": True}])))
    return out


WHERE: list[Obj] = [
    *[{"nodeName": "node"}] * 12,
    {"nodeName": "other"},
    {"allNodes": True},
    {"perDeviceNodeSelection": True},
    *(
        {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}
        for requirement in (
            {"key": "zone", "operator": "In", "values": ["z1", "z2"]},
            {"key": "zone", "operator": "NotIn", "values": ["z1"]},
            {"key": "gone", "operator": "DoesNotExist"},
        )
    ),
]


@st.composite
def counted(draw: st.DrawFn, head: Obj, items: list[Obj], number: int) -> Obj:
    """Let devices consume shared counters, seldom unknown ones, and return the slice of the counters (16.1)."""
    amount = st.integers(1, 3).map(lambda n: {"value": str(n)})
    for item in items:
        if draw(st.integers(0, 2)):
            name = "other" if draw(seldom) else "s"
            counters = draw(st.dictionaries(st.sampled_from(["c0", "c1"]), amount, min_size=1))
            item["consumesCounters"] = [{"counterSet": name, "counters": counters}]
    sets = [{"name": "s", "counters": {"c0": draw(amount), "c1": draw(amount)}}]
    return {"metadata": {"name": f"counters-{number}"}, "spec": {**head, "sharedCounters": sets}}


@st.composite
def slices(draw: st.DrawFn) -> list[Obj]:
    out = []
    for number in range(draw(st.integers(1, 4))):
        where = draw(st.sampled_from(WHERE))
        first = 0 if draw(seldom) else 10 * number
        items = [
            draw(device(first + index, bool(where.get("perDeviceNodeSelection"))))
            for index in range(draw(st.integers(1, 5)))
        ]
        pool: dict[str, Any] = {
            "name": draw(st.sampled_from(["p1", "p2", "p3"])) if draw(seldom) else f"q{number}",
            "generation": 2 if draw(seldom) else 1,
            "resourceSliceCount": 2 if draw(seldom) else 1,
        }
        driver = draw(st.sampled_from(["a.example.com", "a.example.com", "b.example.com"]))
        head = {"driver": driver, "pool": pool, **where}
        if draw(st.integers(0, 3)) == 0:
            pool["resourceSliceCount"] += 1
            out.append(draw(counted(head, items, number)))
        spec = {**head, "devices": items}
        out.append({"metadata": {"name": f"slice-{draw(st.integers(0, 9))}-{number}"}, "spec": spec})
    return out


@st.composite
def alternative(draw: st.DrawFn, admin: bool) -> Obj:
    out: Obj = {"deviceClassName": draw(st.sampled_from(["any", "any", "a"])), "allocationMode": "ExactCount"}
    if draw(seldom):
        out["allocationMode"] = "All"
    else:
        out["count"] = draw(st.integers(1, 3))
    out["selectors"] = [
        {"cel": {"expression": text}} for text in draw(st.lists(st.sampled_from(SELECTORS), max_size=1))
    ]
    if draw(seldom):
        out["tolerations"] = [
            draw(
                st.sampled_from(
                    [
                        {"operator": "Exists"},
                        {"key": "example.com/bad", "operator": "Equal", "value": "x"},
                        {"key": "example.com/bad", "operator": "Exists", "effect": "NoSchedule"},
                    ]
                )
            )
        ]
    if admin and draw(seldom):
        out["adminAccess"] = True
    return out


@st.composite
def claim(draw: st.DrawFn, number: int) -> Obj:
    requests: list[Obj] = []
    for index in range(draw(st.sampled_from([1, 1, 2, 2, 3]))):
        if draw(st.integers(0, 3)) == 0:
            subs = [{"name": f"s{i}", **draw(alternative(False))} for i in range(draw(st.integers(1, 3)))]
            requests.append({"name": f"r{index}", "firstAvailable": subs})
        else:
            requests.append({"name": f"r{index}", "exactly": draw(alternative(True))})
    of = st.lists(st.sampled_from(["r0", "r1", "r0/s0", "r1/s1"]), max_size=2, unique=True)
    attribute = st.sampled_from(["group.example.com/g", "a.example.com/n", "a.example.com/kind"])
    constraints = []
    for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
        kind = draw(st.sampled_from(["matchAttribute", "matchAttribute", "distinctAttribute"]))
        constraints.append({kind: draw(attribute), "requests": draw(of)})
    config = [
        {"requests": draw(of), "opaque": {"driver": "a.example.com", "parameters": {"n": index}}}
        for index in range(draw(st.integers(0, 2)))
    ]
    spec = {"devices": {"requests": requests, "constraints": constraints, "config": config}}
    return {"metadata": {"name": f"claim-{number}", "namespace": "default"}, "spec": spec}


@st.composite
def cluster(draw: st.DrawFn) -> Obj:
    published = draw(slices())
    claims = [draw(claim(number)) for number in range(draw(st.sampled_from([1, 1, 2])))]
    everything = [
        {"driver": wire["spec"]["driver"], "pool": wire["spec"]["pool"]["name"], "device": item["name"]}
        for wire in published
        for item in wire["spec"].get("devices", ())
    ]
    in_use = [one for one in everything if draw(seldom)]
    return {"slices": published, "claims": claims, "classes": CLASSES, "node": NODE, "inUse": in_use}


def plain(value: Any) -> Any:
    """Without what is empty: Go encodes some empty lists as null, and omits others."""
    if isinstance(value, dict):
        return {key: found for key, item in value.items() if (found := plain(item)) not in (None, [], {})}
    return [plain(item) for item in value] if isinstance(value, list) else value


def ours(case: Obj, rules: Semantics = NEW) -> allocator.Allocated | Failure:
    return allocator.allocate(
        model.node(case["node"]),
        [model.claim(wire) for wire in case["claims"]],
        PoolInventory(case["slices"], rules),
        {wire["metadata"]["name"]: model.device_class(wire) for wire in case["classes"]},
        frozenset(model.DeviceId(**one) for one in case["inUse"]),
    )


@pytest.mark.contract("A6")
@given(case=cluster())
@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
def test_allocator_equals_the_schedulers(oracle: Oracle, case: Obj) -> None:
    theirs = oracle.ask(case)
    error = theirs.get("error", "")
    assume("filter operation aborted" not in error)
    outcome = ours(case)
    assume(not isinstance(outcome, Failure) or outcome.kind not in TOO_LONG)
    if isinstance(outcome, allocator.Allocated):
        assert error == ""
        assert plain(theirs.get("allocations")) == plain(list(outcome.allocations))
        return
    assert "allocations" not in theirs, outcome
    if outcome.kind is FailureKind.NO_SOLUTION:
        assert error == ""
    elif outcome.kind is FailureKind.NODE_ERROR:
        assert theirs["kind"] == "node" or "asks for all devices, but resource pool" in error
    else:
        assert outcome.kind is FailureKind.POD_ERROR
        assert theirs["kind"] == "pod", outcome
        assert "asks for all devices, but resource pool" not in error


@pytest.mark.parametrize(("free", "counts"), [(15, (16,)), (8, (3, 3, 3)), (12, (8, 8)), (3, (1, 4))])
def test_steps_of_a_vain_search_are_estimated(oracle: Oracle, free: int, counts: tuple[int, ...]) -> None:
    """(17.4) From 1.36 on, a search of more than 10 s fails the pod."""
    published = {
        "driver": "a.example.com",
        "nodeName": "n",
        "pool": {"name": "p1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"d{number}"} for number in range(free + 2)],
    }
    requests = [
        {
            "name": f"r{number}",
            "exactly": {"deviceClassName": "everything", "allocationMode": "ExactCount", "count": count},
        }
        for number, count in enumerate(counts)
    ]
    case = {
        "slices": [{"metadata": {"name": "s"}, "spec": published}],
        "claims": [{"metadata": {"name": "c", "namespace": "default"}, "spec": {"devices": {"requests": requests}}}],
        "classes": [{"metadata": {"name": "everything"}, "spec": {}}],
        "node": {"metadata": {"name": "n"}},
        "inUse": [{"driver": "a.example.com", "pool": "p1", "device": f"d{number}"} for number in range(2)],
    }
    outcome = ours(case)
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.NO_SOLUTION
    theirs = oracle.ask(case)["steps"]
    assert theirs <= outcome.steps <= 2 * theirs


@st.composite
def older_cluster(draw: st.DrawFn) -> Obj:
    """A cluster as Kubernetes 1.34 and 1.35 can have it, with one pool: the order of several pools is random there."""
    case = draw(cluster())
    kept = []
    for item in case["slices"]:
        spec = {key: value for key, value in item["spec"].items() if key != "sharedCounters"}
        spec |= {"driver": "a.example.com", "pool": {**spec["pool"], "name": "p1"}}
        for each in spec.get("devices") or ():
            for field in ("consumesCounters", "taints", "bindingConditions", "bindingFailureConditions"):
                each.pop(field, None)
        if spec.get("devices"):
            kept.append({**item, "spec": spec})
    wanted = draw(st.sampled_from([len(kept), len(kept), len(kept), 1, len(kept) + 1]))
    for item in kept:
        item["spec"]["pool"]["resourceSliceCount"] = wanted
        if draw(often):
            item["spec"]["pool"]["generation"] = 1
    in_use = [{**each, "driver": "a.example.com", "pool": "p1"} for each in case["inUse"]]
    return {**case, "slices": sorted(kept, key=lambda item: str(item["metadata"]["name"])), "inUse": in_use}


def devices_of(allocations: Iterable[Mapping[str, Any]]) -> list[list[tuple[str, str, str]]]:
    """Return request, device and node selector of each result; 1.34 writes configuration in another form."""
    return [
        [
            (each["request"], each["device"], repr(plain(found.get("nodeSelector"))))
            for each in found["devices"].get("results") or ()
        ]
        for found in allocations
    ]


OLD_ERRORS = {("", FailureKind.NO_SOLUTION), ("pod", FailureKind.POD_ERROR), ("node", FailureKind.NODE_ERROR)}


@given(case=older_cluster())
@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
def test_allocators_before_1_36_equal_the_schedulers(old_oracle: tuple[Oracle, Semantics], case: Obj) -> None:
    """(17.4) The same devices in as many steps."""
    oracle, rules = old_oracle
    theirs = oracle.ask(case)
    error = theirs.get("error", "")
    assume("filter operation aborted" not in error)
    outcome = ours(case, rules)
    assume(not isinstance(outcome, Failure) or outcome.kind not in TOO_LONG)
    if isinstance(outcome, allocator.Allocated):
        assert error == ""
        assert devices_of(theirs["allocations"]) == devices_of(outcome.allocations)
    else:
        assert "allocations" not in theirs, outcome
        assert (theirs.get("kind", ""), outcome.kind) in OLD_ERRORS
    if not error:
        assert theirs.get("steps", 0) == outcome.steps
