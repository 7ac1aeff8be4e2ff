"""JSON objects as they are on the wire: what the API server sent, and what we send it.

The Kubernetes API objects that this product does not decode further keep this form.
"""

from collections.abc import Mapping
from typing import Any

Wire = Mapping[str, Any]
"""An object to read: it is never changed in place."""

Obj = dict[str, Any]
"""An object that its owner builds or changes."""
