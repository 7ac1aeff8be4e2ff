"""Strategic merge patches of the embedded API server, beyond what the contract suite compares with a real one."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_dra.emulation.embedded_api import strategic
from neuron_dra.emulation.embedded_api.errors import StatusError


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


TWO = [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b"}]


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        pytest.param(spec(x=1), spec(unschedulable=True), spec(x=1, unschedulable=True), id="a field"),
        pytest.param(spec(unschedulable=True), spec(unschedulable=None), spec(), id="null removes"),
        pytest.param(
            spec(containers=TWO),
            spec(containers=[{"name": "a", "image": "2"}]),
            spec(containers=[{"name": "a", "image": "2", "args": ["x"]}, {"name": "b"}]),
            id="an entry by its key",
        ),
        pytest.param(
            spec(containers=TWO),
            spec(containers=[{"$patch": "delete", "name": "a"}]),
            spec(containers=[{"name": "b"}]),
            id="delete an entry",
        ),
        pytest.param(
            spec(containers=TWO),
            spec(containers=[{"$patch": "replace"}, {"name": "c"}]),
            spec(containers=[{"name": "c"}]),
            id="replace a list",
        ),
        pytest.param(spec(args=["a"]), spec(args=["b"]), spec(args=["b"]), id="a list without keys"),
        pytest.param(
            {"metadata": {"finalizers": ["a"]}},
            {"metadata": {"finalizers": ["b"], "$deleteFromPrimitiveList/finalizers": ["a"]}},
            {"metadata": {"finalizers": ["b"]}},
            id="texts",
        ),
        pytest.param(
            spec(resourceClaims=[{"name": "a", "resourceClaimName": "x"}]),
            spec(
                resourceClaims=[
                    {
                        "name": "a",
                        "resourceClaimTemplateName": "y",
                        "$retainKeys": ["name", "resourceClaimTemplateName"],
                    }
                ]
            ),
            spec(resourceClaims=[{"name": "a", "resourceClaimTemplateName": "y"}]),
            id="retain keys",
        ),
        pytest.param(spec(a=1), {"spec": {"$patch": "replace", "b": 2}}, spec(b=2), id="replace an object"),
        pytest.param(
            spec(ports=[{"port": 1, "name": "x"}]),
            spec(ports=[{"port": 1, "name": "y"}]),
            spec(ports=[{"port": 1, "name": "y"}]),
            id="ports of a Service",
        ),
        pytest.param(
            spec(containers=[{"name": "a"}, {"name": "b"}, {"name": "c"}]),
            {"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]}},
            spec(containers=[{"name": "c"}, {"name": "b"}, {"name": "a"}]),
            id="order",
        ),
    ],
)
def test_a_patch_changes_the_object(before: dict[str, Any], patch: dict[str, Any], after: dict[str, Any]) -> None:
    assert strategic.merge(before, patch) == after


def test_a_patch_leaves_its_arguments() -> None:
    before = spec(containers=[{"name": "a"}, {"name": "b"}])
    strategic.merge(before, {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}})
    assert before == spec(containers=[{"name": "a"}, {"name": "b"}])


@pytest.mark.parametrize("patch", [{"$patch": "x"}, {"containers": [{"image": "1"}]}])
def test_an_invalid_patch_is_400(patch: dict[str, Any]) -> None:
    with pytest.raises(StatusError) as caught:
        strategic.merge({}, patch)
    assert caught.value.code == 400
