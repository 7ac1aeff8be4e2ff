"""The specs of claims that `validate` checks, and what can be wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neuron_dra.core import names
from neuron_dra.core.wire import Wire


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    """What is wrong with one object; a warning is right on some clusters and does not fail a pipeline."""

    where: str
    code: str
    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The spec of a claim, from a ResourceClaim or a ResourceClaimTemplate."""

    where: str
    spec: Wire

    @property
    def parts(self) -> Wire:
        """Its devices: requests, constraints and configuration."""
        return self.spec.get("devices") or {}

    def alternatives(self) -> Iterator[tuple[str, Wire]]:
        """Yield each request, or each alternative of it, by the name that results use."""
        for request in self.parts.get("requests") or ():
            for sub in request.get("firstAvailable") or ():
                yield f"{request['name']}/{sub.get('name')}", sub
            if not request.get("firstAvailable"):
                yield request["name"], request.get("exactly") or {}

    def is_ours(self, alternative: Wire, classes: Mapping[str, object]) -> bool:
        """Return True if an alternative requests devices of this driver, as far as its class shows."""
        name = alternative.get("deviceClassName") or ""
        return name in classes or name == names.DRIVER
