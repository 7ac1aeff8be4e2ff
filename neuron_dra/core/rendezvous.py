"""How the nodes of a workload find the pod with rank 0: a DNS name, and variables that users may request.

The name is known before any pod has an address: it is that of a Service whose endpoint the controller keeps up to date.
A container keeps its environment, so after rank 0 has moved, running pods find it again by the same name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.core.names import DRIVER

ANNOTATION: Final = f"{DRIVER}/rendezvous"
"""Annotation of a workload: which variables its containers get beside the address of rank 0."""
POD: Final = "pod"
"""Value of ANNOTATION: MASTER_ADDR and MASTER_PORT too."""
HOST: Final = "host"
"""Value of ANNOTATION: the same, and NEURON_RT_ROOT_COMM_ID, for pods with hostNetwork."""
MODES: Final = (POD, HOST)
MASTER_PORT: Final = 29500
"""The default port of torchrun."""
ROOT_COMM_PORT: Final = 46820
"""The port of NEURON_RT_ROOT_COMM_ID in AWS's documents."""

_SERVICE: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_ADDRESS: Final = re.compile(r"[-a-z0-9.]{1,253}")
_IP: Final = re.compile(r"[0-9a-fA-F.:]{2,45}")


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The address of rank 0, as every node of a workload has it.

    - `address`: DNS name of the workload's Service, without the cluster's domain.
    - `mode`: one of MODES, or empty.
    - `host_ip`: with HOST the InternalIP of rank 0's Node, empty if it has none.
    """

    address: str
    mode: str = ""
    host_ip: str = ""

    @classmethod
    def from_wire(cls, value: Any) -> Rendezvous | None:
        """Return the rendezvous of an allocation; None if it has none, or one that cannot be in the environment."""
        if not isinstance(value, Mapping) or not _matches(_ADDRESS, value.get("address")):
            return None
        mode, host_ip = value.get("mode"), value.get("hostIP")
        return cls(value["address"], str(mode) if mode in MODES else "", str(host_ip) if _matches(_IP, host_ip) else "")

    def to_wire(self) -> dict[str, str]:
        """Return it as `rendezvous` of an allocation."""
        values = {"address": self.address, "mode": self.mode, "hostIP": self.host_ip}
        return {name: value for name, value in values.items() if value}

    def environment(self) -> tuple[str, ...]:
        """Return the variables, as NAME=value.

        Those of a CDI file overwrite the pod's own, so MASTER_ADDR, MASTER_PORT and NEURON_RT_ROOT_COMM_ID are set only
        if the workload requests them: other controllers, such as Kubeflow's, set them in the pod.
        """
        variables = [f"NEURON_DRA_RANK0_ADDR={self.address}", f"NEURON_GLOBAL_TOPOID0_HOST={self.address}"]
        if self.mode:
            variables += [f"MASTER_ADDR={self.address}", f"MASTER_PORT={MASTER_PORT}"]
        if self.mode == HOST and self.host_ip:
            host = f"[{self.host_ip}]" if ":" in self.host_ip else self.host_ip
            variables.append(f"NEURON_RT_ROOT_COMM_ID={host}:{ROOT_COMM_PORT}")
        return tuple(variables)


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def service_name(workload: str) -> str:
    """Return the name of a workload's Service.

    It is the workload's name with "-rank0". If that is too long for a Service, or has a dot or a leading digit, it is
    "rank0-" with a digest of the name.
    """
    name = f"{workload}-rank0"
    if _SERVICE.fullmatch(name):
        return name
    import hashlib  # loads OpenSSL

    return f"rank0-{hashlib.sha256(workload.encode(errors='surrogatepass')).hexdigest()[:16]}"


def address(namespace: str, workload: str) -> str:
    """Return the DNS name of a workload's Service, which pods with a cluster DNS policy can look up."""
    return f"{service_name(workload)}.{namespace}.svc"
