"""Simulates the scheduler for claims: CEL selectors and the structured allocator, without a cluster."""
