"""Checks the releases of the control plane and the kubelets for known faults that meet Neuron devices. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from neuron_dra.ask.doctor.lines import Line, ok, wrong
from neuron_dra.ask.why import known_faults
from neuron_dra.ask.world.world import World

AREA: Final = "Kubernetes"


def lines(world: World) -> Iterator[Line]:
    """Yield a line for each known fault that meets something of the cluster, and one for all others of a component."""
    others: dict[str, list[str]] = defaultdict(list)
    for found in known_faults.present(world):
        if found.objects:
            yield wrong(AREA, "KubernetesKnownBad", found.text, found.remedy)
        else:
            others[found.where].append(f"#{found.fault.issue}")
    for where, numbers in others.items():
        yield ok(AREA, f"{where}: nothing meets its known faults {', '.join(numbers)} (docs/compatibility.md)")
