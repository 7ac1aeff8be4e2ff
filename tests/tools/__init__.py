"""Tests of the repository: hack, releases, workflows, generated files and the documentation."""
