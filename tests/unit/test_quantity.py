"""Kubernetes quantities, exactly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.simulate import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", Fraction(0)),
        ("96Gi", Fraction(96 * 2**30)),
        ("1.5Gi", Fraction(3 * 2**29)),
        ("100m", Fraction(1, 10)),
        ("-3k", Fraction(-3000)),
        ("+2M", Fraction(2_000_000)),
        ("1e3", Fraction(1000)),
        ("12E", Fraction(12 * 10**18)),
        ("12e-1", Fraction(6, 5)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("1n", Fraction(1, 10**9)),
        ("0.1n", Fraction(1, 10**9)),
        ("2Ei", Fraction(2 * 2**60)),
        ("100Ei", Fraction(2**63 - 1)),
    ],
)
def test_a_quantity_is_read_exactly(text: str, value: Fraction) -> None:
    assert quantity.parse(text).value == value


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1GiB", "1K", "0x10", "1,5", "NaN", "1e100000", "--1", "٣", "1ki"])
def test_invalid_quantity_error_names_it(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.parse(text)


@given(
    st.fractions(min_value=-(10**12), max_value=10**12, max_denominator=10**9).filter(
        lambda f: 10**9 % f.denominator == 0
    )
)
def test_quantities_round_trip(value: Fraction) -> None:
    original = quantity.Quantity(value)
    assert quantity.parse(str(original)) == original
