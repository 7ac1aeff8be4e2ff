"""YAML as Kubernetes reads it: dates stay texts, and `y` and `n` are booleans, as `yes` and `no` are.

Source: sigs.k8s.io/yaml, goyaml.v2, resolve.go. kubectl sends `name: n` as false, which the API server rejects.
"""

from __future__ import annotations

import re
from typing import Final

import yaml

_BOOLEAN: Final = "tag:yaml.org,2002:bool"
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


class KubernetesLoader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """A safe loader; with libyaml it is ten times as fast."""


def _boolean(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> bool:
    return str(loader.construct_scalar(node)).lower() in ("y", "yes", "true", "on")


KubernetesLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
KubernetesLoader.add_implicit_resolver(_BOOLEAN, re.compile(r"[yYnN]\Z"), list("yYnN"))
KubernetesLoader.add_constructor(_BOOLEAN, _boolean)
