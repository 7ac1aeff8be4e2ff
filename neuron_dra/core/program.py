"""The name under which a person called the command line, for the commands that an answer proposes."""

from __future__ import annotations

import sys
from typing import Final

PLUGIN_OF_KUBECTL: Final = "kubectl-neuron"


def called(path: str) -> str:
    """Return how a person calls the program with this path: kubectl finds its plugins by the names of their files."""
    return "kubectl neuron" if path.rpartition("/")[2] == PLUGIN_OF_KUBECTL else "neuron-dra"


NAME: Final = called(sys.argv[0] if sys.argv else "")
