"""The scanner finds the values that a decoder finds, and goes on where a decoder ends."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_dra.kube import scan
from neuron_dra.kube.scan import EACH

POISON = (
    b'"\\ud800"',
    b'"\\udfff\\ud800"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'{"\\ud800":"}"}',
    b'{"\xff":"]"}',
    b"[" * 5000 + b"]" * 5000,
    b'{"a":' * 5000 + b"1e400" + b"}" * 5000,
    b'"' + b'\\"[{\\\\' * 1000 + b'"',
)
"""Values that the API server passes through in opaque parameters, most of which msgspec cannot decode."""

TEXTS = st.text(max_size=12) | st.sampled_from(["\\", '"', '\\"', "[{", "}]", "\\u", "é", "\U0001f600", "", ",:"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
LAYOUTS = st.sampled_from([{"separators": (",", ":")}, {"indent": 2}, {"indent": "\t", "ensure_ascii": False}])


@given(value=VALUES, layout=LAYOUTS, before=st.sampled_from([b"", b" \n"]))
@settings(max_examples=300, deadline=None)
def test_scan_finds_what_json_decodes(value: Any, layout: dict[str, Any], before: bytes) -> None:
    raw = before + json.dumps(value, **layout).encode("utf-8", "surrogatepass") + b"\n"
    [(begin, end)] = scan.find(raw, ())
    assert raw[begin:end] == raw.strip()
    found = {name: json.loads(raw[slice(*span)]) for name, span in scan.members(raw)}
    assert found == (value if isinstance(value, dict) else {})
    listed = [json.loads(raw[slice(*span)]) for span in scan.elements(raw)]
    assert listed == (value if isinstance(value, list) else [])


@given(value=VALUES, other=VALUES, poison=st.sampled_from(POISON))
@settings(max_examples=200, deadline=None)
def test_scan_steps_over_what_no_decoder_reads(value: Any, other: Any, poison: bytes) -> None:
    one, two = (json.dumps(each).encode() for each in (value, other))
    raw = b'{"first":%s,"bad":[{"deep": %s }],"last":%s}' % (one, poison, two)
    found = {name: raw[slice(*span)] for name, span in scan.members(raw)}
    assert found == {"first": one, "bad": b'[{"deep": %s }]' % poison, "last": two}
    assert [raw[slice(*span)] for span in scan.find(raw, ("bad", EACH, "deep"))] == [poison]


@pytest.mark.parametrize("poison", POISON[:-1])
def test_msgspec_reads_none_of_the_poison(poison: bytes) -> None:
    """If a later msgspec reads it, the scanner may no longer be needed."""
    with pytest.raises((ValueError, RecursionError)):
        msgspec.json.decode(b'{"a":%s}' % poison)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a" 1}', b'{"a":1 "b":2}', b'{"a":"', b'"']
)
def test_truncated_text_is_an_error(raw: bytes) -> None:
    with pytest.raises(scan.NotJson):
        _ = [*scan.members(raw)] or [*scan.find(raw, ())]


def test_name_with_escapes_is_found() -> None:
    raw = b'{"sp\\u0065c":{"\\"":1}}'
    assert [raw[slice(*span)] for span in scan.find(raw, ("spec", '"'))] == [b"1"]
