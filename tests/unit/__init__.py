"""Tests of one part, without I/O or with a simulated node."""
