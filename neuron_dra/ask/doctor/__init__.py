"""Checks an installation: the cluster from outside, and a node in its driver's container."""
