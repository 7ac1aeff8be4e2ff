"""An API server for tests and demonstrations, embedded in the process that needs it.

It serves the kinds that this project uses, with the semantics that clients rely on: resourceVersion, watches with
bookmarks, 409, 410, preconditions, status subresources, finalizers, garbage collection, claims for pods, eviction
with budgets, and tables and strategic merge patches for kubectl. It has no server-side apply (415), no CRD schemas and
no CEL, no admission webhooks and no access rules, and built-in kinds have one version. tests/contract compares it with
the real server.
"""

from neuron_dra.emulation.embedded_api.errors import Cause, StatusError
from neuron_dra.emulation.embedded_api.faults import (
    NOT_FOUND,
    STRANGE,
    Do,
    InjectedFault,
    Strange,
    refused_watch,
)
from neuron_dra.emulation.embedded_api.http import LoggedRequest
from neuron_dra.emulation.embedded_api.server import EmbeddedApi
from neuron_dra.emulation.embedded_api.store import Backup
from neuron_dra.emulation.embedded_api.watch import Ahead

__all__ = [
    "NOT_FOUND",
    "STRANGE",
    "Ahead",
    "Backup",
    "Cause",
    "Do",
    "EmbeddedApi",
    "InjectedFault",
    "LoggedRequest",
    "StatusError",
    "Strange",
    "refused_watch",
]
