"""Opaque configuration: decoding, error messages, and precedence."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.api import config as wire
from neuron_dra.core.config import Entry, EntrySource, NeuronSettings, Settings, UltraServerSettings, effective
from neuron_dra.errors import ClaimError

PATH = "config[0].opaque.parameters"
V1 = "neuron.aws.com/v1"


def neuron(core: Any = 1, **more: Any) -> dict[str, Any]:
    return {"apiVersion": V1, "kind": "NeuronConfig", "logicalNeuronCore": core, **more}


def ultraserver(mode: Any = 4, **more: Any) -> dict[str, Any]:
    return {"apiVersion": V1, "kind": "UltraServerConfig", "ultraserverMode": mode, **more}


def refusal(parameters: object) -> str:
    with pytest.raises(ClaimError) as caught:
        wire.decode(parameters, PATH)
    return str(caught.value)


@pytest.mark.parametrize(
    "version",
    ["neuron.aws.com/v1", "neuron.aws.com/v1beta1", "neuron.aws.com/v1alphav1", "resource.neuron.aws.com/v1alphav1"],
)
@pytest.mark.parametrize(
    ("parameters", "meant"),
    [(neuron(2), NeuronSettings(2)), (ultraserver(2), UltraServerSettings(2))],
)
def test_documented_api_versions_are_equal(version: str, parameters: dict[str, Any], meant: object) -> None:
    assert wire.decode({**parameters, "apiVersion": version}, PATH) == meant


@pytest.mark.parametrize(
    "version", ["neuron.aws.com/v2", "resource.neuron.aws.com/v1", "", None, 1, ["neuron.aws.com/v1"]]
)
def test_unknown_api_version_error_names_the_right_one(version: object) -> None:
    text = refusal({**neuron(), "apiVersion": version})
    assert text.startswith(f"error applying config: {PATH}.apiVersion ")
    assert "use 'neuron.aws.com/v1'" in text


def test_misspelt_kind_error_names_the_nearest() -> None:
    assert 'did you mean "NeuronConfig"?' in refusal({**neuron(), "kind": "NeuronConfigs"})
    assert "use NeuronConfig or UltraServerConfig" in refusal({**neuron(), "kind": "Pod"})
    assert f"{PATH}.kind None" in refusal({"apiVersion": V1})
    assert f"{PATH}.kind" in refusal({**neuron(), "kind": ["NeuronConfig"]})


@pytest.mark.contract("P12")
def test_unknown_field_error_names_the_nearest() -> None:
    text = refusal({"apiVersion": V1, "kind": "NeuronConfig", "logicalNeuronCoreCount": 1})
    assert f'unknown field "{PATH}.logicalNeuronCoreCount", did you mean "logicalNeuronCore"?' in text
    assert f'required field "{PATH}.logicalNeuronCore" is missing' in text


@pytest.mark.contract("P12")
def test_unknown_field_error_lists_all() -> None:
    text = refusal(neuron(1, zzz=1))
    assert text == (
        f'error applying config: strict decoding error: unknown field "{PATH}.zzz"; NeuronConfig has only '
        "logicalNeuronCore"
    )


@pytest.mark.contract("P12")
@pytest.mark.parametrize("value", [0, 3, -1, "1", 1.0, 1.5, True, None, [1], {"a": 1}])
def test_lnc_is_exactly_one_or_two(value: object) -> None:
    assert f'field "{PATH}.logicalNeuronCore" is {value!r}' in refusal(neuron(value))


@pytest.mark.contract("P12")
@pytest.mark.parametrize("value", [0, 3, 8, "4", True, 4.0, None])
def test_ultraserver_mode_is_one_two_or_four(value: object) -> None:
    assert f'field "{PATH}.ultraserverMode" is {value!r}' in refusal(ultraserver(value))


@pytest.mark.parametrize("value", ["", "x" * 64, 7, ["job"]])
def test_a_workload_id_is_an_object_name(value: object) -> None:
    assert f'field "{PATH}.workloadId"' in refusal(ultraserver(4, workloadId=value))


def test_a_workload_is_named_by_name_and_uid() -> None:
    decoded = wire.decode(ultraserver(4, workloadId="llm", workloadUid="1-2"), PATH)
    assert decoded == UltraServerSettings(4, "llm", "1-2")


def test_all_problems_are_reported_with_short_values() -> None:
    text = refusal(neuron("x" * 500, one=1, two=2))
    assert "one" in text
    assert "two" in text
    assert "logicalNeuronCore" in text
    assert len(text) < 600


@pytest.mark.parametrize("parameters", [None, 1, "NeuronConfig", [neuron()]])
def test_non_object_parameters_are_rejected(parameters: object) -> None:
    assert refusal(parameters).startswith(f"error applying config: {PATH} is not an object")


# Precedence (dra-contract B.8)

ONE, TWO = NeuronSettings(1), NeuronSettings(2)


def entry(source: EntrySource, settings: NeuronSettings | UltraServerSettings, *requests: str) -> Entry:
    return Entry(source, requests, settings)


@pytest.mark.contract("P10")
@pytest.mark.parametrize(
    ("entries", "request_name", "wins"),
    [
        ([], "a", None),
        ([entry(EntrySource.CLASS, ONE)], "a", ONE),
        ([entry(EntrySource.CLASS, ONE), entry(EntrySource.CLAIM, TWO)], "a", TWO),
        ([entry(EntrySource.CLAIM, TWO), entry(EntrySource.CLASS, ONE)], "a", TWO),
        ([entry(EntrySource.CLAIM, ONE), entry(EntrySource.CLAIM, TWO)], "a", TWO),
        ([entry(EntrySource.CLASS, TWO), entry(EntrySource.CLASS, ONE)], "a", ONE),
        ([entry(EntrySource.CLAIM, ONE, "b")], "a", None),
        ([entry(EntrySource.CLAIM, ONE, "a", "b")], "a", ONE),
        ([entry(EntrySource.CLAIM, ONE, "a")], "a/small", ONE),
        ([entry(EntrySource.CLAIM, ONE, "a/small")], "a/small", ONE),
        ([entry(EntrySource.CLAIM, ONE, "a/large")], "a/small", None),
        ([entry(EntrySource.CLAIM, ONE, "a/large")], "a", None),
        ([entry(EntrySource.CLASS, ONE, "a/small"), entry(EntrySource.CLAIM, TWO, "b")], "a/small", ONE),
    ],
)
def test_config_precedence(entries: list[Entry], request_name: str, wins: NeuronSettings | None) -> None:
    assert effective(entries, request_name).neuron == wins


def test_a_message_does_not_grow_with_the_configuration() -> None:
    """Its 10 KiB have room for a thousand wrong fields; the kubelet repeats the message in its log and in Events."""
    wrong = {f"x{number}": 0 for number in range(1000)}
    named = "; ".join(
        f'unknown field "{PATH}.x{number}"; NeuronConfig has only logicalNeuronCore' for number in range(8)
    )
    assert refusal(neuron(**wrong)) == f"error applying config: strict decoding error: {named}; and 992 more"


def test_the_two_kinds_do_not_hide_each_other() -> None:
    four = UltraServerSettings(4)
    entries = [entry(EntrySource.CLAIM, four), entry(EntrySource.CLASS, ONE)]
    assert effective(entries, "a") == Settings(ONE, four)


_settings = st.sampled_from([ONE, TWO, UltraServerSettings(1), UltraServerSettings(2), UltraServerSettings(4)])
_names = ("a", "b", "c/x", "c/y")


@pytest.mark.contract("P11")
@given(st.lists(st.tuples(st.sampled_from(EntrySource), _settings, st.booleans()), max_size=8))
def test_config_without_requests_applies_to_all(
    drawn: list[tuple[EntrySource, NeuronSettings | UltraServerSettings, bool]],
) -> None:
    bare = [Entry(source, (), settings) for source, settings, _ in drawn]
    named = [Entry(source, _names if spelt else (), settings) for source, settings, spelt in drawn]
    for name in _names:
        assert effective(bare, name) == effective(named, name)


@given(st.lists(st.tuples(st.sampled_from(EntrySource), _settings), max_size=6))
def test_only_the_order_within_a_source_counts(
    drawn: list[tuple[EntrySource, NeuronSettings | UltraServerSettings]],
) -> None:
    by_source = [
        [Entry(source, (), settings) for source, settings in drawn if source is wanted] for wanted in EntrySource
    ]
    outcomes = {effective(itertools.chain(*order), "a") for order in itertools.permutations(by_source)}
    assert len(outcomes) == 1


def test_long_and_unprintable_names_are_counted_beside_others() -> None:
    wrong = {"x" * 9000: 1, "\u001b[31m\nW1127 forged log line\u202e": 1}
    cut = "x" * 29 + "..."
    assert refusal(neuron(**wrong)) == (
        f'error applying config: strict decoding error: unknown field "{PATH}.{cut}"; NeuronConfig has only '
        "logicalNeuronCore; and 1 more"
    )
    text = refusal(neuron(**wrong, zzz=1))
    assert f'unknown field "{PATH}.zzz"; NeuronConfig has only logicalNeuronCore; and 2 more' in text
