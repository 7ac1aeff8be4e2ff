"""Objects of one tenant in messages that another tenant reads. Pure.

A namespace's name often says who works on what. Whoever may see everything finds the object by the node that the
message names: `neuron-dra status holders`.
"""

from __future__ import annotations


def shown(kind: str, namespace: str, name: str, *, reader: str) -> str:
    """Return an object for a message in the namespace `reader`: without its name if it is in another namespace."""
    if namespace == reader:
        return f"{kind} {namespace}/{name}"
    return f"a {kind} of another namespace"
