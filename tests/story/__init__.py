"""Tests of whole programs."""
