"""Publishes the node's ResourceSlices: reads the hardware, decides what changed, writes."""
