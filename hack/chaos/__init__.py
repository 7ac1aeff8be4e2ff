"""Faults, crashes and strange input."""
