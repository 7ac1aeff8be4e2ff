"""What `validate` checks in requests for connected sets and parts of devices: the size, and the release. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from neuron_dra.ask.read.claim_views import AlternativeView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.render import words
from neuron_dra.ask.world import demand
from neuron_dra.core import catalogue, names, sizes
from neuron_dra.core.wire import Wire

_CLASS: Final = re.compile(rf"(connected|cores)-([0-9]+)\.{re.escape(names.DRIVER)}")
_KINDS: Final[Mapping[str, str]] = {"connected": sizes.DEVICE, "cores": sizes.CORE}


def of_claim(requested: Iterable[tuple[str, AlternativeView]], why_no_sets: str) -> Iterator[tuple[str, str]]:
    """Yield code and text of what is wrong with the alternatives of a claim's requests, given with their names."""
    for name, alternative in requested:
        class_name = alternative.device_class_name
        yield from _problems(f"request {name}", class_name, class_name, why_no_sets)


def of_pod(pod: Wire, why_no_sets: str) -> Iterator[tuple[str, str]]:
    """Yield code and text of what is wrong with the limits of a pod's containers."""
    for container in PodView.of(pod).spec.all_containers:
        for resource in container.resources.limits:
            class_name = resource.removeprefix(demand.IMPLICIT)
            if class_name != resource:
                yield from _problems(f"container {container.name}", class_name, resource, why_no_sets)


def _problems(where: str, class_name: str, shown: str, why_no_sets: str) -> Iterator[tuple[str, str]]:
    match = _CLASS.fullmatch(class_name)
    if match is None:
        return
    kind, number = _KINDS[match[1]], int(match[2])
    served = sorted(set().union(*(sizes.counts(spec, kind) for spec in catalogue.all_types())))
    if number not in served:
        near = words.ranges(served, between=", ")
        text = f"{where}: no instance type serves {number} {kind}s to one container ({shown}); these are served: {near}"
        yield "SizeNotServed", text
    elif why_no_sets:
        yield "SetsNotPublished", f"{where}: nodes publish no {class_name}: {why_no_sets}"
