"""Tests, and in `support` what only they need."""
