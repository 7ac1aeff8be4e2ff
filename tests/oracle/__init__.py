"""Tests that Go modules of Kubernetes and of GitOps programs judge."""
