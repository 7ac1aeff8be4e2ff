"""Test doubles that are a product: a simulated node, a scripted kubelet, an embedded API server."""
