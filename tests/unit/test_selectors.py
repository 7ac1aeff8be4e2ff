"""CEL selectors: the cases of Kubernetes' own table (dynamic-resource-allocation/cel)."""

from typing import Any

import pytest

from neuron_dra.simulate import failures, selectors

D = DRIVER = "dra.example.com"
ATTRS = f'device.attributes["{D}"]'
CAPACITY = f'device.capacity["{D}"]'


def evaluate(
    expression: str,
    attributes: dict[str, Any] | None = None,
    capacity: dict[str, str] | None = None,
    driver: str = D,
    multiple: bool = False,
) -> bool:
    value = selectors.device_value(driver, attributes or {}, capacity or {}, multiple=multiple)
    return selectors.compile_selector(expression).matches(value)


ATTRIBUTES: dict[str, Any] = {
    "bool": {"bool": True},
    "int": {"int": 1},
    "string": {"string": "fish"},
    "version": {"version": "1.0.0"},
    "services": {"string": "some_example_value"},
    "ints": {"ints": [1, 2, 3]},
    "strings": {"strings": ["fish", "bird"]},
    "bools": {"bools": [True, False]},
    "versions": {"versions": ["1.0.0", "2.0.0"]},
    "other.example.com/name": {"bool": True},
}
CAPACITIES = {"name": "1Mi"}


MEANINGS: list[tuple[str, bool]] = [
    ("true", True),
    ("false", False),
    ('"no-such-domain" in device.attributes', False),
    (f'"{D}" in device.attributes', True),
    (f'device.driver == "{D}"', True),
    (f"{ATTRS}.bool", True),
    (f'{ATTRS}["bool"]', True),
    (f"cel.bind(dra, {ATTRS}, dra.bool)", True),
    ('device.attributes["other.example.com"].name', True),
    (f"{ATTRS}.int > 0", True),
    (f"{ATTRS}.int + 1 == 2", True),
    (f"{ATTRS}.int-1 == 0", True),
    (f"{ATTRS}.int > 0.5", True),
    (f'{ATTRS}.string == "fish"', True),
    (f"{ATTRS}.string == 'fi' + 'sh'", True),
    (f"{ATTRS}.string == {ATTRS}.int", False),
    (f"{ATTRS}.int != {ATTRS}.string", True),
    (f"{ATTRS}.int in [1, 2]", True),
    (f"1 in {ATTRS}.ints", True),
    (f"{ATTRS}.ints.size() == 3", True),
    (f"size({ATTRS}.versions) == 2", True),
    (f"{ATTRS}.ints.exists(x, x > 2)", True),
    (f'{ATTRS}.strings.all(x, x != "")', True),
    (f'{ATTRS}.versions.all(x, x.isGreaterThan(semver("0.0.1")))', True),
    (f'{ATTRS}.strings.filter(x, x.startsWith("f")).map(x, x.size()) == [4]', True),
    (f'{ATTRS}.strings.includes("fish")', True),
    (f'{ATTRS}.string.includes("fish")', True),
    (f'{ATTRS}.string.includes("bird")', False),
    (f"{ATTRS}.bools.includes(false)", True),
    (f"{ATTRS}.int.includes(2)", False),
    (f'{ATTRS}.version.isGreaterThan(semver("0.0.1"))', True),
    (f'{ATTRS}.version.isGreaterThan(semver("v0.0.1", true)) && isSemver("v1.0.0", true)', True),
    (f'{ATTRS}.version == semver("1.0.0") && {ATTRS}.version.major() == 1', True),
    (f'{CAPACITY}.name.isGreaterThan(quantity("1Ki"))', True),
    (f'{CAPACITY}["name"] == quantity("1024Ki")', True),
    (f'{CAPACITY}.name.compareTo(quantity("96Gi")) == -1', True),
    (f'{CAPACITY}.name.add(quantity("1")).asInteger() == 1048577', True),
    (f'"name" in {CAPACITY} && {CAPACITY}.name.isGreaterThan(quantity("1Ki"))', True),
    (f'!("nope" in {CAPACITY}) || {CAPACITY}.nope.isGreaterThan(quantity("1Ki"))', True),
    (f'device.attributes.exists_one(x, x == "{D}")', True),
    (f'{ATTRS}.exists_one(x, x == "services")', True),
    (f'device.capacity.exists_one(x, x == "{D}")', True),
    (f'{CAPACITY}.exists_one(x, x == "memory")', False),
    (f'{ATTRS}.services.split("example").size() >= 2', True),
    (f'{ATTRS}.services.matches("e_[^a]?example")', True),
    (f'{ATTRS}.services.find("ex[a-z]+") == "example"', True),
    (f"has({ATTRS}.bool)", True),
    (f"has({ATTRS}.nope)", False),
    ('has(device.attributes["no-such-domain"].x)', False),
    (f'"nope" in {ATTRS}', False),
    (f"has({ATTRS}.nope) && {ATTRS}.nope == 1", False),
    (f"!has({ATTRS}.workloadUid)", True),
    (f'{ATTRS}.?nope.orValue("none") == "none"', True),
    (f'{ATTRS}[?"int"].hasValue()', True),
    (f"{ATTRS}.?nope.hasValue()", False),
    ('device.attributes[?"no-such-domain"].hasValue()', True),
    ("device.allowMultipleAllocations == false", True),
    (f"{ATTRS}.int == 1 ? {ATTRS}.bool : {ATTRS}.nope", True),
    ("sets.contains(['a', 'b'], ['b'])", True),
    (f'{ATTRS}.string in {{"fish": 1}}', True),
    ("'%' < 'a' && 7 / -2 == -3 && -7 % 2 == -1", True),
    (f"string({ATTRS}.int) == '1' && int('12') == 12", True),
    ("// a comment\ntrue", True),
    ("has(device.attributes.nope)", True),
    ("sign(quantity('-1')) == -1 && quantity('5.').asInteger() == 5 && quantity('.5') == quantity('500m')", True),
    ("isQuantity('1K') || isQuantity('٣')", False),
    ("quantity('-0.1n') == quantity('-1n') && quantity('100Ei') == quantity('101Ei')", True),
    ("semver('1.0.0+a') == semver('1.0.0+b')", True),
    ("'abc'.charAt(3) == '' && [].sum() == 0 && string(1.0) == '1' && string(1.5) == '1.5'", True),
    ("'a,b'.split(',', 0).size() == 0 && 'a,b,c'.split(',', 2) == ['a', 'b,c']", True),
    ("'TacoCat'.lowerAscii() == 'tacocat' && 'hello'.replace('l', 'L', 1) == 'heLlo'", True),
    ("['a', 'b'].join('-') == 'a-b' && 'hello'.indexOf('l') == 2 && 'hello'.lastIndexOf('l') == 3", True),
    ("'abc 123 def 456'.findAll('[0-9]+', 1) == ['123'] && ' a '.trim() == 'a'", True),
    ("optional.none().orValue(1) == 1 && optional.of(1).value() == 1 && !optional.ofNonZeroValue(0).hasValue()", True),
    ("{'a': {'b': 1}}.?a.?b.orValue(0) == 1 && {'a': {'b': 1}}.?a.b.orValue(0) == 1 && [1][?5].orValue(7) == 7", True),
    ("has({'a': 1}.a) && !has({'a': 1}.b) && 7.0 / 2.0 == 3.5 && 0x10 == 16 && 5u + 2u == 7u", True),
    ("1 < 2u && 1.5 > 1 && b'abc' == b'abc' && dyn(1) == dyn(1.0)", True),
    ("[1, 2, 3].exists_one(x, x > 2) && [[1]].all(x, x.all(y, y == 1)) && [3, 1].min() == 1", True),
    (f"{ATTRS}.all(k, {ATTRS}[k] != 'nothing')", True),
    ("1 < 2.5 && 2u > 1 && double(1) <= 1u && !('b' < 'a')", True),
    ("cel.bind(all, device.attributes, has(all['no-such-domain'].x))", False),
    ("device.attributes[?'no-such-domain'].?x.orValue(7) == 7", True),
    ('"%d-%s".format([1, "a"]) == "1-a"', True),
    ('duration("1s") > duration("0s") && timestamp("2020-01-01T00:00:00Z").getFullYear() == 2020', True),
    ("[1, 1].distinct().size() == 1 && lists.range(2).size() == 2 && [2, 1].sort() == [1, 2]", True),
    ("[1].all(i, x, x > i) && [?optional.of(1)].size() == 1 && [[], [1]].size() == 2", True),
    ("[1.5, 2.5].sum() == 4.0 && ['b', 'a'].min() == 'a' && [true].max()", True),
    (f"{ATTRS}.version != '1.0.0' && ({ATTRS}.version == null) == false", True),
    ("'hello'.substring(1, 5) == 'ello' && 'é'.substring(0, 1) == 'é' && 'ab'.substring(1) == 'b'", True),
    (f"{ATTRS}.versions.includes(semver('2.0.0')) && [quantity('1')].includes(quantity('1000m'))", True),
    ("optional.of(1).includes(1) || [1].includes(optional.of(1))", False),
    (f"{ATTRS}.ints.indexOf(2) == 1 && ['a', 'b', 'a'].lastIndexOf('a') == 2 && [[1]].indexOf([1]) == 0", True),
    (f"{ATTRS}.int.includes(true) || {ATTRS}.bool.includes(1)", False),
]


@pytest.mark.parametrize(("expression", "expected"), MEANINGS)
def test_expression_results(expression: str, expected: bool) -> None:
    assert evaluate(expression, ATTRIBUTES, CAPACITIES) is expected


ABSORBED: list[tuple[str, bool]] = [
    (f"{ATTRS}.nope == 1 && false", False),
    (f"false && {ATTRS}.nope == 1", False),
    (f"{ATTRS}.nope == 1 || true", True),
    (f"true || {ATTRS}.nope == 1", True),
    (f"[1, 2].exists(x, {ATTRS}.nope == x || x == 2)", True),
    (f"[1, 2].all(x, {ATTRS}.nope == x && x == 2)", False),
    (f"cel.bind(x, {ATTRS}.nope, true || x)", True),
]


@pytest.mark.parametrize(("expression", "expected"), ABSORBED)
def test_logical_operators_absorb_errors(expression: str, expected: bool) -> None:
    assert evaluate(expression, ATTRIBUTES) is expected


EVALUATION_ERRORS: list[tuple[str, str]] = [
    ('device.attributes["no-such-domain"].noSuchAttr.isGreaterThan(quantity("0"))', "no such key: noSuchAttr"),
    ('device.attributes["no-such-domain"]["noSuchAttr"] == 1', "no such key: noSuchAttr"),
    (f"{ATTRS}.nope == 1 && true", "no such key: nope"),
    (f"{ATTRS}.nope == 1 || false", "no such key: nope"),
    (f"{ATTRS}.string", "CEL result of type string could not be converted to bool"),
    (f"{ATTRS}.strings", "CEL result of type list could not be converted to bool"),
    ("dyn(optional.of(1))", "CEL result of type optional_type could not be converted to bool"),
    (f"{ATTRS}.int.exists(x, x > 0)", "expected iterable type"),
    (f"{ATTRS}.version.exists(x, true)", "expected iterable type"),
    (f"{ATTRS}.version > {ATTRS}.version", "no such overload"),
    (f"{ATTRS}.string > 1", "no such overload"),
    (f"{ATTRS}.int && true", "no such overload"),
    (f'{ATTRS}.int.isGreaterThan(semver("1.0.0"))', "no such overload"),
    (f'semver({ATTRS}.string) == semver("1.0.0")', "not a semantic version"),
    (f"quantity({ATTRS}.string).isInteger()", "not a quantity"),
    (f"{ATTRS}.ints[3] == 1", "index out of bounds"),
    (f"{ATTRS}.int / 0 == 1", "division by zero"),
    ("9223372036854775807 + 1 > 0", "integer overflow"),
    ("[9223372036854775807, 1].sum() > 0", "integer overflow"),
    (f"{ATTRS}.version == '1.0.0'", "no such overload"),
    (f"{ATTRS}.version == {ATTRS}.string", "no such overload"),
    (f"quantity('1') == {ATTRS}.int", "no such overload"),
    ("'hello'.substring(2, 6) == 'llo'", "index out of range: 2, 6"),
    ("semver('99999999999999999999.0.0').major() > 0", "more than 64 bits"),
    (f"{ATTRS}.string.matches('(' + '')", "invalid regular expression"),
]


@pytest.mark.parametrize(("expression", "message"), EVALUATION_ERRORS)
def test_runtime_error_is_not_a_mismatch(expression: str, message: str) -> None:
    with pytest.raises(failures.EvaluationError, match=message):
        evaluate(expression, ATTRIBUTES)


COMPILE_ERRORS: list[tuple[str, str]] = [
    ("?!", "syntax error"),
    ("1", "must evaluate to bool or the unknown type, not int"),
    ("device.driver", "must evaluate to bool or the unknown type, not string"),
    (f"{CAPACITY}.name", "must evaluate to bool or the unknown type, not kubernetes.Quantity"),
    ("device.driver == 1", "no matching overload for '_==_'"),
    ("1 == 1.0", "no matching overload for '_==_'"),
    ("device.name == 'x'", "undefined field 'name'"),
    ("node.name == 'x'", "undeclared reference to 'node.name'"),
    (f"noSuchFunction({ATTRS}.x)", "undeclared reference to 'noSuchFunction'"),
    (f'{CAPACITY}.name > quantity("1Ki")', "no matching overload for '_>_'"),
    (f"{CAPACITY}.name.contains('x')", "no matching overload for 'contains'"),
    ("device.driver && true", "no matching overload for '_&&_'"),
    ("device.driver.exists(x, true)", "cannot be the range of a comprehension"),
    ("['a', 1].size() == 2", "different types"),
    ("has(device)", "argument must be a field selection"),
    (f"{ATTRS}.string.matches('(')", "invalid regular expression"),
    ("device.driver == null", "no matching overload for '_==_'"),
    ("quantity('1').sign() == 1", "undeclared reference to 'sign'"),
    (f"{ATTRS}.int in [{ATTRS}.int, 16]", "different types"),
    ("[optional.of(1)] == [optional.of('a')]", "no matching overload for '_==_'"),
    ("bool('maybe') && false", "type conversion error"),
    ("true && " * 2000 + "true", "longer than 10240 bytes"),
]


@pytest.mark.parametrize(("expression", "message"), COMPILE_ERRORS)
def test_invalid_expression_does_not_compile(expression: str, message: str) -> None:
    with pytest.raises(failures.CompileError, match=message):
        selectors.compile_selector(expression)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ('ip("10.0.0.1").family() == 4', "the function ip"),
        ('cidr("10.0.0.0/8").containsIP("10.0.0.1")', "the function cidr"),
        ('url("http://a").getHost() == "a"', "the function url"),
        ('format.named("uuid").hasValue()', "the function format"),
        ("has(device.driver)", "a field that every device has is"),
        ("cel.bind(d, device, d.driver == 'x')", "`device` without a field is"),
        ("(" * 40 + "true" + ")" * 40, "of this form or depth is"),
    ],
)
def test_unsupported_expression_is_reported(expression: str, reason: str) -> None:
    with pytest.raises(failures.UnsupportedError, match=f"{reason}.* not supported here"):
        selectors.compile_selector(expression)


LOOPS = "true"
for name in "abcdef":
    LOOPS = f"[0,1,2,3,4,5,6,7,8,9].all({name}, {LOOPS})"


@pytest.mark.parametrize("expression", [LOOPS, "{'a': 1}.transformMap(k, v, v + 1) == {'a': 2}"])
def test_unsupported_evaluation_is_reported(expression: str) -> None:
    with pytest.raises(failures.UnsupportedError, match="not supported here"):
        evaluate(expression)


def test_invalid_version_attribute_is_an_error() -> None:
    with pytest.raises(failures.EvaluationError, match=r"attribute v: '2\.26\.5\.0' is not a semantic version"):
        selectors.device_value(D, {"v": {"version": "2.26.5.0"}}, {})


def test_results_are_cached_for_equal_devices() -> None:
    memo = selectors.Selectors()
    device = selectors.device_value(D, {"x": {"int": 1}}, {})
    for _ in range(3):
        assert memo.matches(f"{ATTRS}.x == 1", "same", lambda: device)
        with pytest.raises(failures.EvaluationError, match="no such key: y"):
            memo.matches(f"{ATTRS}.y == 1", "same", lambda: device)
    assert memo.evaluations == 2
