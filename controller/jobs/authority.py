"""Which namespaces may reserve for their jobs. Pure.

Who created a job cannot be known: the Jobs of a CronJob are made by a controller, and a request to `/scale` shows no
annotation. So the right is the namespace's, given by a label that an admission policy guards. It is bounded: without a
limit of nodes, whoever may create jobs there could reserve the fleet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Protocol

from neuron_dra.planner.observed.model import JOBS_ALLOWED, JOBS_LABEL, JOBS_QUEUED, LIMIT_ANNOTATION, Namespace

_NUMBER: Final = re.compile(r"\d{1,6}", re.ASCII)


class AuthorityFacts(Protocol):
    """What the right depends on; see `decide.JobView`."""

    @property
    def namespaces(self) -> Mapping[str, Namespace] | None:
        """Every Namespace by name; None if they cannot be read."""

    @property
    def default_limit(self) -> int | None:
        """The limit of a namespace without the annotation."""

    @property
    def unguarded(self) -> str:
        """Why the label is not guarded; empty if it is."""


def refusal(facts: AuthorityFacts, name: str) -> tuple[str, str] | None:
    """Return reason and message if the jobs of a namespace may not reserve nodes, or not more of them."""
    if facts.unguarded:
        return "JobsMayNotReserve", f"jobs reserve nothing in this cluster: {facts.unguarded}"
    namespace = None if facts.namespaces is None else facts.namespaces.get(name)
    if namespace is None:
        text = f"the controller cannot read the Namespace {name}, and so not whether its jobs may reserve UltraServers"
        return "JobsMayNotReserve", text
    if namespace.jobs not in (JOBS_ALLOWED, JOBS_QUEUED):
        text = f'the label {JOBS_LABEL} of namespace {name} is neither "{JOBS_ALLOWED}" nor "{JOBS_QUEUED}": its jobs'
        text = f"{text} may not reserve"
        return "JobsMayNotReserve", f"{text} UltraServers; ask the cluster's administrator for the label"
    limited = bool(_NUMBER.fullmatch(namespace.limit)) or (not namespace.limit and facts.default_limit is not None)
    if not limited:
        text = f"the annotation {LIMIT_ANNOTATION} of namespace {name} is no number of nodes: jobs may reserve only"
        return "JobsMayNotReserve", f"{text} where it is one"
    return None
