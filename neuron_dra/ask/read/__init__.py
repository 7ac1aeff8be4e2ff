"""Reads a cluster, a file or manifests into a snapshot: the objects that an answer depends on."""
