"""The node side of neuron-dra, and what both sides share."""

__version__ = "0.1.0"
