"""Structured allocation on one node: the relevant cases of Kubernetes' allocator table."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dra.core.wire import Obj
from neuron_dra.simulate import allocator, model
from neuron_dra.simulate.failures import Failure, FailureKind
from neuron_dra.simulate.pools import PoolInventory

DRIVER = "neuron.aws.com"
A = f"device.attributes['{DRIVER}']"
GROUP4 = "resource.aws.com/devicegroup4_id"


def device(index: int, **more: Any) -> Obj:
    attributes = {
        "deviceId": {"int": index},
        "instanceType": {"string": "trn2.48xlarge"},
        "topology_x": {"int": index // 4},
        "draDriverVersion": {"version": "1.0.0"},
        GROUP4: {"string": f"group-{index // 4}"},
        "resource.aws.com/devicegroup8_id": {"string": f"group-{index // 8}"},
    }
    return {"name": f"neuron-device-{index}", "attributes": attributes, **more}


def slice_of(devices: list[Obj], node: str = "a", driver: str = DRIVER, **spec: Any) -> Obj:
    pool = {"name": spec.pop("pool", node), "generation": 1, "resourceSliceCount": 1, **spec.pop("pool_fields", {})}
    where = spec.pop("where", {"nodeName": node})
    name = spec.pop("name", f"{node}-{driver}-00")
    return {"metadata": {"name": name}, "spec": {"driver": driver, "pool": pool, **where, "devices": devices, **spec}}


def exactly(name: str = "neurons", count: int = 1, class_name: str = DRIVER, **more: Any) -> Obj:
    expressions = more.pop("cel", [])
    body = {"deviceClassName": class_name, "count": count, "allocationMode": "ExactCount", **more}
    if expressions:
        body["selectors"] = [{"cel": {"expression": e}} for e in expressions]
    return {"name": name, "exactly": body}


def everything(name: str = "neurons", **more: Any) -> Obj:
    return exactly(name, allocationMode="All", **more)


def claim(*requests: Obj, name: str = "claim", **devices: Any) -> Obj:
    spec = {"devices": {"requests": list(requests), **devices}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def match(attribute: str = GROUP4, *requests: str) -> Obj:
    return {"matchAttribute": attribute, "requests": list(requests)}


CLASSES: list[Obj] = [
    {
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
    },
    {"metadata": {"name": "efa"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'dra.net'"}}]}},
    {
        "metadata": {"name": "configured"},
        "spec": {"config": [{"opaque": {"driver": DRIVER, "parameters": {"kind": "FromTheClass"}}}]},
    },
]
NODE = {"metadata": {"name": "a", "labels": {"zone": "one"}}}
ALL16 = [slice_of([device(i) for i in range(16)])]


def allocate(
    *claims: Obj, slices: list[Obj] = ALL16, used: tuple[int, ...] = (), node: Obj = NODE
) -> allocator.Allocated | Failure:
    classes = {c["metadata"]["name"]: model.device_class(c) for c in CLASSES}
    in_use = frozenset(model.DeviceId(DRIVER, "a", f"neuron-device-{i}") for i in used)
    return allocator.allocate(
        model.node(node), [model.claim(c) for c in claims], PoolInventory(slices), classes, in_use
    )


def ids(outcome: allocator.Allocated | Failure) -> list[list[tuple[str, str]]]:
    assert isinstance(outcome, allocator.Allocated), outcome
    return [
        [(entry["request"], entry["device"].removeprefix("neuron-device-")) for entry in one["devices"]["results"]]
        for one in outcome.allocations
    ]


def devices(outcome: allocator.Allocated | Failure) -> list[str]:
    return [device for one in ids(outcome) for _, device in one]


def failed(outcome: allocator.Allocated | Failure) -> tuple[FailureKind, str]:
    assert isinstance(outcome, Failure), outcome
    return outcome.kind, " | ".join(outcome.reasons)


def test_result_names_device_and_pins_the_node() -> None:
    outcome = allocate(claim(exactly(count=2)))
    assert isinstance(outcome, allocator.Allocated)
    entry = {"request": "neurons", "driver": DRIVER, "pool": "a"}
    assert outcome.allocations == (
        {
            "devices": {"results": [{**entry, "device": "neuron-device-0"}, {**entry, "device": "neuron-device-1"}]},
            "nodeSelector": {
                "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]
            },
        },
    )


def test_devices_in_use_are_passed_over() -> None:
    assert devices(allocate(claim(exactly(count=2)), used=(0, 2))) == ["1", "3"]


@pytest.mark.contract("S17")
def test_slices_and_pools_are_tried_in_order() -> None:
    fields = {"resourceSliceCount": 2}
    slices = [
        slice_of([device(0)], name="z", pool_fields=fields),
        slice_of([device(1)], name="b", pool_fields=fields),
        slice_of([device(2)], driver="a.example.com", name="y"),
    ]
    assert devices(allocate(claim(exactly(count=3, class_name="configured")), slices=slices)) == ["2", "1", "0"]


@pytest.mark.parametrize(
    ("count", "attribute", "used", "expected"),
    [
        (4, GROUP4, (), "0 1 2 3"),
        (4, GROUP4, (1,), "4 5 6 7"),
        (4, GROUP4, (0, 4, 8), "12 13 14 15"),
        (8, "resource.aws.com/devicegroup8_id", (3,), "8 9 10 11 12 13 14 15"),
        (2, "neuron.aws.com/topology_x", (0, 1, 2), "4 5"),
    ],
)
def test_matched_devices_share_the_attribute(count: int, attribute: str, used: tuple[int, ...], expected: str) -> None:
    wanted = claim(exactly(count=count), constraints=[match(attribute)])
    assert devices(allocate(wanted, used=used)) == expected.split()


def test_device_without_matched_attribute_is_skipped() -> None:
    outcome = allocate(claim(exactly(), constraints=[match("neuron.aws.com/nope")]))
    assert failed(outcome) == (
        FailureKind.NO_SOLUTION,
        "request neurons wants 1 device with the same neuron.aws.com/nope: 16 match, at most 0 together are free",
    )


def test_values_of_different_types_do_not_match() -> None:
    one, other = device(0), device(1)
    one["attributes"]["x"], other["attributes"]["x"] = {"int": 1}, {"bool": True}
    outcome = allocate(
        claim(exactly(count=2), constraints=[match("neuron.aws.com/x")]), slices=[slice_of([one, other])]
    )
    assert failed(outcome)[0] is FailureKind.NO_SOLUTION


def test_distinct_devices_differ_in_the_attribute() -> None:
    wanted = claim(exactly(count=4), constraints=[{"distinctAttribute": GROUP4}])
    assert devices(allocate(wanted)) == ["0", "4", "8", "12"]
    assert failed(allocate(claim(exactly(count=5), constraints=[{"distinctAttribute": GROUP4}]))) == (
        FailureKind.NO_SOLUTION,
        f"request neurons wants 5 devices with different {GROUP4}: 16 match, at most 4 together are free",
    )


def efa(index: int, group: int) -> Obj:
    return {"name": f"efa{index}", "attributes": {GROUP4: {"string": f"group-{group}"}}}


def test_alignment_backtracks() -> None:
    nics = slice_of([efa(i, 2) for i in range(4)], driver="dra.net")
    wanted = claim(
        exactly("4-neurons", 4), exactly("4-efas", 4, "efa"), constraints=[match(GROUP4, "4-neurons", "4-efas")]
    )
    outcome = allocate(wanted, slices=[*ALL16, nics])
    assert devices(outcome) == ["8", "9", "10", "11", "efa0", "efa1", "efa2", "efa3"]


def test_constraint_applies_to_its_requests_only() -> None:
    wanted = claim(exactly("a", 3), exactly("b", 2), constraints=[match(GROUP4, "b")])
    assert ids(allocate(wanted, used=(1,)))[0] == [("a", "0"), ("a", "2"), ("a", "3"), ("b", "4"), ("b", "5")]


def test_later_claim_causes_backtracking() -> None:
    picky = claim(exactly(cel=[f"{A}.deviceId == 0"]), name="picky")
    assert devices(allocate(claim(exactly()), picky)) == ["1", "0"]


def test_all_mode_waits_for_devices_in_use() -> None:
    row = claim(everything(cel=[f"{A}.topology_x == 1"]))
    assert devices(allocate(row)) == ["4", "5", "6", "7"]
    assert failed(allocate(row, used=(5,))) == (
        FailureKind.NO_SOLUTION,
        "request neurons wants all devices: 4 of 16 match, 1 in use",
    )


def test_all_of_nothing_is_no_solution() -> None:
    outcome = allocate(claim(everything(cel=[f"{A}.instanceType == 'trn1.2xlarge'"])))
    assert failed(outcome) == (
        FailureKind.NO_SOLUTION,
        "request neurons wants all devices: none of the node's 16 devices matches",
    )


def test_all_mode_with_unmet_constraint_is_an_error() -> None:
    kind, reason = failed(allocate(claim(everything(), constraints=[match()])))
    assert kind is FailureKind.POD_ERROR
    assert "cannot add device neuron.aws.com/a/neuron-device-4" in reason


@pytest.mark.contract("A3")
def test_first_fitting_alternative_is_chosen() -> None:
    subs = [
        {"name": name, "deviceClassName": DRIVER, "count": count, "selectors": [{"cel": {"expression": "true"}}]}
        for name, count in (("large", 8), ("small", 2))
    ]
    wanted = claim({"name": "neurons", "firstAvailable": subs}, constraints=[match("resource.aws.com/devicegroup8_id")])
    assert ids(allocate(wanted))[0][0] == ("neurons/large", "0")
    outcome = allocate(wanted, used=(0, 8))
    assert ids(outcome)[0] == [("neurons/small", "1"), ("neurons/small", "2")]
    assert isinstance(outcome, allocator.Allocated)
    assert outcome.alternatives == 1


@pytest.mark.contract("A3")
def test_unsolvable_alternative_is_skipped() -> None:
    subs = [
        {"name": "all", "deviceClassName": DRIVER, "allocationMode": "All"},
        {"name": "one", "deviceClassName": DRIVER},
    ]
    wanted = claim({"name": "first", "firstAvailable": subs}, exactly("second"))
    assert ids(allocate(wanted))[0] == [("first/one", "0"), ("second", "1")]


def test_admin_access_shares_devices_in_use() -> None:
    monitor = claim(everything(adminAccess=True), name="monitor")
    outcome = allocate(claim(exactly(count=2)), monitor, used=(0,))
    assert devices(outcome) == ["1", "2", *(str(i) for i in range(16))]
    assert isinstance(outcome, allocator.Allocated)
    assert outcome.allocations[1]["devices"]["results"][0]["adminAccess"] is True
    held = allocator.devices_in_use({"status": {"allocation": one}} for one in outcome.allocations)
    assert {one.device for one in held} == {"neuron-device-1", "neuron-device-2"}


def test_admin_access_gives_a_device_once_per_claim() -> None:
    outcome = allocate(claim(exactly("x", 16, adminAccess=True), exactly("y", adminAccess=True)))
    assert failed(outcome) == (
        FailureKind.NO_SOLUTION,
        "each request could be satisfied alone, but not all of them together",
    )


@pytest.mark.parametrize(
    ("effect", "tolerations", "taken"),
    [
        ("NoSchedule", [], "1"),
        ("NoExecute", [], "1"),
        ("None", [], "0"),
        ("Novel", [], "0"),
        ("NoSchedule", [{"key": "neuron.aws.com/unhealthy", "operator": "Exists"}], "0"),
        ("NoSchedule", [{"operator": "Exists", "effect": "NoSchedule"}], "0"),
        ("NoExecute", [{"operator": "Exists", "effect": "NoSchedule"}], "1"),
        ("NoSchedule", [{"key": "neuron.aws.com/unhealthy", "operator": "Equal", "value": "ecc"}], "0"),
        ("NoSchedule", [{"key": "neuron.aws.com/unhealthy", "value": "other"}], "1"),
    ],
)
def test_tainted_device_needs_a_toleration(effect: str, tolerations: list[Obj], taken: str) -> None:
    taint = {"key": "neuron.aws.com/unhealthy", "value": "ecc", "effect": effect}
    slices = [slice_of([device(0, taints=[taint]), device(1)])]
    outcome = allocate(claim(exactly(tolerations=tolerations)), slices=slices)
    assert devices(outcome) == [taken]
    assert isinstance(outcome, allocator.Allocated)
    assert outcome.allocations[0]["devices"]["results"][0].get("tolerations", []) == tolerations


def test_blocking_taint_is_named() -> None:
    slices = [slice_of([device(0, taints=[{"key": "neuron.aws.com/unhealthy", "effect": "NoSchedule"}])])]
    assert failed(allocate(claim(exactly()), slices=slices)) == (
        FailureKind.NO_SOLUTION,
        "request neurons wants 1 device: 1 match, 1 tainted (neuron.aws.com/unhealthy)",
    )


def test_only_the_newest_pool_generation_counts() -> None:
    old = slice_of([device(0)], name="old")
    new = slice_of([device(1)], name="new", pool_fields={"generation": 2})
    assert devices(allocate(claim(exactly()), slices=[old, new])) == ["1"]


def test_incomplete_pool_gives_no_device() -> None:
    half = slice_of([device(0)], pool_fields={"resourceSliceCount": 2})
    assert failed(allocate(claim(exactly()), slices=[half]))[0] is FailureKind.NO_SOLUTION
    assert failed(allocate(claim(everything()), slices=[half])) == (
        FailureKind.NODE_ERROR,
        "claim default/claim, request neurons: asks for all devices, but resource pool neuron.aws.com/a is "
        "currently being updated",
    )


def test_pool_with_newer_slices_elsewhere_is_ignored() -> None:
    fields = {"resourceSliceCount": 2}
    old = slice_of([device(0)], name="old", pool="p", pool_fields=fields)
    new = slice_of([device(1)], node="b", name="new", pool="p", pool_fields={**fields, "generation": 2})
    kind, reason = failed(allocate(claim(everything()), slices=[old, new]))
    assert (kind, reason) == (
        FailureKind.NO_SOLUTION,
        "request neurons wants all devices: the node publishes no devices",
    )


def test_duplicate_device_name_invalidates_the_pool() -> None:
    fields = {"resourceSliceCount": 2}
    slices = [slice_of([device(0)], name=name, pool_fields=fields) for name in ("x", "y")]
    assert failed(allocate(claim(exactly()), slices=slices)) == (
        FailureKind.NODE_ERROR,
        "resource pool neuron.aws.com/a is invalid: the device name neuron-device-0 occurs more than once",
    )


def test_result_has_the_shared_pools_node_selector() -> None:
    requirement = {"key": "zone", "operator": "In", "values": ["one", "two"]}
    shared = slice_of(
        [device(0)], pool="fabric", where={"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}
    )
    outcome = allocate(claim(exactly()), slices=[shared])
    assert isinstance(outcome, allocator.Allocated)
    assert outcome.allocations[0]["nodeSelector"] == {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    elsewhere = {"metadata": {"name": "a", "labels": {"zone": "three"}}}
    assert failed(allocate(claim(exactly()), slices=[shared], node=elsewhere))[0] is FailureKind.NO_SOLUTION


def test_pool_for_all_nodes_pins_no_node() -> None:
    outcome = allocate(claim(exactly()), slices=[slice_of([device(0)], pool="net", where={"allNodes": True})])
    assert isinstance(outcome, allocator.Allocated)
    assert "nodeSelector" not in outcome.allocations[0]


def test_devices_can_select_nodes_individually() -> None:
    slices = [
        slice_of([device(0, nodeName="b"), device(1, nodeName="a")], pool="p", where={}, perDeviceNodeSelection=True)
    ]
    assert devices(allocate(claim(everything()), slices=slices)) == ["1"]


def test_class_config_precedes_claim_config() -> None:
    parameters = {"opaque": {"driver": DRIVER, "parameters": {"kind": "NeuronConfig", "logicalNeuronCore": 1}}}
    other = {"opaque": {"driver": DRIVER, "parameters": {"kind": "Other"}}}
    wanted = claim(
        exactly("x", class_name="configured"),
        exactly("y"),
        config=[
            {"requests": ["y"], **parameters},
            {"requests": ["x", "y"], **other},
            {"requests": ["gone"], **other},
            other,
        ],
    )
    outcome = allocate(wanted)
    assert isinstance(outcome, allocator.Allocated)
    assert outcome.allocations[0]["devices"]["config"] == [
        {
            "source": "FromClass",
            "requests": ["x"],
            "opaque": {"driver": DRIVER, "parameters": {"kind": "FromTheClass"}},
        },
        {"source": "FromClaim", "requests": ["y"], **parameters},
        {"source": "FromClaim", **other},
        {"source": "FromClaim", **other},
    ]


def test_chosen_alternatives_config_applies() -> None:
    subs = [{"name": n, "deviceClassName": "configured", "count": c} for n, c in (("large", 17), ("small", 1))]
    config = [
        {"requests": [f"r/{n}"], "opaque": {"driver": DRIVER, "parameters": {"n": n}}} for n in ("large", "small")
    ]
    outcome = allocate(claim({"name": "r", "firstAvailable": subs}, config=config))
    assert isinstance(outcome, allocator.Allocated)
    sources = [(c["source"], c["opaque"]["parameters"]) for c in outcome.allocations[0]["devices"]["config"]]
    assert sources == [("FromClass", {"kind": "FromTheClass"}), ("FromClaim", {"n": "small"})]


def test_more_than_32_devices_is_a_pod_error() -> None:
    kind, reason = failed(allocate(claim(exactly(count=33))))
    assert (kind, reason) == (
        FailureKind.POD_ERROR,
        "claim default/claim: number of requested devices 33 exceeds the claim limit of 32",
    )


def test_shortage_message_has_numbers() -> None:
    assert failed(allocate(claim(exactly(count=17)))) == (
        FailureKind.NO_SOLUTION,
        "request neurons wants 17 devices: 16 match",
    )


def test_failing_selector_fails_the_pod_if_reached() -> None:
    late = f"{A}.deviceId == 0 || {A}.nope == 1"
    assert devices(allocate(claim(exactly(cel=[late])))) == ["0"]
    kind, reason = failed(allocate(claim(exactly(count=2, cel=[late]))))
    assert kind is FailureKind.POD_ERROR
    assert "selector #0 on device neuron.aws.com/a/neuron-device-1: CEL runtime error: no such key: nope" in reason


def test_selector_that_is_not_reached_fails_nothing() -> None:
    """Kubernetes skips devices that another claim of the pod has before it evaluates the selector."""
    two = [slice_of([device(0), device(1)])]
    monitor = claim(exactly(count=2, adminAccess=True), name="monitor")
    failing = {
        "name": "three",
        "deviceClassName": DRIVER,
        "count": 3,
        "selectors": [{"cel": {"expression": f"{A}.nope == 1"}}],
    }
    one = {"name": "one", "deviceClassName": DRIVER, "count": 1}
    either = claim({"name": "r", "firstAvailable": [failing, one]}, name="either")
    outcome = allocate(monitor, either, slices=two, used=(0,))
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.NO_SOLUTION


def test_unsolvable_request_hides_no_selector_error() -> None:
    late = f"{A}.deviceId == 0 || {A}.nope == 1"
    kind, _ = failed(allocate(claim(exactly("x", cel=[late]), exactly("y", 17))))
    assert kind is FailureKind.POD_ERROR


def test_unsolvable_request_hides_no_constraint_error() -> None:
    """Found by comparison: before Kubernetes gives up, it tries the second alternative, whose devices must match."""
    subs = [
        {"name": "one", "deviceClassName": DRIVER, "count": 1},
        {"name": "all", "deviceClassName": DRIVER, "allocationMode": "All"},
    ]
    wanted = claim({"name": "x", "firstAvailable": subs}, exactly("y", 17), constraints=[match()])
    kind, reason = failed(allocate(wanted))
    assert kind is FailureKind.POD_ERROR
    assert "request x/all: cannot add device neuron.aws.com/a/neuron-device-4" in reason


@pytest.mark.parametrize(
    ("wanted", "kind", "message"),
    [
        (exactly(class_name="gone"), FailureKind.POD_ERROR, "could not retrieve device class 'gone'"),
        (exactly(cel=["1"]), FailureKind.POD_ERROR, "CEL compile error: must evaluate to bool"),
        (exactly(cel=["isIP('x')"]), FailureKind.UNSUPPORTED, "the function isIP() is not supported here"),
        (exactly(allocationMode="all"), FailureKind.POD_ERROR, "unsupported count mode all"),
    ],
)
def test_error_on_every_node_is_a_pod_error(wanted: Obj, kind: FailureKind, message: str) -> None:
    found, reason = failed(allocate(claim(wanted)))
    assert found is kind
    assert message in reason


@pytest.mark.parametrize(("amount", "fits"), [("1Gi", True), ("96Gi", True), ("97Gi", False)])
def test_capacity_selects_whole_devices(amount: str, fits: bool) -> None:
    sized = device(0, capacity={"memory": {"value": "96Gi"}})
    outcome = allocate(claim(exactly(capacity={"requests": {"memory": amount}})), slices=[slice_of([sized])])
    assert isinstance(outcome, Failure) is not fits


def test_unevaluable_device_is_not_a_mismatch() -> None:
    outcome = allocate(claim(exactly()), slices=[slice_of([device(0, allowMultipleAllocations=True)])])
    assert failed(outcome)[0] is FailureKind.UNSUPPORTED


def test_an_impossible_alignment_ends_soon() -> None:
    nics = slice_of([efa(i, 9) for i in range(8)], driver="dra.net")
    wanted = claim(exactly("n", 8), exactly("e", 8, "efa"), constraints=[match(GROUP4)])
    assert failed(allocate(wanted, slices=[*ALL16, nics]))[0] is FailureKind.NO_SOLUTION


COUNTERS = [{"name": "c", "counters": {"n": {"value": "1"}}}]


@pytest.mark.parametrize("counted", [1, 2])
def test_slices_of_other_nodes_count_only_while_slices_are_missing(counted: int) -> None:
    """Found by comparison: a driver replaces its slices, and they differ in how many the pool has."""
    consumer = device(0, consumesCounters=[{"counterSet": "c", "counters": {"n": {"value": "1"}}}])
    fields: Obj = {"pool": "p", "pool_fields": {"resourceSliceCount": counted}}
    here = slice_of([consumer], name="s-1", **fields)
    elsewhere = slice_of([], node="b", name="s-0", sharedCounters=COUNTERS, **fields)
    outcome = allocate(claim(exactly()), slices=[here, elsewhere])
    if counted == 2:
        assert devices(outcome) == ["0"]
    else:
        assert failed(outcome)[0] is FailureKind.NODE_ERROR


def test_search_has_a_limit() -> None:
    wanted = claim(*(exactly(f"r{i}", 4) for i in range(4)))
    kind, reason = failed(allocate(wanted, used=(0, 1, 2, 3)))
    assert kind is FailureKind.GAVE_UP
    assert "gave up after trying 400000 devices" in reason


def test_long_search_without_a_solution_ends_with_that() -> None:
    wanted = claim(*(exactly(f"r{i}", 4) for i in range(4)))
    assert failed(allocate(wanted, used=(0, 1, 2, 3, 4)))[0] is FailureKind.NO_SOLUTION


def test_long_search_of_newer_schedulers_is_predicted() -> None:
    """A request for 24 of 40 cores, of which 23 are free: 2^23 combinations, for which 10 s do not suffice."""
    node = slice_of([device(i) for i in range(40)])
    kind, reason = failed(allocate(claim(exactly(count=24)), slices=[node], used=tuple(range(17))))
    assert kind is FailureKind.TIMED_OUT
    assert reason.startswith(
        "the search takes about 10^6 steps on a node; the scheduler of Kubernetes 1.36 and later may give up"
    )
    few = allocate(claim(exactly(count=16)), slices=[node], used=tuple(range(25)))
    assert (failed(few)[0], few.steps) == (FailureKind.NO_SOLUTION, 2**15)
