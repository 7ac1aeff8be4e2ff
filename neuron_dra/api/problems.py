"""What can be wrong with a manifest."""

from __future__ import annotations

from neuron_dra.errors import NeuronDraError


class BadInput(NeuronDraError):
    """The manifest is malformed: Kubernetes would reject it too, or it cannot be read."""


class CannotMigrate(NeuronDraError):
    """The manifest is valid, but there is no equivalent; the message says what to do instead."""
