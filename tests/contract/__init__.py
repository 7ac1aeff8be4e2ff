"""Tests of an adapter against a double of what it talks to."""
