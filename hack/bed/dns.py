"""Cluster DNS: CoreDNS as a process beside the control plane, at the address that every pod's resolv.conf has."""

from __future__ import annotations

from pathlib import Path

from hack.bed import build, network
from hack.bed.parts import Bed

PROCESS = "coredns"
READY = f"{network.DNS_ADDRESS}:8181"
READY_TIMEOUT_S = 60
COREFILE = f"""\
{network.DNS_DOMAIN}:53 {{
    bind {network.DNS_ADDRESS}
    errors
    ready {READY}
    kubernetes {network.DNS_DOMAIN} {{
        kubeconfig KUBECONFIG testbed
        ttl 0
    }}
}}
"""


def up(bed: Bed) -> None:
    """Start it unless it runs, and wait until it knows the Services. Builds it first."""
    if bed.processes.is_running(PROCESS):
        return
    module = build.coredns(bed.layout)
    build.build_modules(bed.layout, [module], "cluster DNS")
    network.add_address(bed.layout, network.DNS_ADDRESS)
    corefile = bed.layout.state_dir / "Corefile"
    corefile.write_text(COREFILE.replace("KUBECONFIG", str(bed.layout.kubeconfig)))
    words: list[str | Path] = [*network.enter(bed.layout), module.bin_dir / PROCESS, "-conf", corefile]
    bed.processes.start(PROCESS, words, bed.plane.environment())
    url = f"http://{READY}/ready"
    bed.processes.wait_ready(PROCESS, lambda: network.answers(bed.layout, url), READY_TIMEOUT_S)
