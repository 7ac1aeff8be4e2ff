"""The expiry of a certificate, which the ssl module does not expose for a client's own certificate."""

from __future__ import annotations

import base64
import binascii
import calendar
import re
import time
from typing import Final

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18


def not_after(pem: str) -> float:
    """Return when the first certificate in `pem` expires, in seconds since 1970; 0 if none can be read.

    Source: RFC 5280, section 4.1 (TBSCertificate, Validity).
    """
    match = _PEM.search(pem)
    if match is None:
        return 0.0
    try:
        _, certificate, _ = _element(base64.b64decode(match[1]))
        _, rest, _ = _element(certificate)
        tag, _, after = _element(rest)
        rest = after if tag == _VERSION else rest
        for _ in ("serial number", "signature", "issuer"):
            _, _, rest = _element(rest)
        _, validity, _ = _element(rest)
        _, _, rest = _element(validity)
        tag, text, _ = _element(rest)
        return _time(tag, text.decode("ascii"))
    except (ValueError, IndexError, binascii.Error):
        return 0.0


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Return tag and contents of the first DER element of `der`, and the bytes after it."""
    tag, length, start = der[0], der[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    if len(der) < start + length:
        raise ValueError("the certificate is cut off")
    return tag, der[start : start + length], der[start + length :]


def _time(tag: int, text: str) -> float:
    """Return a DER time in seconds since 1970. Raises ValueError for another type."""
    if tag == _UTC_TIME:  # a year of two digits: 1950 to 2049
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"tag {tag:#x} is not a time")
    return float(calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ")))
