"""Publishes the node's ResourceSlices: decides what changed, writes."""
