"""Tests on the test bed's real Kubernetes."""
