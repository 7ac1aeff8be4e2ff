"""Emulation for demos, tests and `neuron-dra fake-node`: simulated node, scripted kubelet, embedded API server."""
