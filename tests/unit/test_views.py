"""Typed views: what answers read of an object, and what `snapshot.build` says of one that has another type there."""

from __future__ import annotations

import pytest

from neuron_dra.ask.read import snapshot, views
from neuron_dra.ask.read.snapshot import DamagedObject
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
    seen = views.of(views.BudgetView, budget(disruptionsAllowed=1, expectedPods=4))
    assert seen == views.BudgetView(
        views.MetaView("train", "ml", generation=2),
        views.BudgetSpec(views.SelectorView({"app": "train"})),
        views.BudgetStatus(disruptions_allowed=1),
    )


def test_null_is_absent() -> None:
    item: Obj = {**budget(), "status": None, "spec": {"selector": None}}
    assert views.of(views.BudgetView, item) == views.BudgetView(views.MetaView("train", "ml", generation=2))


def test_event_without_times_is_read() -> None:
    item = {"involvedObject": {"kind": "Pod"}, "eventTime": None, "lastTimestamp": None, "series": None}
    assert views.of(views.EventView, item).seen_at == ""


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
