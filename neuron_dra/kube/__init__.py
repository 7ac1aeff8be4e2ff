"""Talking to the API server, and nothing else."""
