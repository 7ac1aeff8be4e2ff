"""Errors of the API server: an `StatusError`, sent as a Kubernetes `Status` object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from neuron_dra.core.wire import Obj


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of an error: `field` is a path such as `spec.devices[0].name`."""

    reason: str
    message: str
    field: str = ""

    def to_wire(self) -> Obj:
        wire: Obj = {"reason": self.reason, "message": self.message}
        if self.field:
            wire["field"] = self.field
        return wire


def invalid(field: str, value: object, why: str) -> Cause:
    if isinstance(value, str):
        shown = f'"{value}"'
    else:
        shown = "null" if value is None else str(value)
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {why}", field)


def required(field: str, why: str = "") -> Cause:
    return Cause("FieldValueRequired", "Required value" + (f": {why}" if why else ""), field)


def forbidden(field: str, why: str) -> Cause:
    return Cause("FieldValueForbidden", f"Forbidden: {why}", field)


def too_many(field: str, count: int, most: int) -> Cause:
    return Cause("FieldValueTooMany", f"Too many: {count}: must have at most {most} items", field)


def too_long(field: str, most: int) -> Cause:
    return Cause("FieldValueTooLong", f"Too long: may not be more than {most} bytes", field)


def duplicate(field: str, value: str) -> Cause:
    return Cause("FieldValueDuplicate", f'Duplicate value: "{value}"', field)


class StatusError(Exception):
    """An error response, with the fields of its `Status`.

    `retry_after` is in seconds and becomes the Retry-After header.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Obj | None = None,
        causes: Sequence[Cause] = (),
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = tuple(causes)
        self.retry_after = retry_after
        self._details = dict(details or {})

    def to_status(self) -> Obj:
        details = dict(self._details)
        if self.causes:
            details["causes"] = [cause.to_wire() for cause in self.causes]
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        status: Obj = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if details:
            status["details"] = details
        return status


def _named(group: str, plural: str, name: str) -> tuple[str, Obj]:
    details: Obj = {"name": name, "kind": plural}
    if group:
        details["group"] = group
    return (f"{plural}.{group}" if group else plural), details


def not_found(group: str, plural: str, name: str) -> StatusError:
    qualified, details = _named(group, plural, name)
    return StatusError(404, "NotFound", f'{qualified} "{name}" not found', details=details)


class NoSuchPath(StatusError):
    """The 404 for a path, kind or version that is not served. `not_found` is for an object.

    kube-apiserver 1.37 answers a Status without a name for a built-in group, and a text for everything else.
    """

    text: Final = "404 page not found\n"

    def __init__(self, is_of_a_built_in_group: bool) -> None:
        super().__init__(404, "NotFound", "the server could not find the requested resource")
        self.has_status = is_of_a_built_in_group


def already_exists(group: str, plural: str, name: str) -> StatusError:
    qualified, details = _named(group, plural, name)
    return StatusError(409, "AlreadyExists", f'{qualified} "{name}" already exists', details=details)


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(group: str, plural: str, name: str, why: str = MODIFIED) -> StatusError:
    qualified, details = _named(group, plural, name)
    return StatusError(
        409, "Conflict", f'Operation cannot be fulfilled on {qualified} "{name}": {why}', details=details
    )


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def refused(message: str, *, details: Obj | None = None, causes: Sequence[Cause] = ()) -> StatusError:
    return StatusError(403, "Forbidden", message, details=details, causes=causes)


def unprocessable(group: str, kind: str, name: str, causes: Sequence[Cause]) -> StatusError:
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    text = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    details: Obj = {"name": name, "kind": kind}
    if group:
        details["group"] = group
    qualified = f"{kind}.{group}" if group else kind
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details=details, causes=causes)


def too_large_version(requested_version: int, current_version: int) -> StatusError:
    """Return the 504 for a resourceVersion that the server has not reached."""
    cause = Cause("ResourceVersionTooLarge", "Too large resource version")
    text = f"Timeout: Too large resource version: {requested_version}, current: {current_version}"
    return StatusError(504, "Timeout", text, causes=[cause], retry_after=1)


def expired(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def unsupported_media_type(message: str) -> StatusError:
    return StatusError(415, "UnsupportedMediaType", message)


def method_not_allowed(message: str = "the server does not allow this method on the requested resource") -> StatusError:
    return StatusError(405, "MethodNotAllowed", message)
