"""A short run of `make fuzz`: its corpus, and some hundred inputs near it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.fuzz_targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = 150


def kept(target: str) -> list[bytes]:
    """Return the corpus of a target: inputs that reached new code, and those that found a bug."""
    return [bytes.fromhex(line) for line in (CORPUS / f"{target}.txt").read_text().split()]


@pytest.mark.parametrize("target", TARGETS)
def test_corpus_passes(target: str) -> None:
    for data in kept(target):
        TARGETS[target](data)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_inputs_near_them_do_no_harm(target: str, data: st.DataObject) -> None:
    """Combine the beginning of one input with the end of another, and change a byte."""
    corpus = kept(target)
    one, other = data.draw(st.sampled_from(corpus)), data.draw(st.sampled_from(corpus))
    cut = data.draw(st.integers(0, len(one)))
    joined = bytearray(one[:cut] + data.draw(st.binary(max_size=8)) + other[cut:])
    if joined:
        joined[data.draw(st.integers(0, len(joined) - 1))] = data.draw(st.integers(0, 255))
    TARGETS[target](bytes(joined))
