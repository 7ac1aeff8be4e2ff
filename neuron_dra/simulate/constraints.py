"""matchAttribute and distinctAttribute, checked while the devices of a claim are chosen and returned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neuron_dra.simulate.failures import AllocationError, FailureKind
from neuron_dra.simulate.model import ClaimDemand, Constraint, PoolDevice

Value = tuple[str, Any]  # the attribute's type field and value: 1 and "1" never match

_COMPARABLE = frozenset({"string", "int", "bool", "version"})  # list attributes need an alpha feature


def attribute(device: PoolDevice, name: str) -> Value | None:
    """Return the attribute of a fully qualified name. Published names without a domain are in the driver's domain."""
    value_by_kind = device.attributes.get(name)
    if value_by_kind is None:
        domain, slash, local = name.partition("/")
        if slash and domain == device.id.driver:
            value_by_kind = device.attributes.get(local)
        else:
            value_by_kind = None
    return next(((kind, value) for kind, value in (value_by_kind or {}).items() if value is not None), None)


@dataclass(slots=True)
class ConstraintState:
    """One constraint and the values of the devices chosen so far."""

    constraint: Constraint
    values: list[Value] = field(default_factory=list)

    def applies(self, request: str, result_name: str) -> bool:
        """Return True if the constraint covers the request. `result_name` is "request/subrequest" for a subrequest."""
        names = self.constraint.requests
        return not names or request in names or result_name in names

    def allows(self, device: PoolDevice) -> bool:
        """Return True if the device may join. A device that may not join stays excluded when others join."""
        value = attribute(device, self.constraint.attribute)
        if value is None:
            return False
        if not self.values:
            return True
        if value[0] not in _COMPARABLE:
            return False
        if self.constraint.kind == "matchAttribute":
            return value == self.values[0]
        return value not in self.values

    def push(self, device: PoolDevice) -> None:
        """Add a device that `allows` accepts."""
        value = attribute(device, self.constraint.attribute)
        if value is not None:
            self.values.append(value)

    def pop(self) -> None:
        """Remove the device of the last `push`."""
        self.values.pop()


def states(claim: ClaimDemand) -> tuple[ConstraintState, ...]:
    """Return the constraints of a claim without devices. Raises AllocationError for an unknown kind."""
    for index, constraint in enumerate(claim.constraints):
        if not constraint.kind:
            message = f"claim {claim}, constraint #{index}: empty constraint (unsupported constraint type?)"
            raise AllocationError(FailureKind.POD_ERROR, message)
    return tuple(ConstraintState(constraint) for constraint in claim.constraints)
