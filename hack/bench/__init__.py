"""Benchmarks: figures beside their targets."""
