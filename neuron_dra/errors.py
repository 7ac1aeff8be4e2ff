"""The errors of this package.

    NeuronDraError
    ├── SettingsError         a flag or an environment variable is wrong
    ├── ClaimError            a claim cannot be prepared; the message is shown in the pod's Events
    │   └── DeviceInUse       another claim, with the UID `holder`, holds one of its devices
    ├── CheckpointDamaged     the checkpoint on disk cannot be used
    │   ├── CheckpointLost    it is gone or unreadable, and the running process remembers it
    │   └── CheckpointOfLaterRelease    its format is unknown
    ├── HostFolderReplaced    a folder of the host was removed or replaced
    ├── SocketError           a socket cannot be bound
    └── ApiError              the API server rejected a request, or did not respond
        ├── NotFound          404, in a Status that names the object
        ├── NotServed         any other 404: a kind that is not served, or the page of a proxy
        ├── AlreadyExists     409, reason AlreadyExists
        ├── Conflict          409: the object has changed since it was read
        ├── Gone              410: the resourceVersion is too old, list again
        ├── Invalid           422: a field is wrong; a retry does not help
        ├── Forbidden         401 or 403
        ├── TooManyRequests   429: retry after `retry_after_s`
        └── Unavailable       5xx, or no response

Messages are written for the reader of `kubectl describe`: what is wrong, and what to change.
"""

from __future__ import annotations


class NeuronDraError(Exception):
    """Any error of this package."""


class SettingsError(NeuronDraError):
    """A setting is unknown, malformed or contradicts another; the program does not start."""


class ClaimError(NeuronDraError):
    """A claim cannot be prepared now."""


class DeviceInUse(ClaimError):
    """A device of the claim is held by another claim, with the UID `holder`, until that claim is unprepared."""

    def __init__(self, message: str, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class DriverNotReady(ClaimError):
    """The kernel driver loads, leaves or is not loaded: the claim may be prepared as soon as it is loaded."""


class CheckpointDamaged(NeuronDraError):
    """The checkpoint is truncated, altered or of an unknown version."""


class CheckpointLost(CheckpointDamaged):
    """A checkpoint that this process has read is gone, or cannot be read; the process remembers it."""


class CheckpointOfLaterRelease(CheckpointDamaged):
    """A later release has written the checkpoint, in a format that this release must not overwrite."""


class HostFolderReplaced(NeuronDraError):
    """A folder of the host was removed or replaced below this container, which has to be started again."""


class SocketError(NeuronDraError):
    """A Unix socket or a port cannot be bound."""


class ApiError(NeuronDraError):
    """The API server rejected a request, or could not be reached.

    `status` is the HTTP status, 0 without a response. `reason` and `causes` are those of the Status object in the
    response. `retry_after_s` is the delay in seconds that the server requested, None if it did not.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after_s: float | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.causes = causes


class NotFound(ApiError):
    """404 with a Status that names the object: it does not exist."""


class NotServed(ApiError):
    """404 without such a Status.

    The object may exist: a proxy answers 404 for a path that it does not know, and the API server for a version that it
    does not serve.
    """


class AlreadyExists(ApiError):
    """409: an object of that name exists."""


class Conflict(ApiError):
    """409: the object has changed since it was read."""


class Gone(ApiError):
    """410: the history up to this resourceVersion has been compacted."""


class Invalid(ApiError):
    """422: the object is invalid; sending it again does not help."""


class Forbidden(ApiError):
    """401 or 403: the credentials do not allow it."""


class TooManyRequests(ApiError):
    """429: the server is overloaded, or a disruption budget forbids an eviction."""


class Unavailable(ApiError):
    """The server failed (5xx), or did not respond in time."""


class TooLarge(Unavailable):
    """The response is larger than the caller accepts."""


def api_error(
    status: int,
    reason: str,
    message: str,
    retry_after_s: float | None = None,
    causes: tuple[str, ...] = (),
    *,
    names_object: bool = False,
) -> ApiError:
    """Return the error for an HTTP status and the reason in its Status object.

    `names_object`: the Status names the object that was requested.
    """
    if status == 409 and reason == "AlreadyExists":
        kind: type[ApiError] = AlreadyExists
    elif status == 404 and names_object:
        kind = NotFound
    else:
        kind = {
            401: Forbidden,
            403: Forbidden,
            404: NotServed,
            409: Conflict,
            410: Gone,
            422: Invalid,
            429: TooManyRequests,
        }.get(status, Unavailable if status >= 500 else ApiError)
    return kind(message, status=status, reason=reason, retry_after_s=retry_after_s, causes=causes)
