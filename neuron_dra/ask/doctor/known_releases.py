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
    unmet_by_component: dict[str, list[str]] = defaultdict(list)
    for fault in known_faults.present(world):
        if fault.objects:
            yield wrong(AREA, "KubernetesKnownBad", fault.text, fault.remedy)
        else:
            unmet_by_component[fault.where].append(f"#{fault.fault.issue}")
    for where, numbers in unmet_by_component.items():
        yield ok(AREA, f"{where}: nothing meets its known faults {', '.join(numbers)} (docs/known-faults.md)")
