"""A small program that explains pods which wait for a number of devices or cores that no node serves."""
