"""Text formats that Kubernetes' validation requires."""

from __future__ import annotations

import functools
import re
from fractions import Fraction

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?")
_QUANTITY_PARTS = re.compile(r"([+-]?[\d.]+)([numkMGTPE]|[KMGTPE]i|)")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
ID_RULE = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric "
    "characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is "
    "'[A-Za-z_][A-Za-z0-9_]*')"
)


def is_label(text: str) -> bool:
    return len(text) <= 63 and _LABEL.fullmatch(text) is not None


@functools.lru_cache(maxsize=1024)
def is_subdomain(text: str, most: int = 253) -> bool:
    return 0 < len(text) <= most and all(_LABEL.fullmatch(part) for part in text.split("."))


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


@functools.lru_cache(maxsize=1024)
def is_quantity(text: str) -> bool:
    return _QUANTITY.fullmatch(text) is not None


@functools.lru_cache(maxsize=1024)
def canonical_quantity(text: str) -> str:
    """Return a quantity in the server's form: "1024Mi" is "1Gi", "1000" is "1k", "0.5" is "500m".

    A quantity with an exponent, or finer than nano, is returned unchanged.
    """
    match = _QUANTITY_PARTS.fullmatch(text)
    if not match or re.search(r"[eE]\d", text):
        return text
    digits, suffix = Fraction(match[1].rstrip(".")), match[2]
    if not digits:
        return "0"
    if suffix.endswith("i"):
        value = digits * 1024 ** _BINARY.index(suffix)
        if value.denominator == 1:
            power = max(i for i in range(len(_BINARY)) if value.numerator % 1024**i == 0)
            return f"{value.numerator // 1024**power}{_BINARY[power]}"
    else:
        value = digits * Fraction(1000) ** (_DECIMAL.index(suffix) - _DECIMAL.index(""))
    for power in reversed(range(len(_DECIMAL))):
        scaled = value / Fraction(1000) ** (power - _DECIMAL.index(""))
        if scaled.denominator == 1:
            return f"{scaled.numerator}{_DECIMAL[power]}"
    return text


def is_label_key(text: str) -> bool:
    """Return True if a text is valid as the key of a label, annotation or taint, or as a finalizer."""
    prefix, slash, name = text.rpartition("/")
    return (not slash or is_subdomain(prefix)) and len(name) <= 63 and _NAME.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    return not text or (len(text) <= 63 and _NAME.fullmatch(text) is not None)
