"""Selectors against cel-python, another implementation of CEL, in what both have (ADR 10)."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.simulate import failures, selectors
from tests.oracle.selector_grammar import ATTRIBUTES, CAPACITIES, DRIVER, Grammar, selector
from tests.support import cel_python, common_cel

TOTAL = 2000
OF_GRAMMAR_AT_LEAST = 600
DECISION = Path(__file__).resolve().parents[2] / "docs/adr/0010-selectors.md"

Result = bool | None
"""What a selector returns for a device; None is an error."""

# Only what both implementations have, with fitting types: what differs is in `common_cel`.
_COMMON = r"""
bool: true | false | {mine}.yes | {mine}['no'] | {domain}.yes | !({bool}) | {bool} && {bool} | {bool} || {bool}
    ({bool} || {bool}) && ({bool} || {bool}) | ({bool}) ? ({bool}) : ({bool}) | ({bool}) == ({bool})
    ({int}) {order} ({int}) | ({double}) {order} ({double}) | ({string}) {order} ({string}) | ({int}) {equal} ({int})
    ({string}) {equal} ({string}) | ({ints}) {equal} ({ints}) | ({strings}) {equal} ({strings})
    has({domain}.{name}) | has({mine}.{name}) && {mine}.one {order} ({int})
    has({mine}.fish) && {mine}.fish == {string} | !has({mine}.nope) | !has({mine}.{name}) || {bool}
    '{name}' in {domain} | {domainname} in device.attributes | {domainname} in device.capacity | ({int}) in ({ints})
    ({string}) in ({strings}) | {mine}.one in ({ints})
    ({string}).startsWith({string}) | ({string}).endsWith({string}) | {text}.contains({string})
    ({string}).matches({pattern}) | ({ints}).all(x, {test}) | ({ints}).exists(x, {test})
    ({ints}).exists_one(x, {test}) | ({strings}).exists(x, x == {string}) | ({strings}).all(y, size(y) {order} ({int}))
    {domain}.all(x, x != {string}) | device.attributes.exists(x, x == {string}) | device.allowMultipleAllocations
    {domain}.exists(x, x.startsWith({string})) | ({ints}).filter(x, {total}) {equal} ({ints})
test: x {order} ({int}) | x == {int} | x % 2 == 0 | {bool} | x in ({ints}) | x {order} ({int}) && {bool}
total: x {order} 2 | x == 7 | x != -3 && x != 2 | x in [1, 3] | !(x {order} 1) || x == 1 | true | false
int: 0 | 1 | 2 | -3 | 7 | 9223372036854775807 | -9223372036854775808 | 0x10 | {mine}.one | {mine}['big'] | {domain}.one
    ({int}) + ({int}) | ({int}) - ({int}) | ({int}) * ({int}) | ({int}) / ({int}) | ({int}) % ({int}) | -({int})
    size({string}) | ({strings}).size() | int({double}) | ({ints})[{position}] | (({bool}) ? ({int}) : ({int}))
    ({ints}).filter(x, {total}).size() | size({domain})
double: 0.0 | 1.0 | 0.5 | -1.5 | 1e3 | ({double}) + ({double}) | ({double}) * ({double}) | double({int})
string: {text} | ({string}) + ({string}) | string({int}) | ({strings})[{position}]
text: 'fish' | "bird" | '' | '1' | 'a,b' | r'\d+' | 'FiSh' | 'é' | '''x''' | ' a ' | device.driver | {mine}.fish
    {mine}['empty'] | {domain}.fish
ints: [1, 2] | [3, -3, 7] | {mine}.ints | [{int}] | ({ints}) + ({ints}) | ({ints}).map(x, {total} ? x : 7)
    ({ints}).filter(x, {total})
strings: ['fish', 'b'] | {mine}.strings | [{string}] | ({strings}).map(x, x == 'fish' ? 'bird' : x)
domain: {mine} | device.attributes[{domainname}]
mine: device.attributes['dra.example.com']
domainname: 'dra.example.com' | 'other.example.com' | 'no-such' | device.driver
name: yes | one | fish | ints | nope
pattern: 'fi.h' | '[a-z]+' | '(?i)FISH' | '' | 'a|b' | '^b' | {string}
position: 0 | 1 | 2 | 9223372036854775807
order: < | <= | > | >=
equal: == | !=
"""

DEVICES: list[dict[str, Any]] = [
    ATTRIBUTES,
    {name: value for name, value in ATTRIBUTES.items() if name not in ("one", "fish", "ints")},
    {**ATTRIBUTES, "yes": {"bool": False}, "one": {"int": 7}, "fish": {"string": "bird"}, "ints": {"ints": []}},
]
TYPES = {
    name.rpartition("/")[2]: f"list of {kind.removesuffix('s')}" if kind.endswith("s") else kind
    for name, attribute in ATTRIBUTES.items()
    for kind in attribute
}


def _ours(expression: str, device: Any) -> Result:
    """Return the result of the evaluator in use; an expression that does not compile is an exception."""
    compiled = selectors.compile_selector(expression)
    try:
        return compiled.matches(device)
    except failures.EvaluationError:
        return None


def _compare(expressions: list[str]) -> Counter[Result]:
    """Evaluate each expression on each device in both; return how often each result is, if none differs."""
    devices = [
        (selectors.device_value(DRIVER, each, CAPACITIES), cel_python.device_value(DRIVER, each, CAPACITIES))
        for each in DEVICES
    ]
    judge = cel_python.Judge()
    results: Counter[Result] = Counter()
    different = []
    for expression in expressions:
        program = judge.program(expression)
        for ours, theirs in devices:
            found = _ours(expression, ours)
            expected = judge.result(program, theirs)
            results[found] += 1
            if found is not expected:
                different.append((expression, found, expected))
    assert different == []
    return results


def _distinct(grammar: Grammar, count: int) -> list[str]:
    found: dict[str, None] = {}
    seed = 0
    while len(found) < count:
        found[grammar.selector(seed)] = None
        seed += 1
    return list(found)


def test_common_selectors_equal_cel_python() -> None:
    expressions = _distinct(Grammar(_COMMON), TOTAL)
    assert {common_cel.left_out(each, TYPES) for each in expressions} == {None}
    results = _compare(expressions)
    assert results.total() == TOTAL * len(DEVICES)
    assert min(results[True], results[False]) >= results.total() / 5
    assert results[None] > 0


def test_random_selectors_equal_cel_python() -> None:
    """Of the selectors that are compared with Kubernetes' own code in the long tests, those that cel-python has."""
    expressions = [selector(seed) for seed in range(TOTAL)]
    common = [each for each in expressions if common_cel.left_out(each, TYPES) is None]
    assert len(common) >= OF_GRAMMAR_AT_LEAST
    assert _compare(common)[None] > 0


def test_adr_counts_what_is_left_out() -> None:
    reasons = [common_cel.left_out(selector(seed), TYPES) for seed in range(TOTAL)]
    counted = Counter(reason or "compared" for reason in reasons)
    rows = re.findall(r"^\| ([^|]+?) \| (\d+) \|$", DECISION.read_text(), re.MULTILINE)
    assert {reason: int(count) for reason, count in rows} == counted
    assert set(counted) == {"compared", *common_cel.REASONS}


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1 < 2.0", common_cel.TWO_NUMBERS),
        ("device.driver == 1", common_cel.TYPES),
        ("[1, 2].map(x, 'a')[0] == 1", common_cel.TYPES),
        ("('a' + 'b').contains('a')", common_cel.CONTAINS),
        ("false && bool('maybe')", common_cel.CONSTANTS),
        ("device.driver.matches('(')", common_cel.CONSTANTS),
        ("device.attributes['a'].nope == 1 && [1].exists(x, x > 0)", None),
    ],
)
def test_common_part_is_decided_by_syntax(expression: str, reason: str | None) -> None:
    assert common_cel.left_out(expression, TYPES) == reason
