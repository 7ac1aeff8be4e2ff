"""The node side of neuron-dra, and the code that plugin and controller share."""

__version__ = "0.1.0"
