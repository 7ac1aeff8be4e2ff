"""Label selectors: those of objects (LabelSelector), and those that a person writes, such as `pool=a,!spot`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from neuron_dra.core.wire import Wire

Test = Callable[[Mapping[str, str]], bool]
"""Returns True for labels that are selected."""

_SET = re.compile(r"^(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s!=,()]*)$")
_KEY = re.compile(r"^(?P<not>!?)\s*(?P<key>[^\s!=,()]+)$")


def written(text: str) -> Test:
    """Return the test of a selector with equality, `in`, `notin`, `key` and `!key`. Raises ValueError for others."""
    parts = re.split(r",(?![^(]*\))", text)  # commas inside parentheses separate values
    terms = [part.strip() for part in parts]
    tests = [_term(term) for term in terms if term]
    return lambda labels: all(test(labels) for test in tests)


def _term(term: str) -> Test:
    if match := _SET.match(term):
        values = {value.strip() for value in match["values"].split(",")}
        return _one_of(match["key"], values, must_match=match["op"] == "in")
    if match := _EQUAL.match(term):
        return _one_of(match["key"], {match["value"]}, must_match=match["op"] != "!=")
    if match := _KEY.match(term):
        return _present(match["key"], must_exist=not match["not"])
    raise ValueError(f"unable to parse requirement: {term}")


def of_object(selector: Wire | None) -> Test:
    """Return the test of a LabelSelector; None selects nothing. Raises ValueError for an unknown operator."""
    if selector is None:
        return lambda labels: False
    tests = [_one_of(key, {value}, must_match=True) for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or ():
        operator, key = expression.get("operator"), expression.get("key") or ""
        if operator in ("In", "NotIn"):
            tests.append(_one_of(key, set(expression.get("values") or ()), must_match=operator == "In"))
        elif operator in ("Exists", "DoesNotExist"):
            tests.append(_present(key, must_exist=operator == "Exists"))
        else:
            raise ValueError(f"not a valid selector operator: {operator}")
    return lambda labels: all(test(labels) for test in tests)


def _one_of(key: str, values: set[str], *, must_match: bool) -> Test:
    # As in Kubernetes, an absent label satisfies != and notin.
    return lambda labels: (labels.get(key) in values) is must_match


def _present(key: str, *, must_exist: bool) -> Test:
    return lambda labels: (key in labels) is must_exist


EVERY: Test = written("")
"""Selects everything."""
