"""Random selectors: a grammar of templates, mostly of the right types, some wrong on purpose.

Known differences (ADR 10) are left out.
"""

from __future__ import annotations

import random
import re
from typing import Any

DRIVER = "dra.example.com"
ATTRIBUTES: dict[str, Any] = {
    "yes": {"bool": True},
    "no": {"bool": False},
    "one": {"int": 1},
    "big": {"int": 2**63 - 1},
    "fish": {"string": "fish"},
    "empty": {"string": ""},
    "version": {"version": "1.0.0"},
    "candidate": {"version": "2.1.0-rc.1+b5"},
    "ints": {"ints": [1, 2, 3]},
    "strings": {"strings": ["fish", "bird"]},
    "versions": {"versions": ["1.0.0", "2.0.0"]},
    "other.example.com/yes": {"bool": True},
}
CAPACITIES = {"memory": "96Gi", "milli": "1500m", "negative": "-2k", "other.example.com/memory": "5"}

_GRAMMAR = r"""
bool: true | false | {mine}.yes | {mine}['no'] | {domain}.yes | {mine}.?no.orValue({bool}) | !({bool})
    {bool} && {bool} | {bool} || {bool} | ({bool} || {bool}) | {bool} ? {bool} : {bool} | {any} == {any}
    {bool} == {bool} | ({int}) {order} ({number}) | ({string}) {order} ({string}) | ({double}) {order} ({number})
    ({int}) == ({int}) | ({string}) != ({string}) | ({ints}) == ({ints}) | {quantity} == quantity({quantitytext})
    {version} == {version} | {version} != {string} | {optional} == {optional} | has({domain}.{name})
    has(device.attributes.{name}) | '{name}' in {domain} | {domainname} in device.attributes
    {domainname} in device.capacity | ({int}) in ({ints}) | ({string}) in ({strings}) | {mine}.one in ({ints})
    {quantity}.isGreaterThan({quantity}) | {quantity}.isLessThan({quantity}) | isQuantity({quantitytext})
    {version}.isGreaterThan({version}) | {version}.isLessThan({version}) | isSemver({versiontext})
    isSemver({versiontext}, {bool}) | ({string}).startsWith({string}) | ({string}).endsWith({string})
    ({string}).contains({string}) | ({string}).matches({pattern}) | bool('true') | {optional}.hasValue()
    ({ints}).all(x, {bool}) | ({ints}).exists(x, x == {int}) | ({ints}).exists_one(x, x > {int})
    ({strings}).exists(x, x == {string}) | {domain}.all(x, x != {string})
    device.attributes.exists(x, x == {string}) | {mine}.versions.all(x, x.isLessThan({version}))
    cel.bind(x, {any}, {bool}) | cel.bind(x, {int}, x == {int})
    cel.bind(x, device.attributes, has(x[{domainname}].{name})) | sets.contains({ints}, {ints})
    ({ints}).isSorted() | sets.intersects({strings}, {strings}) | ({strings}).includes({string})
    {mine}.{name}.includes({any}) | ({ints}).all(x, y, y >= x) | device.allowMultipleAllocations
int: 0 | 1 | 2 | -3 | 7 | 9223372036854775807 | -9223372036854775808 | 0x10 | {mine}.one | {mine}['big']
    {domain}.one | {mine}[?'one'].orValue({int}) | ({int}) + ({int}) | ({int}) - ({int}) | ({int}) * ({int})
    ({int}) / ({int}) | ({int}) % ({int}) | -({int}) | ({int})-1 | size({string}) | ({strings}).size()
    int({double}) | int({string}) | {version}.major() | {version}.minor() | {version}.compareTo({version})
    sign({quantity}) | {quantity}.compareTo({quantity}) | quantity({int} == 1 ? '7' : '8').asInteger()
    ({string}).indexOf({string}) | ({strings}).lastIndexOf({string}) | ({ints})[{int}] | ({ints})[?{int}].orValue(7)
    ({ints}).sum() | [{int}, 2].min() | ({ints}).map(x, x * 2).max() | ({bool} ? {int} : {int})
    [1, 2].filter(x, x > {int}).size()
double: 0.0 | 1.0 | 0.5 | -1.5 | 1e3 | ({double}) + ({double}) | ({double}) / ({double}) | double({int})
    double({string}) | {quantity}.asApproximateFloat()
number: {int} | {double}
string: 'fish' | "bird" | '' | '1' | 'a,b' | r'\d+' | 'FiSh' | 'é' | 'true' | '1.0.0' | '''x''' | ' a '
    'dra.example.com' | device.driver | {mine}.fish | {mine}['empty'] | {domain}.fish
    {mine}.?{name}.orValue('none') | ({string}) + ({string}) | string({int}) | string({bool})
    ({string}).lowerAscii() | ({string}).trim() | ({string}).upperAscii() | ({string}).replace('i', {string})
    ({string}).substring({int}) | ({strings})[{int}] | ({string}).substring(0, {int}) | ({string}).charAt({int})
    ({string}).find({pattern}) | ({strings}).join({string}) | ({strings} + ['z']).min()
ints: [1, 2] | [3, -3, 7] | {mine}.ints | [{int}] | ({ints}) + ({ints}) | ({ints}).map(x, x + {int})
    ({ints}).filter(x, {bool}) | ({ints}).sort()
strings: ['fish', 'b'] | {mine}.strings | [{string}] | ({string}).split({string}) | ({string}).findAll({pattern})
    ({strings}).map(x, x + {string}) | ({strings}).filter(x, {bool})
quantity: device.capacity['dra.example.com'].{amount} | device.capacity[{domainname}]['{amount}']
    quantity({quantitytext}) | {quantity}.add({quantity}) | {quantity}.sub({int})
quantitytext: '1' | '1Ki' | '96Gi' | '1500m' | '1.5' | '0.1n' | '1e3' | '-2k' | '100Ei' | '1K' | 'x' | '' | '5.'
    '1e-3' | '12345678901234567890' | {string}
version: {mine}.version | {mine}.candidate | semver({versiontext}) | semver({versiontext}, {bool})
versiontext: '1.0.0' | '2.1.0-rc.1' | '1.0' | 'v1.0.0' | '01.0.0' | '1.0.0+a' | '1.0.0-01' | '1' | '1.0.0-'
    '1.0-beta' | '1.2.3.4' | '99999999999999999999.0.0' | '1.0.0-9' | '1.0.0-10' | 'v01.2' | {string}
optional: optional.none() | optional.of({int}) | optional.ofNonZeroValue({int}) | {mine}.?{name} | {mine}[?'one']
    {optional}.or({optional})
any: {bool} | {int} | {double} | {string} | {ints} | {quantity} | {version} | {mine}.{name} | null
pattern: 'fi.h' | '(' | '[a-z]+' | '(?i)FISH' | '' | 'a|b' | {string}
domain: {mine} | device.attributes[{domainname}]
mine: device.attributes['dra.example.com']
domainname: 'dra.example.com' | 'other.example.com' | 'no-such' | device.driver
name: yes | one | fish | version | ints | nope
amount: memory | milli | negative | nope
order: < | <= | > | >=
"""


_PLACE = re.compile(r"\{(\w+)\}")
_TYPES = ("bool", "int", "string", "double", "ints", "quantity", "version")


class Grammar:
    """Templates by type: `{int}` in one stands for an expression of that type."""

    def __init__(self, text: str, *, of_wrong_type: float = 0.0) -> None:
        """`of_wrong_type` is the share of expressions that get a type drawn by lot."""
        self._of_wrong_type = of_wrong_type
        self._rules: dict[str, list[str]] = {}
        kind = ""
        for line in text.strip().splitlines():
            if not line.startswith(" "):
                kind, _, line = line.partition(": ")
            self._rules.setdefault(kind, []).extend(line.strip().split(" | "))

    def selector(self, seed: int) -> str:
        """Return the expression of this seed."""
        chance = random.Random(seed)
        return self._expression(chance, "bool", chance.randint(1, 5))

    def _expression(self, chance: random.Random, kind: str, depth: int) -> str:
        if self._of_wrong_type and kind in _TYPES and chance.random() < self._of_wrong_type:
            kind = chance.choice(_TYPES)
        rules = self._rules[kind]
        if depth <= 0:
            rules = [rule for rule in rules if not set(_PLACE.findall(rule)) & {*_TYPES, "any", "optional"}] or rules
        return _PLACE.sub(lambda place: self._expression(chance, place[1], depth - 1), chance.choice(rules))


selector = Grammar(_GRAMMAR, of_wrong_type=0.02).selector
