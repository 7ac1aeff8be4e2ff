"""Queries of users: Plan and ListUltraServers over gRPC, and `plan --snapshot`."""
