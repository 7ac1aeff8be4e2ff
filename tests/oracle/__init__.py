"""Tests that independent implementations judge: Go modules of Kubernetes and of GitOps programs, and cel-python."""
