"""Objects of the chart, as helm renders them."""

from __future__ import annotations

from functools import cache

from hack.generate import render
from neuron_dra.core.wire import Obj
from tests.support import fast_yaml
from tests.support.built_tools import HELM


@cache
def rendered(*values: str) -> tuple[Obj, ...]:
    """Return all objects of the chart with these values, for Kubernetes 1.34. Raises CalledProcessError."""
    assert HELM is not None
    words = [word for value in ("draDriver.image.repository=r", *values) for word in ("--set", value)]
    return tuple(item for item in fast_yaml.load_all(render.template(HELM, *words)) if item)
