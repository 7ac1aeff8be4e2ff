"""Typed views: what answers read of an object, and what `snapshot.build` says of one that has another type there."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from neuron_dra.ask.read import kept, snapshot, views
from neuron_dra.ask.read.claim_views import ClaimView, RequestView
from neuron_dra.ask.read.kept import Needed, SharedField
from neuron_dra.ask.read.node_views import KubeNodeView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.snapshot import DamagedObject
from neuron_dra.ask.read.views import ObjectView
from neuron_dra.core.wire import Obj
from neuron_dra.errors import SettingsError


def budget(**status: object) -> Obj:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "train", "namespace": "ml", "generation": 2},
        "spec": {"selector": {"matchLabels": {"app": "train"}}},
        "status": status,
    }


def test_view_has_the_fields_that_are_read() -> None:
    seen = views.BudgetView.of(budget(disruptionsAllowed=1, expectedPods=4))
    assert seen == views.BudgetView(
        views.MetaView("train", "ml", generation=2),
        views.BudgetSpec(views.LabelSelectorView({"app": "train"})),
        views.BudgetStatus(disruptions_allowed=1),
    )


def test_null_is_absent() -> None:
    item: Obj = {**budget(), "status": None, "spec": {"selector": None}}
    assert views.BudgetView.of(item) == views.BudgetView(views.MetaView("train", "ml", generation=2))


def test_event_without_times_is_read() -> None:
    item = {"involvedObject": {"kind": "Pod"}, "eventTime": None, "lastTimestamp": None, "series": None}
    assert views.EventView.of(item).seen_at == ""


def test_shape_of_a_view_names_its_fields() -> None:
    assert views.shape(views.UltraServerSpec) == {
        "instanceType": str,
        "topology": [{"nodeName": str, "nodeId": int}],
    }


def test_object_of_another_type_is_set_aside_by_name_and_path() -> None:
    wrong = budget(disruptionsAllowed="one")
    text = "status.disruptionsAllowed is 'one': it must be a whole number"
    with pytest.raises(SettingsError, match=f"PodDisruptionBudget ml/train: {text}"):
        snapshot.build([wrong])
    built = snapshot.build([wrong, {**budget(), "metadata": {"name": "other", "namespace": "ml"}}], damaged=())
    assert built.damaged == [
        DamagedObject("PodDisruptionBudget", "ml", "train", why=f"PodDisruptionBudget ml/train: {text}")
    ]
    assert [each["metadata"]["name"] for each in built.all("PodDisruptionBudget")] == ["other"]


def pod(name: str = "train", **parts: object) -> Obj:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ml"}, "spec": {}, **parts}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (pod(spec={"priority": "high"}), "spec.priority is 'high': it must be a whole number"),
        (pod(spec={"overhead": "1Gi"}), "spec.overhead is '1Gi': it must be an object"),
        (pod(spec={"nodeSelector": {8: "x"}}), "spec.nodeSelector has the key 8: it must be a string"),
        (
            pod(spec={"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}),
            "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution is {}: it must be a list",
        ),
        (
            pod(status={"extendedResourceClaimStatus": {"resourceClaimName": ["c"]}}),
            "status.extendedResourceClaimStatus.resourceClaimName is ['c']: it must be a string",
        ),
        (
            pod(spec={"volumes": [{"persistentVolumeClaim": "data"}]}),
            "spec.volumes[0].persistentVolumeClaim is 'data': it must be an object",
        ),
    ],
    ids=["number", "amounts", "key", "deep list", "claim", "entry of a list"],
)
def test_malformed_pod_is_set_aside_alone(wrong: Obj, text: str) -> None:
    built = snapshot.build([wrong, pod("other")], damaged=())
    assert built.damaged == [DamagedObject("Pod", "ml", "train", why=f"Pod ml/train: {text}")]
    assert [each["metadata"]["name"] for each in built.all("Pod")] == ["other"]


@pytest.mark.parametrize(
    ("kind", "view"),
    [("Pod", PodView), ("ResourceClaim", ClaimView), ("Node", KubeNodeView)],
    ids=["Pod", "ResourceClaim", "Node"],
)
def test_every_field_of_a_view_is_kept_while_a_file_is_read(kind: str, view: type[ObjectView]) -> None:
    assert [path for path in paths(view) if not is_kept(path, kept.FIELDS[kind])] == []


def paths(view: type[ObjectView]) -> Iterator[tuple[str, ...]]:
    """Yield the path of each field of a view, with those of the views in it."""
    for field in msgspec.structs.fields(view):
        inner = [
            each for each in (field.type, *parts(field.type)) if isinstance(each, type) and issubclass(each, ObjectView)
        ]
        if not inner:
            yield (field.encode_name,)
        for each in inner:
            for path in paths(each):
                yield (field.encode_name, *path)


def parts(kind: Any) -> Iterator[Any]:
    for each in typing.get_args(kind):
        yield each
        yield from parts(each)


def is_kept(path: tuple[str, ...], fields: Any) -> bool:
    if isinstance(fields, SharedField | Needed):
        return is_kept(path, fields.shape)
    if isinstance(fields, list):
        return is_kept(path, fields[0])
    if not isinstance(fields, Mapping) or not fields or not path:
        return True  # the whole value
    return path[0] in fields and is_kept(path[1:], fields[path[0]])


def test_request_without_alternatives_is_one_itself() -> None:
    one = RequestView.of({"name": "r", "exactly": {"deviceClassName": "c"}})
    several = RequestView.of({"name": "r", "firstAvailable": [{"name": "a"}, {"name": "b"}]})
    assert [name for name, _ in one.named_alternatives] == ["r"]
    assert [name for name, _ in several.named_alternatives] == ["r/a", "r/b"]


def test_view_of_nothing_has_no_fields() -> None:
    assert PodView.of(None) == PodView()
