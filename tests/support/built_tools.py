"""Third-party programs that some tests run: from the environment, the PATH, or the test bed's build."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def path_of(name: str) -> str | None:
    """Return a program's path, from a variable such as HELM=path, the PATH or the test bed; None without one."""
    cache = Path.home() / ".cache/neuron-dra-testbed"
    modules = ("tools", "release", "kubernetes")
    built = [found for module in modules for found in sorted(cache.glob(f"{module}-*/bin/{name}"))]
    return os.environ.get(name.upper()) or shutil.which(name) or (str(built[-1]) if built else None)


def needs(name: str) -> Callable[[Any], Any]:
    """Mark a test that runs this program: `make test` runs it after the test bed, which builds the program."""
    missing = path_of(name) is None and not os.environ.get("NEURON_DRA_REQUIRE_TESTBED")
    skip = pytest.mark.skipif(missing, reason=f"no {name} on the PATH, and the test bed is not built")
    return lambda test: pytest.mark.tool(skip(test))


HELM = path_of("helm")
GRPCURL = path_of("grpcurl")
ACTIONLINT = path_of("actionlint")
KUBECTL = path_of("kubectl")
