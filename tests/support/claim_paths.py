"""The drivers as suites of the claim path need them, so that each suite runs for both.

@pytest.fixture(params=PATHS.values(), ids=PATHS)
def path(request: pytest.FixtureRequest) -> ClaimPath:
    return request.param
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import catalogue, cdi, decision, efa, names
from neuron_dra.core.claims import Claim, PreparedClaim
from neuron_dra.core.dra_driver import EFA, NEURON, Driver
from neuron_dra.core.efa import EfaReading, Interface
from neuron_dra.core.metadata import MetadataSource
from neuron_dra.node.prepare import rediscovery

TYPE: Final = "trn2.48xlarge"
NODE: Final = healthy_node(TYPE)


class Decide(Protocol):
    """Decides on a claim of a node, given the prepared claims. Raises ClaimError."""

    def __call__(
        self, claim: Claim, held: Iterable[PreparedClaim], *, node_name: str, metadata: MetadataSource | None
    ) -> PreparedClaim: ...


@dataclass(frozen=True, slots=True)
class ClaimPath:
    """A driver, its sixteen devices on a trn2.48xlarge, and how it decides."""

    driver: Driver
    devices: tuple[str, ...]
    decide_on: Decide
    device_ids: Callable[[str], tuple[int, ...]]

    def decide(
        self,
        claim: Claim,
        held: Iterable[PreparedClaim],
        *,
        node_name: str = "a",
        metadata: MetadataSource | None = None,
    ) -> PreparedClaim:
        """Return what a claim gets on a node whose devices are all healthy. Raises ClaimError."""
        return self.decide_on(claim, held, node_name=node_name, metadata=metadata)

    def numbers(self, claim: PreparedClaim) -> frozenset[int]:
        """Return the numbers of a claim's devices."""
        return frozenset(self.devices.index(device.device) for device in claim.devices)

    def adopted(self, claim: Claim) -> PreparedClaim:
        """Return a claim that another driver prepared."""
        return rediscovery.adopted(claim, self.device_ids)

    def spec(self, claim: PreparedClaim) -> bytes:
        """Return a claim's CDI file."""
        return cdi.encode(cdi.spec(claim, self.driver))

    def file_name(self, uid: str) -> str:
        """Return the name of a claim's CDI file."""
        return cdi.file_name(uid, self.driver)

    def has_file(self, name: str) -> bool:
        """Return whether a file of the CDI folder is of this driver, temporary ones included."""
        return name.removeprefix(".").startswith(self.driver.cdi_file_prefix)


def _interfaces() -> tuple[Interface, ...]:
    spec = catalogue.lookup(TYPE)
    functions = sorted(set(spec.efa or ())) if spec is not None else []
    return tuple(Interface(function, f"rdma{number}", number) for number, function in enumerate(functions))


INTERFACES: Final = _interfaces()
READING: Final = EfaReading({interface.name: interface for interface in INTERFACES}, has_rdma_cm=True)


def _decide_neuron(
    claim: Claim, held: Iterable[PreparedClaim], *, node_name: str, metadata: MetadataSource | None
) -> PreparedClaim:
    return decision.decide(
        claim,
        node_name=node_name,
        node=NODE,
        held=held,
        device_files=cdi.DeviceFiles(),
        prepared_at="then",
        metadata=metadata,
    )


def _decide_efa(
    claim: Claim, held: Iterable[PreparedClaim], *, node_name: str, metadata: MetadataSource | None
) -> PreparedClaim:
    """EFA claims have no metadata files."""
    return efa.decide(
        claim,
        node_name=node_name,
        reading=READING,
        watch={},
        effect="NoSchedule",
        held=held,
        device_files=cdi.DeviceFiles(),
        prepared_at="then",
    )


NEURON_PATH: Final = ClaimPath(
    NEURON,
    tuple(f"{names.DEVICE_PREFIX}{number}" for number in range(16)),
    _decide_neuron,
    lambda name: (int(name.removeprefix(names.DEVICE_PREFIX)),),
)
EFA_PATH: Final = ClaimPath(EFA, tuple(interface.name for interface in INTERFACES), _decide_efa, lambda name: ())
PATHS: Final[Mapping[str, ClaimPath]] = {"neuron": NEURON_PATH, "efa": EFA_PATH}
