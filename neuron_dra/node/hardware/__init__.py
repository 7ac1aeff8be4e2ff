"""The node's hardware: what the kernel driver shows, read so that a read that never ends blocks nothing."""
