"""Prepares and unprepares claims: the kubelet's calls, one transaction a claim, checkpoint and CDI files."""
